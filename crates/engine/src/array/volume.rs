//! An array as a volume: requests are admitted here, and handed to the engine that serves them.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::buffer::Gather;
use crate::error::VolumeError;
use crate::foreign_buffer::Lease;
use crate::limits::BLOCK_BYTES;
use crate::volume::{Engine, ReadInto, Space, Volume, VolumeInfo, ZeroFlags};

/// An array as one shard serves it: admits requests and hands them to the engine of the level.
pub struct ArrayVolume<E> {
    engine: Rc<E>,
    logical_block_bytes: u32,
    mode: Arc<VolumeMode>,
}

/// Modes that all shards of a volume share.
#[derive(Debug, Default)]
pub struct VolumeMode {
    /// Refuse writes.
    pub read_only: AtomicBool,
    /// Refuse everything: the volume is being stopped.
    pub stopping: AtomicBool,
    /// Refuse everything: another host has taken the array over (F-I7).
    pub fenced: AtomicBool,
}

impl<E: Engine> ArrayVolume<E> {
    /// The volume over `engine`; the logical block is the largest of its members'.
    pub fn new(engine: Rc<E>, logical_block_bytes: u32, mode: Arc<VolumeMode>) -> Self {
        ArrayVolume { engine, logical_block_bytes, mode }
    }

    /// The engine below.
    pub fn engine(&self) -> &Rc<E> {
        &self.engine
    }

    fn admit(&self, offset_bytes: u64, bytes: u64, write: bool) -> Result<(), VolumeError> {
        let size_bytes = self.engine.shape().size_bytes;
        let unit = u64::from(self.logical_block_bytes);
        if self.mode.stopping.load(Relaxed) {
            return Err(VolumeError::Stopping);
        }
        if self.mode.fenced.load(Relaxed) {
            return Err(VolumeError::Fenced);
        }
        if write && self.mode.read_only.load(Relaxed) {
            return Err(VolumeError::ReadOnly);
        }
        if offset_bytes.checked_add(bytes).is_none_or(|end| end > size_bytes) {
            return Err(VolumeError::OutOfRange { offset_bytes, bytes, size_bytes });
        }
        if !offset_bytes.is_multiple_of(unit) || !bytes.is_multiple_of(unit) {
            let logical_block_bytes = self.logical_block_bytes;
            return Err(VolumeError::Misaligned { offset_bytes, bytes, logical_block_bytes });
        }
        Ok(())
    }

    /// The error that a client hears: once another host has the members, that is the reason of every error.
    fn said(&self, error: VolumeError) -> VolumeError {
        if self.mode.fenced.load(Relaxed) { VolumeError::Fenced } else { error }
    }
}

impl<E: Engine> Volume for ArrayVolume<E> {
    fn info(&self) -> VolumeInfo {
        let (shape, unit) = (self.engine.shape(), self.logical_block_bytes);
        VolumeInfo {
            size_bytes: shape.size_bytes,
            logical_block_bytes: unit,
            physical_block_bytes: unit.max(BLOCK_BYTES as u32),
            io_min_bytes: shape.io_min_bytes,
            io_opt_bytes: shape.io_opt_bytes,
            read_only: self.mode.read_only.load(Relaxed),
        }
    }
}

impl<E: Engine> Space for ArrayVolume<E> {
    async fn read(&self, offset_bytes: u64, bytes: u64) -> Result<Gather, VolumeError> {
        self.admit(offset_bytes, bytes, false)?;
        self.engine.counters().reads.add(1);
        self.engine.counters().read_bytes.add(bytes);
        if bytes == 0 {
            return Ok(Gather::new());
        }
        let began = self.engine.begin();
        let result = self.engine.read(offset_bytes, bytes).await;
        self.engine.end(began);
        result.map_err(|error| self.said(error))
    }

    async fn write(&self, offset_bytes: u64, data: Gather, fua: bool) -> Result<(), VolumeError> {
        let bytes = data.len() as u64;
        self.admit(offset_bytes, bytes, true)?;
        self.engine.counters().writes.add(1);
        self.engine.counters().write_bytes.add(bytes);
        if bytes == 0 {
            return Ok(());
        }
        let began = self.engine.begin();
        let result = self.engine.write(offset_bytes, data, fua).await;
        self.engine.end(began);
        result.map_err(|error| self.said(error))
    }

    async fn flush(&self) -> Result<(), VolumeError> {
        // Invariant 7: a write is acknowledged when its members' writes returned, and a member's flush covers every
        // write that returned before, whichever shard sent it.
        self.engine.counters().flushes.add(1);
        self.engine.flush().await.map_err(|error| self.said(error))
    }

    async fn write_zeroes(&self, offset_bytes: u64, bytes: u64, how: ZeroFlags) -> Result<(), VolumeError> {
        self.admit(offset_bytes, bytes, true)?;
        self.engine.counters().zeroings.add(1);
        if bytes == 0 {
            return Ok(());
        }
        self.engine.write_zeroes(offset_bytes, bytes, how).await.map_err(|error| self.said(error))
    }

    async fn discard(&self, offset_bytes: u64, bytes: u64) -> Result<(), VolumeError> {
        self.admit(offset_bytes, bytes, true)?;
        self.engine.counters().zeroings.add(1);
        if bytes == 0 {
            return Ok(());
        }
        self.engine.discard(offset_bytes, bytes).await.map_err(|error| self.said(error))
    }
}

impl<E: Engine + ReadInto> ReadInto for ArrayVolume<E> {
    async fn read_into(&self, offset_bytes: u64, bytes: u64, target: &Lease) -> bool {
        if bytes == 0 || self.admit(offset_bytes, bytes, false).is_err() {
            return false; // the ordinary read says why
        }
        let began = self.engine.begin();
        let is_read = self.engine.read_into(offset_bytes, bytes, target).await;
        self.engine.end(began);
        if is_read {
            self.engine.counters().reads.add(1);
            self.engine.counters().read_bytes.add(bytes);
        }
        is_read
    }
}
