//! The log engine of one shard: what a volume asks of an engine, served from segments.

use std::rc::Rc;

use layout::zoned::Class;

use super::checkpoint::checkpoint;
use super::flush::flush_members;
use super::page_out::{is_paged, page_out};
use super::port::LogPort;
use super::read::read_blocks;
use super::reclaim::reclaim;
use super::shard::LogEngine;
use super::write::write_blocks;
use super::zeroes::zero_blocks;
use crate::buffer::Gather;
use crate::counters::Counters;
use crate::error::VolumeError;
use crate::foreign_buffer::Lease;
use crate::limits::BLOCK_BYTES;
use crate::volume::{Engine, EngineShape, ReadInto, Space, ZeroFlags};
use crate::zone_device::ZoneDevice;

/// One shard's log engine as an engine of a volume. A handle: tasks of the engine hold others.
pub struct LogSet<D>(pub Rc<LogEngine<D>>);

impl<D: ZoneDevice> LogSet<D> {
    /// The engine of a shard, once superblocks say that the epoch serves. Shard 0 reclaims for all.
    pub fn serve(port: LogPort<D>) -> Self {
        let engine = Rc::new(LogEngine::new(port));
        if engine.port.shard == 0 {
            let (table, space) = (&engine.port.shared.table, &engine.port.shared.space);
            if let Some(segment) = table.take_over() {
                engine.open.go_on_with(segment);
            }
            space.set_running(true);
            space.want();
            engine.port.executor.spawn(reclaim(Rc::clone(&engine)));
            if is_paged(&engine.port.shared) {
                engine.port.executor.spawn(page_out(Rc::clone(&engine)));
            }
        }
        LogSet(engine)
    }

    /// Closes this shard's open segments: before a member joins, since they have a column of the one that left, and after it,
    /// since they have none of its own.
    pub async fn renew(&self) {
        self.0.open.renew(&self.0.port).await;
        self.0.port.shared.space.want(); // what was closed may lack a column
    }

    /// Seals the open segments, writes a checkpoint and makes everything durable. Called when no request is in flight, for the shard
    /// that reclaims last; the array can then be started without reading records.
    ///
    /// # Errors
    /// A member that the array needs failed.
    pub async fn stop(&self) -> Result<(), VolumeError> {
        let shared = &self.0.port.shared;
        shared.space.stopped().await;
        shared.memory.stopped().await;
        self.0.open.close_all(&self.0.port).await; // what is sealed by now, the checkpoint spares the next start
        if self.0.port.shard == 0 && shared.map.changed() > 0 {
            _ = checkpoint(&self.0).await; // without one the next start reads more
        }
        self.0.open.close_all(&self.0.port).await;
        flush_members(&self.0.port).await
    }
}

impl<D: ZoneDevice> Engine for LogSet<D> {
    fn shape(&self) -> EngineShape {
        let engine = &self.0;
        let stripe = (engine.stripe_blocks(Class::Large) * BLOCK_BYTES) as u64;
        EngineShape {
            size_bytes: engine.port.shared.config.logical_blocks * BLOCK_BYTES as u64,
            io_min_bytes: BLOCK_BYTES as u32,
            io_opt_bytes: stripe,
        }
    }

    fn counters(&self) -> &Counters {
        self.0.port.counters()
    }

    /// Latencies of clients are not measured yet: background work of this engine has no budget to keep.
    fn begin(&self) -> Option<u64> {
        None
    }

    fn end(&self, _began_ns: Option<u64>) {}
}

impl<D: ZoneDevice> Space for LogSet<D> {
    async fn read(&self, offset_bytes: u64, bytes: u64) -> Result<Gather, VolumeError> {
        read_blocks(&self.0, offset_bytes, bytes).await
    }

    async fn write(&self, offset_bytes: u64, data: Gather, fua: bool) -> Result<(), VolumeError> {
        write_blocks(&self.0, offset_bytes, data, fua).await
    }

    async fn flush(&self) -> Result<(), VolumeError> {
        flush_members(&self.0.port).await
    }

    /// Frees the space: zeroes always may.
    async fn write_zeroes(&self, offset_bytes: u64, bytes: u64, how: ZeroFlags) -> Result<(), VolumeError> {
        zero_blocks(&self.0, offset_bytes, bytes, how.fua).await
    }

    async fn discard(&self, offset_bytes: u64, bytes: u64) -> Result<(), VolumeError> {
        zero_blocks(&self.0, offset_bytes, bytes, false).await
    }
}

impl<D: ZoneDevice> ReadInto for LogSet<D> {
    /// What is read is verified before it is given away (Z-I12), and a client could change it meanwhile.
    async fn read_into(&self, _offset_bytes: u64, _bytes: u64, _target: &Lease) -> bool {
        false
    }
}
