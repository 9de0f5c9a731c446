//! When sleeping tasks wake, by the shard's own clock: no call to the system for a sleep.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

/// A sleep: its end, its slot, the slot's generation.
pub(super) type Timer = (Instant, u32, u32);

/// Sleeps by their end. One whose future was dropped stays in the heap until its time or the next sweep.
#[derive(Default)]
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<Timer>>,
    sweep_at: usize,
}

/// Sleeps below this number are never swept.
const SWEEP_MIN: usize = 64;

impl Timers {
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// Adds a sleep; `is_live` tells which of the others still have a future.
    pub fn push(&mut self, timer: Timer, is_live: impl Fn(&Timer) -> bool) {
        if self.heap.len() >= self.sweep_at.max(SWEEP_MIN) {
            self.heap.retain(|Reverse(timer)| is_live(timer));
            self.sweep_at = 2 * self.heap.len();
        }
        self.heap.push(Reverse(timer));
    }

    /// The next end.
    pub fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((end, ..))| *end)
    }

    /// Takes one that has ended by `now`.
    pub fn pop_ended(&mut self, now: Instant) -> Option<Timer> {
        self.next().filter(|end| *end <= now)?;
        self.heap.pop().map(|Reverse(timer)| timer)
    }
}
