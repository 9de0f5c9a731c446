//! How many writes of an array each shard has in flight.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crossbeam::utils::CachePadded;

/// Writes that each shard has begun and not ended, those that it took from other shards included.
pub(crate) struct ShardWrites(Box<[CachePadded<AtomicUsize>]>);

impl ShardWrites {
    pub fn new(shards: usize) -> Self {
        ShardWrites((0..shards).map(|_| CachePadded::default()).collect())
    }

    /// Counts a write until the result is dropped.
    #[inline]
    pub fn begin(&self, shard: usize) -> BegunWrite<'_> {
        self.0[shard].fetch_add(1, Relaxed);
        BegunWrite(&self.0[shard])
    }

    /// Writes of a shard in flight.
    #[inline]
    pub fn of(&self, shard: usize) -> usize {
        self.0[shard].load(Relaxed)
    }
}

/// A write in flight.
pub(crate) struct BegunWrite<'a>(&'a AtomicUsize);

impl Drop for BegunWrite<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}
