//! Devices that members live on: files and block devices through the ring, and memory.
//!
//! A [`DeviceSpec`] says what to open, a [`SharedDevice`] is open for all shards, a [`HostDevice`] is one shard's way
//! to it.

pub mod block;
mod cost;
pub mod error;
#[allow(unsafe_code)]
mod ioctl;
#[allow(unsafe_code)]
pub mod memory;
pub mod spec;
#[cfg(test)]
mod tests;

use engine::buffer::{Buffer, Gather};
use engine::device::{Device, DeviceInfo, ReadForeign};
use engine::foreign_buffer::Lease;
use std::sync::Arc;
use std::time::Duration;

use self::block::{BlockDevice, BlockFile};
use self::memory::{Memory, MemoryDevice};
use crate::ring::{DeviceDone, DeviceRead, Ring};

pub use self::error::{OpenError, OpenErrorKind, SpecError};
pub use self::spec::{DeviceSpec, parse_size};

/// How devices are opened.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// No write succeeds. Others may read, too, but nobody may write, nor have it open for that.
    pub read_only: bool,
    /// Past the page cache wherever the file system can.
    pub direct: bool,
    /// Smaller devices are refused.
    pub bytes_min: u64,
    /// An operation without an answer for this long fails with [`engine::device::DeviceErrorKind::Timeout`].
    pub time_limit: Duration,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions { read_only: false, direct: true, bytes_min: 4096, time_limit: Duration::from_secs(30) }
    }
}

/// An open device, for all shards.
#[derive(Clone, Debug)]
pub enum SharedDevice {
    /// A file or block device.
    Block(Arc<BlockFile>),
    /// Memory of this process.
    Memory(Arc<Memory>),
}

impl SharedDevice {
    /// Size and abilities.
    pub fn info(&self) -> &DeviceInfo {
        match self {
            SharedDevice::Block(file) => file.info(),
            SharedDevice::Memory(memory) => memory.info(),
        }
    }

    /// Has the system below keep room for a part of it: see [`BlockFile::reserve`].
    ///
    /// # Errors
    /// There is no room.
    pub fn reserve(&self, offset_bytes: u64, bytes: u64) -> std::io::Result<()> {
        match self {
            SharedDevice::Block(file) => file.reserve(offset_bytes, bytes),
            SharedDevice::Memory(_) => Ok(()),
        }
    }

    /// The way of the shard that has `ring` to the device.
    pub fn attach(&self, ring: &Ring) -> HostDevice {
        match self {
            SharedDevice::Block(file) => HostDevice::Block(file.attach(ring)),
            SharedDevice::Memory(memory) => HostDevice::Memory(memory.attach(ring)),
        }
    }
}

/// A device as one shard sees it. Clones are handles to the same.
#[derive(Clone)]
pub enum HostDevice {
    /// A file or block device.
    Block(BlockDevice),
    /// Memory of this process.
    Memory(MemoryDevice),
}

impl Device for HostDevice {
    type Read = DeviceRead;
    type Done = DeviceDone;

    #[inline]
    fn info(&self) -> &DeviceInfo {
        match self {
            HostDevice::Block(device) => device.info(),
            HostDevice::Memory(device) => device.info(),
        }
    }

    #[inline]
    fn read(&self, offset_bytes: u64, buffer: Buffer) -> DeviceRead {
        match self {
            HostDevice::Block(device) => device.read(offset_bytes, buffer),
            HostDevice::Memory(device) => device.read(offset_bytes, buffer),
        }
    }

    #[inline]
    fn write(&self, offset_bytes: u64, data: Gather, fua: bool) -> DeviceDone {
        match self {
            HostDevice::Block(device) => device.write(offset_bytes, data, fua),
            HostDevice::Memory(device) => device.write(offset_bytes, data, fua),
        }
    }

    fn flush(&self) -> DeviceDone {
        match self {
            HostDevice::Block(device) => device.flush(),
            HostDevice::Memory(device) => device.flush(),
        }
    }

    fn discard(&self, offset_bytes: u64, bytes: u64) -> DeviceDone {
        match self {
            HostDevice::Block(device) => device.discard(offset_bytes, bytes),
            HostDevice::Memory(device) => device.discard(offset_bytes, bytes),
        }
    }

    fn write_zeroes(&self, offset_bytes: u64, bytes: u64, may_unmap: bool) -> DeviceDone {
        match self {
            HostDevice::Block(device) => device.write_zeroes(offset_bytes, bytes, may_unmap),
            HostDevice::Memory(device) => device.write_zeroes(offset_bytes, bytes, may_unmap),
        }
    }
}

impl ReadForeign for HostDevice {
    #[inline]
    fn read_into(&self, offset_bytes: u64, bytes: usize, target: Lease) -> Option<DeviceDone> {
        match self {
            HostDevice::Block(device) => device.read_into(offset_bytes, bytes, target),
            HostDevice::Memory(_) => None,
        }
    }
}

/// Whether a range has bytes, lies inside its device and is aligned to its logical blocks, as every operation must.
#[inline]
fn is_placed(info: &DeviceInfo, offset: u64, bytes: u64) -> bool {
    let unit = u64::from(info.logical_block_bytes) - 1; // a power of two
    let is_inside = offset.checked_add(bytes).is_some_and(|end| end <= info.size_bytes);
    bytes > 0 && is_inside && (offset | bytes) & unit == 0
}
