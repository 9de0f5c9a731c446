//! The shard's own clock: when sleeping tasks wake and when operations are beyond their time limit, without a call to the
//! system for either.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

/// How often operations are compared with their time limit: an eighth of the shortest limit, within these bounds.
const SCAN_MIN: Duration = Duration::from_millis(2);
const SCAN_MAX: Duration = Duration::from_secs(1);

/// Operations with a time limit, and when they are compared with it next.
pub(super) struct TimeLimits {
    /// The time as the shard last looked at it.
    pub now: Instant,
    operations: usize,
    scan_every: Duration,
    scan_next: Instant,
}

impl TimeLimits {
    pub fn new() -> Self {
        let now = Instant::now();
        TimeLimits { now, operations: 0, scan_every: SCAN_MAX, scan_next: now }
    }

    /// Whether any operation has a limit.
    #[inline]
    pub fn any(&self) -> bool {
        self.operations > 0
    }

    /// An operation with this limit starts. Returns the moment that it must not pass.
    #[inline]
    pub fn begin(&mut self, limit: Duration) -> Instant {
        if self.operations == 0 {
            self.now = Instant::now();
            self.scan_every = SCAN_MAX;
        }
        self.operations += 1;
        self.scan_every = self.scan_every.min((limit / 8).max(SCAN_MIN));
        self.scan_next = self.scan_next.min(self.now + self.scan_every);
        self.now + limit
    }

    /// The limit of an operation does not matter any more: it has completed, or is beyond it.
    #[inline]
    pub fn end(&mut self) {
        assert!(self.operations > 0, "a limit ends once");
        self.operations -= 1;
    }

    /// Whether operations are to be compared with their limits now; then the next scan is set.
    pub fn start_scan(&mut self) -> bool {
        let is_due = self.any() && self.now >= self.scan_next;
        if is_due {
            self.scan_next = self.now + self.scan_every;
        }
        is_due
    }

    /// When the next scan is to be made.
    pub fn next_scan(&self) -> Option<Instant> {
        self.any().then_some(self.scan_next)
    }
}

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

    /// Adds a sleep; `is_live` says which of the others still have a future.
    pub fn push(&mut self, timer: Timer, is_live: impl Fn(&Timer) -> bool) {
        if self.heap.len() >= self.sweep_at.max(SWEEP_MIN) {
            self.heap.retain(|Reverse(timer)| is_live(timer));
            self.sweep_at = 2 * self.heap.len();
        }
        self.heap.push(Reverse(timer));
    }

    /// The earliest end.
    pub fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((end, ..))| *end)
    }

    /// Takes a sleep that has ended by `now`.
    pub fn pop_ended(&mut self, now: Instant) -> Option<Timer> {
        self.next().filter(|end| *end <= now)?;
        self.heap.pop().map(|Reverse(timer)| timer)
    }
}
