//! What a client of an array sees: one address space of bytes with reads, writes, flushes, zeroes and discards.

use std::future::Future;

use crate::buffer::Gather;
use crate::counters::Counters;
use crate::error::VolumeError;
use crate::foreign_buffer::Lease;

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

/// How a range is made to read as zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZeroFlags {
    /// Members may free the space.
    pub may_unmap: bool,
    /// As for a write: it is durable on return.
    pub fua: bool,
}

/// An address space of bytes that can be read and written, on one shard.
pub trait Space: 'static {
    /// Reads `bytes` bytes. The slices of the result are in order; each comes from one member read.
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

    /// Makes the range read as zeroes.
    fn write_zeroes(
        &self,
        offset_bytes: u64,
        bytes: u64,
        how: ZeroFlags,
    ) -> impl Future<Output = Result<(), VolumeError>>;

    /// Says that the range is no longer needed. It reads as old contents or zeroes afterwards.
    fn discard(&self, offset_bytes: u64, bytes: u64) -> impl Future<Output = Result<(), VolumeError>>;
}

/// The ability of a space to read into a buffer that lies outside of this process.
pub trait ReadInto: Space {
    /// Fills `target` with the range, if members can read straight into it. False if `target` is not filled, or only in part:
    /// the caller then uses [`Space::read`]. Operations may still fill `target` while they hold a lease of it.
    fn read_into(&self, offset_bytes: u64, bytes: u64, target: &Lease) -> impl Future<Output = bool>;
}

/// A volume as one shard sees it. Exports are written against this.
pub trait Volume: Space {
    /// Size and units.
    fn info(&self) -> VolumeInfo;
}

/// Size and units of the space that an engine serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineShape {
    /// Size in bytes.
    pub size_bytes: u64,
    /// Smallest request that uses one member fully, in bytes.
    pub io_min_bytes: u32,
    /// Smallest write that needs no read, in bytes.
    pub io_opt_bytes: u64,
}

/// An engine that serves the requests of a volume on one shard. Ranges lie inside its space and are not empty: the volume above
/// it refuses all others.
pub trait Engine: Space {
    /// Size and units.
    fn shape(&self) -> EngineShape;

    /// The counters of this shard.
    fn counters(&self) -> &Counters;

    /// A client's read or write begins: the time, if latencies are measured.
    fn begin(&self) -> Option<u64>;

    /// A read or write that began at `began_ns` ends.
    fn end(&self, began_ns: Option<u64>);
}
