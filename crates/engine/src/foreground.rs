//! How long clients' requests take, while somebody wants to know: for the budget of background work. Nobody who does not
//! pays more than a look at a flag.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::members::load::Loads;

/// Buckets of one doubling: a percentile is right to an eighth.
const BUCKETS_IN_A_DOUBLING: u64 = 8;
const BUCKETS: usize = 64 * BUCKETS_IN_A_DOUBLING as usize;

/// Latencies of all requests since the start, by bucket. Shards share it: it counts only while it is wanted.
pub struct Foreground {
    wanted: AtomicBool,
    buckets: Box<[AtomicU64]>,
}

/// The counts at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latencies(Vec<u64>);

impl Default for Foreground {
    fn default() -> Self {
        Foreground {
            wanted: AtomicBool::new(false),
            buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
        }
    }
}

impl Foreground {
    /// Whether latencies are measured from now on.
    pub fn measure(&self, wanted: bool) {
        self.wanted.store(wanted, Relaxed);
    }

    /// A request begins: the time, if it is measured.
    #[inline]
    pub(crate) fn begin(&self, loads: &Loads) -> Option<u64> {
        self.wanted.load(Relaxed).then(|| loads.now_ns())
    }

    /// It ends.
    #[inline]
    pub(crate) fn end(&self, began_ns: Option<u64>, loads: &Loads) {
        if let Some(began_ns) = began_ns {
            self.buckets[bucket(loads.now_ns().saturating_sub(began_ns))].fetch_add(1, Relaxed);
        }
    }

    /// What was counted so far.
    pub fn latencies(&self) -> Latencies {
        Latencies(self.buckets.iter().map(|bucket| bucket.load(Relaxed)).collect())
    }
}

impl Latencies {
    /// Requests and their 99th percentile since `before`.
    pub fn since(&self, before: &Latencies) -> (u64, u64) {
        let old = |place: usize| before.0.get(place).copied().unwrap_or(0);
        let counts: Vec<u64> = self.0.iter().enumerate().map(|(place, count)| count - old(place)).collect();
        let requests: u64 = counts.iter().sum();
        let mut above = requests / 100;
        for (place, count) in counts.iter().enumerate().rev() {
            if *count > above {
                return (requests, upper_ns(place));
            }
            above -= count;
        }
        (requests, 0)
    }
}

fn bucket(ns: u64) -> usize {
    let ns = ns.max(BUCKETS_IN_A_DOUBLING);
    let doubling = ns.ilog2();
    let part = (ns >> (doubling - 3)) - BUCKETS_IN_A_DOUBLING;
    (u64::from(doubling) * BUCKETS_IN_A_DOUBLING + part) as usize
}

/// The least time that is too long for a bucket.
fn upper_ns(bucket: usize) -> u64 {
    let (doubling, part) = (bucket as u64 / BUCKETS_IN_A_DOUBLING, bucket as u64 % BUCKETS_IN_A_DOUBLING);
    (BUCKETS_IN_A_DOUBLING + part + 1) << doubling.saturating_sub(3).min(60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_what_they_say() {
        for ns in (0..63).flat_map(|bit| [1u64 << bit, (1 << bit) + (1 << bit) / 3]) {
            let upper_ns = upper_ns(bucket(ns));
            assert!(upper_ns > ns && (ns < 8 || upper_ns <= ns + ns / 8 + 1), "{ns}: {upper_ns}");
        }
    }

    #[test]
    fn the_percentile_is_that_of_the_window() {
        let foreground = Foreground::default();
        let count = |ns, times: u64| foreground.buckets[bucket(ns)].fetch_add(times, Relaxed);
        count(5_000_000, 1000);
        let before = foreground.latencies();
        count(1000, 990);
        count(80_000, 10);
        let (requests, p99_ns) = foreground.latencies().since(&before);
        assert_eq!(requests, 1000);
        assert!((1000..1200).contains(&p99_ns), "ten of a thousand are the slowest hundredth: {p99_ns}");
        count(80_000, 1);
        assert!(foreground.latencies().since(&before).1 > 80_000);
    }
}
