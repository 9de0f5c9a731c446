//! A run: on each shard as many tasks as requests are in flight, each with one request after the other.
//!
//! A run adds little to a request: it loads the phase, draws a number, and reads the clock twice for one request in
//! [`SAMPLED`]. When a shard sees that the phase has changed, it reads its own counters and its thread's own clock.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use engine::buffer::{Buffer, Gather, Slice};
use engine::counters::CounterTotals;
use engine::error::VolumeError;
use engine::executor::{join_all, yield_now};
use engine::volume::{Space, Volume};
use host::array::HostVolume;
use host::shard::ShardContext;

use crate::array::{Array, OpenMembers, shards_failed};
use crate::clock::{now_ns, thread_cpu_ns};
use crate::figures::{Figures, Times, Verified};
use crate::limits::Limits;
use crate::machine::Machine;
use crate::random::Random;
use crate::setting::Setting;
use crate::shard::{Moment, ShardFigures};
use crate::verify::{BLOCK, Expected};
use crate::workload::{Replay, Request, Workload};
use crate::{Error, redundancy, trace};
use layout::units::Slot;

/// On members in memory one request in this many is timed, chosen at random: a fixed step could fall in with the order
/// in which requests are served. On files every request is timed.
const SAMPLED: u64 = 8;

/// How many places a verified request tries before it waits for others to finish.
const TRIES: usize = 64;

/// How far a run is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Phase {
    Ramp,
    Measure,
    Stop,
}

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

/// Shared by all shards: the phase of the run and the first failure.
#[derive(Default)]
struct Control {
    /// A [`Phase`].
    phase: AtomicU8,
    /// Shards that have begun to measure.
    measuring: AtomicUsize,
    failure: Mutex<Option<Error>>,
}

impl Control {
    fn fail(&self, error: Error) {
        self.failure.lock().expect("no panic while it is held").get_or_insert(error);
        self.stop();
    }

    #[inline]
    fn phase(&self) -> Phase {
        const ALL: [Phase; 3] = [Phase::Ramp, Phase::Measure, Phase::Stop];
        ALL[usize::from(self.phase.load(Relaxed))]
    }

    /// The ramp is over, unless a failure has ended the run.
    fn measure(&self) {
        let (ramp, measure) = (Phase::Ramp as u8, Phase::Measure as u8);
        let _ = self.phase.compare_exchange(ramp, measure, Relaxed, Relaxed);
    }

    fn stop(&self) {
        self.phase.store(Phase::Stop as u8, Relaxed);
    }
}

impl Job<'_> {
    /// Writes one request at a time and times each by stage: then a stage's time is work, without waiting for others.
    fn stages_alone(&self) -> Result<[u64; 6], Error> {
        let is_parity = self.array.geometry.parity_chunks() > 0;
        if !is_parity
            || self.setting.trace_time
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
        let control = Arc::new(Control::default());
        let (sender, results) = mpsc::channel();
        for shard in 0..setting.shards {
            let (host, control, sender) = (self.array.host.clone(), Arc::clone(&control), sender.clone());
            let (setting, replay, verify) = (setting.clone(), self.replay.clone(), self.verify.clone());
            self.array.shards.handle().spawn_on(shard, async move |context| {
                let worker = Worker::new(&setting, &context, host.volume(), replay.clone(), verify, control);
                let worker = Rc::new(worker);
                match replay.filter(|_| setting.trace_time) {
                    Some(replay) => replay_in_time(&worker, &context, &replay).await,
                    None => {
                        let task =
                            |slot| context.executor.spawn_with_result(Rc::clone(&worker).run_slot(slot));
                        join_all((0..setting.iodepth).map(task)).await;
                    }
                }
                worker.turn(Phase::Stop);
                let _ = sender.send(worker.figures.take()); // fails only if the caller has given up
            });
        }
        drop(sender);
        if !setting.trace_time {
            std::thread::sleep(setting.ramp());
        }
        control.measure();
        self.wait_for_all(&control, setting.shards);
        self.collect(&control, setting, &results)
    }

    /// Waits until every shard measures: the time of a run begins then, even if the system starts a shard late.
    fn wait_for_all(&self, control: &Control, shards: usize) {
        let is_over = || control.phase() == Phase::Stop || self.array.shards.failure().is_some();
        while control.measuring.load(Relaxed) < shards && !is_over() {
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    fn collect(
        &self,
        control: &Control,
        setting: &Setting,
        results: &mpsc::Receiver<ShardFigures>,
    ) -> Result<Vec<ShardFigures>, Error> {
        let end = Instant::now() + setting.runtime();
        let mut shards = Vec::new();
        while shards.len() < setting.shards {
            match results.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(figures) => shards.push(figures),
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    control.stop();
                    shards.extend(results.recv());
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
            }
        }
        if let Some(panic) = self.array.shards.failure() {
            return Err(shards_failed(panic));
        }
        match control.failure.lock().expect("no panic while it is held").take() {
            Some(error) => Err(error),
            None if shards.len() < setting.shards => Err(shards_failed("a shard has ended")),
            None => Ok(shards),
        }
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

fn flat(gather: &Gather) -> Vec<u8> {
    let mut bytes = vec![0; gather.len()];
    gather.copy_to(&mut bytes);
    bytes
}

/// Chooses one request in `one_in` on average.
struct Sampler {
    one_in: u64,
    /// Requests up to the next one that is chosen.
    left: u64,
    random: Random,
}

impl Sampler {
    fn new(one_in: u64) -> Self {
        Sampler { one_in, left: 1, random: Random::new(one_in) }
    }

    fn hits(&mut self) -> bool {
        self.left -= 1;
        if self.left > 0 {
            return false;
        }
        self.left = 1 + self.random.below(2 * self.one_in - 1);
        true
    }
}

/// The work of one shard.
struct Worker {
    volume: Rc<HostVolume>,
    shard: usize,
    workload: Workload,
    control: Arc<Control>,
    seen: Cell<Phase>,
    sampler: RefCell<Sampler>,
    figures: RefCell<ShardFigures>,
    verify: Option<Arc<Expected>>,
    bytes_max: usize,
}

impl Worker {
    fn new(
        setting: &Setting,
        context: &ShardContext,
        volume: Rc<HostVolume>,
        replay: Option<Arc<Replay>>,
        verify: Option<Arc<Expected>>,
        control: Arc<Control>,
    ) -> Self {
        let size = volume.info().size_bytes;
        let bytes_max = replay.as_ref().map_or(setting.bs, |replay| replay.bytes_max());
        Worker {
            workload: Workload::new(setting, context.index, size, replay),
            volume,
            shard: context.index,
            control,
            seen: Cell::new(Phase::Ramp),
            sampler: RefCell::new(Sampler::new(if setting.is_memory() && !setting.trace_time {
                SAMPLED
            } else {
                1
            })),
            figures: RefCell::default(),
            verify,
            bytes_max: usize::try_from(bytes_max).expect("a request fits in memory"),
        }
    }

    /// One request after the other until the end.
    async fn run_slot(self: Rc<Self>, slot: usize) {
        let data = self.new_data(slot);
        loop {
            let phase = self.control.phase();
            if phase != self.seen.get() {
                self.turn(phase);
            }
            if phase == Phase::Stop {
                return;
            }
            let Some(request) = self.next(slot).await else { return };
            let start_ns = self.sampler.borrow_mut().hits().then(now_ns);
            let result = self.serve(&request, &data).await;
            self.count(&request, start_ns, result);
        }
    }

    /// Random contents, which no member can compress. Every write of a slot uses them.
    fn new_data(&self, slot: usize) -> Slice {
        let mut random = Random::new(((self.shard as u64) << 32) + slot as u64);
        let mut data = Buffer::new(self.bytes_max);
        data.bytes_mut()
            .chunks_exact_mut(8)
            .for_each(|word| word.copy_from_slice(&random.next().to_le_bytes()));
        data.freeze()
    }

    async fn next(&self, slot: usize) -> Option<Request> {
        let Some(expected) = &self.verify else { return self.workload.next(slot) };
        loop {
            for _ in 0..TRIES {
                let request = self.workload.next(slot)?;
                if expected.take(&request) {
                    return Some(request);
                }
            }
            yield_now().await;
        }
    }

    async fn serve(&self, request: &Request, data: &Slice) -> Result<(), Error> {
        let failed = |error: VolumeError| Error::Request(error.to_string());
        if let Some(expected) = &self.verify {
            let result = self.serve_verified(request, expected).await;
            expected.give_back(request);
            return result;
        }
        if request.write {
            let data = Gather::from(data.part(0, request.bytes as usize));
            return self.volume.write(request.offset, data, false).await.map_err(failed);
        }
        self.volume.read(request.offset, request.bytes).await.map(drop).map_err(failed)
    }

    async fn serve_verified(&self, request: &Request, expected: &Expected) -> Result<(), Error> {
        let failed = |error: VolumeError| Error::Request(error.to_string());
        if !request.write {
            let read = self.volume.read(request.offset, request.bytes).await.map_err(failed)?;
            return expected.check(request.offset, &flat(&read)).map_err(Error::Contents);
        }
        let mut data = Buffer::new(request.bytes as usize);
        expected.fill(request, data.bytes_mut());
        self.volume.write(request.offset, Gather::from(data.freeze()), false).await.map_err(failed)
    }

    fn count(&self, request: &Request, start_ns: Option<u64>, result: Result<(), Error>) {
        if let Err(error) = result {
            self.control.fail(error);
        }
        if self.seen.get() != Phase::Measure {
            return;
        }
        let mut figures = self.figures.borrow_mut();
        if let Some(start_ns) = start_ns {
            figures.latency.add(now_ns().saturating_sub(start_ns));
        }
        figures.requests.add(request.write, request.bytes);
    }

    /// Takes note of a phase that this shard has seen.
    fn turn(&self, phase: Phase) {
        let before = self.seen.replace(phase);
        let mut figures = self.figures.borrow_mut();
        match (before, phase) {
            (Phase::Ramp, Phase::Measure) => {
                figures.start = self.moment();
                self.control.measuring.fetch_add(1, Relaxed);
            }
            (Phase::Measure, Phase::Stop) => figures.end = self.moment(),
            (Phase::Ramp, Phase::Stop) => (figures.start, figures.end) = (self.moment(), self.moment()),
            _ => {}
        }
    }

    fn moment(&self) -> Moment {
        let counters = &self.volume.engine().shared.counters[self.shard..=self.shard];
        Moment { wall_ns: now_ns(), cpu_ns: thread_cpu_ns(), counts: CounterTotals::of(counters) }
    }
}

/// Sends the requests of a trace when they are due. Each is timed from when it is due, even if it is sent late.
async fn replay_in_time(worker: &Rc<Worker>, context: &ShardContext, replay: &Replay) {
    let data = worker.new_data(0);
    let mut tasks = Vec::new();
    worker.turn(Phase::Measure);
    let start_ns = now_ns();
    while let Some((time_us, request)) = replay.next() {
        let due_ns = start_ns + time_us * 1000;
        if !wait_until(worker, context, due_ns).await {
            break;
        }
        while worker.verify.as_ref().is_some_and(|expected| !expected.take(&request)) {
            yield_now().await;
        }
        let (worker, data) = (Rc::clone(worker), data.clone());
        tasks.push(context.executor.spawn_with_result(async move {
            let result = worker.serve(&request, &data).await;
            worker.count(&request, Some(due_ns), result);
        }));
    }
    join_all(tasks).await;
}

/// Waits until `due_ns`; false if the run ends before.
async fn wait_until(worker: &Worker, context: &ShardContext, due_ns: u64) -> bool {
    const LOOK_EVERY: Duration = Duration::from_millis(50);
    loop {
        if worker.control.phase() == Phase::Stop {
            return false;
        }
        match due_ns.saturating_sub(now_ns()) {
            0 => return true,
            left => context.ring.sleep(Duration::from_nanos(left).min(LOOK_EVERY)).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_drawn_by_lot_and_every_one_where_that_is_asked() {
        let mut every = Sampler::new(1);
        assert!((0..100).all(|_| every.hits()));
        let mut some = Sampler::new(SAMPLED);
        let drawn: Vec<u64> = (0..80_000).filter(|_| some.hits()).collect();
        assert!((9_500..10_500).contains(&drawn.len()), "{} of 80,000", drawn.len());
        let at = |rest: u64| drawn.iter().filter(|&&request| request % SAMPLED == rest).count();
        assert!(
            (0..SAMPLED).all(|rest| (1_100..1_400).contains(&at(rest))),
            "no order of eight falls in with them"
        );
    }
}
