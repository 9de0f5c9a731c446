//! One array, from its first start to its last: it is filled, written over while the power is cut again and again, and compared with what
//! the oracle allows after each start.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use engine::array::scrub::ScrubState;
use engine::array::zoned::check::check;
use engine::buffer::{Buffer, Gather};
use engine::error::VolumeError;
use engine::executor::join_all;
use engine::log::config::{LogConfig, RESERVED_SEGMENTS};
use engine::log::engine::LogSet;
use engine::log::shared::LogShared;
use engine::log::space::SpaceTotals;
use engine::mismatch::ScrubMode;
use engine::volume::Space as _;
use engine::zone_device::timing::DriveModel;

use super::Places;
use crate::experiment::zoned::drive::{Keeps, TimedZones};
use crate::experiment::zoned::machine::Machine;
use crate::experiment::zoned::members::{BLOCK, Members, Served, Started};
use crate::experiment::zoned::places::WritePlaces;
use crate::oracle::Oracle;
use crate::pages;
use crate::random::Random;
use crate::timeline::Timeline;
use crate::zoned::medium::Survival;

/// Writes in flight.
const DEPTH: usize = 64;
/// KiB of a write.
const WRITE_KIB: u64 = 4;
/// One request in this many is a flush.
const FLUSH_ONE_IN: u64 = 200;
/// Of a hundred writes so many are FUA.
const FUA_PERCENT: u64 = 5;
/// Writes of the fill, in blocks, and in flight.
const FILL_BLOCKS: u64 = 32;
const FILL_DEPTH: usize = 4;
/// Reads of the comparison, in blocks, and in flight.
const READ_BLOCKS: u64 = 32;
const READ_DEPTH: usize = 8;
/// One cut in this many comes in the start from the one before.
const CUT_STARTS_ONE_IN: u64 = 5;
/// A cut comes within this time after the write that it was drawn for began.
const CUT_WITHIN_NS: u64 = 300_000;
/// How often a trial looks whether a cut is due.
const LOOK_NS: u64 = 20_000;
/// For so long after a start writes are counted apart: a cut costs the rest of what was open, and a copy that was half made, so that a start
/// finds reclaim behind.
pub(super) const BEHIND_NS: u64 = 5_000_000;
/// Requests that take longer never end.
const STILL_NS: u64 = 10_000_000_000;

/// An array, and what is done to it.
pub(super) struct Plan {
    pub(super) config: LogConfig,
    pub(super) places: Places,
    /// How many times its capacity is written.
    pub(super) times: u64,
    pub(super) cuts: u64,
}

/// What came of it. Times are in virtual nanoseconds, writes those of 4 KiB, without the fill's.
#[derive(Default)]
pub(super) struct Figures {
    /// Of each write that was acknowledged, but for those that began soon after a start from a cut.
    pub(super) took_ns: Vec<u64>,
    /// Of these.
    pub(super) behind_ns: Vec<u64>,
    pub(super) fua_writes: u64,
    pub(super) flushes: u64,
    pub(super) refused: u64,
    pub(super) checked_blocks: u64,
    pub(super) cuts: u64,
    pub(super) cuts_in_starts: u64,
    /// While writes were in flight.
    pub(super) serving_ns: u64,
    /// Of each start that was not cut.
    pub(super) starts_ns: Vec<u64>,
    pub(super) from_checkpoint: u64,
    /// Blocks that clients wrote, that were moved, and that were written of the map.
    pub(super) user_blocks: u64,
    pub(super) moved_blocks: u64,
    pub(super) map_blocks: u64,
    /// Blocks that all drives wrote, while the array served and in starts.
    pub(super) drive_blocks: u64,
    pub(super) start_blocks: u64,
    /// What was found wrong first.
    pub(super) wrong: Option<String>,
}

/// When the power is cut.
#[derive(Clone, Copy)]
enum Cut {
    /// So long after so many writes are left to begin.
    Serving { left: u64, after_ns: u64 },
    /// In the start, at this part of what the last start took, in thousandths.
    Starting { part: u64 },
}

/// Writes at random to a new array: a fifth of its capacity, after a twentieth that is not measured.
pub(super) fn on_a_new_array(plan: &Plan) -> Figures {
    let trial = Trial::new(plan);
    let (own, capacity) = (Rc::clone(&trial), plan.config.logical_blocks);
    Machine::run(&trial.time, |machine| async move {
        let Some(started) = own.start(&machine).await else { return };
        let served = own.members.go_on(&machine, &started);
        own.write_all(&machine, &served, capacity / 20).await;
        own.figures.take();
        own.write_all(&machine, &served, capacity / 5).await;
    });
    trial.figures.take()
}

/// Fills an array and writes it over, with power cuts.
pub(super) fn with_cuts(plan: &Plan) -> Figures {
    let trial = Trial::new(plan);
    let writes = plan.times * plan.config.logical_blocks;
    trial.left.set(writes);
    for cut in trial.draw_cuts(plan.cuts, writes) {
        trial.live_until(cut);
        if trial.has_failed() {
            return trial.figures.take();
        }
        trial.cut_power();
    }
    trial.live_to_the_end();
    trial.figures.take()
}

/// What outlives a power cut.
struct Trial {
    members: Rc<Members>,
    time: Rc<Timeline>,
    blocks: u64,
    random: Random,
    places: WritePlaces,
    oracle: RefCell<Oracle>,
    is_filled: Cell<bool>,
    /// Writes that begin earlier come soon after a start from a cut.
    behind_until_ns: Cell<u64>,
    /// Writes that are still to begin.
    left: Cell<u64>,
    /// Writes that began and have not ended.
    in_flight: Cell<usize>,
    figures: RefCell<Figures>,
}

impl Trial {
    fn new(plan: &Plan) -> Rc<Self> {
        let (time, blocks) = (Timeline::new(), plan.config.logical_blocks);
        Rc::new(Trial {
            members: Members::new(plan.config.clone(), DriveModel::Zn540, Keeps::Cache, &time),
            time,
            blocks,
            random: Random::new(11),
            places: WritePlaces::new(plan.places, blocks, WRITE_KIB),
            oracle: RefCell::new(Oracle::new(blocks, false)),
            is_filled: Cell::new(false),
            behind_until_ns: Cell::new(0),
            left: Cell::new(0),
            in_flight: Cell::new(0),
            figures: RefCell::default(),
        })
    }

    /// At random, in order.
    fn draw_cuts(&self, cuts: u64, writes: u64) -> Vec<Cut> {
        let mut moments: Vec<u64> = (0..cuts).map(|_| self.random.below(writes)).collect();
        moments.sort_unstable_by(|one, other| other.cmp(one));
        let cut = |(number, left): (usize, u64)| {
            if number > 0 && self.random.one_in(CUT_STARTS_ONE_IN) {
                Cut::Starting { part: self.random.below(1000) }
            } else {
                Cut::Serving { left, after_ns: self.random.below(CUT_WITHIN_NS) }
            }
        };
        moments.into_iter().enumerate().map(cut).collect()
    }

    fn has_failed(&self) -> bool {
        self.figures.borrow().wrong.is_some()
    }

    fn fail(&self, what: &str) {
        let mut figures = self.figures.borrow_mut();
        let cuts = figures.cuts;
        figures.wrong.get_or_insert(format!("after {cuts} power cuts: {what}"));
    }

    /// The array starts, is compared, and is written to until the power is cut.
    fn live_until(self: &Rc<Self>, cut: Cut) {
        let own = Rc::clone(self);
        Machine::run(&self.time, |machine| async move {
            match cut {
                Cut::Starting { part } => {
                    let last_ns = own.figures.borrow().starts_ns.last().copied().unwrap_or(0);
                    let starting = Rc::clone(&own).start_by_itself(machine.clone());
                    let starting = machine.executor.spawn_with_result(starting);
                    match either(starting, machine.sleep(last_ns * part / 1000)).await {
                        None => own.figures.borrow_mut().cuts_in_starts += 1,
                        Some(None) => {}
                        // It took less time than the last one.
                        Some(Some(started)) => {
                            own.compare(&machine, &own.members.at_rest(&machine, &started)).await;
                        }
                    }
                }
                Cut::Serving { left, after_ns } => {
                    let Some(served) = own.serve(&machine).await else { return };
                    own.measure(&machine, &served, own.write_until(&machine, &served, left, after_ns)).await;
                }
            }
        });
    }

    /// The same until all is written; then it is checked, stopped and started once more.
    fn live_to_the_end(self: &Rc<Self>) {
        let own = Rc::clone(self);
        Machine::run(&self.time, |machine| async move {
            let Some(served) = own.serve(&machine).await else { return };
            own.measure(&machine, &served, own.write_until(&machine, &served, 0, 0)).await;
            own.wait(&machine, || own.in_flight.get() == 0).await;
            own.flush(&served.set).await;
            own.compare(&machine, &served.set).await;
            own.check(&served).await;
            if let Err(error) = served.set.stop().await {
                own.fail(&format!("the array does not stop: {error}"));
            }
        });
        if self.has_failed() {
            return;
        }
        self.lose_power(Survival::Nothing);
        let own = Rc::clone(self);
        Machine::run(&self.time, |machine| async move {
            _ = own.serve(&machine).await;
        });
    }

    /// What the drives keep of their caches is drawn.
    fn cut_power(&self) {
        self.figures.borrow_mut().cuts += 1;
        let survival = self.random.pick(&[
            Survival::Nothing,
            Survival::Everything,
            Survival::Some { hostile: false },
            Survival::Some { hostile: true },
            Survival::Some { hostile: true },
        ]);
        self.lose_power(survival);
    }

    fn lose_power(&self, survival: Survival) {
        self.time.clear();
        self.members.cut(survival, &self.random);
        self.oracle.borrow_mut().cut();
        self.in_flight.set(0);
    }

    /// Starts, and serves: a new array is filled. Any other is compared first, while reclaim does not work yet: the time that this takes
    /// is no gift to it.
    async fn serve(self: &Rc<Self>, machine: &Machine) -> Option<Served> {
        let started = self.start(machine).await?;
        if self.is_filled.get() {
            self.compare(machine, &self.members.at_rest(machine, &started)).await;
        }
        let served = self.members.go_on(machine, &started);
        self.behind_until_ns.set(machine.time.now_ns() + BEHIND_NS);
        if !self.is_filled.replace(true) {
            self.fill(machine, &served).await;
        }
        (!self.has_failed()).then_some(served)
    }

    async fn start_by_itself(self: Rc<Self>, machine: Machine) -> Option<Started> {
        self.start(&machine).await
    }

    /// None: it does not start.
    async fn start(&self, machine: &Machine) -> Option<Started> {
        let (began_ns, written) = (self.time.now_ns(), self.members.written_blocks());
        let started = match self.members.start(machine).await {
            Ok(started) => started,
            Err(error) => {
                self.fail(&format!("the array does not start: {error}"));
                return None;
            }
        };
        let report = &started.report;
        if report.lost_blocks > 0 || report.unknown_blocks > 0 || report.checkpoint_fault.is_some() {
            self.fail(&format!("a start calls something lost that drives kept: {report:?}"));
        }
        let mut figures = self.figures.borrow_mut();
        figures.starts_ns.push(self.time.now_ns() - began_ns);
        figures.start_blocks += self.members.written_blocks() - written;
        figures.from_checkpoint += u64::from(report.from_checkpoint);
        drop(figures);
        Some(started)
    }

    /// Everything once, in order, and durable.
    async fn fill(self: &Rc<Self>, machine: &Machine, served: &Served) {
        let next = Rc::new(Cell::new(0));
        let clients = (0..FILL_DEPTH).map(|_| {
            let (own, set, next) = (Rc::clone(self), Rc::clone(&served.set), Rc::clone(&next));
            machine.executor.spawn_with_result(async move {
                while let Some(blocks) = own.next_run(&next, FILL_BLOCKS) {
                    own.write(&set, blocks, false).await;
                }
            })
        });
        join_all(clients).await;
        self.flush(&served.set).await;
    }

    /// The next blocks of those that are gone through in order. None: there are no more.
    fn next_run(&self, next: &Cell<u64>, most: u64) -> Option<Range<u64>> {
        let first = next.get();
        let end = (first + most).min(self.blocks);
        next.set(end);
        (first < end && !self.has_failed()).then_some(first..end)
    }

    /// Adds what clients wrote and the engine made of it while `work` ran.
    async fn measure(&self, machine: &Machine, served: &Served, work: impl Future<Output = ()>) {
        let shared = &served.shared;
        let totals = || (shared.space.totals(), shared.memory.written(), self.members.written_blocks());
        let (began_ns, before) = (machine.time.now_ns(), totals());
        work.await;
        let (after, took_ns) = (totals(), machine.time.now_ns() - began_ns);
        let mut figures = self.figures.borrow_mut();
        let count = |of: fn(&SpaceTotals) -> u64| of(&after.0) - of(&before.0);
        figures.user_blocks += count(|totals| totals.user_blocks);
        figures.moved_blocks += count(|totals| totals.moved_blocks);
        figures.map_blocks += after.1 - before.1;
        figures.drive_blocks += after.2 - before.2;
        figures.serving_ns += took_ns;
        let lost = after.0.lost_blocks;
        drop(figures);
        if lost > 0 {
            self.fail(&format!("reclaim found {lost} blocks that cannot be read"));
        }
    }

    /// Writes so many blocks at random.
    async fn write_all(self: &Rc<Self>, machine: &Machine, served: &Served, writes: u64) {
        self.left.set(writes);
        self.measure(machine, served, async {
            self.write_until(machine, served, 0, 0).await;
            self.wait(machine, || self.in_flight.get() == 0).await;
        })
        .await;
    }

    /// Clients write at random, until so many writes are left to begin, and for some time more. They go on then.
    async fn write_until(self: &Rc<Self>, machine: &Machine, served: &Served, left: u64, after_ns: u64) {
        for _ in 0..DEPTH {
            let (own, set) = (Rc::clone(self), Rc::clone(&served.set));
            machine.executor.spawn(async move {
                while !own.has_failed() && own.left.get() > 0 {
                    own.request(&set).await;
                }
            });
        }
        self.wait(machine, || self.left.get() <= left).await;
        machine.sleep(after_ns).await;
    }

    async fn request(&self, set: &LogSet<TimedZones>) {
        if self.random.one_in(FLUSH_ONE_IN) {
            return self.flush(set).await;
        }
        self.left.set(self.left.get() - 1);
        let block = self.places.next().offset / BLOCK;
        let (fua, began_ns) = (self.random.percent(FUA_PERCENT), self.time.now_ns());
        self.in_flight.set(self.in_flight.get() + 1);
        let is_written = self.write(set, block..block + 1, fua).await;
        self.in_flight.set(self.in_flight.get() - 1);
        if is_written {
            let mut figures = self.figures.borrow_mut();
            let is_behind = began_ns < self.behind_until_ns.get();
            let of = if is_behind { &mut figures.behind_ns } else { &mut figures.took_ns };
            of.push(self.time.now_ns() - began_ns);
            figures.fua_writes += u64::from(fua);
        }
    }

    async fn flush(&self, set: &LogSet<TimedZones>) {
        let flush = self.oracle.borrow_mut().begin_flush();
        match set.flush().await {
            Ok(()) => _ = self.oracle.borrow_mut().flushed(&flush),
            Err(error) => self.fail(&format!("a flush failed: {error}")),
        }
        self.figures.borrow_mut().flushes += 1;
    }

    /// Whether it was acknowledged.
    async fn write(&self, set: &LogSet<TimedZones>, blocks: Range<u64>, fua: bool) -> bool {
        let (at, bytes) = (blocks.start * BLOCK, (blocks.end - blocks.start) * BLOCK);
        let write = self.oracle.borrow_mut().begin_write(blocks.clone(), false);
        let mut data = Buffer::new(bytes as usize);
        for (number, block) in blocks.zip(data.bytes_mut().chunks_exact_mut(BLOCK as usize)) {
            pages::fill(block, number, write.content);
        }
        let written = set.write(at, Gather::from(data.freeze()), fua).await;
        match &written {
            Ok(()) => self.oracle.borrow_mut().acknowledged(&write, fua),
            Err(error) => {
                self.oracle.borrow_mut().in_doubt(&write, false);
                if matches!(error, VolumeError::NoSpace { .. }) {
                    self.figures.borrow_mut().refused += 1;
                }
                self.fail(&format!("a write failed: {error}; {}", space(&set.0.port.shared)));
            }
        }
        written.is_ok()
    }

    /// Waits for something that requests bring about.
    async fn wait(&self, machine: &Machine, is_over: impl Fn() -> bool) {
        let ended = || {
            let figures = self.figures.borrow();
            figures.took_ns.len() + figures.behind_ns.len()
        };
        let (mut seen, mut since_ns) = (ended(), machine.time.now_ns());
        while !is_over() && !self.has_failed() {
            machine.sleep(LOOK_NS).await;
            let (count, now_ns) = (ended(), machine.time.now_ns());
            if count != seen {
                (seen, since_ns) = (count, now_ns);
            } else if now_ns - since_ns > STILL_NS {
                self.fail(&format!("no request has ended for {} s", STILL_NS / 1_000_000_000));
            }
        }
    }

    /// Every block holds what it may.
    async fn compare(self: &Rc<Self>, machine: &Machine, set: &Rc<LogSet<TimedZones>>) {
        let next = Rc::new(Cell::new(0));
        let readers = (0..READ_DEPTH).map(|_| {
            let (own, set, next) = (Rc::clone(self), Rc::clone(set), Rc::clone(&next));
            machine.executor.spawn_with_result(async move {
                while let Some(blocks) = own.next_run(&next, READ_BLOCKS) {
                    own.read(&set, blocks).await;
                }
            })
        });
        join_all(readers).await;
    }

    async fn read(&self, set: &LogSet<TimedZones>, blocks: Range<u64>) {
        let read = self.oracle.borrow_mut().begin_read();
        let found = set.read(blocks.start * BLOCK, (blocks.end - blocks.start) * BLOCK).await;
        match found {
            Err(error) => self.fail(&format!("a read of block {} failed: {error}", blocks.start)),
            Ok(data) => {
                let mut all = vec![0; data.len()];
                data.copy_to(&mut all);
                self.figures.borrow_mut().checked_blocks += blocks.end - blocks.start;
                for (number, block) in blocks.zip(all.chunks_exact(BLOCK as usize)) {
                    let content = pages::identify(block, number);
                    let is_right =
                        content.is_some_and(|found| self.oracle.borrow_mut().found(&read, number, found));
                    if !is_right {
                        let (holds, may) =
                            (pages::describe(block, number), self.oracle.borrow().expected(number));
                        self.fail(&format!("block {number} holds {holds}; it may hold {may}"));
                    }
                }
            }
        }
        self.oracle.borrow_mut().end_read(&read);
    }

    /// A check of all that is on the drives finds nothing.
    async fn check(&self, served: &Served) {
        let state = Rc::new(RefCell::new(Some(ScrubState::new(1, ScrubMode::default()))));
        check(Rc::clone(&served.set.0.port), Rc::clone(&state)).await;
        let found = state.take().map(|state| state.report.found).unwrap_or_default();
        if !found.is_empty() {
            self.fail(&format!("a check finds {found:?}"));
        }
    }
}

/// Room of a log, for a message.
fn space(shared: &LogShared) -> String {
    let segments = shared.table.all().into_iter().map(|segment| {
        let live = shared.table.live(segment.slot());
        let zones = segment.zones().filter(|(_, _, zone)| zone.is_some()).count();
        format!(
            "{:?} {:?} live {live} of {} in {zones} zones",
            segment.headers[0].class,
            segment.state(),
            segment.shape().rows()
        )
    });
    let segments: Vec<String> = segments.collect();
    format!(
        "zones free {:?}, of segments {} reserved and {} kept free, {:?}: {}",
        shared.table.free_zones(),
        RESERVED_SEGMENTS,
        shared.config.low_segments(),
        shared.space.totals(),
        segments.join("; ")
    )
}

/// What a task comes to, or nothing where a sleep ends first.
async fn either<T>(task: impl Future<Output = T> + Unpin, sleep: impl Future<Output = ()>) -> Option<T> {
    let (mut task, mut sleep) = (pin!(task), pin!(sleep));
    std::future::poll_fn(|context| match task.as_mut().poll(context) {
        Poll::Ready(result) => Poll::Ready(Some(result)),
        Poll::Pending => sleep.as_mut().poll(context).map(|()| None),
    })
    .await
}
