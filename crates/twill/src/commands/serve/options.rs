//! How an array is served, from the command line: what the options mean, and which of them are refused before anything is written.

use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use engine::limits::PARITY_CACHE_BYTES_DEFAULT;
use engine::log::config::{MapLimits, ReclaimOptions};
use engine::members::load::UpdatePolicy;
use engine::stripe::redo::RedoContents;
use host::export::nbd::Tls;
use host::killed_server::when_free;
use host::machine::{MemoryLimit, check_memory};
use host::socket::{SocketAccess, listen_tcp};

use super::picked::absolute;
use crate::arguments::{HostArguments, ServeArguments};
use crate::commands::host_access::host_access;
use crate::control::file_name;
use crate::exit::ExitKind;
use crate::failure::Failure;
use crate::remote_arguments::{Fabric, Reducers, RemoteArguments};
use crate::serving::{NvmeTcpOptions, Process, ServeOptions, block_device, shards_default};
use crate::switch::Switch;

/// Refuses options that do not go together or not with this machine.
///
/// # Errors
/// [`ExitKind::Usage`], or that the machine has no driver for block devices.
pub fn check_options(arguments: &ServeArguments) -> Result<(), Failure> {
    if let Some(wanted) = arguments.parity_cache {
        check_memory(wanted).map_err(|error| {
            Failure::new(ExitKind::Usage, format!("--parity-cache: {error}"))
                .help("ask for less: --parity-cache SIZE")
        })?;
    }
    if arguments.avoid_slow && arguments.consistency_policy.is_some() {
        let message = "--avoid-slow reconstructs reads from parity, which may be wrong after a crash under --consistency-policy none";
        return Err(Failure::new(ExitKind::Usage, message));
    }
    if let Some(address) = arguments.metrics.filter(|address| !address.ip().is_loopback())
        && arguments.metrics_token.is_some()
    {
        let message = format!("--metrics {address}: a token would cross the network unencrypted");
        return Err(Failure::new(ExitKind::Usage, message)
            .help("use 127.0.0.1, and `ssh -L` or a server with TLS in front of it from elsewhere"));
    }
    if arguments.ublk.is_some() {
        block_device::check()?;
    }
    Ok(())
}

/// Refuses places where clients cannot be served, before the start writes to members.
///
/// # Errors
/// Which place, and why.
pub fn check_places(arguments: &ServeArguments, nvme_tcp: Option<&NvmeTcpOptions>) -> Result<(), Failure> {
    arguments.unix.nbd.iter().try_for_each(|path| check_socket_place(path, "--unix"))?;
    arguments.unix.vhost_user.iter().try_for_each(|path| check_socket_place(path, "--vhost-user"))?;
    let over_nvme_tcp = nvme_tcp.iter().flat_map(|options| &options.listen);
    if let Some(address) = arguments.metrics.filter(|address| !address.ip().is_loopback()) {
        tracing::warn!("{address}: whoever reaches this address can read the array's metrics");
    }
    check_addresses(arguments.tcp.iter().chain(over_nvme_tcp).chain(&arguments.metrics))
}

/// How the array named `name` is served, which has its control socket at `control`.
pub fn options(
    arguments: &ServeArguments,
    nvme_tcp: Option<NvmeTcpOptions>,
    tls: Option<Arc<Tls>>,
    name: &str,
    (control, process): (&Path, &Process),
) -> ServeOptions {
    let mut unix: Vec<PathBuf> = arguments.unix.nbd.iter().map(|path| absolute(path)).collect();
    let is_served_elsewhere =
        nvme_tcp.is_some() || arguments.ublk.is_some() || arguments.unix.vhost_user.is_some();
    if unix.is_empty() && arguments.tcp.is_empty() && !is_served_elsewhere {
        unix.push(control.with_file_name(format!("{}.nbd", file_name(name))));
    }
    let far = arguments.tcp.iter().filter(|address| !address.ip().is_loopback());
    for (address, reason) in far.zip(arguments.tls.openness().iter().cycle()) {
        tracing::warn!(
            "{address}: {reason}; every host that reaches this address can read and write the array"
        );
    }
    ServeOptions {
        shards: process.shards_for(arguments.shards.map(usize::from)),
        parity_cache_bytes: usize::try_from(parity_cache_bytes(arguments)).unwrap_or(usize::MAX),
        map_limits: map_limits(arguments),
        reclaim: ReclaimOptions {
            policy: arguments.reclaim,
            idle_ns: (arguments.idle_reclaim == Switch::On).then_some(ReclaimOptions::IDLE_NS),
        },
        two_phase: !arguments.no_two_phase,
        update_policy: arguments.update_policy,
        avoid_slow: arguments.avoid_slow,
        no_consistency: arguments.consistency_policy.is_some(),
        redo_log: (!arguments.no_redo_log).then_some(arguments.redo),
        fabric: arguments.fabric,
        reducers: arguments.reducers,
        read_only: arguments.read_only,
        balance: !arguments.no_balance,
        zero_copy: !arguments.no_zero_copy,
        unix,
        unix_access: arguments.unix.access(),
        vhost_user: arguments.unix.vhost_user.as_deref().map(absolute),
        tcp: arguments.tcp.clone(),
        tls,
        nvme_tcp,
        ublk: arguments.ublk,
        export_name: arguments.export_name.clone().unwrap_or_else(|| name.to_owned()),
        spare_group: arguments.spare_group.clone(),
        direct: !arguments.buffered,
    }
}

/// Who is served over NVMe/TCP, if hosts are.
///
/// # Errors
/// There are options for hosts, and none is served; or which of them may not be.
pub fn nvme_tcp(arguments: &ServeArguments) -> Result<Option<NvmeTcpOptions>, Failure> {
    let ServeArguments { nvme_tcp: listen, nvme_nqn: nqn, hosts, .. } = arguments;
    if listen.is_empty() {
        if *hosts == HostArguments::default() {
            return Ok(None);
        }
        let message = "there are options for NVMe/TCP hosts, and the array is not served to any";
        return Err(Failure::new(ExitKind::Usage, message).help("add --nvme-tcp ADDRESS, or leave them out"));
    }
    let access = host_access(hosts, &[], listen)?;
    Ok(Some(NvmeTcpOptions { listen: listen.clone(), nqn: nqn.clone(), access }))
}

/// What was asked for, or an eighth of the memory that the process may have, up to 2 GiB; a checkpoint after 256 MiB of changes.
fn map_limits(arguments: &ServeArguments) -> MapLimits {
    let most = MapLimits::default();
    let memory = arguments.map_memory.or_else(|| {
        let all = MemoryLimit::of_this_process().bytes / 8;
        Some(most.memory_bytes().map_or(all, |most| most.min(all)))
    });
    let changed = arguments.map_dirty.or(most.changed_bytes());
    MapLimits::of_bytes(memory, changed.filter(|_| arguments.checkpoint == Switch::On))
}

/// What was asked for, or an eighth of the memory that the process may have, up to 64 MiB.
fn parity_cache_bytes(arguments: &ServeArguments) -> u64 {
    let default = || (MemoryLimit::of_this_process().bytes / 8).min(PARITY_CACHE_BYTES_DEFAULT as u64);
    arguments.parity_cache.unwrap_or_else(default)
}

/// Refuses a place where no socket can be, before the start writes to members.
fn check_socket_place(path: &Path, option: &str) -> Result<(), Failure> {
    let cannot = |kind, what: &str| {
        let failure = Failure::new(kind, format!("cannot listen at {}: {what}", path.display()));
        let help =
            format!("nothing was written; name another place with {option} PATH, in a folder that exists");
        Err(failure.help(help))
    };
    let place = absolute(path);
    match place.parent() {
        Some(folder) if !folder.is_dir() => cannot(ExitKind::NotFound, "there is no such folder"),
        _ if place.is_dir() => cannot(ExitKind::AlreadyExists, "it is a folder"),
        _ => match place.symlink_metadata() {
            Ok(found) if !found.file_type().is_socket() => {
                cannot(ExitKind::AlreadyExists, "it is there already, and is no socket")
            }
            Ok(_) if is_answered(&place) => {
                cannot(ExitKind::AlreadyExists, "an array or another program is served there")
            }
            _ => Ok(()), // a socket that a killed server left behind is replaced
        },
    }
}

/// Whether a program listens at a socket, and not just one that was killed a moment ago.
fn is_answered(place: &Path) -> bool {
    let connect = || UnixStream::connect(place).map_or(Ok(()), Err);
    when_free(|_: &UnixStream| true, connect).is_err()
}

/// Refuses addresses that another program listens at or that are not this machine's, before the start writes to members.
fn check_addresses<'a>(addresses: impl Iterator<Item = &'a SocketAddr>) -> Result<(), Failure> {
    let mut listening = Vec::new(); // until all are checked: one that is named twice is refused, too
    for address in addresses {
        match listen_tcp(*address) {
            Ok(listener) => listening.push(listener),
            Err(error) => {
                let failure = Failure::cannot_listen(address, &error);
                return Err(failure.help("nothing was written; name another address or port"));
            }
        }
    }
    Ok(())
}

/// How members on other machines are reached. F-I11: where targets work together a flipped bit of a command is as bad as one of
/// data.
pub fn remote_arguments(arguments: &ServeArguments) -> RemoteArguments {
    let given = &arguments.choice.remote;
    let is_peer = arguments.fabric != Fabric::Host;
    RemoteArguments {
        hdr_digest: given.hdr_digest || is_peer,
        data_digest: given.data_digest || is_peer,
        ..given.clone()
    }
}

/// How an array is served that has no clients.
pub fn quiet_options() -> ServeOptions {
    ServeOptions {
        shards: shards_default(),
        parity_cache_bytes: 0,
        map_limits: MapLimits::default(),
        reclaim: ReclaimOptions::default(),
        two_phase: true,
        update_policy: UpdatePolicy::default(),
        avoid_slow: false,
        no_consistency: false,
        redo_log: Some(RedoContents::default()),
        fabric: Fabric::default(),
        reducers: Reducers::default(),
        read_only: false,
        balance: true,
        zero_copy: true,
        unix: Vec::new(),
        unix_access: SocketAccess::OWNER,
        vhost_user: None,
        tcp: Vec::new(),
        tls: None,
        nvme_tcp: None,
        ublk: None,
        export_name: String::new(),
        spare_group: None,
        direct: true,
    }
}
