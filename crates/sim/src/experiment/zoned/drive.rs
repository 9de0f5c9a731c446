//! A zoned drive that takes time and keeps its zones' states, but no contents. Writes in order are sent to a zone one after the
//! other, as those of the kernel's zoned drives are: what waits for its zone keeps nothing else of the drive busy.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::future::{Ready, ready};
use std::ops::Range;
use std::rc::Rc;

use engine::buffer::{Buffer, Gather, Slice};
use engine::device::{Device, DeviceError, DeviceErrorKind, DeviceInfo};
use engine::zone_device::states::ZoneStates;
use engine::zone_device::timing::{DriveModel, DriveTiming, Timed};
use engine::zone_device::{Zone, ZoneChange, ZoneDevice, ZoneOffset, ZonedInfo};

use crate::experiment::member::Timeline;
use crate::world::{Filler, Pending, pending};
use layout::units::DeviceOffset;

pub(super) struct TimedZones {
    info: DeviceInfo,
    zoned: ZonedInfo,
    time: Rc<Timeline>,
    drive: Rc<RefCell<Drive>>,
}

struct Drive {
    states: ZoneStates,
    timing: DriveTiming,
    /// The writes of each zone that wait for those before them; a zone is there while a write of it is under way.
    lanes: HashMap<u32, VecDeque<Write>>,
}

/// A write that waits: bytes, and whoever waits for its answer.
type Write = (u64, Filler<Result<(), DeviceError>>, Result<(), DeviceError>);

impl TimedZones {
    pub(super) fn new(zoned: ZonedInfo, model: DriveModel, time: &Rc<Timeline>) -> Rc<Self> {
        let info = DeviceInfo {
            size_bytes: u64::from(zoned.zones) * zoned.zone_bytes,
            logical_block_bytes: 4096,
            discard_zeroes: false,
            name: "a zoned drive that takes time".to_owned(),
        };
        let drive = Drive {
            states: ZoneStates::new(&zoned),
            timing: DriveTiming::new(model, zoned.zones, 1),
            lanes: HashMap::new(),
        };
        let drive = Rc::new(RefCell::new(drive));
        Rc::new(TimedZones { info, zoned, time: Rc::clone(time), drive })
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

    fn read(&self, _offset: DeviceOffset, buffer: Buffer) -> Self::Read {
        self.after(Timed::Read, (buffer, Ok(())))
    }

    fn flush(&self) -> Self::Done {
        self.after(Timed::Flush, Ok(()))
    }

    fn write(&self, _offset: DeviceOffset, _data: Gather, _fua: bool) -> Self::Done {
        self.refuse("write")
    }

    fn discard(&self, _offset: DeviceOffset, _bytes: u64) -> Self::Done {
        self.refuse("discard")
    }

    fn write_zeroes(&self, _offset: DeviceOffset, _bytes: u64, _may_unmap: bool) -> Self::Done {
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
        let (pending, filler) = pending();
        let mut drive = self.drive.borrow_mut();
        let written = drive.states.write(to.zone, to.in_zone_bytes, bytes);
        let write = (bytes, filler, written.map_err(|kind| error(kind, "write")));
        if let Some(waiting) = drive.lanes.get_mut(&to.zone) {
            waiting.push_back(write);
        } else {
            drive.lanes.insert(to.zone, VecDeque::new());
            drop(drive);
            send(&self.drive, &self.time, to.zone, write);
        }
        pending
    }

    fn read_metadata(&self, _from: ZoneOffset, data: Buffer, metadata: Buffer) -> Self::ReadMetadata {
        self.after(Timed::Read, (data, metadata, Ok(())))
    }

    fn change(&self, zone: u32, change: ZoneChange) -> Self::Changed {
        let changed = self.drive.borrow_mut().states.change(zone, change);
        self.after(Timed::Change(change), changed.map_err(|kind| error(kind, "change")))
    }
}

/// Sends a write, and those that wait for it when it has returned.
fn send(drive: &Rc<RefCell<Drive>>, time: &Rc<Timeline>, zone: u32, (bytes, filler, answer): Write) {
    let now_ns = time.now_ns();
    let done_ns = drive.borrow_mut().timing.done_at_ns(now_ns, Timed::Write(zone, bytes));
    let (of, clock) = (Rc::clone(drive), Rc::clone(time));
    time.after(done_ns - now_ns, move || {
        filler.fill(answer);
        let next = of.borrow_mut().lanes.get_mut(&zone).and_then(VecDeque::pop_front);
        match next {
            Some(next) => send(&of, &clock, zone, next),
            None => drop(of.borrow_mut().lanes.remove(&zone)),
        }
    });
}

fn error(kind: DeviceErrorKind, operation: &'static str) -> DeviceError {
    DeviceError { kind, operation, offset: DeviceOffset::START, bytes: 0, errno: 0 }
}
