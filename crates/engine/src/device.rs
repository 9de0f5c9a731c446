//! The contract between the engine and a member's device.
//!
//! - Offsets and lengths are multiples of [`DeviceInfo::logical_block_bytes`]; buffers are aligned to 4 KiB at their
//!   start, slices at least to the logical block.
//! - An operation owns its memory until it completes and gives it back with the result. A future dropped early
//!   leaves its operation running: the device keeps the memory until then.
//! - A write that returned is visible to every later read. It is durable after a flush that was sent later
//!   returned, or at once if it was sent with `fua`.
//! - A device handles short transfers itself: an operation is done whole or fails.
//! - Futures are `Unpin`, so that one task can wait for many without allocating.

use std::future::Future;

use crate::buffer::{Buffer, Gather};
use crate::foreign_buffer::Lease;

/// What a device can do and how large it is.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct DeviceInfo {
    /// Size in bytes.
    pub size_bytes: u64,
    /// Unit of addressing in bytes: 512 or 4096.
    pub logical_block_bytes: u32,
    /// Whether a discarded range reads as zeroes afterwards.
    pub discard_zeroes: bool,
    /// Name for messages: a path or an address.
    pub name: String,
}

/// Why an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceErrorKind {
    /// The device could not read or write the place (EIO, medium error, bad checksum).
    Io,
    /// No space is left below a thin device or a sparse file (ENOSPC).
    NoSpace,
    /// The device is gone (ENODEV, ENXIO, file cut short).
    Gone,
    /// No answer within the time limit.
    Timeout,
    /// The device does not have this operation.
    Unsupported,
    /// Offset or length is outside the device or not aligned: our own mistake.
    Invalid,
}

impl DeviceErrorKind {
    /// For people.
    pub fn words(self) -> &'static str {
        match self {
            DeviceErrorKind::Io => "an I/O error",
            DeviceErrorKind::NoSpace => "no space is left",
            DeviceErrorKind::Gone => "the device is gone, or was cut short",
            DeviceErrorKind::Timeout => "no answer within the time limit",
            DeviceErrorKind::Unsupported => "the device cannot do that",
            DeviceErrorKind::Invalid => "outside the device, or not aligned",
        }
    }
}

/// A failed operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{operation} of {bytes} bytes at {offset_bytes} failed: {}{}", kind.words(), errno_text(*errno))]
pub struct DeviceError {
    /// What to match on.
    pub kind: DeviceErrorKind,
    /// The operation: "read", "write", "flush", "discard", "write zeroes".
    pub operation: &'static str,
    /// Where on the device, in bytes.
    pub offset_bytes: u64,
    /// How long, in bytes.
    pub bytes: u64,
    /// The system's error number, 0 if there is none.
    pub errno: i32,
}

fn errno_text(errno: i32) -> String {
    if errno == 0 { String::new() } else { format!(" ({})", std::io::Error::from_raw_os_error(errno)) }
}

/// One shard's way to a member. Cloned handles and other shards reach the same device.
pub trait Device: 'static {
    /// A read on its way.
    type Read: Future<Output = (Buffer, Result<(), DeviceError>)> + Unpin + 'static;
    /// Any other operation on its way.
    type Done: Future<Output = Result<(), DeviceError>> + Unpin + 'static;

    /// Size and abilities.
    fn info(&self) -> &DeviceInfo;

    /// Fills `buffer` from `offset_bytes` on.
    fn read(&self, offset_bytes: u64, buffer: Buffer) -> Self::Read;

    /// Fills a foreign buffer with `bytes` bytes from `offset_bytes` on, which must suit the device as any
    /// memory. None: it has no way to do that, and nothing was started.
    fn read_into(&self, offset_bytes: u64, bytes: usize, target: Lease) -> Option<Self::Done> {
        let _ = (offset_bytes, bytes, target);
        None
    }

    /// Writes `data` at `offset_bytes`; with `fua` it is durable on return.
    fn write(&self, offset_bytes: u64, data: Gather, fua: bool) -> Self::Done;

    /// Makes every write that returned before this call durable.
    fn flush(&self) -> Self::Done;

    /// Tells the device that a range is no longer needed.
    fn discard(&self, offset_bytes: u64, bytes: u64) -> Self::Done;

    /// Makes a range read as zeroes. `may_unmap` allows the device to free the space.
    fn write_zeroes(&self, offset_bytes: u64, bytes: u64, may_unmap: bool) -> Self::Done;
}
