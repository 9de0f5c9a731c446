//! Requests driven at an array's volumes, whichever engine serves it: on each shard as many tasks as requests are in flight,
//! each with one request after the other.
//!
//! A run adds little to a request: it loads the phase, draws a number, and reads the clock twice for one request in
//! [`SAMPLED`]. When a shard sees that the phase has changed, it reads its own counters and its thread's own clock.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::slice;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use engine::array::volume::ArrayVolume;
use engine::buffer::{Buffer, Gather, Slice};
use engine::counters::CounterTotals;
use engine::error::VolumeError;
use engine::executor::{join_all, yield_now};
use engine::volume::{Engine, Space, Volume};
use host::shard::{ShardContext, Shards};
use host::volumes::Volumes;

use crate::Error;
use crate::array::shards_failed;
use crate::clock::{now_ns, thread_cpu_ns};
use crate::random::Random;
use crate::setting::Setting;
use crate::shard::{Moment, ShardFigures};
use crate::verify::{Expected, flat};
use crate::workload::{Replay, Request, Workload};

/// On members in memory one request in this many is timed, chosen at random: a fixed step could fall in with the order
/// in which requests are served. On files every request is timed.
const SAMPLED: u64 = 8;

/// How many places a verified request tries before it waits for others to finish.
const TRIES: usize = 64;

/// Longer than any run.
const LONGEST: Duration = Duration::from_secs(1 << 30);

/// How far a run is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Phase {
    Ramp,
    Measure,
    Stop,
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

/// What is driven.
pub(crate) struct Driven<'a, E> {
    /// The array's volumes.
    pub(crate) volumes: &'a Volumes<E>,
    /// Its shards.
    pub(crate) shards: &'a Shards,
    /// Replayed instead of what the setting draws.
    pub(crate) replay: Option<Arc<Replay>>,
    /// Checks what is read, and remembers what is written.
    pub(crate) verify: Option<Arc<Expected>>,
}

impl<E: Engine> Driven<'_, E> {
    /// Drives requests as the setting says. Returns what each shard did.
    pub(crate) fn drive(&self, setting: &Setting) -> Result<Vec<ShardFigures>, Error> {
        let control = Arc::new(Control::default());
        if setting.requests.is_some() {
            control.measure();
        }
        let (sender, results) = mpsc::channel();
        for shard in 0..setting.shards {
            let (volumes, control, sender) = (self.volumes.clone(), Arc::clone(&control), sender.clone());
            let (setting, replay, verify) = (setting.clone(), self.replay.clone(), self.verify.clone());
            self.shards.handle().spawn_on(shard, async move |context| {
                let worker = Worker::new(&setting, &context, volumes.here(), replay.clone(), verify, control);
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
        if setting.requests.is_none() {
            if !setting.trace_time {
                std::thread::sleep(setting.ramp());
            }
            control.measure();
            self.wait_for_all(&control, setting.shards);
        }
        self.collect(&control, setting, &results)
    }

    /// Waits until every shard measures: the time of a run begins then, even if the system starts a shard late.
    fn wait_for_all(&self, control: &Control, shards: usize) {
        let is_over = || control.phase() == Phase::Stop || self.shards.failure().is_some();
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
        // Shards that count their requests end by themselves.
        let end = Instant::now() + if setting.requests.is_some() { LONGEST } else { setting.runtime() };
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
        if let Some(panic) = self.shards.failure() {
            return Err(shards_failed(panic));
        }
        match control.failure.lock().expect("no panic while it is held").take() {
            Some(error) => Err(error),
            None if shards.len() < setting.shards => Err(shards_failed("a shard has ended")),
            None => Ok(shards),
        }
    }
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
struct Worker<E> {
    volume: Rc<ArrayVolume<E>>,
    shard: usize,
    workload: Workload,
    control: Arc<Control>,
    seen: Cell<Phase>,
    sampler: RefCell<Sampler>,
    figures: RefCell<ShardFigures>,
    verify: Option<Arc<Expected>>,
    bytes_max: usize,
    /// Requests yet to be sent, where they are counted.
    left: Cell<u64>,
}

impl<E: Engine> Worker<E> {
    fn new(
        setting: &Setting,
        context: &ShardContext,
        volume: Rc<ArrayVolume<E>>,
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
            sampler: RefCell::new(Sampler::new(if setting.is_fast() && !setting.trace_time {
                SAMPLED
            } else {
                1
            })),
            figures: RefCell::default(),
            verify,
            bytes_max: usize::try_from(bytes_max).expect("a request fits in memory"),
            left: Cell::new(setting.requests.unwrap_or(u64::MAX)),
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
            let left = self.left.get();
            if phase == Phase::Stop || left == 0 {
                return;
            }
            self.left.set(left - 1);
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
        let counters = slice::from_ref(self.volume.engine().counters());
        Moment { wall_ns: now_ns(), cpu_ns: thread_cpu_ns(), counts: CounterTotals::of(counters) }
    }
}

/// Sends the requests of a trace when they are due. Each is timed from when it is due, even if it is sent late.
async fn replay_in_time<E: Engine>(worker: &Rc<Worker<E>>, context: &ShardContext, replay: &Replay) {
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
async fn wait_until<E: Engine>(worker: &Worker<E>, context: &ShardContext, due_ns: u64) -> bool {
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
