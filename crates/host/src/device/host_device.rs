//! A device of any kind: as all shards share it, and as one shard reaches it.

use engine::buffer::{Buffer, Gather};
use engine::device::{Device, DeviceInfo, PeerMember, ReadForeign};
use engine::foreign_buffer::Lease;
use std::any::Any;
use std::sync::{Arc, Weak};

use super::block::BlockDevice;
use super::block_file::BlockFile;
use super::memory::{Memory, MemoryDevice};
use super::nvme_tcp::{Attached, RemoteDevice};
use crate::ring::{DeviceDone, DeviceRead, Ring};
use layout::units::DeviceOffset;

/// An open device, for all shards.
#[derive(Clone, Debug)]
pub enum SharedDevice {
    /// A file or block device.
    Block(Arc<BlockFile>),
    /// Memory of this process.
    Memory(Arc<Memory>),
    /// A namespace on another machine.
    Remote(Arc<Attached>),
}

impl SharedDevice {
    /// Size and abilities.
    pub fn info(&self) -> &DeviceInfo {
        match self {
            SharedDevice::Block(file) => file.info(),
            SharedDevice::Memory(memory) => memory.info(),
            SharedDevice::Remote(member) => member.info(),
        }
    }

    /// Reserves room for a part of it: see [`BlockFile::reserve`].
    ///
    /// # Errors
    /// There is no room.
    pub fn reserve(&self, offset: DeviceOffset, bytes: u64) -> std::io::Result<()> {
        match self {
            SharedDevice::Block(file) => file.reserve(offset, bytes),
            SharedDevice::Memory(_) | SharedDevice::Remote(_) => Ok(()),
        }
    }

    /// The member on another machine, if it is one.
    pub fn remote(&self) -> Option<&Arc<Attached>> {
        match self {
            SharedDevice::Remote(member) => Some(member),
            SharedDevice::Block(_) | SharedDevice::Memory(_) => None,
        }
    }

    /// Tells when no shard and no operation uses the device any more.
    pub fn closing(&self) -> Closing {
        match self {
            SharedDevice::Block(file) => Closing::of(&file.fd),
            SharedDevice::Memory(memory) => Closing::of(memory),
            SharedDevice::Remote(member) => Closing::of(member),
        }
    }

    /// The way of the shard that has `ring`, and runs this, to the device.
    pub fn attach(&self, ring: &Ring) -> HostDevice {
        match self {
            SharedDevice::Block(file) => HostDevice::Block(BlockDevice::new(file, ring)),
            SharedDevice::Memory(memory) => HostDevice::Memory(MemoryDevice::new(memory, ring)),
            SharedDevice::Remote(member) => HostDevice::Remote(RemoteDevice::new(member, ring)),
        }
    }
}

/// Tells when a device is closed: an operation that hangs keeps it open after its array has stopped.
pub struct Closing(Weak<dyn Any + Send + Sync>);

impl Closing {
    pub(super) fn of<T: Send + Sync + 'static>(device: &Arc<T>) -> Self {
        let device: Weak<T> = Arc::downgrade(device);
        Closing(device)
    }

    /// Whether it is.
    pub fn is_over(&self) -> bool {
        self.0.strong_count() == 0
    }
}

/// A device as one shard sees it. Clones are handles to the same.
#[derive(Clone)]
pub enum HostDevice {
    /// A file or block device.
    Block(BlockDevice),
    /// Memory of this process.
    Memory(MemoryDevice),
    /// A namespace on another machine.
    Remote(RemoteDevice),
}

impl Device for HostDevice {
    type Read = DeviceRead;
    type Done = DeviceDone;

    #[inline]
    fn info(&self) -> &DeviceInfo {
        match self {
            HostDevice::Block(device) => device.info(),
            HostDevice::Memory(device) => device.info(),
            HostDevice::Remote(device) => device.info(),
        }
    }

    #[inline]
    fn read(&self, offset: DeviceOffset, buffer: Buffer) -> DeviceRead {
        match self {
            HostDevice::Block(device) => device.read(offset, buffer),
            HostDevice::Memory(device) => device.read(offset, buffer),
            HostDevice::Remote(device) => device.read(offset, buffer),
        }
    }

    #[inline]
    fn write(&self, offset: DeviceOffset, data: Gather, fua: bool) -> DeviceDone {
        match self {
            HostDevice::Block(device) => device.write(offset, data, fua),
            HostDevice::Memory(device) => device.write(offset, data, fua),
            HostDevice::Remote(device) => device.write(offset, data, fua),
        }
    }

    fn flush(&self) -> DeviceDone {
        match self {
            HostDevice::Block(device) => device.flush(),
            HostDevice::Memory(device) => device.flush(),
            HostDevice::Remote(device) => device.flush(),
        }
    }

    fn discard(&self, offset: DeviceOffset, bytes: u64) -> DeviceDone {
        match self {
            HostDevice::Block(device) => device.discard(offset, bytes),
            HostDevice::Memory(device) => device.discard(offset, bytes),
            HostDevice::Remote(device) => device.discard(offset, bytes),
        }
    }

    fn write_zeroes(&self, offset: DeviceOffset, bytes: u64, may_unmap: bool) -> DeviceDone {
        match self {
            HostDevice::Block(device) => device.write_zeroes(offset, bytes, may_unmap),
            HostDevice::Memory(device) => device.write_zeroes(offset, bytes, may_unmap),
            HostDevice::Remote(device) => device.write_zeroes(offset, bytes, may_unmap),
        }
    }

    fn peer(&self) -> Option<&dyn PeerMember> {
        match self {
            HostDevice::Block(_) | HostDevice::Memory(_) => None,
            HostDevice::Remote(device) => device.peer(),
        }
    }
}

impl ReadForeign for HostDevice {
    #[inline]
    fn read_into(&self, offset: DeviceOffset, bytes: usize, target: Lease) -> Option<DeviceDone> {
        match self {
            HostDevice::Block(device) => device.read_into(offset, bytes, target),
            HostDevice::Memory(_) | HostDevice::Remote(_) => None,
        }
    }
}

impl From<Arc<Memory>> for SharedDevice {
    fn from(memory: Arc<Memory>) -> Self {
        SharedDevice::Memory(memory)
    }
}
