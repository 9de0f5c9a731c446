//! A zoned drive that takes time and keeps its zones' states, but no contents.

use std::cell::RefCell;
use std::future::{Ready, ready};
use std::ops::Range;
use std::rc::Rc;

use engine::buffer::{Buffer, Gather, Slice};
use engine::device::{Device, DeviceError, DeviceErrorKind, DeviceInfo};
use engine::zone_device::states::ZoneStates;
use engine::zone_device::timing::{DriveModel, DriveTiming, Timed};
use engine::zone_device::{Zone, ZoneChange, ZoneDevice, ZoneOffset, ZonedInfo};

use crate::experiment::member::Timeline;
use crate::world::{Pending, pending};

pub(super) struct TimedZones {
    info: DeviceInfo,
    zoned: ZonedInfo,
    time: Rc<Timeline>,
    drive: RefCell<Drive>,
}

struct Drive {
    states: ZoneStates,
    timing: DriveTiming,
}

impl TimedZones {
    pub(super) fn new(zoned: ZonedInfo, model: DriveModel, time: &Rc<Timeline>) -> Rc<Self> {
        let info = DeviceInfo {
            size_bytes: u64::from(zoned.zones) * zoned.zone_bytes,
            logical_block_bytes: 4096,
            discard_zeroes: false,
            name: "a zoned drive that takes time".to_owned(),
        };
        let drive =
            Drive { states: ZoneStates::new(&zoned), timing: DriveTiming::new(model, zoned.zones, 1) };
        Rc::new(TimedZones { info, zoned, time: Rc::clone(time), drive: RefCell::new(drive) })
    }

    /// Takes its time, and then answers.
    fn after<T: 'static>(&self, operation: Timed, answer: T) -> Pending<T> {
        let (pending, filler) = pending();
        let now_ns = self.time.now_ns();
        let done_ns = self.drive.borrow_mut().timing.done_at_ns(now_ns, operation);
        self.time.after(done_ns - now_ns, move || filler.fill(answer));
        pending
    }

    fn refuse(&self, operation: &'static str) -> Pending<Result<(), DeviceError>> {
        let (pending, filler) = pending();
        filler.fill(Err(error(DeviceErrorKind::Unsupported, operation)));
        pending
    }
}

impl Device for TimedZones {
    type Read = Pending<(Buffer, Result<(), DeviceError>)>;
    type Done = Pending<Result<(), DeviceError>>;

    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn read(&self, _offset_bytes: u64, buffer: Buffer) -> Self::Read {
        self.after(Timed::Read, (buffer, Ok(())))
    }

    fn flush(&self) -> Self::Done {
        self.after(Timed::Flush, Ok(()))
    }

    fn write(&self, _offset_bytes: u64, _data: Gather, _fua: bool) -> Self::Done {
        self.refuse("write")
    }

    fn discard(&self, _offset_bytes: u64, _bytes: u64) -> Self::Done {
        self.refuse("discard")
    }

    fn write_zeroes(&self, _offset_bytes: u64, _bytes: u64, _may_unmap: bool) -> Self::Done {
        self.refuse("write zeroes")
    }
}

impl ZoneDevice for TimedZones {
    type Append = Pending<Result<u64, DeviceError>>;
    type Changed = Pending<Result<(), DeviceError>>;
    type Report = Ready<Result<Vec<Zone>, DeviceError>>;
    type ReadMetadata = Pending<(Buffer, Buffer, Result<(), DeviceError>)>;

    fn zoned(&self) -> &ZonedInfo {
        &self.zoned
    }

    fn report(&self, zones: Range<u32>) -> Self::Report {
        let states = &self.drive.borrow().states;
        ready(Ok((zones.start..zones.end.min(states.count())).map(|zone| states.zone(zone)).collect()))
    }

    fn append(&self, zone: u32, data: Gather, _metadata: Option<Slice>, _fua: bool) -> Self::Append {
        let bytes = data.len() as u64;
        let place = self.drive.borrow_mut().states.append(zone, bytes);
        self.after(Timed::Append(zone, bytes), place.map_err(|kind| error(kind, "append")))
    }

    fn write_at(&self, to: ZoneOffset, data: Gather, _metadata: Option<Slice>, _fua: bool) -> Self::Changed {
        let bytes = data.len() as u64;
        let written = self.drive.borrow_mut().states.write(to.zone, to.in_zone_bytes, bytes);
        self.after(Timed::Write(to.zone, bytes), written.map_err(|kind| error(kind, "write")))
    }

    fn read_metadata(&self, _from: ZoneOffset, data: Buffer, metadata: Buffer) -> Self::ReadMetadata {
        self.after(Timed::Read, (data, metadata, Ok(())))
    }

    fn change(&self, zone: u32, change: ZoneChange) -> Self::Changed {
        let changed = self.drive.borrow_mut().states.change(zone, change);
        self.after(Timed::Change(change), changed.map_err(|kind| error(kind, "change")))
    }
}

fn error(kind: DeviceErrorKind, operation: &'static str) -> DeviceError {
    DeviceError { kind, operation, offset_bytes: 0, bytes: 0, errno: 0 }
}
