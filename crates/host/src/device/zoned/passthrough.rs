//! An NVMe zoned namespace by commands of its own: one shard's way to it.
//!
//! Appends, writes, metadata and changes go through the generic device. Reads of data, flushes and reports go through the block device
//! of the same namespace: the block layer follows the pointers of those zones only that it has written, so it has no opinion
//! of these (Z-I8: zones are written and reset by one path).
//!
//! Writes in order are sent one after the other, as those of [a block device](super::block) are.

use engine::buffer::{Buffer, Gather, Slice};
use engine::device::{Device, DeviceError, DeviceErrorKind, DeviceInfo};
use engine::zone_device::{ZoneChange, ZoneDevice, ZoneOffset, ZonedInfo};
use std::cell::RefCell;
use std::collections::HashMap;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::super::block::BlockDevice;
use super::block::{BlockReport, result_of};
use super::zoned_file::ZonedFile;
use crate::ring::file::RingFile;
use crate::ring::in_flight::InFlight;
use crate::ring::nvme::{NvmeCommand, NvmeIo};
use crate::ring::op::{MISPLACED, Op};
use crate::ring::{DeviceDone, DeviceRead, NvmePlace, NvmeRead, Ring};
use layout::units::DeviceOffset;

/// A zoned namespace as one shard sees it. Clones are handles to the same.
#[derive(Clone)]
pub struct AppendZones {
    inner: Rc<Inner>,
}

struct Inner {
    shared: Arc<ZonedFile>,
    ring: Ring,
    block: BlockDevice,
    generic: Rc<RingFile>,
    namespace: u32,
    /// The generic device once for each zone that is written in order.
    lanes: RefCell<HashMap<u32, Rc<RingFile>>>,
}

impl AppendZones {
    /// The way to `shared` for the shard that has `ring`. None: it is not written by appends, or this ring cannot do them.
    pub fn new(shared: &Arc<ZonedFile>, ring: &Ring) -> Option<Self> {
        let nvme = shared.nvme.as_ref()?;
        if let Err(error) = ring.enable_nvme() {
            tracing::warn!(%error, member = shared.info.name, "no ring for NVMe commands");
            return None;
        }
        let block = BlockDevice::new(&shared.file, ring);
        let generic = RingFile::nvme(Arc::clone(&nvme.fd), Arc::clone(&shared.file.late));
        let (shared, ring, namespace) = (Arc::clone(shared), ring.clone(), nvme.namespace);
        let lanes = RefCell::default();
        Some(AppendZones { inner: Rc::new(Inner { shared, ring, block, generic, namespace, lanes }) })
    }

    /// Starts a command on `blocks` logical blocks at a place of a zone, or an operation that fails with `refused`.
    fn start(
        &self,
        file: &Rc<RingFile>,
        io: NvmeIo,
        (zone, in_zone_bytes, bytes): (u32, u64, u64),
        refused: Option<i32>,
    ) -> InFlight {
        let Inner { shared, ring, namespace, .. } = &*self.inner;
        let unit = u64::from(shared.info.logical_block_bytes);
        let offset_bytes = shared.zoned.offset_bytes(zone, in_zone_bytes).get();
        let moved = if matches!(io, NvmeIo::Change(_)) { 0 } else { bytes / unit };
        let blocks = u32::try_from(moved).unwrap_or(u32::MAX);
        let at = (offset_bytes / unit, blocks);
        let command = NvmeCommand::new(io, *namespace, at, (offset_bytes, bytes));
        let op = Op::Nvme { file: Rc::clone(file), command };
        match refused {
            Some(result) => ring.refuse(op, result),
            None => ring.start_timed(op, shared.file.time_limit),
        }
    }

    fn check(&self, to: ZoneOffset, data: &Gather, metadata: Option<&Slice>) -> Option<i32> {
        let ZonedFile { info, zoned, .. } = &*self.inner.shared;
        zoned.check_record(info.logical_block_bytes, to, data, metadata).err().map(result_of)
    }

    fn refuse(&self, name: &'static str, at: (DeviceOffset, u64)) -> DeviceDone {
        self.inner.block.refuse(name, at, -libc::EOPNOTSUPP)
    }
}

impl Device for AppendZones {
    type Read = DeviceRead;
    type Done = DeviceDone;

    fn info(&self) -> &DeviceInfo {
        &self.inner.shared.info
    }

    #[inline]
    fn read(&self, offset: DeviceOffset, buffer: Buffer) -> DeviceRead {
        self.inner.block.read(offset, buffer)
    }

    fn flush(&self) -> DeviceDone {
        self.inner.block.flush()
    }

    refuse_plain_writes!();
}

impl ZoneDevice for AppendZones {
    type Append = Append;
    type Changed = DeviceDone;
    type Report = BlockReport;
    type ReadMetadata = NvmeReadMetadata;

    fn zoned(&self) -> &ZonedInfo {
        &self.inner.shared.zoned
    }

    fn report(&self, zones: Range<u32>) -> BlockReport {
        let Inner { shared, ring, block, .. } = &*self.inner;
        BlockReport::start(shared, ring, block, zones)
    }

    fn append(&self, zone: u32, data: Gather, metadata: Option<Slice>, fua: bool) -> Append {
        let refused = self.check(ZoneOffset::start(zone), &data, metadata.as_ref());
        let bytes = data.len() as u64;
        let io = NvmeIo::Append { data, metadata, fua };
        let answer = NvmePlace(self.start(&self.inner.generic, io, (zone, 0, bytes), refused));
        Append { shared: Arc::clone(&self.inner.shared), zone, bytes, answer }
    }

    fn write_at(&self, to: ZoneOffset, data: Gather, metadata: Option<Slice>, fua: bool) -> DeviceDone {
        let ZoneOffset { zone, in_zone_bytes } = to;
        let refused = self.check(to, &data, metadata.as_ref());
        let lane = match refused {
            Some(_) => Rc::clone(&self.inner.generic),
            None => {
                let mut lanes = self.inner.lanes.borrow_mut();
                Rc::clone(lanes.entry(zone).or_insert_with(|| self.inner.generic.in_order()))
            }
        };
        let bytes = data.len() as u64;
        let io = NvmeIo::Write { data, metadata, fua };
        DeviceDone(self.start(&lane, io, (zone, in_zone_bytes, bytes), refused))
    }

    fn read_metadata(&self, from: ZoneOffset, data: Buffer, metadata: Buffer) -> NvmeReadMetadata {
        let ZoneOffset { zone, in_zone_bytes } = from;
        let ZonedFile { info, zoned, .. } = &*self.inner.shared;
        let (bytes, metadata_bytes) = (data.len(), metadata.len());
        let checked = zoned.check_read_metadata(info, from, bytes, metadata_bytes);
        let refused = checked.err().map(result_of);
        let io = NvmeIo::Read { data, metadata };
        let at = (zone, in_zone_bytes, bytes as u64);
        NvmeReadMetadata(NvmeRead(self.start(&self.inner.generic, io, at, refused), metadata_bytes))
    }

    fn change(&self, zone: u32, change: ZoneChange) -> DeviceDone {
        let zoned = &self.inner.shared.zoned;
        let refused = (zone >= zoned.zones).then_some(MISPLACED);
        self.inner.lanes.borrow_mut().remove(&zone); // nothing is in flight there
        let at = (zone, 0, zoned.zone_bytes);
        DeviceDone(self.start(&self.inner.generic, NvmeIo::Change(change), at, refused))
    }
}

/// An append in flight.
pub struct Append {
    shared: Arc<ZonedFile>,
    zone: u32,
    bytes: u64,
    answer: NvmePlace,
}

impl Future for Append {
    type Output = Result<u64, DeviceError>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let block = ready!(Pin::new(&mut self.answer).poll(context))?;
        let ZonedFile { info, zoned, capacities_bytes, .. } = &*self.shared;
        let start = zoned.offset_bytes(self.zone, 0);
        let capacity = capacities_bytes[self.zone as usize];
        let place = place_in_zone(block, info.logical_block_bytes, (start, capacity), self.bytes);
        Poll::Ready(place.ok_or_else(|| {
            tracing::warn!(
                member = info.name,
                zone = self.zone,
                block,
                "an append returned a place outside of its zone"
            );
            DeviceError {
                kind: DeviceErrorKind::NotAtPointer,
                operation: "append",
                offset: start,
                bytes: self.bytes,
                errno: 0,
            }
        }))
    }
}

/// Z-I14, first half: the place of `bytes` bytes in the zone of which the drive says that they begin at a logical block. None:
/// they do not lie there.
fn place_in_zone(block: u64, unit: u32, (start, capacity): (DeviceOffset, u64), bytes: u64) -> Option<u64> {
    let place = block.checked_mul(u64::from(unit))?.checked_sub(start.get())?;
    place.checked_add(bytes).is_some_and(|end| end <= capacity).then_some(place)
}

/// A read of data and metadata in flight.
pub struct NvmeReadMetadata(NvmeRead);

impl Future for NvmeReadMetadata {
    type Output = (Buffer, Buffer, Result<(), DeviceError>);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_an_append_is_checked() {
        let zone = (DeviceOffset::new(1 << 20), 768 << 10);
        for (block, bytes, place) in [
            (256, 4096, Some(0)),
            (256 + 100, 4096, Some(100 * 4096)),
            (256 + 191, 4096, Some(191 * 4096)),
            (256 + 191, 8192, None), // does not fit behind it
            (256 + 192, 4096, None), // beyond the capacity
            (255, 4096, None),       // in the zone before
            (0, 4096, None),         // what two emulators answered
            (u64::MAX, 4096, None),
            (u64::MAX / 4096, 4096, None),
        ] {
            assert_eq!(place_in_zone(block, 4096, zone, bytes), place, "{bytes} bytes at block {block}");
        }
    }
}
