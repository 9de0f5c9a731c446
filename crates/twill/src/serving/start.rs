//! From paths to a served array. Whatever is refused is refused before anything is written or listened on.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use engine::array::assemble::{Assembly, Candidate};
use engine::array::start::{
    Assembled, Consistency, MemberProblem, MemberProblemKind, NotAssembled, Policy, Prepared,
};
use engine::array::volume::VolumeMode;
use engine::events::Event;
use engine::members::load::Clock;
use engine::stripe::locks::Locks;
use host::array::{HostArray, MemberDevice};
use host::device::SharedDevice;
use host::export::array::ClientVolumes;
use host::export::nbd::{Address, ExportOptions, Server, ServerOptions};
use host::shard::Handle;
use layout::md_superblock::Superblock;
use layout::redo_log::RedoArea;

use super::event_log::EventLog;
use super::manager::{ArrayManager, gone};
use super::open::open_member;
use super::platform::Known;
use super::process::Process;
use super::remote::Remotes;
use super::scrub_file::{ScrubFile, left_open};
use super::{Exports, ManagedArray, ServeOptions, ServedArray, Serving, end, now_unix_s};
use crate::exit::ExitKind;
use crate::failure::{Failure, Problem};
use crate::probe::candidates::Candidates;
use crate::probe::chosen::Chosen;
use crate::probe::inspection::inspection;
use crate::remote_arguments::{Fabric, Reducers};
use host::device::nvme_tcp::PeerGroup;

impl Serving {
    /// Opens and serves an array, on shards of the process.
    ///
    /// # Errors
    /// What is wrong, with which member, and what would help. Nothing was written then.
    pub fn start(chosen: &Chosen, options: &ServeOptions, process: &Process) -> Result<Serving, Failure> {
        let Chosen { candidates, array: assembly, .. } = chosen;
        let opened = Opened::open(candidates, assembly, options)?;
        // From here on no other program changes the members.
        let assembled = opened.assembled(candidates, assembly, &policy(options, &opened, chosen.force))?;
        opened.reserve_logs(&assembled.redo_areas());
        let log = Arc::new(EventLog::of(&assembly.set_uuid));
        let sink = Arc::clone(&log);
        let clock = Arc::new(SinceStart(Instant::now()));
        let mode = Arc::new(VolumeMode { read_only: options.read_only.into(), ..VolumeMode::default() });
        let fenced = Arc::clone(&mode);
        let hear = move |event| {
            if matches!(event, Event::Fenced { .. }) {
                fenced.fenced.store(true, Relaxed);
            }
            sink.add(event);
        };
        let prepared = Prepared::new(assembled, Box::new(hear), clock);
        let shards = process.lend(options.shards)?;
        let shared = Arc::clone(prepared.shared());
        let array = HostArray::start(
            Handle::clone(&shards),
            Arc::clone(&shared),
            Arc::clone(&mode),
            &opened.members,
            opened.logical_block_bytes(),
        )
        .map_err(gone)?;
        // Other arrays go on on these shards: nothing of one that does not start may stay there.
        let started = array.clone();
        let fails = |failure: Failure| {
            started.close();
            failure
        };
        let array = with_peers(array, &opened.members, options, &assembly.set_uuid).map_err(&fails)?;
        let known = opened.known(candidates, assembly).shared();
        log.ask(&known);
        let remotes = Remotes::new(&log, &known, &shared, &mode);
        known.lock().devices.values().for_each(|device| remotes.follow(device));
        chosen.stale.iter().for_each(|taken| log.add(taken.clone()));
        let scrub_file = ScrubFile::new(&assembly.set_uuid);
        let scrub = (left_open(&assembly.set_uuid), scrub_file.sender());
        let manager = ArrayManager::start(&shards, &array, prepared, opened.others, scrub, &known);
        let manager = manager.map_err(&fails)?;
        let fast_zero = array.shared.geometry.parity_chunks() > 0;
        let volumes = ClientVolumes::in_place(array.volumes(), options.balance);
        let exports = match exports(process, &shards, &volumes, fast_zero, options, &assembly.set_uuid) {
            Ok(exported) => exported,
            Err(failure) => {
                // The reason why the array cannot be served says more than a failure to stop it.
                let _ = end(manager, &array, shards);
                return Err(failure);
            }
        };
        Ok(Serving {
            array: ServedArray::InPlace(ManagedArray {
                host: array,
                shards,
                manager,
                known,
                read_only: options.read_only,
                remotes,
            }),
            exports,
            log,
            spare_group: options.spare_group.clone(),
            started_unix_s: now_unix_s(),
            taken_by_force: chosen.stale_words(),
            _scrub_file: scrub_file,
        })
    }
}

/// Has the members' targets make parity among themselves, if that is wanted.
fn with_peers(
    array: HostArray,
    members: &[Option<MemberDevice>],
    options: &ServeOptions,
    uuid: &[u8; 16],
) -> Result<HostArray, Failure> {
    if options.fabric == Fabric::Host {
        return Ok(array);
    }
    let shared = Arc::clone(&array.shared);
    shared.peers.enable(options.fabric == Fabric::Auto);
    if options.reducers == Reducers::Random {
        shared.peers.draw_reducers();
    }
    let group = PeerGroup::new(*uuid, shared).map_err(|error| {
        Failure::new(
            ExitKind::IoError,
            format!("no thread can be started that attaches the targets: {error}"),
        )
    })?;
    Ok(array.with_peers(group, members))
}

/// How the engine is to run the array.
fn policy(options: &ServeOptions, opened: &Opened, force: bool) -> Policy {
    Policy {
        read_only: options.read_only,
        force,
        consistency: if options.no_consistency { Consistency::None } else { Consistency::Marked },
        redo_log: options.redo_log,
        logical_block_bytes: opened.logical_block_bytes(),
        shards: options.shards,
        parity_cache_bytes: options.parity_cache_bytes,
        locks: Locks::default(),
        two_phase: options.two_phase,
        update_policy: options.update_policy,
        avoid_slow: options.avoid_slow,
    }
}

/// The members of an assembly, open and locked.
struct Opened {
    /// The candidates, with superblocks that were read under the lock.
    candidates: Vec<Candidate>,
    members: Vec<Option<MemberDevice>>,
    /// Spares, and what is to replace members, by candidate.
    others: HashMap<usize, SharedDevice>,
    /// The logical block that the members' superblocks record.
    recorded_block_bytes: u32,
}

impl Opened {
    fn open(candidates: &Candidates, assembly: &Assembly, options: &ServeOptions) -> Result<Self, Failure> {
        let mut opened = Opened {
            candidates: candidates.read.clone(),
            members: Vec::new(),
            others: HashMap::new(),
            recorded_block_bytes: 512,
        };
        let mut problems = Vec::new();
        let mut open = |index: usize, read: &mut [Candidate]| match open_member(
            &candidates.paths[index],
            &candidates.read[index],
            options,
        ) {
            Ok((device, superblock)) => {
                let data_offset = superblock.data_start();
                read[index].superblock = Ok(superblock);
                Some(MemberDevice { device, data_offset })
            }
            Err(problem) => {
                problems.push(problem);
                None
            }
        };
        for slot in &assembly.slots {
            opened.members.push(slot.and_then(|index| open(index, &mut opened.candidates)));
        }
        let recorded = |slot: &Option<usize>| {
            opened.candidates[(*slot)?].superblock.as_ref().ok()?.logical_block_bytes()
        };
        opened.recorded_block_bytes = assembly.slots.iter().filter_map(recorded).fold(512, u32::max);
        let replacements = assembly.replacements.iter().filter(|_| !options.read_only);
        for index in assembly.spares.iter().copied().chain(replacements.map(|(index, _)| *index)) {
            let member = open(index, &mut opened.candidates);
            opened.others.extend(member.map(|member| (index, member.device)));
        }
        if problems.is_empty() {
            opened.leave_out_larger_blocks();
            return Ok(opened);
        }
        Err(Failure::from_problems("the members cannot be opened", problems))
    }

    /// What the members hold beside their superblocks, and how the array starts from that.
    fn assembled(
        &self,
        candidates: &Candidates,
        assembly: &Assembly,
        policy: &Policy,
    ) -> Result<Assembled, Failure> {
        let inspection = inspection(&candidates.paths, &self.candidates, assembly);
        let mut assembled = Assembled::read(&inspection, policy.clone()).map_err(|why| match why {
            NotAssembled::Refused(refusal) => Failure::new(ExitKind::from(&refusal), refusal.to_string()),
            NotAssembled::BitmapNotKept => {
                let message = "the array has a bitmap, which --consistency-policy none would leave untrue";
                Failure::new(ExitKind::Usage, message).help("take it off first: mdadm --grow --bitmap=none")
            }
            NotAssembled::Members(problems) => {
                let problem = |problem: &MemberProblem| as_problem(candidates, problem);
                let problems = problems.iter().map(problem).collect();
                Failure::from_problems("the members cannot be taken as they are", problems)
            }
        })?;
        if let Some(why) = assembled.bitmap().and_then(|bitmap| bitmap.distrust.as_ref()) {
            tracing::warn!("no member's bitmap can be believed, so all of it counts as set: {why}");
        }
        self.use_ledgers(&mut assembled);
        Ok(assembled)
    }

    /// What the members' targets have recorded of the former host takes the place of a resync, where all have.
    fn use_ledgers(&self, assembled: &mut Assembled) {
        let ledger = |member: &Option<MemberDevice>| member.as_ref()?.device.remote()?.ledger();
        let mut any = false;
        let used = assembled.use_ledgers(|| {
            let found: Vec<_> = self.members.iter().map(ledger).collect();
            any = found.iter().any(Option::is_some);
            found
        });
        if let (true, Err(why)) = (any, used) {
            tracing::info!("what the members' targets have recorded is not used: {why}");
        }
    }

    /// Unit of addressing: the largest that a member has, or what the superblocks say. Those of md say it from Linux 6.19 on, so
    /// that an array keeps the unit that its file system was made for, on whatever drives it is.
    fn logical_block_bytes(&self) -> u32 {
        let blocks = self.members.iter().flatten().map(|member| member.device.info().logical_block_bytes);
        blocks.max().unwrap_or(512).max(self.recorded_block_bytes)
    }

    /// What could not take every write that the members take is not used.
    fn leave_out_larger_blocks(&mut self) {
        let array = self.logical_block_bytes();
        let fits = |device: &SharedDevice| {
            let (name, block) = (&device.info().name, device.info().logical_block_bytes);
            if block > array {
                tracing::warn!(
                    device = name,
                    "not used: its logical blocks are {block} bytes, those of the array {array}"
                );
            }
            block <= array
        };
        self.others.retain(|_, device| fits(device));
    }

    /// Sparse files have no room yet where the redo log will be, and it is wanted just when something goes wrong.
    fn reserve_logs(&self, areas: &[Option<RedoArea>]) {
        for (member, area) in self.members.iter().zip(areas) {
            let (Some(member), Some(area)) = (member, area) else { continue };
            if let Err(error) = member.device.reserve(area.start, area.bytes) {
                let name = &member.device.info().name;
                tracing::warn!(
                    member = name,
                    "no room for its redo log: {error}; writes may be refused when a member is missing"
                );
            }
        }
    }

    /// Paths and devices, by the device's name.
    fn known(&self, candidates: &Candidates, assembly: &Assembly) -> Known {
        let members = self.members.iter().flatten().map(|member| &member.device);
        let named = |device: &SharedDevice| (device.info().name.clone(), device.clone());
        let devices = members.chain(self.others.values()).map(named).collect();
        let superblock = |slot: &Option<usize>| self.candidates[(*slot)?].superblock.as_ref().ok();
        let created_unix_s = assembly.slots.iter().find_map(superblock).map_or(0, Superblock::ctime_s);
        let path = |slot: &Option<usize>| slot.map(|index| candidates.paths[index].clone());
        Known {
            devices,
            paths: assembly.slots.iter().map(path).collect(),
            coming: vec![None; assembly.slots.len()],
            replaced: vec![None; assembly.slots.len()],
            faulty: Vec::new(),
            speed: Arc::default(),
            created_unix_s,
        }
    }
}

/// What the engine says against a member, for a person.
fn as_problem(candidates: &Candidates, problem: &MemberProblem) -> Problem {
    let (path, reason) = (&candidates.paths[problem.candidate], &problem.reason);
    match problem.kind {
        MemberProblemKind::BadBlockLogUnreadable => {
            Problem::new(ExitKind::IoError, path, format!("cannot read its bad-block log: {reason}"))
        }
        MemberProblemKind::BadBlockLogDamaged => {
            Problem::new(ExitKind::Damaged, path, format!("its bad-block log is damaged: {reason}"))
        }
        MemberProblemKind::ForeignBitmap => Problem::new(ExitKind::Unsupported, path, reason.clone()).help(
            "only md knows from it which parity was made and who else writes here; take it off with md first: \
             mdadm --grow --bitmap=none",
        ),
    }
}

/// The engine's clock.
struct SinceStart(Instant);

impl Clock for SinceStart {
    fn now_ns(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Serves the volumes of an array, whichever engine is below. `fast_zero`: zeroes cost less than data.
pub(super) fn exports(
    process: &Process,
    shards: &Handle,
    volumes: &ClientVolumes,
    fast_zero: bool,
    options: &ServeOptions,
    set_uuid: &[u8; 16],
) -> Result<Exports, Failure> {
    // From here on clients come: what is refused below ends theirs before the array is closed.
    let server = over_nbd(process, shards, volumes, fast_zero, options)?;
    let mut exports = Exports { server, nvme_tcp: None, device: None, machine: None };
    match exports.add_others(shards, volumes, options, set_uuid) {
        Ok(()) => Ok(exports),
        Err(failure) => {
            exports.stop();
            Err(failure)
        }
    }
}

fn over_nbd(
    process: &Process,
    shards: &Handle,
    volumes: &ClientVolumes,
    fast_zero: bool,
    options: &ServeOptions,
) -> Result<Server, Failure> {
    let (server_options, memory) = process.requests();
    let server_options = ServerOptions { unix: options.unix_access, ..server_options };
    let server = Server::sharing(shards.clone(), server_options, memory, options.tls.clone());
    let export = ExportOptions { read_only: options.read_only, fast_zero, ..ExportOptions::default() };
    let added = volumes.over_nbd(server.exports(), &options.export_name, export);
    added.map_err(|error| Failure::new(ExitKind::Usage, error.to_string()))?;
    server.exports().set_default(Some(&options.export_name));
    let unix = options.unix.iter().cloned().map(Address::Unix);
    for address in unix.chain(options.tcp.iter().copied().map(Address::Tcp)) {
        server.listen(&address).map_err(|error| Failure::cannot_listen(&address, &error))?;
    }
    Ok(server)
}
