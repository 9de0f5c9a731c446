//! How members on other machines are reached.

use std::path::PathBuf;
use std::time::Duration;

use nvme_tcp::auth::Secret;
use nvme_tcp::names::{Host, HostId, Nqn};
use nvme_tcp::psk::ConfiguredPsk;

/// How members on other machines are reached.
#[derive(Clone)]
pub struct RemoteOptions {
    /// This host's name.
    pub host_nqn: Nqn,
    /// The first half of its identifiers: the machine's, the same for each of its attaches.
    pub host_half: [u8; 8],
    /// A member that does not answer for so long fails.
    pub time_limit: Duration,
    /// The target ends the association of a host that gives no sign for so long.
    pub keep_alive: Duration,
    /// Headers have digests.
    pub header_digest: bool,
    /// Data has digests.
    pub data_digest: bool,
    /// This host's secret, where targets want it to authenticate.
    pub secret: Option<Secret>,
    /// The secret that targets have to prove they know.
    pub target_secret: Option<Secret>,
    /// The key of TLS that this host shares with targets: without TLS nothing is sent to any.
    pub tls_key: Option<ConfiguredPsk>,
    /// A member that another host has reserved is taken from it.
    pub take_over: bool,
    /// A member whose target has no reservations is used all the same.
    pub unfenced: bool,
    /// Where this machine's processes lock the members that they have attached; none: they do not.
    pub locks: Option<PathBuf>,
    /// Contributions are sent to them and nothing else, by another target: nothing is reserved.
    pub is_peer: bool,
}

/// The member's time to answer unless another is asked for.
pub const TIME_LIMIT: Duration = Duration::from_secs(10);
/// What hosts ask for.
pub const KEEP_ALIVE: Duration = Duration::from_secs(5);

impl RemoteOptions {
    /// The defaults of a host.
    pub fn new(host_nqn: Nqn, host_half: [u8; 8]) -> Self {
        RemoteOptions {
            host_nqn,
            host_half,
            time_limit: TIME_LIMIT,
            keep_alive: KEEP_ALIVE,
            header_digest: false,
            data_digest: false,
            secret: None,
            target_secret: None,
            tls_key: None,
            take_over: false,
            unfenced: false,
            locks: None,
            is_peer: false,
        }
    }

    /// The host of a new attach. A reservation knows hosts by their identifier alone, so each attach has one of its own: with
    /// a fixed one a second process of this machine would be the holder, too, and nothing would fence the first.
    pub(super) fn new_host(&self) -> Host {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&self.host_half);
        id[8..].copy_from_slice(&random::<8>());
        Host { id: HostId(id), nqn: self.host_nqn.clone() }
    }
}

impl std::fmt::Debug for RemoteOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let secret = if self.secret.is_some() { "a secret" } else { "no secret" };
        write!(f, "{} with {secret}, {:?}", self.host_nqn, self.time_limit)
    }
}

/// Random bytes of the system.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let (mut bytes, mut done) = ([0; N], 0);
    while done < N {
        match rustix::rand::getrandom(&mut bytes[done..], rustix::rand::GetRandomFlags::empty()) {
            Ok(count) => done += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("the kernel gives no random bytes: {error}"),
        }
    }
    bytes
}

/// A random key of a reservation: 0 stands for none.
pub(super) fn random_key() -> u64 {
    u64::from_le_bytes(random::<8>()).max(1)
}
