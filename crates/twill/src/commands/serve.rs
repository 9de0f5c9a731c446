//! `serve`: decides which members make the array, starts it, answers the control socket, and stops it in order.

mod announcement;
mod background;
mod control;
mod cost;
mod ending;
mod metrics;
mod picked;
mod remotes;
mod signals;
mod spares;

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use engine::array::assemble::Filter;
use engine::limits::PARITY_CACHE_BYTES_DEFAULT;
use engine::log::config::MapLimits;
use engine::members::load::UpdatePolicy;
use host::killed_server::when_free;
use host::machine::{MemoryLimit, check_memory};
use host::socket::listen_tcp;
use layout::md_superblock::display_uuid;

use super::host_access::host_access;
use super::output::Output;
use super::{assemble as choose, status, waiting};
use crate::arguments::{HostArguments, ServeArguments};
use crate::control::{Client, Server, file_name, own_folder};
use crate::exit::ExitKind;
use crate::failure::Failure;
use crate::own_files::PidFile;
use crate::probe::candidates::read_named;
use crate::probe::chosen::Chosen;
use crate::remote::{self, Attachment};
use crate::remote_arguments::{Fabric, Reducers, RemoteArguments};
use crate::service_manager;
use crate::serving::{NvmeTcpOptions, ServeOptions, Serving, Stopped, block_device};
use crate::status::ArrayStatus;
use crate::switch::Switch;
use announcement::Announcement;
pub use control::Controlled;
use ending::Ending;
use picked::{Picked, absolute};
use signals::{Heard, Meaning, SECOND_WITHIN, Watch};

/// Most cores that serve one array unless --shards asks for more.
const SHARDS_DEFAULT_MAX: usize = 8;

/// Serves an array until it is stopped.
///
/// # Errors
/// Why it could not be started or not be stopped in order.
pub fn run(arguments: &ServeArguments, output: Output) -> Result<(), Failure> {
    if arguments.daemon && !arguments.in_background {
        return background::launch(output);
    }
    check_options(arguments)?;
    let nvme_tcp = nvme_tcp(arguments)?;
    check_places(arguments, nvme_tcp.as_ref())?;
    remote::set(&remote_arguments(arguments))?;
    let Attachment { attached, absent } = remote::attach(&arguments.choice.members, arguments.run)?;
    let mut arguments = arguments.clone();
    arguments.choice.members.retain(|member| !absent.contains(member));
    let arguments = &arguments;
    let (choice, filter) = (&arguments.choice, choose::filter(&arguments.choice)?);
    let patience = if choice.scan.is_some() { waiting::PATIENCE } else { Duration::ZERO };
    let decide = || Picked::decide(choice, &filter);
    let chosen = waiting::look_until_there(choice, patience, decide, Picked::missing)?;
    chosen.check(arguments)?;
    let warnings = chosen.warnings();
    for warning in &warnings {
        tracing::warn!("{warning}");
    }
    let name = chosen.name().to_owned();
    let (sender, endings) = mpsc::channel();
    let watch = Watch::start(&sender, output, arguments.in_background)?;
    let control = match &arguments.control {
        Some(path) => absolute(path),
        None => own_folder()?.join(format!("{}.sock", file_name(&name))),
    };
    let server = Server::bind(&control).map_err(|failure| served_already(failure, &control, &chosen))?;
    let pid_file = arguments.pid_file.as_deref();
    let pid_file = pid_file.map(|path| PidFile::at(path, chosen.paths())).transpose()?;
    let filter = Filter { set_uuid: Some(chosen.set_uuid()), name: None, force: arguments.choice.force };
    let (chosen, serving) =
        start_when_free(chosen.with_absolute_paths(), &options(arguments, nvme_tcp, &name, &server), || {
            Picked::decide(&arguments.choice, &filter).map(Picked::with_absolute_paths)
        })?;
    drop(attached); // the array has those that it uses
    if let Some(Err(failure)) = pid_file.as_ref().map(PidFile::write) {
        serving.stop()?;
        return Err(failure);
    }
    if !arguments.read_only {
        take_back(&serving, &chosen.away(arguments.re_add));
        serving.array.expect(absent);
    }
    let controlled = Arc::new(Controlled::new(serving, sender));
    let announcement = Announcement::new(controlled.status()?, server.path(), warnings);
    if let Err(error) = server.start(Arc::clone(&controlled) as _) {
        controlled.stop(false, true)?;
        return Err(Failure::from_io("answer at", server.path(), &error));
    }
    if arguments.spare_group.is_some()
        && let Err(error) = spares::share(Arc::clone(&controlled))
    {
        tracing::warn!("spares are not shared: {error}");
    }
    if let Err(error) = remotes::look_after(Arc::clone(&controlled)) {
        tracing::warn!("members that come back are not taken back by themselves: {error}");
    }
    if let Some(address) = arguments.metrics
        && let Err(error) = metrics::answer(address, Arc::clone(&controlled))
    {
        tracing::warn!(%address, "there are no metrics: {error}");
    }
    tracing::info!(array = announcement.name, "serving");
    if arguments.in_background {
        background::announce(&announcement)?;
    } else if let Err(failure) = output.print(&announcement, announcement::words) {
        tracing::warn!("{failure}"); // it serves all the same
    }
    watch.begin_to_obey();
    service_manager::ready(&announcement::summary(&announcement));
    let outcome = wait(&controlled, &endings);
    if let (Err(failure), true) = (&outcome, arguments.in_background) {
        tracing::error!("{failure}");
    }
    drop(server);
    drop(pid_file);
    outcome
}

/// What a control socket that is in use means, if the array there is the one that was chosen.
fn served_already(failure: Failure, control: &Path, chosen: &Picked) -> Failure {
    let Ok(status) = Client::ask_briefly::<ArrayStatus>(control, "status") else { return failure };
    if status.uuid != display_uuid(&chosen.set_uuid()) {
        return failure;
    }
    let members: Vec<&str> = status.members.iter().filter_map(|member| member.path.as_deref()).collect();
    let (name, pid, members) = (&status.name, status.pid, members.join(", "));
    let message = format!("the array {name} is served already, by process {pid}, with {members}");
    Failure::new(ExitKind::AlreadyExists, message)
        .help(format!("twill status {name} says how it is; twill add or twill re-add gives it a member; twill stop {name} ends it"))
}

/// Refuses options that do not go together or not with this machine.
fn check_options(arguments: &ServeArguments) -> Result<(), Failure> {
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
    if arguments.ublk.is_some() {
        block_device::check()?;
    }
    Ok(())
}

/// Refuses places where clients cannot be served, before the start writes to members.
fn check_places(arguments: &ServeArguments, nvme_tcp: Option<&NvmeTcpOptions>) -> Result<(), Failure> {
    arguments.unix.iter().try_for_each(|path| check_socket_place(path))?;
    let over_nvme_tcp = nvme_tcp.iter().flat_map(|options| &options.listen);
    if let Some(address) = arguments.metrics.filter(|address| !address.ip().is_loopback()) {
        tracing::warn!("{address}: whoever reaches this address can read the array's metrics");
    }
    check_addresses(arguments.tcp.iter().chain(over_nvme_tcp).chain(&arguments.metrics))
}

/// Starts to serve, and waits for members that a killed server still holds. That server may have written after the choice was
/// made, so each further attempt chooses `again`.
fn start_when_free(
    chosen: Picked,
    options: &ServeOptions,
    again: impl Fn() -> Result<Picked, Failure>,
) -> Result<(Picked, Serving), Failure> {
    let is_in_use = |failure: &Failure| failure.kind == ExitKind::MemberInUse;
    let mut first = Some(chosen);
    when_free(is_in_use, || {
        let chosen = first.take().map_or_else(&again, Ok)?;
        let serving = chosen.start(options)?;
        Ok((chosen, serving))
    })
}

/// Serves an array without exports until its resync is done: for `create --wait`.
///
/// # Errors
/// The resync was interrupted or cannot go on; it continues when the array is served.
pub fn resync_and_stop(members: &[PathBuf], set_uuid: [u8; 16], output: Output) -> Result<(), Failure> {
    let (sender, endings) = mpsc::channel();
    let watch = Watch::start(&sender, output, false)?;
    let filter = Filter { set_uuid: Some(set_uuid), ..Filter::default() };
    let choose = || Chosen::decide(read_named(members)?, &filter).map(Picked::InPlace);
    let (_, serving) = start_when_free(choose()?, &quiet_options(), choose)?;
    watch.begin_to_obey();
    let interrupted = || endings.try_iter().any(|ending| matches!(ending, Ending::Signal { .. }));
    let mut bars = status::Bars::new(output);
    let is_shown = !output.json; // the answer is the one document
    let outcome = loop {
        let now = serving.status();
        if is_shown && let Err(failure) = bars.show(&now) {
            break Err(failure);
        }
        if interrupted() {
            let failure =
                Failure::new(ExitKind::Interrupted, "the array is made; its resync was interrupted");
            break Err(failure.help("the resync goes on when the array is served"));
        }
        let Some(rebuild) = &now.rebuild else { break Ok(()) };
        if now.failed || rebuild.pending {
            let failure = Failure::new(ExitKind::IoError, "the array is made; its resync cannot go on");
            break Err(failure.help("serve the array, then see twill status and twill events"));
        }
        thread::sleep(status::INTERVAL);
    };
    bars.finish();
    serving.stop()?;
    outcome
}

/// How members on other machines are reached. F-I11: where targets work together a flipped bit of a command is as bad as one of
/// data.
fn remote_arguments(arguments: &ServeArguments) -> RemoteArguments {
    let given = &arguments.choice.remote;
    let is_peer = arguments.fabric != Fabric::Host;
    RemoteArguments {
        hdr_digest: given.hdr_digest || is_peer,
        data_digest: given.data_digest || is_peer,
        ..given.clone()
    }
}

fn quiet_options() -> ServeOptions {
    ServeOptions {
        shards: shards_default(),
        parity_cache_bytes: 0,
        map_limits: MapLimits::default(),
        two_phase: true,
        update_policy: UpdatePolicy::default(),
        avoid_slow: false,
        no_consistency: false,
        no_redo_log: false,
        fabric: Fabric::default(),
        reducers: Reducers::default(),
        read_only: false,
        balance: true,
        zero_copy: true,
        poll: false,
        unix: Vec::new(),
        tcp: Vec::new(),
        nvme_tcp: None,
        ublk: None,
        export_name: String::new(),
        spare_group: None,
        direct: true,
    }
}

fn options(
    arguments: &ServeArguments,
    nvme_tcp: Option<NvmeTcpOptions>,
    name: &str,
    server: &Server,
) -> ServeOptions {
    let mut unix: Vec<PathBuf> = arguments.unix.iter().map(|path| absolute(path)).collect();
    if unix.is_empty() && arguments.tcp.is_empty() && nvme_tcp.is_none() && arguments.ublk.is_none() {
        unix.push(server.path().with_file_name(format!("{}.nbd", file_name(name))));
    }
    for address in arguments.tcp.iter().filter(|address| !address.ip().is_loopback()) {
        tracing::warn!(
            "{address}: NBD has no passwords; every host that reaches this address can read and write the array"
        );
    }
    ServeOptions {
        shards: arguments.shards.map_or_else(shards_default, usize::from),
        parity_cache_bytes: usize::try_from(parity_cache_bytes(arguments)).unwrap_or(usize::MAX),
        map_limits: map_limits(arguments),
        two_phase: !arguments.no_two_phase,
        update_policy: arguments.update_policy,
        avoid_slow: arguments.avoid_slow,
        no_consistency: arguments.consistency_policy.is_some(),
        no_redo_log: arguments.no_redo_log,
        fabric: arguments.fabric,
        reducers: arguments.reducers,
        read_only: arguments.read_only,
        balance: !arguments.no_balance,
        zero_copy: !arguments.no_zero_copy,
        poll: arguments.poll,
        unix,
        tcp: arguments.tcp.clone(),
        nvme_tcp,
        ublk: arguments.ublk,
        export_name: arguments.export_name.clone().unwrap_or_else(|| name.to_owned()),
        spare_group: arguments.spare_group.clone(),
        direct: !arguments.buffered,
    }
}

/// Who is served over NVMe/TCP, if hosts are.
fn nvme_tcp(arguments: &ServeArguments) -> Result<Option<NvmeTcpOptions>, Failure> {
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

fn shards_default() -> usize {
    thread::available_parallelism().map_or(1, |cores| cores.get().min(SHARDS_DEFAULT_MAX))
}

/// Refuses a place where no socket can be, before the start writes to members.
fn check_socket_place(path: &Path) -> Result<(), Failure> {
    let cannot = |kind, what: &str| {
        let failure = Failure::new(kind, format!("cannot listen at {}: {what}", path.display()));
        Err(failure.help("nothing was written; name another place with --unix PATH, in a folder that exists"))
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
                let kind = match error.kind() {
                    ErrorKind::AddrInUse => ExitKind::AlreadyExists,
                    other => ExitKind::from(other),
                };
                let failure = Failure::new(kind, format!("cannot listen at {address}: {error}"));
                return Err(failure.help("nothing was written; name another address or port"));
            }
        }
    }
    Ok(())
}

fn take_back(serving: &Serving, members: &[PathBuf]) {
    for member in members {
        if let Err(failure) = serving.array.re_add(member) {
            tracing::warn!("not taken back: {failure}");
        }
    }
}

/// Until `twill stop` or a signal.
fn wait(controlled: &Arc<Controlled>, endings: &Receiver<Ending>) -> Result<(), Failure> {
    let mut heard = Heard::default();
    loop {
        match endings.recv() {
            Ok(Ending::Stopped(outcome)) => {
                let Stopped { clean, connections } = outcome?;
                tracing::info!(clean, connections, "stopped");
                return Ok(());
            }
            Ok(Ending::Refused(failure)) => {
                let seconds = SECOND_WITHIN.as_secs();
                tracing::warn!("not stopped: {failure}");
                tracing::warn!("a second signal within {seconds} s of the first one ends the server at once");
                heard.refused();
            }
            Ok(Ending::Signal { signal, at }) => match heard.signal(at) {
                Meaning::Same => tracing::debug!("signal {signal} a second time within 0.1 s counts as one"),
                Meaning::EndAtOnce => {
                    let message = format!(
                        "second signal {signal}: ended at once, and the array is not clean on its members"
                    );
                    return Err(Failure::new(ExitKind::Interrupted, message)
                        .help("no acknowledged write is lost; a resync follows at the next start"));
                }
                Meaning::Stop => {
                    tracing::info!(
                        "signal {signal}: stopping in order; a second signal ends the server at once"
                    );
                    let controlled = Arc::clone(controlled);
                    thread::spawn(move || controlled.stop_and_tell());
                }
            },
            Err(_) => {
                return Err(Failure::new(
                    ExitKind::Internal,
                    "the threads that would end the server are gone",
                ));
            }
        }
    }
}
