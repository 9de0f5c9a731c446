//! An array's volume for one client: a write goes to another shard where the client's own shard is busy and another is not.
//!
//! StRAID does a write where it arrives (S1), which is best while writes arrive everywhere. One connection, and one job on
//! a block device, arrive on one shard: it would compute all parity while the other cores are idle. So for each write a
//! shard whose core is the limit looks at the next shard in turn, and gives it the write if that one has a quarter fewer
//! in flight. Where the members are the limit each shard keeps its writes: handing one over costs two messages between
//! cores.
//!
//! A write that continues a sequential stream inside a stripe stays: its parts become one stripe write (StRAID 4.3). A read of
//! a whole array costs little more than the messages, and stays too.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

use engine::array::volume::ArrayVolume;
use engine::buffer::Gather;
use engine::error::VolumeError;
use engine::foreign_buffer::Lease;
use engine::stripe::streams::Streams;
use engine::volume::{Engine, ReadInto, Space, Volume, VolumeInfo, ZeroFlags};

use crate::busy::Busy;
use crate::shard::ShardContext;
use crate::shard_writes::ShardWrites;
use crate::volumes::Volumes;

/// Writes that a shard keeps for itself in any case.
const KEPT_WRITES: usize = 4;

/// An array's volume on one shard, for one client.
pub struct BalancedVolume<E> {
    own: Rc<ArrayVolume<E>>,
    volumes: Volumes<E>,
    busy: Busy,
    writes: Arc<ShardWrites>,
    choice: Choice,
}

impl<E: Engine> BalancedVolume<E> {
    /// The array for a client that came to this shard. Other shards help where it is busy, if they may.
    ///
    /// # Panics
    /// As [`Volumes::here`].
    pub fn open(volumes: &Volumes<E>, context: &ShardContext, may_help: bool) -> Rc<Self> {
        let (own, shards) = (volumes.here(), volumes.shards());
        let helpers = if may_help { shards.count() } else { 1 };
        Rc::new(BalancedVolume {
            choice: Choice::new(shards.number_of(context), helpers, own.info().io_opt_bytes),
            own,
            volumes: volumes.clone(),
            busy: context.busy.clone(),
            writes: volumes.writes(),
        })
    }
}

impl<E: Engine> Volume for BalancedVolume<E> {
    fn info(&self) -> VolumeInfo {
        self.own.info()
    }
}

impl<E: Engine> Space for BalancedVolume<E> {
    async fn write(&self, offset_bytes: u64, data: Gather, fua: bool) -> Result<(), VolumeError> {
        let bytes = data.len() as u64;
        let shard = self.choice.shard_for(offset_bytes, bytes, self.busy.is_busy(), &self.writes);
        let _begun = self.writes.begin(shard);
        if shard == self.choice.own {
            return self.own.write(offset_bytes, data, fua).await;
        }
        let volumes = self.volumes.clone();
        let write = move |_| async move {
            let volume = volumes.here_if_open().ok_or(VolumeError::Stopping)?;
            volume.write(offset_bytes, data, fua).await
        };
        self.volumes.shards().call(shard, write).await.unwrap_or(Err(VolumeError::Stopping))
    }

    fn read(&self, offset_bytes: u64, bytes: u64) -> impl Future<Output = Result<Gather, VolumeError>> {
        self.own.read(offset_bytes, bytes)
    }

    fn flush(&self) -> impl Future<Output = Result<(), VolumeError>> {
        self.own.flush()
    }

    fn write_zeroes(
        &self,
        start: u64,
        bytes: u64,
        how: ZeroFlags,
    ) -> impl Future<Output = Result<(), VolumeError>> {
        self.own.write_zeroes(start, bytes, how)
    }

    fn discard(&self, offset_bytes: u64, bytes: u64) -> impl Future<Output = Result<(), VolumeError>> {
        self.own.discard(offset_bytes, bytes)
    }
}

impl<E: Engine + ReadInto> ReadInto for BalancedVolume<E> {
    fn read_into(&self, offset_bytes: u64, bytes: u64, target: &Lease) -> impl Future<Output = bool> {
        self.own.read_into(offset_bytes, bytes, target)
    }
}

/// Which shard does a client's next write.
struct Choice {
    own: usize,
    /// How many shards may do it; 1: only the own one.
    shards: usize,
    stripe_bytes: u64,
    streams: Streams,
    /// The other shard that was considered last.
    last: Cell<usize>,
}

impl Choice {
    fn new(own: usize, shards: usize, stripe_bytes: u64) -> Self {
        Choice { own, shards, stripe_bytes, streams: Streams::default(), last: Cell::new(own) }
    }

    fn shard_for(&self, start: u64, bytes: u64, is_busy: bool, writes: &ShardWrites) -> usize {
        let in_stream = self.streams.note(start, start.saturating_add(bytes)) && bytes < self.stripe_bytes;
        if in_stream || !is_busy || self.shards == 1 {
            return self.own;
        }
        let other = (self.last.get() + 1) % self.shards;
        self.last.set(other);
        let (own, others) = (writes.of(self.own), writes.of(other));
        if others + KEPT_WRITES.max(own / 4) <= own { other } else { self.own }
    }
}

#[cfg(test)]
#[path = "balance_tests.rs"]
mod tests;
