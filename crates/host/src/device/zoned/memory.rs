//! Zones in memory, with the times of a drive: for benchmarks, and for tests of what runs on zones over a real ring.
//!
//! The rules are those of [`ZoneStates`], the times those of [`DriveTiming`]. A write takes its place in the zone, and an append
//! gets it, when it is started; its bytes are copied when it is done. All shards share the drive. Nothing survives the process, so flush
//! and FUA take time only.

use engine::buffer::{Buffer, Gather, Slice};
use engine::device::{Device, DeviceError, DeviceErrorKind, DeviceInfo};
use engine::zone_device::states::ZoneStates;
use engine::zone_device::timing::{DriveModel, DriveTiming, Timed};
use engine::zone_device::{Zone, ZoneAccess, ZoneChange, ZoneDevice, ZoneOffset, ZoneState, ZonedInfo};
use parking_lot::Mutex;
use std::future::{Future, Ready, ready};
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use super::super::memory::{Memory, MemoryCounters};
use crate::ring::in_flight::InFlight;
use crate::ring::nvme;
use crate::ring::op::Op;
use crate::ring::zone_copy::{ZoneCopy, ZoneIo, ZoneRegions};
use crate::ring::{DeviceDone, DeviceRead, Ring, ZoneRead};
use layout::units::DeviceOffset;

/// A zoned drive in memory, shared by all shards.
pub struct ZonedMemory {
    info: DeviceInfo,
    zoned: ZonedInfo,
    data: Arc<Memory>,
    metadata: Option<Arc<Memory>>,
    start: Instant,
    drive: Mutex<Drive>,
}

struct Drive {
    states: ZoneStates,
    timing: Option<DriveTiming>,
}

impl std::fmt::Debug for ZonedMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ZonedMemory({})", self.info.name)
    }
}

impl ZonedMemory {
    /// A drive whose zones are all empty, written by appends or in order. Without a model everything is done at once; `slow_by` multiplies the model's times. Memory
    /// is taken from the system when it is written.
    ///
    /// # Errors
    /// No address space of this size.
    ///
    /// # Panics
    /// If `zoned` says that zones are placed.
    pub fn new(
        zoned: ZonedInfo,
        logical_block_bytes: u32,
        model: Option<(DriveModel, u32)>,
        name: String,
    ) -> io::Result<Arc<Self>> {
        assert_ne!(zoned.access, ZoneAccess::Placed, "software zones need no drive of their own");
        let size_bytes = u64::from(zoned.zones) * zoned.zone_bytes;
        let blocks = size_bytes / u64::from(logical_block_bytes);
        let metadata = match u64::from(zoned.metadata_bytes) {
            0 => None,
            each => Some(Memory::new((blocks * each).next_multiple_of(4096), format!("{name}, metadata"))?),
        };
        let timing = model.map(|(model, slow_by)| DriveTiming::new(model, zoned.zones, slow_by));
        let drive = Mutex::new(Drive { states: ZoneStates::new(&zoned), timing });
        let data = Memory::new(size_bytes, name.clone())?;
        let info = DeviceInfo { size_bytes, logical_block_bytes, discard_zeroes: false, name };
        Ok(Arc::new(ZonedMemory { info, zoned, data, metadata, start: Instant::now(), drive }))
    }

    /// Size and name.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Sizes and limits of its zones.
    pub fn zoned(&self) -> &ZonedInfo {
        &self.zoned
    }

    /// What all shards have read and written, metadata not counted.
    pub fn counters(&self) -> MemoryCounters {
        self.data.counters()
    }

    /// The drive puts a zone into a state by itself: see [`ZoneStates::turn`].
    pub fn turn(&self, zone: u32, state: ZoneState) {
        self.drive.lock().states.turn(zone, state);
    }
}

/// A zoned drive in memory as one shard sees it. Clones are handles to the same.
#[derive(Clone)]
pub struct MemoryZones {
    shared: Arc<ZonedMemory>,
    ring: Ring,
    regions: Rc<ZoneRegions>,
}

impl MemoryZones {
    /// The way to `shared` for the shard that has `ring`.
    pub fn new(shared: &Arc<ZonedMemory>, ring: &Ring) -> Self {
        let regions = Rc::new(ZoneRegions {
            data: shared.data.shard_region(),
            metadata: shared.metadata.as_ref().map(Memory::shard_region),
            metadata_bytes: u64::from(shared.zoned.metadata_bytes),
            logical_block_bytes: u64::from(shared.info.logical_block_bytes),
        });
        MemoryZones { shared: Arc::clone(shared), ring: ring.clone(), regions }
    }

    /// Starts an operation that takes its time, or one that was refused.
    fn start(
        &self,
        name: &'static str,
        io: ZoneIo,
        (offset, bytes): (DeviceOffset, u64),
        decided: Result<Option<Instant>, DeviceErrorKind>,
    ) -> InFlight {
        let (ready, offset_bytes) = (decided.unwrap_or(None), offset.get());
        let regions = Rc::clone(&self.regions);
        let op = Op::ZoneCopy(Box::new(ZoneCopy { regions, io, name, offset_bytes, bytes, ready }));
        match decided {
            Ok(_) => self.ring.start(op),
            Err(kind) => self.ring.refuse(op, nvme::refusal(kind)),
        }
    }

    /// Asks the drive, and when it is done.
    fn decide<T>(
        &self,
        operation: impl FnOnce(&T) -> Timed,
        ask: impl FnOnce(&mut ZoneStates) -> Result<T, DeviceErrorKind>,
    ) -> Result<(T, Option<Instant>), DeviceErrorKind> {
        let drive = &mut *self.shared.drive.lock();
        let answer = ask(&mut drive.states)?;
        let ready = drive.timing.as_mut().map(|timing| {
            let now = self.shared.start.elapsed().as_nanos();
            let now = u64::try_from(now).expect("a process of less than 500 years");
            self.shared.start + Duration::from_nanos(timing.done_at_ns(now, operation(&answer)))
        });
        Ok((answer, ready))
    }

    fn check(&self, to: ZoneOffset, data: &Gather, metadata: Option<&Slice>) -> Result<(), DeviceErrorKind> {
        self.shared.zoned.check_record(self.shared.info.logical_block_bytes, to, data, metadata)
    }

    fn refuse(&self, name: &'static str, at: (DeviceOffset, u64)) -> DeviceDone {
        DeviceDone(self.start(name, ZoneIo::Nothing, at, Err(DeviceErrorKind::Unsupported)))
    }

    /// Whether the zones of a range can be read, and when.
    fn decide_read(&self, offset: DeviceOffset, bytes: u64) -> Result<Option<Instant>, DeviceErrorKind> {
        if !self.shared.info.allows(offset, bytes) {
            return Err(DeviceErrorKind::Invalid);
        }
        let zone_bytes = self.shared.zoned.zone_bytes;
        let zones = offset.get() / zone_bytes..=(offset.get() + bytes - 1) / zone_bytes;
        let ask = |states: &mut ZoneStates| {
            zones.into_iter().try_for_each(|zone| states.read(u32::try_from(zone).unwrap_or(u32::MAX)))
        };
        self.decide(|()| Timed::Read, ask).map(|((), ready)| ready)
    }
}

impl Device for MemoryZones {
    type Read = DeviceRead;
    type Done = DeviceDone;

    fn info(&self) -> &DeviceInfo {
        &self.shared.info
    }

    fn read(&self, offset: DeviceOffset, buffer: Buffer) -> DeviceRead {
        let bytes = buffer.len() as u64;
        let io = ZoneIo::Read { data: buffer, metadata: Buffer::new(0) };
        let decided = self.decide_read(offset, bytes);
        DeviceRead(self.start("read", io, (offset, bytes), decided))
    }

    fn flush(&self) -> DeviceDone {
        let decided = self.decide(|()| Timed::Flush, |_| Ok(())).map(|((), ready)| ready);
        DeviceDone(self.start("flush", ZoneIo::Nothing, (DeviceOffset::START, 0), decided))
    }

    refuse_plain_writes!();
}

impl ZoneDevice for MemoryZones {
    type Append = MemoryAppend;
    type Changed = DeviceDone;
    type Report = Ready<Result<Vec<Zone>, DeviceError>>;
    type ReadMetadata = ZoneRead;

    fn zoned(&self) -> &ZonedInfo {
        &self.shared.zoned
    }

    fn report(&self, zones: Range<u32>) -> Self::Report {
        let states = &self.shared.drive.lock().states;
        let zones = zones.start..zones.end.min(states.count());
        ready(Ok(zones.map(|zone| states.zone(zone)).collect()))
    }

    #[inline]
    fn append(&self, zone: u32, data: Gather, metadata: Option<Slice>, fua: bool) -> MemoryAppend {
        let _nothing_survives = fua;
        let bytes = data.len() as u64;
        let has_append = match self.shared.zoned.access {
            ZoneAccess::Append => Ok(()),
            ZoneAccess::Sequential | ZoneAccess::Placed => Err(DeviceErrorKind::Unsupported),
        };
        let checked = has_append.and_then(|()| self.check(ZoneOffset::start(zone), &data, metadata.as_ref()));
        let decided = checked
            .and_then(|()| self.decide(|_| Timed::Append(zone, bytes), |states| states.append(zone, bytes)));
        let (place, ready) = match decided {
            Ok((place, ready)) => (place, Ok(ready)),
            Err(kind) => (0, Err(kind)),
        };
        let at = (self.shared.zoned.offset_bytes(zone, place), bytes);
        let done = DeviceDone(self.start("append", ZoneIo::Write { data, metadata }, at, ready));
        MemoryAppend { done, place }
    }

    #[inline]
    fn write_at(&self, to: ZoneOffset, data: Gather, metadata: Option<Slice>, fua: bool) -> DeviceDone {
        let ZoneOffset { zone, in_zone_bytes } = to;
        let _nothing_survives = fua;
        let bytes = data.len() as u64;
        let checked = self.check(to, &data, metadata.as_ref());
        let decided = checked.and_then(|()| {
            self.decide(|()| Timed::Write(zone, bytes), |states| states.write(zone, in_zone_bytes, bytes))
        });
        let at = (self.shared.zoned.offset_bytes(zone, in_zone_bytes), bytes);
        let decided = decided.map(|((), ready)| ready);
        DeviceDone(self.start("write", ZoneIo::Write { data, metadata }, at, decided))
    }

    fn read_metadata(&self, from: ZoneOffset, data: Buffer, metadata: Buffer) -> ZoneRead {
        let ZoneOffset { zone, in_zone_bytes } = from;
        let ZonedMemory { info, zoned, .. } = &*self.shared;
        let (bytes, metadata_bytes) = (data.len(), metadata.len());
        let at = (zoned.offset_bytes(zone, in_zone_bytes), bytes as u64);
        let decided = zoned
            .check_read_metadata(info, from, bytes, metadata_bytes)
            .and_then(|()| self.decide_read(at.0, at.1));
        ZoneRead(self.start("read", ZoneIo::Read { data, metadata }, at, decided))
    }

    fn change(&self, zone: u32, change: ZoneChange) -> DeviceDone {
        let at = (self.shared.zoned.offset_bytes(zone, 0), self.shared.zoned.zone_bytes);
        let decided = self.decide(|()| Timed::Change(change), |states| states.change(zone, change));
        let decided = decided.map(|((), ready)| ready);
        DeviceDone(self.start(change.name(), ZoneIo::Nothing, at, decided))
    }
}

/// An append in flight.
pub struct MemoryAppend {
    done: DeviceDone,
    place: u64,
}

impl Future for MemoryAppend {
    type Output = Result<u64, DeviceError>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let result = ready!(Pin::new(&mut self.done).poll(context));
        Poll::Ready(result.map(|()| self.place))
    }
}
