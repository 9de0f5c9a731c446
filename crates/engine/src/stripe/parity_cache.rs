//! Parity in memory (StRAID 4.4): write-through, looked up by stripe, evicted in LRU order of stripes.
//!
//! Invariant 5: what is cached equals what is on the members, or is absent. It is kept by ownership: a stripe write
//! **takes** parity out when it starts and puts the new parity in after the members have it; a write that fails puts
//! nothing. Only the owner of a stripe (see [`super::stripe_table`]) may touch the stripe's entry.
//!
//! Parity is admitted when the same rows are written again before as much parity was written as the cache holds: later
//! than that the first write's parity would be gone by now. Parity that is written once only costs: its memory comes
//! back cold, which doubled the price of uniformly random 4 KiB writes.
//!
//! No byte is copied: an entry holds the very slices that were written. The table is cut into shards by stripe, so
//! that cores rarely meet; each shard cleans itself when it grows past its share. Memory does not grow with the
//! capacity of the array.

use slab::Slab;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::chunk_set::Chunk;
use super::image::{Held, Image};
use super::plan::{Fragment, Rows};
use crate::buffer::Slice;
use crate::sync::sequential::Mutex;

const SHARDS: usize = 64;

/// For each so many bytes of the cache one place is remembered as written lately, whether cached or not: 16 bytes of
/// memory for 4096.
const BYTES_A_PLACE: usize = 4096;

/// Hit and miss counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct CacheCounters {
    /// Stripe writes that found parity.
    pub hits: u64,
    /// Stripe writes that found none.
    pub misses: u64,
    /// Stripes evicted.
    pub evictions: u64,
}

/// The parity cache of an array, shared by all shards.
pub struct ParityCache {
    shards: Box<[Mutex<Lru>]>,
    shard_bytes_max: usize,
}

impl ParityCache {
    /// A cache of `bytes` bytes of parity; 0 turns it off.
    pub fn new(bytes: usize) -> Self {
        let shard_bytes_max = bytes / SHARDS;
        let shards = (0..SHARDS).map(|_| Mutex::new(Lru::new(shard_bytes_max))).collect();
        ParityCache { shards, shard_bytes_max }
    }

    /// Moves the stripe's cached parity that lies inside `rows` into `image`, and drops what only overlaps: it is
    /// about to be overwritten.
    pub(crate) fn take(&self, stripe: u64, rows: Rows, image: &mut Image) {
        if self.shard_bytes_max == 0 {
            return;
        }
        let taken = self.shard(stripe).lock().take(stripe, rows);
        for (fragment, slice) in taken {
            image.insert(fragment, Held::Shared(slice));
        }
    }

    /// Keeps parity that the members now hold. The stripe's owner took out what `fragment` overlaps before.
    pub(crate) fn put(&self, stripe: u64, chunk: Chunk, start: u32, slice: &Slice) {
        if self.shard_bytes_max < slice.len() {
            return;
        }
        let end = start + u32::try_from(slice.len()).expect("a chunk is at most 64 MiB");
        let fragment = Fragment { chunk, rows: Rows { start, end } };
        self.shard(stripe).lock().put(stripe, fragment, slice);
    }

    /// Forgets a stripe.
    pub(crate) fn forget(&self, stripe: u64) {
        if self.shard_bytes_max > 0 {
            self.shard(stripe).lock().remove(stripe);
        }
    }

    /// Forgets everything: members changed.
    pub fn clear(&self) {
        self.shards.iter().for_each(|shard| shard.lock().clear());
    }

    /// All that is cached now, as stripe, chunk, first row and parity: for checks of invariant 5.
    pub fn contents(&self) -> Vec<(u64, Chunk, u32, Slice)> {
        let mut contents = Vec::new();
        for shard in &self.shards {
            for (_, entry) in &shard.lock().entries {
                let parts = entry.parts.iter();
                contents.extend(parts.map(|(f, slice)| (entry.stripe, f.chunk, f.rows.start, slice.clone())));
            }
        }
        contents
    }

    /// Hit and miss counts since the start.
    pub fn counters(&self) -> CacheCounters {
        let mut sum = CacheCounters::default();
        for shard in &self.shards {
            let CacheCounters { hits, misses, evictions } = shard.lock().counters;
            sum.hits += hits;
            sum.misses += misses;
            sum.evictions += evictions;
        }
        sum
    }

    fn shard(&self, stripe: u64) -> &Mutex<Lru> {
        &self.shards[(mix(stripe) >> 58) as usize]
    }
}

fn mix(stripe: u64) -> u64 {
    stripe.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// A number for the rows of a parity chunk; never 0.
fn place(stripe: u64, fragment: &Fragment) -> u64 {
    mix(mix(stripe + 1) ^ u64::from(fragment.rows.start) << 8 ^ u64::from(fragment.chunk)) | 1
}

/// Stripe numbers are no attacker's choice: one multiplication spreads them well enough.
#[derive(Default)]
struct StripeHasher(u64);

impl Hasher for StripeHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("only stripe numbers are hashed")
    }
    fn write_u64(&mut self, stripe: u64) {
        self.0 = mix(stripe).rotate_left(26);
    }
}

type Parts = SmallVec<[(Fragment, Slice); 2]>;

struct Entry {
    stripe: u64,
    parts: Parts,
    newer: usize,
    older: usize,
}

const NONE: usize = usize::MAX;

/// One shard: entries in a slab, linked from the most to the least recently used.
struct Lru {
    index: HashMap<u64, usize, BuildHasherDefault<StripeHasher>>,
    entries: Slab<Entry>,
    newest: usize,
    oldest: usize,
    bytes: usize,
    bytes_max: usize,
    /// The place last written, for each hash: see [`place`].
    seen: Box<[Seen]>,
    /// Bytes of parity written so far, cached or not.
    written: u64,
    counters: CacheCounters,
}

/// A place, and what [`Lru::written`] was when it was written.
#[derive(Clone, Copy, Default)]
struct Seen {
    place: u64,
    written: u64,
}

impl Lru {
    fn new(bytes_max: usize) -> Self {
        Lru {
            index: HashMap::default(),
            entries: Slab::new(),
            newest: NONE,
            oldest: NONE,
            bytes: 0,
            bytes_max,
            seen: vec![Seen::default(); (bytes_max / BYTES_A_PLACE).max(1)].into_boxed_slice(),
            written: 0,
            counters: CacheCounters::default(),
        }
    }

    fn clear(&mut self) {
        *self = Lru { counters: self.counters, ..Lru::new(self.bytes_max) };
    }

    fn take(&mut self, stripe: u64, rows: Rows) -> Parts {
        let taken = self.take_parts(stripe, rows);
        match taken.is_empty() {
            true => self.counters.misses += 1,
            false => self.counters.hits += 1,
        }
        taken
    }

    fn take_parts(&mut self, stripe: u64, rows: Rows) -> Parts {
        let mut taken = Parts::new();
        let Some(&at) = self.index.get(&stripe) else { return taken };
        let mut freed = 0;
        self.entries[at].parts.retain(|(fragment, slice)| {
            let apart = fragment.rows.end <= rows.start || rows.end <= fragment.rows.start;
            if !apart {
                freed += slice.len();
                // A part that reaches over the rows is of use too: the plan cuts where it begins and ends.
                taken.push((*fragment, slice.clone()));
            }
            apart
        });
        self.bytes -= freed;
        self.touch(at);
        for (fragment, _) in &taken {
            self.note_seen(stripe, fragment); // what was of use is kept again
        }
        taken
    }

    fn put(&mut self, stripe: u64, fragment: Fragment, slice: &Slice) {
        let is_due = self.note_seen(stripe, &fragment);
        self.written += slice.len() as u64;
        if !is_due {
            return;
        }
        self.bytes += slice.len();
        let slice = slice.clone();
        match self.index.get(&stripe) {
            Some(&at) => {
                self.entries[at].parts.push((fragment, slice));
                self.touch(at);
            }
            None => {
                let parts = Parts::from_iter([(fragment, slice)]);
                let at = self.entries.insert(Entry { stripe, parts, newer: NONE, older: NONE });
                self.index.insert(stripe, at);
                self.link_newest(at);
            }
        }
        while self.bytes > self.bytes_max && self.oldest != NONE {
            let stripe = self.entries[self.oldest].stripe;
            self.remove(stripe);
            self.counters.evictions += 1;
        }
    }

    /// Remembers a place as written now. True if it was so a while ago.
    fn note_seen(&mut self, stripe: u64, fragment: &Fragment) -> bool {
        let now = Seen { place: place(stripe, fragment), written: self.written };
        // The upper half of the number, spread over the table by a multiplication.
        let at = (((now.place >> 32) * self.seen.len() as u64) >> 32) as usize;
        let last = std::mem::replace(&mut self.seen[at], now);
        last.place == now.place && now.written - last.written <= self.bytes_max as u64
    }

    fn remove(&mut self, stripe: u64) {
        if let Some(at) = self.index.remove(&stripe) {
            self.unlink(at);
            let entry = self.entries.remove(at);
            self.bytes -= entry.parts.iter().map(|(_, slice)| slice.len()).sum::<usize>();
        }
    }

    fn touch(&mut self, at: usize) {
        if self.newest != at {
            self.unlink(at);
            self.link_newest(at);
        }
    }

    fn link_newest(&mut self, at: usize) {
        (self.entries[at].newer, self.entries[at].older) = (NONE, self.newest);
        match self.newest {
            NONE => self.oldest = at,
            newest => self.entries[newest].newer = at,
        }
        self.newest = at;
    }

    fn unlink(&mut self, at: usize) {
        let (newer, older) = (self.entries[at].newer, self.entries[at].older);
        match newer {
            NONE => self.newest = older,
            newer => self.entries[newer].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.entries[older].newer = newer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::chunk_set::P;
    use super::*;

    const ROWS: Rows = Rows { start: 0, end: 4096 };

    fn hit(cache: &ParityCache, stripe: u64) -> bool {
        let mut image = Image::default();
        cache.take(stripe, ROWS, &mut image);
        image.get(P, ROWS).is_some()
    }

    #[test]
    fn parity_is_taken_once_and_least_recent_stripes_go_first() {
        let cache = ParityCache::new(SHARDS * 3 * 4096);
        let same_shard: Vec<u64> = (0..).filter(|&s| mix(s) >> 58 == mix(0) >> 58).take(4).collect();
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
        let mut same_shard = (0..).filter(|&s| mix(s) >> 58 == mix(0) >> 58);
        let slice = Slice::from_bytes(&vec![7; 65536]);
        let put = |stripe| cache.put(stripe, P, 0, &slice);
        let stripes: Vec<u64> = same_shard.by_ref().take(6).collect();
        stripes.iter().for_each(|&stripe| put(stripe));
        put(stripes[0]); // six parts ago: as a part of the cache it had been evicted
        put(stripes[5]); // two parts ago
        assert!(!hit(&cache, stripes[0]) && hit(&cache, stripes[5]));
    }

    #[test]
    fn what_overlaps_is_dropped_and_the_rest_stays() {
        let cache = ParityCache::new(1 << 30);
        cache.put(9, P, 0, &Slice::from_bytes(&[1; 8192])); // not admitted yet
        cache.put(9, P, 0, &Slice::from_bytes(&[1; 8192]));
        cache.put(9, P, 8192, &Slice::from_bytes(&[2; 4096]));
        cache.put(9, P, 8192, &Slice::from_bytes(&[2; 4096]));
        let mut image = Image::default();
        cache.take(9, Rows { start: 4096, end: 8192 }, &mut image);
        assert_eq!(image.get(P, Rows { start: 4096, end: 8192 }).unwrap()[0], 1);
        let mut image = Image::default();
        cache.take(9, Rows { start: 0, end: 1 << 20 }, &mut image);
        assert_eq!(image.fragments().len(), 1, "only the untouched part is left");
    }
}
