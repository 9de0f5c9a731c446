//! Whether looking parity up pays, as a pure decision.
//!
//! Where writes do not come back to the same rows, a look-up takes locks and touches cold cache lines for nothing. So a
//! cache that finds little looks up only the stripes of a few shards, whose hits stand for what all would find (set
//! sampling, as processor caches compare policies). A single hot stripe may lie in none of them: now and then all are
//! looked up again.

/// With fewer hits than one in this many look-ups the cache does not pay; with twice as many it pays again.
const LOOKUPS_PER_HIT: u64 = 32;

/// Most decisions in a row to look up only the samples.
const SAMPLED_MAX: u32 = 64;

/// Hit and miss counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct CacheCounters {
    /// Stripe writes that found parity.
    pub hits: u64,
    /// Stripe writes that found none. Those that did not look, while only samples are looked up, are not counted.
    pub misses: u64,
    /// Stripes evicted.
    pub evictions: u64,
}

/// The counters at the last decision, and how often in a row it was for samples.
#[derive(Default)]
pub struct Worth {
    last: CacheCounters,
    sampled: u32,
}

impl Worth {
    /// Whether to look up only the samples from now on. `sampling`: it was so until now.
    pub fn sample(&mut self, now: CacheCounters, sampling: bool) -> bool {
        let hits = now.hits - self.last.hits;
        let lookups = hits + now.misses - self.last.misses;
        self.last = now;
        if !sampling {
            self.sampled = 0;
            return hits * LOOKUPS_PER_HIT < lookups;
        }
        self.sampled += 1;
        hits * LOOKUPS_PER_HIT < 2 * lookups && self.sampled < SAMPLED_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_finds_little_samples_until_samples_find_much_or_long_enough() {
        let (mut worth, mut counters) = (Worth::default(), CacheCounters::default());
        let mut found = |hits, lookups, sampling| {
            counters.hits += hits;
            counters.misses += lookups - hits;
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
