//! Whether a shard's core is its limit: its thread has run nearly all of the last window.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Turns of the shard's loop between two looks at the clock.
const TURNS_A_LOOK: u32 = 16;

/// Length of a window at the least. Asking for a thread's processor time is a call to the system.
const WINDOW: Duration = Duration::from_millis(1);

/// A shard is busy if its thread ran for this many tenths of a window.
const BUSY_TENTHS: u32 = 9;

/// Whether a shard is busy. Clones are handles to the same answer.
#[derive(Clone, Default)]
pub struct Busy(Rc<Inner>);

#[derive(Default)]
struct Inner {
    is_busy: Cell<bool>,
    /// The shard polled without work in this window.
    rested: Cell<bool>,
    turns: Cell<u32>,
    /// When the window began, and how long the thread had run by then.
    began: Cell<Option<(Instant, Duration)>>,
}

impl Busy {
    /// Whether its core was the limit in the last window.
    pub fn is_busy(&self) -> bool {
        self.0.is_busy.get()
    }

    /// A turn of the loop.
    #[inline]
    pub(crate) fn turn(&self) {
        let turns = self.0.turns.get().wrapping_add(1);
        self.0.turns.set(turns);
        if turns.is_multiple_of(TURNS_A_LOOK) {
            self.look();
        }
    }

    /// The shard polls because it has no work: the processor time of this window says nothing.
    pub(crate) fn rest(&self) {
        self.0.rested.set(true);
    }

    #[cold]
    fn look(&self) {
        let now = Instant::now();
        let Some((began, used_before)) = self.0.began.get() else {
            self.0.began.set(Some((now, thread_time())));
            return;
        };
        let window = now.duration_since(began);
        if window < WINDOW {
            return;
        }
        let used = thread_time();
        let rested = self.0.rested.replace(false);
        self.0.is_busy.set(!rested && is_most(used.saturating_sub(used_before), window));
        self.0.began.set(Some((now, used)));
    }
}

fn is_most(used: Duration, window: Duration) -> bool {
    used * 10 >= window * BUSY_TENTHS
}

fn thread_time() -> Duration {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(tv_sec.unsigned_abs(), u32::try_from(tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn_for(busy: &Busy, time: Duration, mut work: impl FnMut()) {
        let start = Instant::now();
        while start.elapsed() < time {
            busy.turn();
            work();
        }
    }

    #[test]
    fn a_shard_that_sleeps_or_polls_is_not_busy() {
        let busy = Busy::default();
        turn_for(&busy, Duration::from_millis(40), || std::thread::sleep(Duration::from_millis(1)));
        assert!(!busy.is_busy(), "it sleeps");
        turn_for(&busy, Duration::from_millis(20), || busy.rest());
        assert!(!busy.is_busy(), "it polls");
        assert!(is_most(Duration::from_millis(9), Duration::from_millis(10)));
        assert!(!is_most(Duration::from_micros(8900), Duration::from_millis(10)));
    }

    #[test]
    fn a_shard_that_works_all_the_time_is_busy() {
        let (busy, start) = (Busy::default(), Instant::now());
        // Other threads may have the core for a while: some window will be this thread's own.
        while !busy.is_busy() {
            turn_for(&busy, WINDOW, || ());
            assert!(start.elapsed() < Duration::from_secs(60), "no window was busy");
        }
    }
}
