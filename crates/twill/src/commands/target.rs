//! `target`: serves files and block devices to NVMe/TCP hosts, without an array.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use host::device::SharedDevice;
use host::export::nvme_tcp::{
    DeviceVolume, KeptReservations, NewNamespace, NewSubsystem, ReservationFileError, Server, ServerOptions,
    SubsystemError, Subsystems,
};
use host::machine::memory_bytes;
use host::shard::{ShardContext, ShardOptions, Shards};
use nvme_tcp::HashFunction;
use nvme_tcp::names::Nqn;
use nvme_tcp::subsystem::AllowList;
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use uuid::Uuid;

use super::output::Output;
use crate::arguments::TargetArguments;
use crate::control::state_folder;
use crate::exit::ExitKind;
use crate::failure::Failure;
use crate::serving::open_device;

/// Hex digits of a UUID that make a serial number.
const SERIAL_CHARACTERS: usize = 20;

/// What is served, and where.
#[derive(Serialize)]
struct Announcement {
    listening: Vec<SocketAddr>,
    namespaces: Vec<Announced>,
}

#[derive(Serialize)]
struct Announced {
    path: PathBuf,
    nqn: String,
    namespace: u32,
    uuid: String,
    size_bytes: u64,
}

/// Serves until a signal comes.
///
/// # Errors
/// Why it could not start.
pub fn run(arguments: &TargetArguments, output: Output) -> Result<(), Failure> {
    let allow = allow_list(arguments)?;
    check_addresses(arguments)?;
    let mut signals = Signals::new([SIGINT, SIGTERM])
        .map_err(|error| Failure::new(ExitKind::Internal, format!("cannot wait for signals: {error}")))?;
    let shards = start_shards(arguments)?;
    let (subsystems, namespaces) = add_all(arguments, &allow, &shards)?;
    let options = ServerOptions::default().within(memory_bytes() / 4);
    let server = Server::new(shards.handle(), subsystems, options);
    let mut listening = Vec::new();
    for address in &arguments.listen {
        let bound = server.listen(*address).map_err(|error| {
            let kind = match error.kind() {
                std::io::ErrorKind::AddrInUse => ExitKind::AlreadyExists,
                other => ExitKind::from(other),
            };
            Failure::new(kind, format!("cannot listen at {address}: {error}"))
        })?;
        listening.push(bound);
    }
    if arguments.allow_any {
        tracing::warn!("--allow-any: every host that reaches the address reads and writes what is served");
    }
    output.print(&Announcement { listening, namespaces }, words)?;
    if let Some(signal) = signals.forever().next() {
        tracing::info!("signal {signal}: the target stops");
    }
    server.stop();
    drop(server);
    shards.stop().map_err(|panic| Failure::new(ExitKind::Internal, panic.to_string()))
}

fn words(announcement: &Announcement) -> String {
    let mut lines = Vec::new();
    for Announced { path, nqn, namespace, size_bytes, .. } in &announcement.namespaces {
        lines.push(format!("{}: namespace {namespace} of {nqn}, {size_bytes} bytes", path.display()));
    }
    lines.extend(announcement.listening.iter().map(|address| format!("listening at {address}")));
    lines.join("\n")
}

fn allow_list(arguments: &TargetArguments) -> Result<AllowList, Failure> {
    if arguments.allow_any {
        return Ok(AllowList::Any);
    }
    if arguments.allow.is_empty() {
        let message = "no host may connect: none is named";
        let help = "--allow NQN names one; a Linux host has its name in /etc/nvme/hostnqn";
        return Err(Failure::new(ExitKind::Usage, message).help(help));
    }
    Ok(AllowList::Named(arguments.allow.iter().cloned().collect::<BTreeSet<Nqn>>()))
}

/// Plain TCP goes beyond this machine only if that was asked for by name.
fn check_addresses(arguments: &TargetArguments) -> Result<(), Failure> {
    let beyond = arguments.listen.iter().find(|address| !address.ip().is_loopback());
    match beyond {
        Some(address) if !arguments.insecure => {
            let message = format!(
                "{address} is reached by other machines: anybody on the way reads and changes what is sent, and any machine may call itself by an allowed name"
            );
            Err(Failure::new(ExitKind::Usage, message).help("--insecure serves there nevertheless"))
        }
        _ => Ok(()),
    }
}

fn start_shards(arguments: &TargetArguments) -> Result<Shards, Failure> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let count = arguments.shards.map_or(cores, usize::from);
    let options = ShardOptions { abort_on_panic: true, ..ShardOptions::default() };
    Shards::start(count, &options, |_| {})
        .map_err(|error| Failure::new(ExitKind::IoError, format!("cannot start {count} shards: {error}")))
}

/// Opens every device and makes it a namespace. Those with one name are namespaces of one subsystem, numbered as they come.
fn add_all(
    arguments: &TargetArguments,
    allow: &AllowList,
    shards: &Shards,
) -> Result<(Arc<Subsystems>, Vec<Announced>), Failure> {
    let (subsystems, mut numbers) = (Arc::new(Subsystems::default()), BTreeMap::new());
    let mut announced = Vec::new();
    let states = state_folder().ok_or_else(|| {
        let message = "there is no place for the state of reservations";
        Failure::new(ExitKind::Usage, message).help("set TWILL_STATE_DIR, or HOME")
    })?;
    for served in &arguments.served {
        let device = open_device(&served.path, arguments.read_only, true)
            .map_err(|problem| Failure::from_problems("it cannot be served", vec![problem]))?;
        let uuid = identity(&served.path);
        let nqn = match &served.nqn {
            Some(nqn) => nqn.clone(),
            None => Nqn::new(&format!("nqn.2014-08.org.nvmexpress:uuid:{uuid}")).expect("a short name"),
        };
        let number = numbers.entry(nqn.clone()).or_insert(0);
        *number += 1;
        if *number == 1 {
            let serial = uuid.simple().to_string()[..SERIAL_CHARACTERS].to_owned();
            subsystems
                .add(NewSubsystem { nqn: nqn.clone(), serial, allow: allow.clone() })
                .map_err(|error| failure(&error))?;
        }
        let namespace = NewNamespace { id: *number, uuid: *uuid.as_bytes() };
        let size_bytes = device.info().size_bytes;
        let read_only = arguments.read_only;
        let reservations = KeptReservations::open(&states, *uuid.as_bytes(), arguments.reservations_new)
            .map_err(|error| not_known(&served.path, &error))?;
        let open = move |context: &ShardContext| open_volume(&device, context, read_only);
        subsystems
            .add_namespace(&nqn, &namespace, &shards.handle(), reservations, open)
            .map_err(|error| failure(&error))?;
        let (path, namespace) = (served.path.clone(), *number);
        announced.push(Announced {
            path,
            nqn: nqn.to_string(),
            namespace,
            uuid: uuid.to_string(),
            size_bytes,
        });
    }
    Ok((subsystems, announced))
}

fn open_volume(
    device: &SharedDevice,
    context: &ShardContext,
    read_only: bool,
) -> Rc<DeviceVolume<host::device::HostDevice>> {
    let way = device.attach(&context.ring);
    Rc::new(DeviceVolume::new(way, Arc::clone(&context.pool), read_only))
}

/// F-I9: a namespace whose reservations are lost is served to no host.
fn not_known(path: &Path, error: &ReservationFileError) -> Failure {
    const NEW: &str = "--reservations-new begins without any: at the first start, or if no host that may have held one still runs";
    let message = format!("{} is not served: {error}", path.display());
    match error {
        ReservationFileError::Io { error, .. } => Failure::new(ExitKind::from(error.kind()), message),
        ReservationFileError::Missing(_) => Failure::new(ExitKind::NeedsForce, message).help(NEW),
        ReservationFileError::Lost { .. } => Failure::new(ExitKind::Damaged, message).help(NEW),
    }
}

fn failure(error: &SubsystemError) -> Failure {
    let kind = match error {
        SubsystemError::Exists(_) | SubsystemError::NamespaceId(_) => ExitKind::AlreadyExists,
        SubsystemError::Unknown(_) | SubsystemError::Stopping | SubsystemError::NoKeeper(_) => {
            ExitKind::Internal
        }
        SubsystemError::BlockSize(_) => ExitKind::Unsupported,
    };
    Failure::new(kind, error.to_string())
}

/// Which namespace it is, for all time: made of the machine and the path, so that it is the same after a restart.
fn identity(path: &Path) -> Uuid {
    let machine = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let text = format!("twill target\0{}\0{}", machine.trim(), path.display());
    let digest = HashFunction::Sha256.digest(text.as_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_stays_and_is_its_own() {
        let of = |path: &str| identity(Path::new(path));
        assert_eq!(of("/nowhere/a"), of("/nowhere/a"));
        assert_ne!(of("/nowhere/a"), of("/nowhere/b"));
    }
}
