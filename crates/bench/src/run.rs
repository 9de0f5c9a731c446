//! A run: requests driven at an array that is made for it, beside the floor of the same requests, and contents that are checked.

use std::sync::Arc;

use engine::volume::Space;
use host::shard::ShardContext;
use layout::units::Slot;

use crate::array::{Array, OpenMembers, shards_failed};
use crate::drive::Driven;
use crate::figures::{Figures, Times, Verified};
use crate::limits::Limits;
use crate::machine::Machine;
use crate::setting::Setting;
use crate::shard::ShardFigures;
use crate::verify::{BLOCK, Expected, flat};
use crate::workload::Replay;
use crate::{Error, redundancy, trace};

/// Runs the benchmark.
///
/// # Errors
/// What is wrong with the setting or a member, a request that failed, or contents that are not what was written.
pub fn run(setting: &Setting) -> Result<Figures, Error> {
    run_on(&OpenMembers::open(setting)?, setting)
}

/// Runs the benchmark on members that are open.
pub(crate) fn run_on(members: &OpenMembers, setting: &Setting) -> Result<Figures, Error> {
    let machine = Machine::now();
    let array = Array::start(setting, members)?;
    let replay = match &setting.trace {
        Some(path) => Some(Arc::new(replay(setting, &array, &trace::read(path)?))),
        None => None,
    };
    let verify = setting.verify.then(|| Arc::new(Expected::new(array.geometry.array_bytes())));
    // The floor writes past the engine: contents that are checked must not be measured with it.
    let limits = match setting.roofline && verify.is_none() {
        true => Limits::measure(&array, setting, replay.as_ref())?,
        false => Limits::default(),
    };
    let job = Job { array: &array, setting, replay, verify };
    let alone = job.stages_alone()?;
    let (before, locks) = (array.stages.total_ns(), array.stages.locks());
    let cache = array.host.shared.cache.counters();
    let shards = job.drive(setting)?;
    let together = std::array::from_fn(|stage| array.stages.total_ns()[stage] - before[stage]);
    let times = Times { together, alone, locks: array.stages.locks().since(&locks) };
    let cache = (cache, array.host.shared.cache.counters());
    let verified = job.check_contents()?;
    Ok(Figures::new(setting, machine, &shards, cache, &times, limits, verified))
}

fn replay(setting: &Setting, array: &Array, trace: &[trace::TraceRequest]) -> Replay {
    let unit = if setting.verify { BLOCK } else { array.unit };
    Replay::new(trace, array.geometry.array_bytes(), unit, !setting.trace_time)
}

struct Job<'a> {
    array: &'a Array,
    setting: &'a Setting,
    replay: Option<Arc<Replay>>,
    verify: Option<Arc<Expected>>,
}

impl Job<'_> {
    /// Writes one request at a time and times each by stage: then a stage's time is work, without waiting for others. Not where
    /// requests are counted: those would be some more.
    fn stages_alone(&self) -> Result<[u64; 6], Error> {
        let is_parity = self.array.geometry.parity_chunks() > 0;
        if !is_parity
            || self.setting.trace_time
            || self.setting.requests.is_some()
            || self.setting.rw.read_percent(self.setting.rwmixread) == 100
        {
            return Ok([0; 6]);
        }
        let runtime = (self.setting.runtime / 20.0).min(0.2);
        let setting = Setting { iodepth: 1, numjobs: 1, runtime, ramp: 0.0, ..self.setting.clone() };
        self.array.stages.time_every(true);
        let driven = self.drive(&setting);
        self.array.stages.time_every(false);
        if let Some(replay) = &self.replay {
            replay.restart();
        }
        driven.map(|_| self.array.stages.total_ns())
    }

    fn drive(&self, setting: &Setting) -> Result<Vec<ShardFigures>, Error> {
        let (replay, verify) = (self.replay.clone(), self.verify.clone());
        let Array { host, shards, .. } = self.array;
        Driven { volumes: host.volumes(), shards, replay, verify }.drive(setting)
    }

    /// Compares all redundancy and reads every block, then reads them again with as many members lost as the level
    /// survives.
    fn check_contents(&self) -> Result<Option<Verified>, Error> {
        let Some(expected) = &self.verify else { return Ok(None) };
        let mut lost = self.array.missing();
        let before = lost.len();
        let redundant = if lost.is_empty() { redundancy::check(self.array)? } else { 0 };
        self.check_all(expected)?;
        while let Some(slot) = self.next_to_lose(&lost) {
            self.array.host.shared.members.fail(slot, "to read without it");
            self.array.host.shared.cache.clear();
            lost.push(slot);
            self.check_all(expected)?;
        }
        Ok(Some(Verified { blocks: expected.written(), redundant, also_without: lost.split_off(before) }))
    }

    fn next_to_lose(&self, lost: &[Slot]) -> Option<Slot> {
        let survives =
            |slot: &Slot| self.array.geometry.survives(|other| other == *slot || lost.contains(&other));
        self.array.geometry.slots().rev().filter(|slot| !lost.contains(slot)).find(survives)
    }

    fn check_all(&self, expected: &Arc<Expected>) -> Result<(), Error> {
        const STEP: u64 = 64 * BLOCK;
        let size = self.array.geometry.array_bytes() / BLOCK * BLOCK;
        let (host, expected) = (self.array.host.clone(), Arc::clone(expected));
        let job = async move |_: ShardContext| {
            let volume = host.volume();
            for at in (0..size).step_by(STEP as usize) {
                let bytes = STEP.min(size - at);
                let read = volume.read(at, bytes).await.map_err(|error| Error::Request(error.to_string()))?;
                expected.check(at, &flat(&read)).map_err(Error::Contents)?;
            }
            Ok(())
        };
        self.array.shards.run_on(0, job).map_err(shards_failed)?
    }
}
