//! What a read costs at a memory device that is to behave like a slower one: each read takes the device for so long, one
//! read after the other, as many as shards may ask. A read is then ready at a known moment; no core waits for it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The cost of reads of one device, shared by all shards.
pub(super) struct ReadCost {
    cost_ns: AtomicU64,
    start: Instant,
    /// When the last read that was asked for is ready, in nanoseconds after `start`.
    busy_until_ns: AtomicU64,
}

impl ReadCost {
    /// Reads cost nothing but their copy.
    pub fn none() -> Self {
        ReadCost { cost_ns: AtomicU64::new(0), start: Instant::now(), busy_until_ns: AtomicU64::new(0) }
    }

    pub fn set(&self, cost: Duration) {
        self.cost_ns.store(nanoseconds(cost), Relaxed);
    }

    pub fn is_some(&self) -> bool {
        self.cost_ns.load(Relaxed) > 0
    }

    /// When a read that is asked for at `now` is ready: after those before it.
    pub fn ready_at(&self, now: Instant) -> Instant {
        let (cost_ns, now_ns) = (self.cost_ns.load(Relaxed), nanoseconds(now - self.start));
        let after = |busy_until_ns: u64| busy_until_ns.max(now_ns) + cost_ns;
        let before = self.busy_until_ns.fetch_update(Relaxed, Relaxed, |busy| Some(after(busy)));
        self.start + Duration::from_nanos(after(before.expect("every update is made")))
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_wait_for_those_before_them_and_for_nothing_else() {
        let cost = ReadCost::none();
        assert!(!cost.is_some());
        cost.set(Duration::from_micros(20));
        let at = |us: u64| cost.start + Duration::from_micros(us);
        let asked_and_ready = [(100, 120), (100, 140), (130, 160), (160, 180), (500, 520)];
        for (asked, ready) in asked_and_ready {
            assert_eq!(cost.ready_at(at(asked)), at(ready), "asked at {asked}");
        }
    }
}
