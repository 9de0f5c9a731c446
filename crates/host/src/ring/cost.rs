//! The cost of operations at a memory device that behaves like a slower one. Each occupies the device for its cost, one after
//! the other, whichever shards they come from. So the moment when an operation is ready is known, and no core waits for it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The cost of operations of one device, shared by all shards.
pub(super) struct Cost {
    /// The cost of each read.
    read_ns: AtomicU64,
    /// The limit of reads and writes together; 0 for none.
    bytes_per_s: AtomicU64,
    start: Instant,
    /// When the operation that came last is ready, in nanoseconds after `start`.
    busy_until_ns: AtomicU64,
}

impl Cost {
    /// Operations cost nothing but their copy.
    pub fn none() -> Self {
        Cost {
            read_ns: AtomicU64::new(0),
            bytes_per_s: AtomicU64::new(0),
            start: Instant::now(),
            busy_until_ns: AtomicU64::new(0),
        }
    }

    pub fn set_read(&self, cost: Duration) {
        self.read_ns.store(nanoseconds(cost), Relaxed);
    }

    pub fn set_speed(&self, bytes_per_s: u64) {
        self.bytes_per_s.store(bytes_per_s, Relaxed);
    }

    pub fn has_reads(&self) -> bool {
        self.read_ns.load(Relaxed) > 0 || self.has_writes()
    }

    pub fn has_writes(&self) -> bool {
        self.bytes_per_s.load(Relaxed) > 0
    }

    /// When an operation that comes at `now` is ready: after those before it.
    pub fn ready_at(&self, now: Instant, is_read: bool, bytes: usize) -> Instant {
        let moving_ns = match self.bytes_per_s.load(Relaxed) {
            0 => 0,
            speed => u64::try_from(bytes as u128 * 1_000_000_000 / u128::from(speed)).unwrap_or(u64::MAX / 4),
        };
        let cost_ns = moving_ns + if is_read { self.read_ns.load(Relaxed) } else { 0 };
        let now_ns = nanoseconds(now - self.start);
        let after = |busy_until_ns: u64| busy_until_ns.max(now_ns) + cost_ns;
        let before = self.busy_until_ns.fetch_update(Relaxed, Relaxed, |busy| Some(after(busy)));
        self.start + Duration::from_nanos(after(before.expect("every update is made")))
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_wait_for_those_before_them_and_for_nothing_else() {
        let cost = Cost::none();
        assert!(!cost.has_reads());
        cost.set_read(Duration::from_micros(20));
        assert!(cost.has_reads() && !cost.has_writes());
        let at = |us: u64| cost.start + Duration::from_micros(us);
        let asked_and_ready = [(100, 120), (100, 140), (130, 160), (160, 180), (500, 520)];
        for (asked, ready) in asked_and_ready {
            assert_eq!(cost.ready_at(at(asked), true, 4096), at(ready), "asked at {asked}");
        }
    }

    #[test]
    fn bytes_take_their_time_whichever_way_they_go() {
        let cost = Cost::none();
        cost.set_speed(100_000_000);
        assert!(cost.has_reads() && cost.has_writes());
        let at = |us: u64| cost.start + Duration::from_micros(us);
        assert_eq!(cost.ready_at(at(0), true, 1000), at(10));
        assert_eq!(cost.ready_at(at(0), false, 2000), at(30));
        cost.set_read(Duration::from_micros(5));
        assert_eq!(cost.ready_at(at(100), false, 100), at(101));
        assert_eq!(cost.ready_at(at(100), true, 100), at(107));
    }
}
