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
//!
//! Where little is found ([`worth`]) only the stripes of the first shards, the samples, are looked for and kept. Invariant 5
//! holds across the change, which happens under a lock: the word is changed, then the other shards are emptied, each under its
//! lock, under which every put looks at the word again. So nothing is left there, or gets there, once they are passed over;
//! and who still reads the word of before has no part in a shard that was used since, for the stripe came to him from an owner
//! who read the later one.

mod lru;
mod worth;

use crate::buffer::Slice;
use crate::code::chunk_set::{Chunk, P, Q};
use crate::code::image::{Held, Image};
use crate::code::rows::{Fragment, Rows};
use crate::sync::sequential::Mutex;
use crate::sync::sequential::atomic::{AtomicBool, Ordering};
use lru::{Lru, mix};
use worth::Worth;

pub use worth::CacheCounters;

const SHARDS: usize = 64;

/// Of them, those that are used also while the cache finds little.
const SAMPLES: usize = 4;

/// The parity cache of an array, shared by all shards.
pub struct ParityCache {
    shards: Box<[Mutex<Lru>]>,
    shard_bytes_max: usize,
    /// Only samples are looked for and kept.
    sampling: AtomicBool,
    worth: Mutex<Worth>,
}

impl ParityCache {
    /// A cache of `bytes` bytes of parity; 0 turns it off.
    pub fn new(bytes: usize) -> Self {
        let shard_bytes_max = bytes / SHARDS;
        let shards = (0..SHARDS).map(|_| Mutex::new(Lru::new(shard_bytes_max))).collect();
        ParityCache { shards, shard_bytes_max, sampling: AtomicBool::new(false), worth: Mutex::default() }
    }

    /// Moves the stripe's cached parity that overlaps `rows` into `image`: it is about to be overwritten.
    pub(crate) fn take(&self, stripe: u64, rows: Rows, image: &mut Image) {
        let Some(shard) = self.used(stripe) else { return };
        let mut lru = self.shards[shard].lock();
        let taken = lru.take(stripe, rows);
        let is_due = shard < SAMPLES && lru.ends_window();
        drop(lru);
        for (fragment, slice) in taken {
            image.insert(fragment, Held::Shared(slice));
        }
        if is_due {
            self.weigh();
        }
    }

    /// Keeps parity that the members now hold. The stripe's owner took out what `fragment` overlaps before.
    pub(crate) fn put(&self, stripe: u64, chunk: Chunk, start: u32, slice: &Slice) {
        if self.shard_bytes_max < slice.len() {
            return;
        }
        let Some(shard) = self.used(stripe) else { return };
        let end = start + u32::try_from(slice.len()).expect("a chunk is at most 64 MiB");
        let fragment = Fragment { chunk, rows: Rows { start, end } };
        assert!(matches!(chunk, P | Q), "invariant 5: only parity is kept");
        let mut lru = self.shards[shard].lock();
        if self.is_used(shard) {
            lru.put(stripe, fragment, slice);
        }
    }

    /// Forgets a stripe.
    pub(crate) fn forget(&self, stripe: u64) {
        if let Some(shard) = self.used(stripe) {
            self.shards[shard].lock().remove(stripe);
        }
    }

    /// Looks for samples only, or for all again.
    fn weigh(&self) {
        let mut worth = self.worth.lock();
        let was = self.sampling.load(Ordering::SeqCst);
        let sampling = worth.sample(self.counters(), was);
        self.sampling.store(sampling, Ordering::SeqCst); // before the shards' locks: see above
        if sampling && !was {
            self.shards[SAMPLES..].iter().for_each(|shard| shard.lock().clear());
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

    /// Checks what the cache says of itself.
    ///
    /// # Panics
    /// If it contradicts itself.
    pub fn self_check(&self) {
        self.shards.iter().for_each(|shard| shard.lock().self_check());
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

    /// The shard of a stripe, if it is used.
    #[inline]
    fn used(&self, stripe: u64) -> Option<usize> {
        let shard = (mix(stripe) >> 58) as usize;
        (self.shard_bytes_max > 0 && self.is_used(shard)).then_some(shard)
    }

    #[inline]
    fn is_used(&self, shard: usize) -> bool {
        shard < SAMPLES || !self.sampling.load(Ordering::SeqCst)
    }
}

#[cfg(all(test, feature = "model"))]
mod model;
#[cfg(test)]
mod tests;
