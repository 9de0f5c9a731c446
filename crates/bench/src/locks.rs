//! The time that writes spend in locks, or in the lock-free code in their place (ScalaRAID figure 6d). A sample of the
//! writes is timed, and the cost of reading the clock is subtracted.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use engine::stages::Lock;
use serde::Serialize;

use crate::clock::now_ns;

/// One shard's times.
#[derive(Default)]
pub(crate) struct LockTimes([OneLock; Lock::ALL.len()]);

#[derive(Default)]
struct OneLock {
    wait_ns: AtomicU64,
    held_ns: AtomicU64,
}

impl LockTimes {
    /// Only the shard itself uses it.
    pub(crate) fn add(&self, lock: Lock, wait_ns: u64, held_ns: u64) {
        let one = &self.0[lock as usize];
        one.wait_ns.store(one.wait_ns.load(Relaxed) + wait_ns, Relaxed);
        one.held_ns.store(one.held_ns.load(Relaxed) + held_ns, Relaxed);
    }
}

/// What was timed so far, over all shards.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LockTotals {
    /// Writes that were timed.
    writes: u64,
    /// By lock: nanoseconds of waiting for it, and of holding it.
    ns: [(u64, u64); Lock::ALL.len()],
}

impl LockTotals {
    pub(crate) fn add(&mut self, writes: u64, times: &LockTimes) {
        self.writes += writes;
        for (sum, one) in self.ns.iter_mut().zip(&times.0) {
            *sum = (sum.0 + one.wait_ns.load(Relaxed), sum.1 + one.held_ns.load(Relaxed));
        }
    }

    pub(crate) fn since(&self, before: &Self) -> Self {
        let less = |lock: usize| (self.ns[lock].0 - before.ns[lock].0, self.ns[lock].1 - before.ns[lock].1);
        LockTotals { writes: self.writes - before.writes, ns: std::array::from_fn(less) }
    }
}

/// The time in locks of the writes to a stripe.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LockFigures {
    /// Over the counters of the bitmap.
    pub counters: LockTime,
    /// Over the table of stripes in work.
    pub stripes: LockTime,
}

/// The time in one kind of lock, or in the words that are in its place.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LockTime {
    /// Nanoseconds that a write waits for it, both times together; 0 without a lock.
    pub wait_ns: f64,
    /// Nanoseconds that it has it, or that its work takes.
    pub held_ns: f64,
    /// Both by the time of the run, of all shards together.
    pub share: f64,
}

impl LockFigures {
    /// `writes_per_s`: writes to a stripe in a second, of one shard.
    pub(crate) fn of(totals: &LockTotals, writes_per_s: f64) -> Option<Self> {
        let of = |lock: Lock| {
            let (wait, held) = totals.ns[lock as usize];
            let by_write = |ns: u64| ns as f64 / totals.writes.max(1) as f64;
            let (wait_ns, held_ns) = (by_write(wait), by_write(held));
            LockTime { wait_ns, held_ns, share: (wait_ns + held_ns) * writes_per_s / 1e9 }
        };
        (totals.writes > 0).then(|| LockFigures { counters: of(Lock::Counters), stripes: of(Lock::Stripes) })
    }

    pub(crate) fn words(&self) -> String {
        let of = |name: &str, time: &LockTime| {
            let LockTime { wait_ns, held_ns, share } = time;
            format!("{name} {:.2} % (a write waits {wait_ns:.0} ns, then {held_ns:.0})", 100.0 * share)
        };
        format!("{}, {}", of("counters", &self.counters), of("stripes", &self.stripes))
    }
}

/// The least difference between two readings of the clock.
pub(crate) fn clock_ns() -> u64 {
    let look = |_| {
        let first = now_ns();
        now_ns().saturating_sub(first)
    };
    (0..1000).map(look).min().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_what_was_timed_in_between() {
        let times = LockTimes::default();
        times.add(Lock::Counters, 1000, 1000);
        let mut before = LockTotals::default();
        before.add(5, &times);
        times.add(Lock::Counters, 300, 100);
        times.add(Lock::Stripes, 0, 200);
        let mut after = LockTotals::default();
        after.add(7, &times);
        let figures = LockFigures::of(&after.since(&before), 1e6).expect("two writes were timed");
        let LockTime { wait_ns, held_ns, share } = figures.counters;
        assert_eq!((wait_ns, held_ns), (150.0, 50.0));
        assert!((share - 0.2).abs() < 1e-9 && (figures.stripes.share - 0.1).abs() < 1e-9);
        assert!(LockFigures::of(&before.since(&before), 1e6).is_none(), "nothing was timed");
    }
}
