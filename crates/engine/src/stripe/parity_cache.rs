//! The parity cache (StRAID 4.4): write-through, looked up by stripe, evicted in LRU order of stripes.
//!
//! Invariant 5: cached parity equals the parity on the members, or is absent. Ownership keeps it so: a stripe write
//! **takes** parity out when it starts, and puts the new parity in once the members hold it; a write that fails puts
//! nothing. Only the owner of a stripe (see [`super::stripe_table`]) may touch the stripe's entry.
//!
//! Parity is admitted when the same rows are written a second time before the shard has seen as much other parity as it can
//! hold: after that the first write's parity would have been evicted anyway. Caching parity that is written once only
//! costs: its memory comes back cold, which doubled the price of uniformly random 4 KiB writes.
//!
//! No byte is copied: an entry holds the slices that were written. The table is cut into shards by stripe, so
//! that cores rarely meet; each shard evicts when it grows past its share. Memory does not grow with the
//! capacity of the array.
//!
//! Where look-ups find little ([`worth`]) only the stripes of the first shards, the samples, are looked up and kept.
//! Invariant 5 holds across the change, which happens under the lock of `worth`: first `sampling` is set, then the other
//! shards are cleared, each under its own lock, under which every put checks `sampling` again. So once a shard is cleared
//! it stays empty. Nor does an owner act on an old value of `sampling` in a shard that is in use again: a task that put
//! parity of the stripe there had read the new value, and an owner that got the stripe after it reads that value or a
//! later one.

mod lru;
mod worth;

use crate::buffer::Slice;
use crate::code::chunk_set::{Chunk, P, Q};
use crate::code::image::{Held, Image};
use crate::code::rows::{Fragment, Rows};
use crate::sync::sequential::Mutex;
use crate::sync::sequential::atomic::{AtomicBool, Ordering};
use layout::units::Stripe;
use lru::{Lru, mix};
use worth::Worth;

pub use worth::CacheCounters;

const SHARDS: usize = 64;

/// The first of them, which stay in use while look-ups find little.
const SAMPLES: usize = 4;

/// The parity cache of an array, shared by all shards.
pub struct ParityCache {
    shards: Box<[Mutex<Lru>]>,
    shard_bytes_max: usize,
    /// Only the samples are looked up and kept.
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
    pub(crate) fn take(&self, stripe: Stripe, rows: Rows, image: &mut Image) {
        let Some(shard) = self.used(stripe) else { return };
        let mut lru = self.shards[shard].lock();
        let taken = lru.take(stripe, rows);
        let ends_window = shard < SAMPLES && lru.ends_window();
        drop(lru);
        for (fragment, slice) in taken {
            image.insert(fragment, Held::Shared(slice));
        }
        if ends_window {
            self.weigh();
        }
    }

    /// Keeps parity that the members now hold. The stripe's owner has taken out all parity that overlaps it.
    pub(crate) fn put(&self, stripe: Stripe, chunk: Chunk, start: u32, slice: &Slice) {
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
    pub(crate) fn forget(&self, stripe: Stripe) {
        if let Some(shard) = self.used(stripe) {
            self.shards[shard].lock().remove(stripe);
        }
    }

    /// Decides whether to look up only the samples, or all stripes again.
    fn weigh(&self) {
        let mut worth = self.worth.lock();
        let was = self.sampling.load(Ordering::SeqCst);
        let sampling = worth.sample(self.counters(), was);
        self.sampling.store(sampling, Ordering::SeqCst); // before any shard is locked: see the file header
        if sampling && !was {
            self.shards[SAMPLES..].iter().for_each(|shard| shard.lock().clear());
        }
    }

    /// Forgets everything: a member has failed.
    pub fn clear(&self) {
        self.shards.iter().for_each(|shard| shard.lock().clear());
    }

    /// Everything that is cached now, as stripe, chunk, first row and parity: for checks of invariant 5.
    pub fn contents(&self) -> Vec<(Stripe, Chunk, u32, Slice)> {
        let mut contents = Vec::new();
        for shard in &self.shards {
            for (_, entry) in &shard.lock().entries {
                let parts = entry.parts.iter();
                contents.extend(parts.map(|(f, slice)| (entry.stripe, f.chunk, f.rows.start, slice.clone())));
            }
        }
        contents
    }

    /// Checks that lists, index and counts match the entries, and that no two parts of a stripe overlap.
    ///
    /// # Panics
    /// If one of these does not hold.
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
    fn used(&self, stripe: Stripe) -> Option<usize> {
        let shard = (mix(stripe.get()) >> 58) as usize;
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
