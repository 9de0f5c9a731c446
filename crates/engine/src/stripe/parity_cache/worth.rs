//! Whether looking for parity pays: pure.
//!
//! A look takes locks and cold lines for nothing where writes do not meet again. So a cache that finds little looks for the
//! stripes of a few of its shards only, whose hits say what all would find (as a processor's cache compares policies on a few
//! of its sets). A place that alone is hot may lie in none of them: now and then all are looked for again.

/// Looks for each hit below which it does not pay; twice as many hits and it does again.
const LOOKS_A_HIT: u64 = 32;

/// Judgements on samples before all stripes are looked for again.
const SAMPLED_MAX: u32 = 64;

/// Hit and miss counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct CacheCounters {
    /// Stripe writes that found parity.
    pub hits: u64,
    /// Stripe writes that found none. Those that did not look, because few find any, do not count.
    pub misses: u64,
    /// Stripes evicted.
    pub evictions: u64,
}

/// What was found until the last judgement.
#[derive(Default)]
pub struct Worth {
    last: CacheCounters,
    sampled: u32,
}

impl Worth {
    /// Whether to look for stripes of samples only from now on, as was so until now if `sampling`.
    pub fn sample(&mut self, now: CacheCounters, sampling: bool) -> bool {
        let hits = now.hits - self.last.hits;
        let looks = hits + now.misses - self.last.misses;
        self.last = now;
        if !sampling {
            self.sampled = 0;
            return hits * LOOKS_A_HIT < looks;
        }
        self.sampled += 1;
        hits * LOOKS_A_HIT < 2 * looks && self.sampled < SAMPLED_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_finds_little_samples_until_samples_find_much_or_long_enough() {
        let (mut worth, mut counters) = (Worth::default(), CacheCounters::default());
        let mut found = |hits, looks, sampling| {
            counters.hits += hits;
            counters.misses += looks - hits;
            worth.sample(counters, sampling)
        };
        assert!(!found(32, 1024, false));
        assert!(found(31, 1024, false));
        assert!(found(63, 1024, true) && !found(64, 1024, true), "some way between the two limits");
        assert!(found(0, 1024, false));
        let rounds = (1..).find(|_| !found(0, 64, true));
        assert_eq!(rounds, Some(SAMPLED_MAX), "then all are looked for once");
        assert!(found(0, 1024, false), "and no more");
    }
}
