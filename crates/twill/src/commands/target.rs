//! `target`: serves files, block devices and memory to NVMe/TCP hosts, without an array.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use host::device::{DeviceSpec, OpenOptions, SharedDevice};
use host::export::nvme_tcp::{
    DeviceVolume, KeptReservations, NewNamespace, NewSubsystem, Server, Subsystems,
};
use host::shard::{ShardContext, ShardOptions, Shards};
use nvme_tcp::HashFunction;
use nvme_tcp::names::Nqn;
use nvme_tcp::subsystem::AllowList;
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use uuid::Uuid;

use super::host_access::host_access;
use super::output::Output;
use crate::arguments::{ServedDevice, TargetArguments};
use crate::counted::counted_as;
use crate::exit::ExitKind;
use crate::failure::{Failure, Problem, open_problem};
use crate::remote;
use crate::serving::hosts::{HostAccess, listen, subsystem_failure};
use crate::serving::open_device;

/// How long commands at work get to finish at a stop.
const STOP_LIMIT: Duration = Duration::from_secs(10);

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
    let access = host_access(&arguments.hosts, &arguments.peer_allow, &arguments.listen)?;
    let mut signals = Signals::new([SIGINT, SIGTERM])
        .map_err(|error| Failure::new(ExitKind::Internal, format!("cannot wait for signals: {error}")))?;
    let shards = start_shards(arguments)?;
    let (subsystems, namespaces) = add_all(arguments, &access, &shards)?;
    let server = Server::new(shards.handle(), subsystems, access.server_options());
    let listening = listen(&server, &arguments.listen)?;
    output.print(&Announcement { listening, namespaces }, words)?;
    if let Some(signal) = signals.forever().next() {
        tracing::info!("signal {signal}: the target stops");
    }
    let left = server.stop(STOP_LIMIT);
    if left > 0 {
        tracing::warn!(
            "{} cut off: not all was answered in {} s",
            counted_as(left as u64, "connection was", "connections were"),
            STOP_LIMIT.as_secs()
        );
    }
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
    access: &HostAccess,
    shards: &Shards,
) -> Result<(Arc<Subsystems>, Vec<Announced>), Failure> {
    let subsystems = Subsystems::with_keys(access.keys.clone()).map_err(|error| subsystem_failure(&error))?;
    let (subsystems, mut numbers) = (Arc::new(subsystems), BTreeMap::new());
    subsystems.connect_peers(remote::peer_options(
        arguments.peer_hostnqn.as_ref(),
        arguments.peer_dhchap_secret.as_deref(),
        arguments.peer_tls_secret.as_deref(),
    )?);
    let peers = (!arguments.read_only).then(|| peers(arguments));
    let mut announced = Vec::new();
    for served in &arguments.served {
        let device = open(&served.device, arguments.read_only)
            .map_err(|problem| Failure::from_problems("it cannot be served", vec![problem]))?;
        let uuid = identity(&served.device);
        let nqn = match &served.nqn {
            Some(nqn) => nqn.clone(),
            None => Nqn::new(&format!("nqn.2014-08.org.nvmexpress:uuid:{uuid}")).expect("a short name"),
        };
        let number = numbers.entry(nqn.clone()).or_insert(0);
        *number += 1;
        if *number == 1 {
            let serial = uuid.simple().to_string()[..SERIAL_CHARACTERS].to_owned();
            let is_of_it = |one: &&ServedDevice| {
                one.nqn == served.nqn && (one.nqn.is_some() || one.device == served.device)
            };
            let drives = arguments.served.iter().filter(is_of_it).map(|one| life(&one.device)).collect();
            subsystems
                .add(NewSubsystem {
                    nqn: nqn.clone(),
                    serial,
                    allow: access.allow.clone(),
                    drives,
                    peers: peers.clone(),
                    peer_memory: arguments.peer_memory,
                })
                .map_err(|error| subsystem_failure(&error))?;
        }
        let namespace = NewNamespace { id: *number, uuid: *uuid.as_bytes() };
        let size_bytes = device.info().size_bytes;
        let read_only = arguments.read_only;
        let name = served.device.to_string();
        let reservations = match is_memory(&served.device) {
            true => KeptReservations::of_memory(&name, *uuid.as_bytes()),
            false => access.reservations(&name, *uuid.as_bytes())?,
        };
        let open = move |context: &ShardContext| open_volume(&device, context, read_only);
        subsystems
            .add_namespace(&nqn, &namespace, &shards.handle(), reservations, open)
            .map_err(|error| subsystem_failure(&error))?;
        let (path, namespace) = (name.into(), *number);
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

/// Which targets may send parts of parity.
fn peers(arguments: &TargetArguments) -> AllowList {
    match arguments.hosts.allow_any {
        true => AllowList::Any,
        false => AllowList::Named(arguments.peer_allow.iter().cloned().collect()),
    }
}

fn open_volume(
    device: &SharedDevice,
    context: &ShardContext,
    read_only: bool,
) -> Rc<DeviceVolume<host::device::HostDevice>> {
    let way = device.attach(&context.ring);
    Rc::new(DeviceVolume::new(way, Arc::clone(&context.pool), read_only))
}

fn open(device: &DeviceSpec, read_only: bool) -> Result<SharedDevice, Problem> {
    let path = PathBuf::from(device.to_string());
    match device {
        DeviceSpec::Path(_) | DeviceSpec::Remote(_) => open_device(&path, read_only, true),
        DeviceSpec::Memory { .. } | DeviceSpec::Null { .. } => {
            let opened = device.open(&OpenOptions::default()).map_err(|error| open_problem(&path, &error))?;
            if let SharedDevice::Memory(memory) = &opened
                && memory.stores()
                && let Err(error) = memory.populate()
            {
                // Older kernels provide it as it is written.
                tracing::debug!(%error, "the memory of {device} is not provided yet");
            }
            Ok(opened)
        }
    }
}

fn is_memory(device: &DeviceSpec) -> bool {
    matches!(device, DeviceSpec::Memory { .. } | DeviceSpec::Null { .. })
}

/// Which namespace it is, for all time: made of the machine and the path, so that it is the same after a restart. Memory is another
/// one each time: nothing of what it held is there any more.
fn identity(device: &DeviceSpec) -> Uuid {
    if is_memory(device) {
        return Uuid::new_v4();
    }
    let path = PathBuf::from(device.to_string());
    let machine = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
    let path = path.canonicalize().unwrap_or(path);
    let text = format!("twill target\0{}\0{}", machine.trim(), path.display());
    let digest = HashFunction::Sha256.digest(text.as_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}

/// What tells one life of a drive from the next: the kernel numbers drives as they come, and never gives a number twice. A file
/// has none: it lives and dies with its file system.
fn life(device: &DeviceSpec) -> String {
    let DeviceSpec::Path(path) = device else { return String::new() };
    let Ok(metadata) = std::fs::metadata(path) else { return String::new() };
    if !metadata.file_type().is_block_device() {
        return String::new();
    }
    let number = metadata.rdev();
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let own = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    // A partition has the number of its drive.
    let drive = if own.join("partition").exists() { own.join("..") } else { own };
    let sequence = std::fs::read_to_string(drive.join("diskseq")).unwrap_or_default();
    format!("{} ", sequence.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_stays_and_is_its_own() {
        let of = |text: &str| identity(&DeviceSpec::parse(text).expect("a device").remove(0));
        assert_eq!(of("/nowhere/a"), of("/nowhere/a"));
        assert_ne!(of("/nowhere/a"), of("/nowhere/b"));
        assert_ne!(of("memory:1G"), of("memory:1G"), "what it held is gone");
    }
}
