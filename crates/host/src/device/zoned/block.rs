//! A zoned block device by in-order direct writes: one shard's way to it.
//!
//! The writes of a zone are sent one after the other, in the order of their start. Newer kernels (6.10 on) queue in-order
//! writes of a zone themselves. But when a queue has no room, io_uring hands a write to a thread of its own, which those behind
//! it overtake. Zones do not wait for each other.
//!
//! A write that does not fit into its zone is not sent: the block layer would write the rest to the next zone.
//!
//! Reports and changes are ioctls, made by a helper thread. A write or change that failed with EIO is followed by the zone's
//! report, which says why; newer kernels also learn the pointer from it and accept writes again.

use engine::buffer::{Buffer, Gather, Slice};
use engine::device::{Device, DeviceError, DeviceErrorKind, DeviceInfo};
use engine::zone_device::{Zone, ZoneChange, ZoneDevice, ZoneOffset, ZonedInfo};
use parking_lot::Mutex;
use std::cell::RefCell;
use std::collections::HashMap;
use std::future::{Future, Ready, ready};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::super::block::BlockDevice;
use super::super::ioctl::{self, ZoneCall};
use super::report::{Attempt, refusal};
use super::zoned_file::{ZonedFile, read_zones};
use crate::ring::file::RingFile;
use crate::ring::op::{MISPLACED, Op};
use crate::ring::{DeviceDone, DeviceRead, Ring};
use layout::units::DeviceOffset;

/// A zoned block device as one shard sees it. Clones are handles to the same.
#[derive(Clone)]
pub struct InOrderZones {
    inner: Rc<Inner>,
}

struct Inner {
    shared: Arc<ZonedFile>,
    ring: Ring,
    block: BlockDevice,
    /// The file once for each zone that is written: its writes are made in order.
    lanes: RefCell<HashMap<u32, Rc<RingFile>>>,
}

impl InOrderZones {
    /// The way to `shared` for the shard that has `ring`.
    pub fn new(shared: &Arc<ZonedFile>, ring: &Ring) -> Self {
        let block = BlockDevice::new(&shared.file, ring);
        let (shared, ring) = (Arc::clone(shared), ring.clone());
        InOrderZones { inner: Rc::new(Inner { shared, ring, block, lanes: RefCell::default() }) }
    }

    fn lane(&self, zone: u32) -> Rc<RingFile> {
        let mut lanes = self.inner.lanes.borrow_mut();
        Rc::clone(lanes.entry(zone).or_insert_with(|| self.inner.block.on_ring().in_order()))
    }

    fn refuse(&self, name: &'static str, at: (DeviceOffset, u64), result: i32) -> DeviceDone {
        self.inner.block.refuse(name, at, result)
    }
}

/// Result of an operation that a device of this kind does not have.
const UNSUPPORTED: i32 = -libc::EOPNOTSUPP;

/// What [`ZonedInfo::check_record`] found, as the result of an operation that is not sent.
pub(super) fn result_of(kind: DeviceErrorKind) -> i32 {
    match kind {
        DeviceErrorKind::Unsupported => UNSUPPORTED,
        _ => MISPLACED,
    }
}

impl Device for InOrderZones {
    type Read = DeviceRead;
    type Done = DeviceDone;

    fn info(&self) -> &DeviceInfo {
        &self.inner.shared.info
    }

    fn read(&self, offset: DeviceOffset, buffer: Buffer) -> DeviceRead {
        self.inner.block.read(offset, buffer)
    }

    fn flush(&self) -> DeviceDone {
        self.inner.block.flush()
    }

    refuse_plain_writes!(UNSUPPORTED);
}

impl ZoneDevice for InOrderZones {
    type Append = Ready<Result<u64, DeviceError>>;
    type Changed = InOrderDone;
    type Report = BlockReport;
    type ReadMetadata = Ready<(Buffer, Buffer, Result<(), DeviceError>)>;

    fn zoned(&self) -> &ZonedInfo {
        &self.inner.shared.zoned
    }

    fn report(&self, zones: Range<u32>) -> BlockReport {
        let Inner { shared, ring, block, .. } = &*self.inner;
        BlockReport::start(shared, ring, block, zones)
    }

    fn append(&self, zone: u32, data: Gather, _metadata: Option<Slice>, _fua: bool) -> Self::Append {
        ready(Err(unsupported("append", self.zoned().offset_bytes(zone, 0), data.len() as u64)))
    }

    fn write_at(&self, to: ZoneOffset, data: Gather, metadata: Option<Slice>, fua: bool) -> InOrderDone {
        let ZoneOffset { zone, in_zone_bytes } = to;
        let Inner { shared, ring, .. } = &*self.inner;
        let (offset, bytes) = (shared.zoned.offset_bytes(zone, in_zone_bytes), data.len() as u64);
        let unit = shared.info.logical_block_bytes;
        let started = match shared.zoned.check_record(unit, to, &data, metadata.as_ref()) {
            Ok(()) => {
                let op = Op::Write {
                    file: self.lane(zone),
                    data,
                    offset: offset.get(),
                    done: 0,
                    fixed: None,
                    fua,
                };
                // The block layer would cut a write at the zone's end and write the rest to the next zone, if that is empty.
                match in_zone_bytes.checked_add(bytes) {
                    Some(end) if end <= shared.capacities_bytes[zone as usize] => {
                        DeviceDone(ring.start_timed(op, shared.file.time_limit))
                    }
                    _ => DeviceDone(ring.refuse(op, -libc::EIO)),
                }
            }
            Err(kind) => self.refuse("write", (offset, bytes), result_of(kind)),
        };
        InOrderDone::new(self, zone, Attempt::Write { in_zone_bytes, bytes }, started)
    }

    fn read_metadata(&self, from: ZoneOffset, data: Buffer, metadata: Buffer) -> Self::ReadMetadata {
        let ZoneOffset { zone, in_zone_bytes } = from;
        let at = self.zoned().offset_bytes(zone, in_zone_bytes);
        let error = unsupported("read", at, data.len() as u64);
        ready((data, metadata, Err(error)))
    }

    fn change(&self, zone: u32, change: ZoneChange) -> InOrderDone {
        let Inner { shared, ring, block, lanes } = &*self.inner;
        let zone_bytes = shared.zoned.zone_bytes;
        let (name, at) = (change.name(), (shared.zoned.offset_bytes(zone, 0), zone_bytes));
        let attempt = Attempt::Change(change);
        if zone >= shared.zoned.zones {
            return InOrderDone::new(self, zone, attempt, self.refuse(name, at, MISPLACED));
        }
        if shared.file.late.any() {
            return InOrderDone::new(self, zone, attempt, self.refuse(name, at, -libc::ETIMEDOUT));
        }
        lanes.borrow_mut().remove(&zone); // nothing is in flight there
        let op = Op::Helped { file: block.on_ring(), name, offset: at.0.get(), bytes: at.1, changes: true };
        let fd = Arc::clone(&shared.file.fd);
        let number = fd.as_raw_fd();
        let job = Box::new(move || ioctl::change_zones(fd.as_fd(), call_of(change), at.0.get(), at.1));
        let started = DeviceDone(ring.start_helped(op, shared.file.time_limit, number, job));
        InOrderDone::new(self, zone, attempt, started)
    }
}

fn unsupported(operation: &'static str, offset: DeviceOffset, bytes: u64) -> DeviceError {
    DeviceError { kind: DeviceErrorKind::Unsupported, operation, offset, bytes, errno: 0 }
}

fn call_of(change: ZoneChange) -> ZoneCall {
    match change {
        ZoneChange::Reset => ZoneCall::Reset,
        ZoneChange::Finish => ZoneCall::Finish,
        ZoneChange::Open => ZoneCall::Open,
        ZoneChange::Close => ZoneCall::Close,
    }
}

/// A write or change in flight. One that fails is followed by the zone's report.
pub struct InOrderDone {
    device: InOrderZones,
    zone: u32,
    attempt: Attempt,
    stage: Stage,
}

enum Stage {
    Running(DeviceDone),
    /// It failed with this error, and the device is asked why.
    Asking(DeviceError, BlockReport),
}

impl InOrderDone {
    fn new(device: &InOrderZones, zone: u32, attempt: Attempt, started: DeviceDone) -> Self {
        InOrderDone { device: device.clone(), zone, attempt, stage: Stage::Running(started) }
    }
}

impl Future for InOrderDone {
    type Output = Result<(), DeviceError>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Stage::Running(done) = &mut this.stage {
            let Err(error) = ready!(Pin::new(done).poll(context)) else { return Poll::Ready(Ok(())) };
            match error.errno {
                libc::ETOOMANYREFS | libc::EOVERFLOW => {
                    return Poll::Ready(Err(DeviceError { kind: DeviceErrorKind::TooManyOpen, ..error }));
                }
                _ if error.kind != DeviceErrorKind::Io => return Poll::Ready(Err(error)),
                _ => this.stage = Stage::Asking(error, this.device.report(this.zone..this.zone + 1)),
            }
        }
        let Stage::Asking(error, report) = &mut this.stage else { unreachable!("just set") };
        let zones = ready!(Pin::new(report).poll(context)).unwrap_or_default();
        let kind = zones.first().and_then(|zone| refusal(zone, this.attempt));
        Poll::Ready(Err(DeviceError { kind: kind.unwrap_or(error.kind), ..error.clone() }))
    }
}

/// A report in flight.
pub struct BlockReport {
    done: DeviceDone,
    zones: Arc<Mutex<Vec<Zone>>>,
}

impl BlockReport {
    pub(super) fn start(
        shared: &Arc<ZonedFile>,
        ring: &Ring,
        block: &BlockDevice,
        zones: Range<u32>,
    ) -> Self {
        let first = zones.start.min(shared.zoned.zones);
        let count = zones.end.min(shared.zoned.zones).saturating_sub(first);
        let zone_bytes = shared.zoned.zone_bytes;
        let (offset, bytes) = (shared.zoned.offset_bytes(first, 0), u64::from(count) * zone_bytes);
        let op = Op::Helped {
            file: block.on_ring(),
            name: "report zones",
            offset: offset.get(),
            bytes,
            changes: false,
        };
        let found = Arc::<Mutex<Vec<Zone>>>::default();
        if shared.file.late.any() {
            return BlockReport { done: DeviceDone(ring.refuse(op, -libc::ETIMEDOUT)), zones: found };
        }
        let (file, target) = (Arc::clone(&shared.file), Arc::clone(&found));
        let job = Box::new(move || match read_zones(file.fd.as_fd(), first, count, zone_bytes) {
            Ok(zones) => {
                *target.lock() = zones;
                0
            }
            Err(error) => error,
        });
        let number = shared.file.fd.as_raw_fd();
        let done = DeviceDone(ring.start_helped(op, shared.file.time_limit, number, job));
        BlockReport { done, zones: found }
    }
}

impl Future for BlockReport {
    type Output = Result<Vec<Zone>, DeviceError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let result = ready!(Pin::new(&mut self.done).poll(context));
        Poll::Ready(result.map(|()| std::mem::take(&mut *self.zones.lock())))
    }
}
