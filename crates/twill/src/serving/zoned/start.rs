//! From paths to a served zoned array. What is refused is refused before anything is written, unless it says otherwise.

use std::path::Path;
use std::sync::Arc;

use engine::array::volume::VolumeMode;
use engine::array::zoned::plan;
use engine::array::zoned::start::StartError;
use engine::log::recover::found::RecoverError;
use engine::log::zone_budget;
use host::device::OpenOptions;
use host::device::zoned::{AccessChoice, SharedZones};
use host::export::array::ClientVolumes;
use host::zoned_array::{NotStarted, ZonedArray, ZonedStart};
use layout::zoned::{Access, BLOCK_BYTES, MemberZones};
use parking_lot::Mutex;
use uuid::Uuid;

use super::super::event_log::EventLog;
use super::super::manager::gone;
use super::super::open::open_device;
use super::super::platform::Known;
use super::super::process::Process;
use super::super::scrub_file::ScrubFile;
use super::super::start::exports;
use super::super::{ServeOptions, ServedArray, Serving, now_unix_s};
use super::ManagedZones;
use crate::exit::ExitKind;
use crate::failure::{Failure, Problem, open_problem};
use crate::probe::zoned_candidates::ZonedChosen;

impl ManagedZones {
    /// Opens and serves a zoned array, on shards of the process.
    ///
    /// # Errors
    /// What is wrong, with which member, and what would help.
    pub fn start(
        chosen: &ZonedChosen,
        options: &ServeOptions,
        process: &Process,
    ) -> Result<Serving, Failure> {
        let ZonedChosen { candidates, array } = chosen;
        if options.read_only {
            let message = "a zoned array is not served read-only: its start writes an epoch, and seals what a crash left open";
            return Err(Failure::new(ExitKind::Unsupported, message).help("leave out --read-only"));
        }
        let set_uuid = array.speaker.set_uuid;
        let members = open_members(chosen, options)?;
        // From here on no other program changes the members.
        let limits = members.iter().flatten().map(|member| {
            let (open_max, active_max) = member.limits();
            zone_budget::limit(open_max, active_max)
        });
        let shards = plan::shards(
            options.shards,
            plan::open_of(&array.speaker.plan),
            array.speaker.zones.zones,
            limits,
        );
        if shards < options.shards {
            tracing::info!(shards, "fewer shards than asked for: each keeps zones of every member open");
        }
        let options = &ServeOptions { shards, ..options.clone() };
        let log = Arc::new(EventLog::of(&set_uuid));
        let path = |slot: usize| chosen.path(slot).map(Path::to_path_buf);
        let slots = array.slots.len();
        let known = Known {
            paths: (0..slots).map(path).collect(),
            coming: vec![None; slots],
            replaced: vec![None; slots],
            created_unix_s: array.speaker.ctime_s,
            ..Known::default()
        };
        let known = known.shared();
        log.ask(&known);
        let sink = Arc::clone(&log);
        let superblock = |index: &usize| candidates.read[*index].superblock.clone();
        let held = members.iter().flatten().map(SharedZones::closing).collect();
        let start = ZonedStart {
            assembly: array.clone(),
            members,
            map_limits: options.map_limits,
            reclaim: options.reclaim,
            chosen: array.slots.iter().map(|slot| slot.as_ref().map(superblock)).collect(),
            events: Box::new(move |event| sink.add(event)),
            clock: now_unix_s,
            random,
        };
        let shards = process.lend(options.shards)?;
        let mode = Arc::new(VolumeMode::default());
        let zoned = ZonedArray::start(&shards, mode, start).map_err(|why| failure(chosen, &why))?;
        let managed =
            ManagedZones { array: zoned, shards, known, direct: options.direct, held: Mutex::new(held) };
        let volumes = ClientVolumes::zoned(managed.array.volumes(), options.balance);
        let exports = exports(process, &managed.shards, &volumes, true, options, &set_uuid);
        let exports = match exports {
            Ok(exports) => exports,
            Err(failure) => {
                // Why it cannot be reached says more than whether it was stopped well.
                let _ = managed.stop();
                return Err(failure);
            }
        };
        managed.log_recovery();
        Ok(Serving {
            array: ServedArray::Zoned(managed),
            exports,
            log,
            spare_group: None,
            started_unix_s: now_unix_s(),
            taken_by_force: Vec::new(),
            _scrub_file: ScrubFile::new(&set_uuid),
        })
    }

    /// Says what the start found and did.
    fn log_recovery(&self) {
        let Ok(report) = self.array.ask(|running| async move { *running.report() }) else { return };
        if let Some(fault) = report.checkpoint_fault {
            tracing::warn!(
                fault,
                "the newest checkpoint cannot be used: everything that was written was read instead"
            );
        }
        tracing::info!(
            segments = report.segments,
            from_checkpoint = report.from_checkpoint,
            left_out = report.left_out,
            replayed_groups = report.replayed_groups,
            sealed = report.sealed,
            moved_stripes = report.moved_stripes,
            void_stripes = report.void_stripes,
            reset_zones = report.reset_zones,
            "what the members hold was read"
        );
        if report.lost_blocks > 0 || report.unknown_blocks > 0 {
            tracing::error!(
                lost_blocks = report.lost_blocks,
                unknown_blocks = report.unknown_blocks,
                "blocks that had been durable cannot be made any more: reads of them are errors"
            );
        }
    }
}

/// A random number.
pub fn random() -> u64 {
    let (high, low) = Uuid::new_v4().as_u64_pair();
    (high ^ low.rotate_left(17)).max(1) // neither half is random in all its bits
}

fn open_members(chosen: &ZonedChosen, options: &ServeOptions) -> Result<Vec<Option<SharedZones>>, Failure> {
    let mut problems = Vec::new();
    let mut members = Vec::new();
    for slot in 0..chosen.array.slots.len() {
        let Some(path) = chosen.path(slot) else {
            members.push(None);
            continue;
        };
        match open_zones(path, &chosen.array.speaker.zones, options.direct) {
            Ok(member) => members.push(Some(member)),
            Err(problem) => problems.push(problem),
        }
    }
    match problems.is_empty() {
        true => Ok(members),
        false => Err(Failure::from_problems("the members cannot be opened", problems)),
    }
}

/// Opens and locks a member as its superblock says that it is written.
pub(super) fn open_zones(path: &Path, zones: &MemberZones, direct: bool) -> Result<SharedZones, Problem> {
    let open = OpenOptions { direct, ..OpenOptions::default() };
    let opened = match zones.access {
        Access::Placed => {
            let device = open_device(path, false, direct)?;
            SharedZones::place(device, u64::from(zones.zone_blocks) * BLOCK_BYTES as u64)
        }
        Access::Append => SharedZones::open(path, &open, AccessChoice::Append),
        Access::Sequential => SharedZones::open(path, &open, AccessChoice::InOrder),
    };
    opened.map_err(|error| open_problem(path, &error))
}

/// Why a start ended, with the member's path.
fn failure(chosen: &ZonedChosen, why: &NotStarted) -> Failure {
    let (kind, slot, help) = match why {
        NotStarted::Shard(error) => return gone(*error),
        NotStarted::NoNvme { slot } => {
            (ExitKind::NoDriver, Some(*slot), "Linux carries them from 5.19 on; or leave it out")
        }
        NotStarted::Engine(error) => next_step(error),
    };
    let failure = match slot.and_then(|slot| chosen.path(slot)) {
        Some(path) => Failure {
            problems: vec![Problem::new(kind, path, why.to_string())],
            ..Failure::new(kind, "the array does not start")
        },
        None => Failure::new(kind, format!("the array does not start: {why}")),
    };
    failure.help(help)
}

/// What the engine's refusal means for an operator: the exit code, the member by its slot, and what to do next.
fn next_step(error: &StartError) -> (ExitKind, Option<usize>, &'static str) {
    const LEAVE_OUT: &str = "leave it out if the level can do without it";
    match error {
        StartError::Member { slot, .. }
        | StartError::NotBegun { slot, .. }
        | StartError::Recover(RecoverError::Member { slot, .. }) => {
            (ExitKind::IoError, Some(*slot), LEAVE_OUT)
        }
        StartError::NoSuperblock { slot } => (
            ExitKind::Damaged,
            Some(*slot),
            "leave it out if the level can do without it; its data is not below its write pointers",
        ),
        StartError::Changed { slot } => {
            (ExitKind::MemberInUse, Some(*slot), "stop the other program, and start the array again")
        }
        StartError::OtherZones { slot, .. } => (ExitKind::BadGeometry, Some(*slot), LEAVE_OUT),
        StartError::Plan(_) => {
            (ExitKind::BadGeometry, None, "twill examine says what the superblock of each member names")
        }
        StartError::Limit(_) => {
            (ExitKind::BadGeometry, None, "twill zones says which drive has which limits")
        }
        StartError::Recover(RecoverError::TooFewColumns { .. }) => (
            ExitKind::NotEnoughMembers,
            None,
            "twill assemble --explain says which members are missing, stale or not yet whole",
        ),
        StartError::Recover(RecoverError::SameSlot { .. }) => {
            (ExitKind::Damaged, None, "twill examine --segments says which member has which of them")
        }
        StartError::Recover(RecoverError::Write(_)) | StartError::MetadataLost => (
            ExitKind::IoError,
            None,
            "twill events says which member failed; the next start goes on from there",
        ),
    }
}
