//! How fast a resync, recovery or scrub goes: what an operator set, and what clients had lately.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use engine::array::throttle::{Limits, Throttle};
use engine::foreground::Latencies;
use engine::stripe::Shared;
use parking_lot::Mutex;

/// How often the clients' latency is measured.
const LOOK_NS: u64 = 100_000_000;

/// The throttle of an array, shared by its manager and by the operator who sets the limits.
#[derive(Default)]
pub(super) struct Speed {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    limits: Limits,
    throttle: Throttle,
    seen: Latencies,
    looked_ns: u64,
}

/// New limits; None leaves one as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct NewLimits {
    /// Most bytes of a member in a second; 0 is no limit.
    pub rate_max: Option<u64>,
    /// Bytes a second that it may do even if clients exceed their budget.
    pub rate_min: Option<u64>,
    /// The clients' 99th percentile above which it slows down, in nanoseconds; 0 is no budget.
    pub p99_budget_ns: Option<u64>,
}

/// A pause, and the limits that asked for it.
pub(super) struct Pause {
    until_ns: u64,
    limits: Limits,
}

impl Speed {
    /// Changes the limits from now on, and so ends a pause that the old ones asked for.
    pub(super) fn set(&self, new: &NewLimits, shared: &Shared) -> Limits {
        let state = &mut *self.state.lock();
        let old = state.limits;
        state.limits = Limits {
            rate_max: new.rate_max.unwrap_or(old.rate_max),
            rate_min: new.rate_min.unwrap_or(old.rate_min),
            p99_budget_ns: new.p99_budget_ns.unwrap_or(old.p99_budget_ns),
        };
        state.throttle.set(state.limits);
        shared.foreground.measure(state.limits.p99_budget_ns > 0);
        state.limits
    }

    /// The limits now.
    pub(super) fn limits(&self) -> Limits {
        self.state.lock().limits
    }

    /// The pause after a batch.
    pub(super) fn pause(&self, shared: &Shared, bytes: u64) -> Pause {
        let state = &mut *self.state.lock();
        let now_ns = shared.loads.now_ns();
        if state.limits.p99_budget_ns > 0 && now_ns.saturating_sub(state.looked_ns) >= LOOK_NS {
            let seen = shared.foreground.latencies();
            let (requests, p99_ns) = seen.since(&state.seen);
            state.throttle.clients(requests, p99_ns);
            (state.seen, state.looked_ns) = (seen, now_ns);
        }
        let until_ns = now_ns.saturating_add(state.throttle.pause_ns(now_ns, bytes));
        Pause { until_ns, limits: state.limits }
    }

    /// What is left of a pause: nothing once the limits have changed.
    pub(super) fn left(&self, pause: &Pause, shared: &Shared) -> Duration {
        match pause.limits == self.limits() {
            true => Duration::from_nanos(pause.until_ns.saturating_sub(shared.loads.now_ns())),
            false => Duration::ZERO,
        }
    }
}

/// Longest sleep before the next look whether the array is being stopped.
pub(super) const NAP: Duration = Duration::from_millis(100);

/// Whether the array is being stopped.
pub(super) fn is_stopping(mode: &engine::array::volume::VolumeMode) -> bool {
    mode.stopping.load(Relaxed)
}
