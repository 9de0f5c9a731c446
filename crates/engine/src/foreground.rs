//! Latencies of clients' requests, for the budget of background work. While they are not measured a request pays one load
//! of a flag.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::members::load::Loads;

/// Buckets for each doubling of the latency: a percentile is exact to an eighth.
const BUCKETS_IN_A_DOUBLING: u64 = 8;
const BUCKETS: usize = 64 * BUCKETS_IN_A_DOUBLING as usize;

/// The least bound that is shown, and how many are: up to 68 s.
const SHOWN_MIN_NS: u64 = 1 << 10;
const SHOWN_BOUNDS: usize = 27;

/// Latencies of requests since the start, by bucket, shared by all shards. Counts only while measuring is on.
pub struct Foreground {
    wanted: AtomicBool,
    /// Somebody looks at them whether or not there is a budget.
    is_shown: AtomicBool,
    buckets: Box<[AtomicU64]>,
}

/// The counts at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latencies(Vec<u64>);

impl Default for Foreground {
    fn default() -> Self {
        Foreground {
            wanted: AtomicBool::new(false),
            is_shown: AtomicBool::new(false),
            buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
        }
    }
}

impl Foreground {
    /// Sets whether latencies are measured from now on, for a budget.
    pub fn measure(&self, wanted: bool) {
        self.wanted.store(wanted || self.is_shown.load(Relaxed), Relaxed);
    }

    /// Latencies are measured from now on, for people to see.
    pub fn show(&self) {
        self.is_shown.store(true, Relaxed);
        self.wanted.store(true, Relaxed);
    }

    /// A request begins: the time, if latencies are measured.
    #[inline]
    pub(crate) fn begin(&self, loads: &Loads) -> Option<u64> {
        self.wanted.load(Relaxed).then(|| loads.now_ns())
    }

    /// A request that began at `began_ns` ends.
    #[inline]
    pub(crate) fn end(&self, began_ns: Option<u64>, loads: &Loads) {
        if let Some(began_ns) = began_ns {
            self.buckets[bucket(loads.now_ns().saturating_sub(began_ns))].fetch_add(1, Relaxed);
        }
    }

    /// The counts so far.
    pub fn latencies(&self) -> Latencies {
        Latencies(self.buckets.iter().map(|bucket| bucket.load(Relaxed)).collect())
    }
}

impl Latencies {
    /// Requests of less than a power of two nanoseconds, from 1 us on, and not of less than the one before: bound and count. The last
    /// bound is all ones, for what took longer.
    pub fn by_powers_of_two(&self) -> Vec<(u64, u64)> {
        let bounds = (0..SHOWN_BOUNDS).map(|doubling| SHOWN_MIN_NS << doubling).chain([u64::MAX]);
        let mut counts: Vec<(u64, u64)> = bounds.map(|bound| (bound, 0)).collect();
        for (bucket, count) in self.0.iter().enumerate().filter(|(_, count)| **count > 0) {
            let at = counts.partition_point(|(bound, _)| *bound < upper_ns(bucket)).min(SHOWN_BOUNDS);
            counts[at].1 += count;
        }
        counts
    }

    /// Exclusive upper bound in nanoseconds, and count, of each bucket that has any: differences give percentiles.
    pub fn by_bucket(&self) -> Vec<(u64, u64)> {
        let filled = self.0.iter().enumerate().filter(|(_, count)| **count > 0);
        filled.map(|(bucket, count)| (upper_ns(bucket), *count)).collect()
    }

    /// Requests and their 99th percentile since `before`.
    pub fn since(&self, before: &Latencies) -> (u64, u64) {
        let old = |bucket: usize| before.0.get(bucket).copied().unwrap_or(0);
        let counts: Vec<u64> = self.0.iter().enumerate().map(|(bucket, count)| count - old(bucket)).collect();
        let requests: u64 = counts.iter().sum();
        let mut above = requests / 100;
        for (bucket, count) in counts.iter().enumerate().rev() {
            if *count > above {
                return (requests, upper_ns(bucket));
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

/// The exclusive upper bound of a bucket, in nanoseconds.
fn upper_ns(bucket: usize) -> u64 {
    let (doubling, part) = (bucket as u64 / BUCKETS_IN_A_DOUBLING, bucket as u64 % BUCKETS_IN_A_DOUBLING);
    let bound = u128::from(BUCKETS_IN_A_DOUBLING + part + 1) << doubling.saturating_sub(3);
    u64::try_from(bound).unwrap_or(u64::MAX)
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
    fn latencies_are_shown_by_powers_of_two() {
        let foreground = Foreground::default();
        for ns in [3, 900, 1023, 1024, 1500, 80_000, 1 << 30, 1 << 40, u64::MAX] {
            foreground.buckets[bucket(ns)].fetch_add(1, Relaxed);
        }
        let shown = foreground.latencies().by_powers_of_two();
        let bounds: Vec<u64> = shown.iter().map(|(bound, _)| *bound).collect();
        let expected = (10..10 + SHOWN_BOUNDS).map(|bit| 1 << bit).chain([u64::MAX]);
        assert_eq!(bounds, expected.collect::<Vec<u64>>());
        let counts: Vec<(u64, u64)> = shown.into_iter().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counts, [(1 << 10, 3), (1 << 11, 2), (1 << 17, 1), (1 << 31, 1), (u64::MAX, 2)]);
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
