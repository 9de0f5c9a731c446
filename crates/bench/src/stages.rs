//! The clock for the engine's stages of stripe writes: one write in [`SAMPLED`] tells where its time went.

use crossbeam::utils::CachePadded;
use engine::stages::{Lock, Observer, Stage};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::clock::now_ns;
use crate::locks::{LockTimes, LockTotals, clock_ns};

/// One write in this many is timed: it reads the clock up to twenty times, at 20 ns each.
const SAMPLED: u64 = 64;

/// Time by stage, all shards together.
pub(crate) struct StageTimes {
    shards: Box<[CachePadded<Times>]>,
    /// Time every write, not one in [`SAMPLED`].
    every: AtomicBool,
    /// Nanoseconds that a reading of the clock takes.
    clock_ns: u64,
}

#[derive(Default)]
struct Times {
    writes: AtomicU64,
    timed: AtomicU64,
    locks: LockTimes,
    ns: [AtomicU64; Stage::ALL.len()],
}

impl StageTimes {
    pub(crate) fn new(shards: usize) -> Self {
        let shards = (0..shards).map(|_| CachePadded::new(Times::default())).collect();
        StageTimes { shards, every: AtomicBool::new(false), clock_ns: clock_ns() }
    }

    /// Sets whether every write is timed from here on; the first one always is. The caller has no write in flight.
    pub(crate) fn time_every(&self, every: bool) {
        self.shards.iter().for_each(|times| times.writes.store(0, Relaxed));
        self.every.store(every, Relaxed);
    }

    /// Nanoseconds in each stage so far.
    pub(crate) fn total_ns(&self) -> [u64; Stage::ALL.len()] {
        let sum = |stage: usize| self.shards.iter().map(|times| times.ns[stage].load(Relaxed)).sum();
        std::array::from_fn(sum)
    }

    /// The time in locks so far.
    pub(crate) fn locks(&self) -> LockTotals {
        let mut totals = LockTotals::default();
        self.shards.iter().for_each(|times| totals.add(times.timed.load(Relaxed), &times.locks));
        totals
    }
}

impl Observer for StageTimes {
    fn wants(&self, shard: usize) -> bool {
        let Times { writes, timed, .. } = &*self.shards[shard];
        let number = writes.load(Relaxed) + 1; // only its own shard counts
        writes.store(number, Relaxed);
        let wants = number % SAMPLED == 1 || self.every.load(Relaxed);
        if wants {
            timed.store(timed.load(Relaxed) + 1, Relaxed);
        }
        wants
    }

    fn now_ns(&self) -> u64 {
        now_ns()
    }

    fn spent(&self, shard: usize, stage: Stage, ns: u64) {
        let total = &self.shards[shard].ns[stage as usize];
        total.store(total.load(Relaxed) + ns, Relaxed);
    }

    fn locked(&self, shard: usize, lock: Lock, wait_ns: u64, held_ns: u64) {
        let less = |ns: u64| ns.saturating_sub(self.clock_ns);
        self.shards[shard].locks.add(lock, less(wait_ns), less(held_ns));
    }
}
