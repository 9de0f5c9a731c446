//! A volume whose writes go to another shard where the one that they came to is busy and the other is not.
//!
//! StRAID's writes are done where they arrive (S1), which is best as long as they arrive everywhere. One connection, and one
//! job on a block device, arrive on one shard: alone it would do all parity while the other cores are idle. So a shard whose
//! core is the limit looks at another one, each time the next in turn, and gives it the write if that has a quarter
//! fewer. Where members are what is waited for nothing is handed over: it costs two messages between cores.
//!
//! What continues a sequential stream inside a stripe stays: its parts become one stripe write there (StRAID 4.3). Reads of
//! a whole array cost little more than such a message, and stay too.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crossbeam::utils::CachePadded;
use engine::buffer::Gather;
use engine::foreign_buffer::Lease;
use engine::stripe::streams::Streams;
use engine::volume::{ReadInto, Volume, VolumeError, VolumeInfo};

use crate::array::{HostArray, HostVolume};
use crate::busy::Busy;
use crate::shard::{Handle, ShardContext};

/// Writes that a shard keeps for itself in any case.
const KEPT_WRITES: usize = 4;

/// Writes that each shard has begun and not ended, those from other shards included.
pub(crate) struct Loads(Box<[CachePadded<AtomicUsize>]>);

impl Loads {
    pub fn new(shards: usize) -> Self {
        Loads((0..shards).map(|_| CachePadded::default()).collect())
    }

    fn begin(&self, shard: usize) -> Begun<'_> {
        self.0[shard].fetch_add(1, Relaxed);
        Begun(&self.0[shard])
    }

    fn of(&self, shard: usize) -> usize {
        self.0[shard].load(Relaxed)
    }
}

/// A write that counts until this is dropped.
struct Begun<'a>(&'a AtomicUsize);

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Which shard does a client's next write.
struct Choice {
    own: usize,
    /// Those that may do it; 1 for the own one.
    shards: usize,
    stripe_bytes: u64,
    streams: Streams,
    /// The shard that was looked at last.
    last: Cell<usize>,
}

impl Choice {
    fn new(own: usize, shards: usize, stripe_bytes: u64) -> Self {
        Choice { own, shards, stripe_bytes, streams: Streams::default(), last: Cell::new(own) }
    }

    fn shard_for(&self, start: u64, bytes: u64, is_busy: bool, loads: &Loads) -> usize {
        let in_stream = self.streams.note(start, start.saturating_add(bytes)) && bytes < self.stripe_bytes;
        if in_stream || !is_busy || self.shards == 1 {
            return self.own;
        }
        let other = (self.last.get() + 1) % self.shards;
        self.last.set(other);
        let (own, others) = (loads.of(self.own), loads.of(other));
        if others + KEPT_WRITES.max(own / 4) <= own { other } else { self.own }
    }
}

/// An array's volume on one shard, for one client.
pub struct BalancedVolume {
    own: Rc<HostVolume>,
    array: HostArray,
    shards: Handle,
    busy: Busy,
    loads: Arc<Loads>,
    choice: Choice,
}

impl BalancedVolume {
    pub(crate) fn new(array: &HostArray, context: &ShardContext, loads: &Arc<Loads>, shards: usize) -> Self {
        let own = array.volume();
        BalancedVolume {
            choice: Choice::new(context.index, shards, own.info().io_opt_bytes),
            own,
            array: array.clone(),
            shards: context.shards.clone(),
            busy: context.busy.clone(),
            loads: Arc::clone(loads),
        }
    }
}

impl Volume for BalancedVolume {
    fn info(&self) -> VolumeInfo {
        self.own.info()
    }

    async fn read(&self, offset_bytes: u64, bytes: u64) -> Result<Gather, VolumeError> {
        self.own.read(offset_bytes, bytes).await
    }

    async fn write(&self, offset_bytes: u64, data: Gather, fua: bool) -> Result<(), VolumeError> {
        let bytes = data.len() as u64;
        let shard = self.choice.shard_for(offset_bytes, bytes, self.busy.is_busy(), &self.loads);
        let _begun = self.loads.begin(shard);
        if shard == self.choice.own {
            return self.own.write(offset_bytes, data, fua).await;
        }
        let array = self.array.clone();
        let write = move |_| async move {
            let volume = array.volume_if_open().ok_or(VolumeError::Stopping)?;
            volume.write(offset_bytes, data, fua).await
        };
        self.shards.call(shard, write).await.unwrap_or(Err(VolumeError::Stopping))
    }

    async fn flush(&self) -> Result<(), VolumeError> {
        self.own.flush().await
    }

    async fn write_zeroes(
        &self,
        offset_bytes: u64,
        bytes: u64,
        may_unmap: bool,
        fua: bool,
    ) -> Result<(), VolumeError> {
        self.own.write_zeroes(offset_bytes, bytes, may_unmap, fua).await
    }

    async fn discard(&self, offset_bytes: u64, bytes: u64) -> Result<(), VolumeError> {
        self.own.discard(offset_bytes, bytes).await
    }
}

impl ReadInto for BalancedVolume {
    async fn read_into(&self, offset_bytes: u64, bytes: u64, target: &Lease) -> bool {
        self.own.read_into(offset_bytes, bytes, target).await
    }
}

#[cfg(test)]
#[path = "balance_tests.rs"]
mod tests;
