//! A device in memory, for benchmarks and tests. It behaves as a device: an operation is queued when it is submitted,
//! and the reap step of the shard copies between the member's memory and the request's and completes it, by the same
//! path as an operation of the kernel, without a call to the system.

use engine::buffer::{Buffer, Gather};
use engine::device::{Device, DeviceInfo};
use std::rc::Rc;
use std::sync::Arc;

use crate::ring::in_flight::InFlight;
use crate::ring::memory::Clearing;
use crate::ring::memory::Region;
use crate::ring::op::{MISPLACED, Op};
use crate::ring::{DeviceDone, DeviceRead, Ring};
use layout::units::DeviceOffset;

pub use crate::ring::memory::{Copier, Memory, MemoryCounters};

/// A memory device as one shard sees it. Clones are handles to the same.
#[derive(Clone)]
pub struct MemoryDevice {
    ring: Ring,
    region: Rc<Region>,
}

impl Device for MemoryDevice {
    type Read = DeviceRead;
    type Done = DeviceDone;

    fn info(&self) -> &DeviceInfo {
        self.region.info()
    }

    #[inline]
    fn read(&self, offset: DeviceOffset, buffer: Buffer) -> DeviceRead {
        let bytes = buffer.len() as u64;
        let op = Op::MemoryRead { region: Rc::clone(&self.region), buffer, offset: offset.get() };
        DeviceRead(self.start(op, offset, bytes))
    }

    #[inline]
    fn write(&self, offset: DeviceOffset, data: Gather, _fua: bool) -> DeviceDone {
        let bytes = data.len() as u64;
        let op = Op::MemoryWrite { region: Rc::clone(&self.region), data, offset: offset.get() };
        DeviceDone(self.start(op, offset, bytes))
    }

    fn flush(&self) -> DeviceDone {
        DeviceDone(self.ring.start(Op::MemoryFlush { region: Rc::clone(&self.region) }))
    }

    fn discard(&self, offset: DeviceOffset, bytes: u64) -> DeviceDone {
        self.clear(offset, bytes, Clearing::Discard)
    }

    fn write_zeroes(&self, offset: DeviceOffset, bytes: u64, may_unmap: bool) -> DeviceDone {
        self.clear(offset, bytes, Clearing::WriteZeroes { may_unmap })
    }
}

impl MemoryDevice {
    /// The way to `memory` for the shard that has `ring`.
    pub fn new(memory: &Arc<Memory>, ring: &Ring) -> Self {
        MemoryDevice { ring: ring.clone(), region: Rc::new(memory.shard_region()) }
    }

    fn clear(&self, offset: DeviceOffset, bytes: u64, clearing: Clearing) -> DeviceDone {
        let op = Op::MemoryClear { region: Rc::clone(&self.region), offset: offset.get(), bytes, clearing };
        DeviceDone(self.start(op, offset, bytes))
    }

    #[inline]
    fn start(&self, op: Op, offset: DeviceOffset, bytes: u64) -> InFlight {
        match self.info().allows(offset, bytes) {
            true => self.ring.start(op),
            false => self.ring.refuse(op, MISPLACED),
        }
    }
}
