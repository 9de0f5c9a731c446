//! What NVMe/TCP hosts are served by: who may connect, and the reservations that outlive them. `serve` and `target` share it.

use std::net::SocketAddr;

use host::export::nvme_tcp::{
    HostKeys, KeptReservations, ReservationFileError, Server, ServerOptions, SubsystemError,
};
use host::machine::MemoryLimit;
use nvme_tcp::subsystem::AllowList;

use crate::control::state_folder;
use crate::exit::ExitKind;
use crate::failure::Failure;

/// A server's connections together hold at most this part of the memory that the process may have.
const MEMORY_PART: u64 = 4;

/// Which hosts may connect, and how.
#[derive(Clone, Debug)]
pub struct HostAccess {
    /// Their names.
    pub allow: AllowList,
    /// What they, and this end, authenticate with.
    pub keys: HostKeys,
    /// Reservations begin anew where their file is missing or damaged.
    pub reservations_new: bool,
    /// A host without digests is refused.
    pub digests_required: bool,
}

impl HostAccess {
    /// Limits of a server on this machine.
    #[must_use]
    pub fn server_options(&self) -> ServerOptions {
        let memory_bytes = MemoryLimit::of_this_process().bytes / MEMORY_PART;
        let options = ServerOptions { digests_required: self.digests_required, ..ServerOptions::default() };
        options.within(memory_bytes)
    }

    /// The reservations of a namespace, which operators know as `name`.
    ///
    /// # Errors
    /// F-I9: they are lost, so the namespace is served to no host.
    pub fn reservations(&self, name: &str, namespace: [u8; 16]) -> Result<KeptReservations, Failure> {
        let folder = state_folder().ok_or_else(|| {
            let message = "there is no place for the state of reservations";
            Failure::new(ExitKind::Usage, message).help("set TWILL_STATE_DIR, or HOME")
        })?;
        KeptReservations::open(&folder, namespace, self.reservations_new)
            .map_err(|error| not_known(name, &error))
    }
}

fn not_known(name: &str, error: &ReservationFileError) -> Failure {
    const NEW: &str = "--reservations-new begins without any: at the first start, or if no host that may have held one still runs";
    let message = format!("{name} is not served: {error}");
    match error {
        ReservationFileError::Io { error, .. } => Failure::new(ExitKind::from(error.kind()), message),
        ReservationFileError::InUse(_) => Failure::new(ExitKind::MemberInUse, message),
        ReservationFileError::Missing(_) => Failure::new(ExitKind::NeedsForce, message).help(NEW),
        ReservationFileError::Lost { .. } => Failure::new(ExitKind::Damaged, message).help(NEW),
    }
}

/// Why a subsystem is not served.
#[must_use]
pub fn subsystem_failure(error: &SubsystemError) -> Failure {
    let kind = match error {
        SubsystemError::Exists(_) | SubsystemError::NamespaceId(_) => ExitKind::AlreadyExists,
        SubsystemError::Unknown(_) | SubsystemError::Stopping | SubsystemError::NoKeeper(_) => {
            ExitKind::Internal
        }
        SubsystemError::BlockSize(_) => ExitKind::Unsupported,
    };
    Failure::new(kind, error.to_string())
}

/// Listens at each address. Returns them as they are, with the ports that were taken.
///
/// # Errors
/// The first that cannot be had.
pub fn listen(server: &Server, addresses: &[SocketAddr]) -> Result<Vec<SocketAddr>, Failure> {
    let listen = |address: &SocketAddr| {
        server.listen(*address).map_err(|error| Failure::cannot_listen(address, &error))
    };
    addresses.iter().map(listen).collect()
}
