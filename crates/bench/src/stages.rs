//! The clock for the engine's stages of stripe writes: one write in [`SAMPLED`] tells where its time went.

use crossbeam::utils::CachePadded;
use engine::stages::{Observer, Stage};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::clock::now_ns;

/// One write of so many is timed: its seven looks at the clock cost about 150 ns.
const SAMPLED: u64 = 64;

/// Time by stage, all shards together.
pub(crate) struct StageTimes {
    shards: Box<[CachePadded<Times>]>,
    /// Time every write, not one in [`SAMPLED`].
    every: AtomicBool,
}

#[derive(Default)]
struct Times {
    writes: AtomicU64,
    ns: [AtomicU64; Stage::ALL.len()],
}

impl StageTimes {
    pub(crate) fn new(shards: usize) -> Self {
        let shards = (0..shards).map(|_| CachePadded::new(Times::default())).collect();
        StageTimes { shards, every: AtomicBool::new(false) }
    }

    /// Whether every write is timed from here on. The first one is in any case. Nothing is being written now.
    pub(crate) fn time_every(&self, every: bool) {
        self.shards.iter().for_each(|times| times.writes.store(0, Relaxed));
        self.every.store(every, Relaxed);
    }

    /// Nanoseconds in each stage so far.
    pub(crate) fn total_ns(&self) -> [u64; Stage::ALL.len()] {
        let sum = |stage: usize| self.shards.iter().map(|times| times.ns[stage].load(Relaxed)).sum();
        std::array::from_fn(sum)
    }
}

impl Observer for StageTimes {
    fn wants(&self, shard: usize) -> bool {
        let writes = &self.shards[shard].writes;
        let number = writes.load(Relaxed) + 1; // only its own shard counts
        writes.store(number, Relaxed);
        number % SAMPLED == 1 || self.every.load(Relaxed)
    }

    fn now_ns(&self) -> u64 {
        now_ns()
    }

    fn spent(&self, shard: usize, stage: Stage, ns: u64) {
        let total = &self.shards[shard].ns[stage as usize];
        total.store(total.load(Relaxed) + ns, Relaxed);
    }
}
