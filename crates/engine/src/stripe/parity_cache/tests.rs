//! The cache of one thread: what is admitted, found and dropped.

use super::*;
use crate::code::chunk_set::P;
use layout::units::Stripe;

const ROWS: Rows = Rows { start: 0, end: 4096 };

fn hit(cache: &ParityCache, stripe: Stripe) -> bool {
    let mut image = Image::default();
    cache.take(stripe, ROWS, &mut image);
    image.get(P, ROWS).is_some()
}

fn of_one_shard() -> impl Iterator<Item = Stripe> {
    (0..).filter(|&number| mix(number) >> 58 == mix(0) >> 58).map(Stripe::new)
}

#[test]
fn parity_is_taken_once_and_least_recent_stripes_go_first() {
    let cache = ParityCache::new(SHARDS * 3 * 4096);
    let same_shard: Vec<Stripe> = of_one_shard().take(4).collect();
    let slice = Slice::from_bytes(&[7; 4096]);
    for &stripe in &same_shard[..3] {
        cache.put(stripe, P, 0, &slice);
        assert!(!hit(&cache, stripe), "admitted at the second write");
        cache.put(stripe, P, 0, &slice);
    }
    assert!(hit(&cache, same_shard[0]));
    assert!(!hit(&cache, same_shard[0]), "taken");
    for stripe in [same_shard[0], same_shard[3], same_shard[3]] {
        cache.put(stripe, P, 0, &slice);
    }
    assert!(!hit(&cache, same_shard[1]), "the least recently used is gone");
    assert!(hit(&cache, same_shard[2]) && hit(&cache, same_shard[0]) && hit(&cache, same_shard[3]));
    assert_eq!(cache.counters(), CacheCounters { hits: 4, misses: 5, evictions: 1 });
}

#[test]
fn what_is_written_again_too_late_is_not_admitted() {
    let cache = ParityCache::new(SHARDS * 4 * 65536);
    let slice = Slice::from_bytes(&vec![7; 65536]);
    let put = |stripe| cache.put(stripe, P, 0, &slice);
    let stripes: Vec<Stripe> = of_one_shard().take(6).collect();
    stripes.iter().for_each(|&stripe| put(stripe));
    put(stripes[0]); // six parts ago: as a part of the cache it had been evicted
    put(stripes[5]); // two parts ago
    assert!(!hit(&cache, stripes[0]) && hit(&cache, stripes[5]));
}

#[test]
fn what_overlaps_is_dropped_and_the_rest_stays() {
    let cache = ParityCache::new(1 << 30);
    cache.put(Stripe::new(9), P, 0, &Slice::from_bytes(&[1; 8192])); // not admitted yet
    cache.put(Stripe::new(9), P, 0, &Slice::from_bytes(&[1; 8192]));
    cache.put(Stripe::new(9), P, 8192, &Slice::from_bytes(&[2; 4096]));
    cache.put(Stripe::new(9), P, 8192, &Slice::from_bytes(&[2; 4096]));
    let mut image = Image::default();
    cache.take(Stripe::new(9), Rows { start: 4096, end: 8192 }, &mut image);
    assert_eq!(image.get(P, Rows { start: 4096, end: 8192 }).unwrap()[0], 1);
    let mut image = Image::default();
    cache.take(Stripe::new(9), Rows { start: 0, end: 1 << 20 }, &mut image);
    assert_eq!(image.fragments().len(), 1, "only the untouched part is left");
}

#[test]
fn a_cache_that_finds_little_keeps_samples_only_until_they_are_found_again() {
    let cache = ParityCache::new(SHARDS * 4 * 4096);
    let slice = Slice::from_bytes(&[7; 4096]);
    let write = |stripe| {
        let found = hit(&cache, stripe);
        cache.put(stripe, P, 0, &slice);
        found
    };
    let hot = (0..).map(Stripe::new).find(|&stripe| cache.used(stripe) >= Some(SAMPLES)).unwrap();
    let finds = || (0..3).fold(false, |_, _| write(hot));
    assert!(finds());
    (1 << 20..(1 << 20) + 10_000).map(Stripe::new).for_each(|cold| assert!(!write(cold)));
    assert!(!finds() && !cache.contents().iter().any(|&(stripe, ..)| cache.used(stripe).is_none()));
    let sample = (0..).map(Stripe::new).find(|&stripe| cache.used(stripe).is_some()).unwrap();
    (0..100).for_each(|_| _ = write(sample));
    assert!(finds(), "samples were found");
}
