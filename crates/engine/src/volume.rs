//! What a client of an array sees: one address space of bytes with reads, writes, flushes, zeroes and discards.

use std::future::Future;

use crate::buffer::Gather;

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

/// Why a request was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VolumeError {
    /// The request is outside the volume.
    #[error("{bytes} bytes at {offset_bytes} are outside the volume of {size_bytes} bytes")]
    OutOfRange {
        /// Start of the request.
        offset_bytes: u64,
        /// Length of the request.
        bytes: u64,
        /// Size of the volume.
        size_bytes: u64,
    },
    /// Offset or length is not a multiple of the logical block.
    #[error("{bytes} bytes at {offset_bytes} are not multiples of the logical block of {logical_block_bytes} bytes")]
    Misaligned {
        /// Start of the request.
        offset_bytes: u64,
        /// Length of the request.
        bytes: u64,
        /// The unit.
        logical_block_bytes: u32,
    },
    /// The volume is read-only.
    #[error("the volume is read-only")]
    ReadOnly,
    /// Members ran out of space (sparse files on a full file system). Nothing acknowledged is lost.
    #[error("no space left under member {member}")]
    NoSpace {
        /// Slot of the member.
        member: u32,
    },
    /// More members failed than the level survives, or a place could be neither read nor reconstructed.
    #[error("I/O error: {reason}")]
    Io {
        /// What happened.
        reason: String,
    },
    /// The volume is being stopped.
    #[error("the volume is stopping")]
    Stopping,
}

/// A volume as one shard sees it. Exports are written against this.
pub trait Volume: 'static {
    /// Size and units.
    fn info(&self) -> VolumeInfo;

    /// Reads `bytes` bytes; they come in order, in as many slices as there were members or chunks.
    fn read(&self, offset_bytes: u64, bytes: u64) -> impl Future<Output = Result<Gather, VolumeError>>;

    /// Writes `data`; with `fua` it is durable on return.
    fn write(&self, offset_bytes: u64, data: Gather, fua: bool) -> impl Future<Output = Result<(), VolumeError>>;

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
