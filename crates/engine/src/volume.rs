//! What a client of an array sees: one address space of bytes with reads, writes, flushes, zeroes and discards.

use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::buffer::Gather;
use crate::device::{Device, ReadForeign};
pub use crate::error::VolumeError;
use crate::foreign_buffer::Lease;
use crate::in_place::InPlace;
use crate::limits::BLOCK_BYTES;

/// Size and units of a volume.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct VolumeInfo {
    /// Size in bytes, a multiple of the logical block.
    pub size_bytes: u64,
    /// Unit of addressing in bytes: 512 or 4096. Offsets and lengths are multiples of it.
    pub logical_block_bytes: u32,
    /// Smallest request that is not a partial block of the parity arithmetic: 4096.
    pub physical_block_bytes: u32,
    /// Smallest request that uses one member fully: the chunk, in bytes.
    pub io_min_bytes: u32,
    /// Smallest write that needs no read: the data of a stripe, in bytes.
    pub io_opt_bytes: u64,
    /// No write is accepted.
    pub read_only: bool,
}

/// A volume as one shard sees it. Exports are written against this.
pub trait Volume: 'static {
    /// Size and units.
    fn info(&self) -> VolumeInfo;

    /// Reads `bytes` bytes; they come in order, in as many slices as there were members or chunks.
    fn read(&self, offset_bytes: u64, bytes: u64) -> impl Future<Output = Result<Gather, VolumeError>>;

    /// Writes `data`; with `fua` it is durable on return.
    fn write(
        &self,
        offset_bytes: u64,
        data: Gather,
        fua: bool,
    ) -> impl Future<Output = Result<(), VolumeError>>;

    /// Returns after every write that was acknowledged before this call is durable.
    fn flush(&self) -> impl Future<Output = Result<(), VolumeError>>;

    /// Makes the range read as zeroes; `may_unmap` lets members free the space; `fua` as for a write.
    fn write_zeroes(
        &self,
        offset_bytes: u64,
        bytes: u64,
        may_unmap: bool,
        fua: bool,
    ) -> impl Future<Output = Result<(), VolumeError>>;

    /// Says that the range is no longer needed. What it reads as afterwards is old contents or zeroes.
    fn discard(&self, offset_bytes: u64, bytes: u64) -> impl Future<Output = Result<(), VolumeError>>;
}

/// The ability of a volume to read into a buffer that lies outside of this process.
pub trait ReadInto: Volume {
    /// Fills `target` with the range, where that is possible at once. False: it did not, or only in part, and
    /// [`Volume::read`] does it. Operations may fill `target` as long as they hold a lease of it.
    fn read_into(&self, offset_bytes: u64, bytes: u64, target: &Lease) -> impl Future<Output = bool>;
}

/// An array as one shard serves it: admits requests and hands them to the engine of the level.
pub struct ArrayVolume<D> {
    stripes: Rc<InPlace<D>>,
    logical_block_bytes: u32,
    mode: Arc<VolumeMode>,
}

/// What all shards of a volume are told at once.
#[derive(Debug, Default)]
pub struct VolumeMode {
    /// Refuse writes.
    pub read_only: AtomicBool,
    /// Refuse everything: the volume is being stopped.
    pub stopping: AtomicBool,
}

impl<D: Device> ArrayVolume<D> {
    /// The volume over `stripes`; the logical block is the largest of its members'.
    pub fn new(stripes: Rc<InPlace<D>>, logical_block_bytes: u32, mode: Arc<VolumeMode>) -> Self {
        ArrayVolume { stripes, logical_block_bytes, mode }
    }

    /// The engine below.
    pub fn stripes(&self) -> &Rc<InPlace<D>> {
        &self.stripes
    }

    fn admit(&self, offset_bytes: u64, bytes: u64, write: bool) -> Result<(), VolumeError> {
        let size_bytes = self.stripes.shared.geometry.array_bytes();
        let unit = u64::from(self.logical_block_bytes);
        if self.mode.stopping.load(Relaxed) {
            return Err(VolumeError::Stopping);
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

    fn counters(&self) -> &crate::counters::Counters {
        &self.stripes.shared.counters[self.stripes.shard]
    }
}

impl<D: Device> Volume for ArrayVolume<D> {
    fn info(&self) -> VolumeInfo {
        let geometry = &self.stripes.shared.geometry;
        let unit = self.logical_block_bytes;
        VolumeInfo {
            size_bytes: geometry.array_bytes(),
            logical_block_bytes: unit,
            physical_block_bytes: unit.max(BLOCK_BYTES as u32),
            io_min_bytes: geometry.chunk_bytes().max(BLOCK_BYTES as u32),
            io_opt_bytes: geometry.optimal_io_bytes(),
            read_only: self.mode.read_only.load(Relaxed),
        }
    }

    async fn read(&self, offset_bytes: u64, bytes: u64) -> Result<Gather, VolumeError> {
        self.admit(offset_bytes, bytes, false)?;
        self.counters().reads.add(1);
        self.counters().read_bytes.add(bytes);
        if bytes == 0 {
            return Ok(Gather::new());
        }
        let shared = &self.stripes.shared;
        let began = shared.foreground.begin(&shared.loads);
        let result = self.stripes.read(offset_bytes, bytes).await;
        shared.foreground.end(began, &shared.loads);
        result
    }

    async fn write(&self, offset_bytes: u64, data: Gather, fua: bool) -> Result<(), VolumeError> {
        let bytes = data.len() as u64;
        self.admit(offset_bytes, bytes, true)?;
        self.counters().writes.add(1);
        self.counters().write_bytes.add(bytes);
        if bytes == 0 {
            return Ok(());
        }
        let shared = &self.stripes.shared;
        let began = shared.foreground.begin(&shared.loads);
        let result = self.stripes.write(offset_bytes, data, fua).await;
        shared.foreground.end(began, &shared.loads);
        result
    }

    async fn flush(&self) -> Result<(), VolumeError> {
        // Invariant 7: a write is acknowledged when its members' writes returned, and a member's flush covers every
        // write that returned before, whichever shard sent it.
        self.counters().flushes.add(1);
        self.stripes.flush().await
    }

    async fn write_zeroes(
        &self,
        offset_bytes: u64,
        bytes: u64,
        may_unmap: bool,
        fua: bool,
    ) -> Result<(), VolumeError> {
        self.admit(offset_bytes, bytes, true)?;
        self.counters().zeroings.add(1);
        if bytes == 0 {
            return Ok(());
        }
        self.stripes.write_zeroes(offset_bytes, bytes, may_unmap, fua).await
    }

    async fn discard(&self, offset_bytes: u64, bytes: u64) -> Result<(), VolumeError> {
        self.admit(offset_bytes, bytes, true)?;
        self.counters().zeroings.add(1);
        if bytes == 0 {
            return Ok(());
        }
        self.stripes.discard(offset_bytes, bytes).await
    }
}

impl<D: ReadForeign> ReadInto for ArrayVolume<D> {
    async fn read_into(&self, offset_bytes: u64, bytes: u64, target: &Lease) -> bool {
        if bytes == 0 || self.admit(offset_bytes, bytes, false).is_err() {
            return false; // the ordinary read says why
        }
        let shared = &self.stripes.shared;
        let began = shared.foreground.begin(&shared.loads);
        let is_read = self.stripes.read_into(offset_bytes, bytes, target).await;
        shared.foreground.end(began, &shared.loads);
        if is_read {
            self.counters().reads.add(1);
            self.counters().read_bytes.add(bytes);
        }
        is_read
    }
}
