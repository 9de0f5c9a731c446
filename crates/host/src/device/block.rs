//! A shard's way to a regular file or block device.
//!
//! A file may be cut short by another process. A read past its end notices it. A write would make the file long again, with a
//! hole where data was, so it asks for the file's size first, which costs a fraction of a microsecond. If the file is cut
//! short between the question and the write, that goes unnoticed.

use engine::buffer::{Buffer, Gather, Slice};
use engine::device::{Device, DeviceInfo, ReadForeign};
use engine::foreign_buffer::Lease;
use std::os::fd::{AsFd, AsRawFd};
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use super::block_file::BlockFile;
use super::ioctl;
use crate::ring::file::RingFile;
use crate::ring::in_flight::InFlight;
use crate::ring::op::{MISPLACED, Op, PAST_END};
use crate::ring::{DeviceDone, DeviceRead, Ring};
use layout::units::DeviceOffset;

/// Bytes of zeroes kept for members that cannot zero a range themselves.
const ZEROES_BYTES: usize = 1 << 20;

/// A file or block device as one shard sees it. Clones are handles to the same.
#[derive(Clone)]
pub struct BlockDevice {
    inner: Rc<Inner>,
}

struct Inner {
    file: Arc<BlockFile>,
    ring: Ring,
    /// Present until the drop, which releases it before it asks the ring to close the file.
    on_ring: Option<Rc<RingFile>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.on_ring = None;
        self.ring.close_files();
    }
}

impl Device for BlockDevice {
    type Read = DeviceRead;
    type Done = DeviceDone;

    fn info(&self) -> &DeviceInfo {
        &self.inner.file.info
    }

    fn read(&self, offset: DeviceOffset, buffer: Buffer) -> DeviceRead {
        let bytes = buffer.len() as u64;
        let op = Op::Read { file: self.on_ring(), buffer, offset: offset.get(), done: 0, fixed: None };
        DeviceRead(self.start(op, offset, bytes))
    }

    fn write(&self, offset: DeviceOffset, data: Gather, fua: bool) -> DeviceDone {
        let bytes = data.len() as u64;
        let is_cut_short = self.inner.file.is_cut_short();
        let op = Op::Write { file: self.on_ring(), data, offset: offset.get(), done: 0, fixed: None, fua };
        if is_cut_short {
            return DeviceDone(self.inner.ring.refuse(op, PAST_END));
        }
        DeviceDone(self.start(op, offset, bytes))
    }

    fn flush(&self) -> DeviceDone {
        let op = Op::Flush { file: self.on_ring() };
        DeviceDone(self.inner.ring.start_timed(op, self.inner.file.time_limit))
    }

    fn discard(&self, offset: DeviceOffset, bytes: u64) -> DeviceDone {
        if self.inner.file.is_block_device() {
            return self.discard_blocks(offset, bytes);
        }
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let op = Op::Allocate { file: self.on_ring(), mode, offset: offset.get(), bytes, zeroes: None };
        DeviceDone(self.start(op, offset, bytes))
    }

    fn write_zeroes(&self, offset: DeviceOffset, bytes: u64, may_unmap: bool) -> DeviceDone {
        let action = if may_unmap { libc::FALLOC_FL_PUNCH_HOLE } else { libc::FALLOC_FL_ZERO_RANGE };
        let (mode, zeroes) = (action | libc::FALLOC_FL_KEEP_SIZE, Some(zeroes()));
        let op = Op::Allocate { file: self.on_ring(), mode, offset: offset.get(), bytes, zeroes };
        DeviceDone(self.start(op, offset, bytes))
    }
}

impl ReadForeign for BlockDevice {
    fn read_into(&self, offset: DeviceOffset, bytes: usize, target: Lease) -> Option<DeviceDone> {
        if !self.inner.ring.uses_io_uring() {
            return None;
        }
        let op = Op::ReadInto { file: self.on_ring(), target, offset: offset.get(), bytes, done: 0 };
        Some(DeviceDone(self.start(op, offset, bytes as u64)))
    }
}

impl BlockDevice {
    /// The way to `file` for the shard that has `ring`.
    pub fn new(file: &Arc<BlockFile>, ring: &Ring) -> Self {
        let on_ring = Some(ring.open_file(&file.fd, file.is_direct(), &file.late));
        BlockDevice { inner: Rc::new(Inner { file: Arc::clone(file), ring: ring.clone(), on_ring }) }
    }

    fn start(&self, op: Op, offset: DeviceOffset, bytes: u64) -> InFlight {
        match self.info().allows(offset, bytes) {
            true => self.inner.ring.start_timed(op, self.inner.file.time_limit),
            false => self.inner.ring.refuse(op, MISPLACED),
        }
    }

    /// The discard of a block device is an ioctl: a helper thread makes it.
    fn discard_blocks(&self, offset: DeviceOffset, bytes: u64) -> DeviceDone {
        let Inner { file, ring, .. } = &*self.inner;
        let op =
            Op::Helped { file: self.on_ring(), name: "discard", offset: offset.get(), bytes, changes: true };
        if !self.info().allows(offset, bytes) {
            return DeviceDone(ring.refuse(op, MISPLACED));
        }
        if file.late.any() {
            return DeviceDone(ring.refuse(op, -libc::ETIMEDOUT));
        }
        let fd = Arc::clone(&file.fd);
        let number = fd.as_raw_fd();
        let job = Box::new(move || ioctl::discard(fd.as_fd(), offset.get(), bytes));
        DeviceDone(ring.start_helped(op, file.time_limit, number, job))
    }

    /// An operation that is not sent, with its result.
    pub(super) fn refuse(
        &self,
        name: &'static str,
        (offset, bytes): (DeviceOffset, u64),
        result: i32,
    ) -> DeviceDone {
        let op = Op::Helped { file: self.on_ring(), name, offset: offset.get(), bytes, changes: false };
        DeviceDone(self.inner.ring.refuse(op, result))
    }

    /// The file as the ring knows it.
    pub(super) fn on_ring(&self) -> Rc<RingFile> {
        Rc::clone(self.inner.on_ring.as_ref().expect("present until the drop"))
    }
}

/// Zeroes to write, allocated once for the process.
fn zeroes() -> Slice {
    static ZEROES: OnceLock<Slice> = OnceLock::new();
    ZEROES.get_or_init(|| Buffer::new(ZEROES_BYTES).freeze()).clone()
}
