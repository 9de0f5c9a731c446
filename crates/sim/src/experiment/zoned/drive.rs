//! A zoned drive that takes time and keeps its zones' states, and contents only where they are needed. Writes in order are sent to a zone one after the
//! other, as those of the kernel's zoned drives are: what waits for its zone keeps nothing else of the drive busy.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::future::{Future, Ready, ready};
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use engine::buffer::{Buffer, Gather, Slice};
use engine::device::{Device, DeviceError, DeviceErrorKind, DeviceInfo};
use engine::zone_device::memory::MemoryZones;
use engine::zone_device::states::ZoneStates;
use engine::zone_device::timing::{DriveModel, DriveTiming, Timed};
use engine::zone_device::{Zone, ZoneChange, ZoneDevice, ZoneOffset, ZonedInfo};

use crate::timeline::Timeline;
use crate::world::{Filler, Pending, pending};
use layout::units::DeviceOffset;

pub(super) struct TimedZones {
    info: DeviceInfo,
    zoned: ZonedInfo,
    time: Rc<Timeline>,
    drive: Rc<RefCell<Drive>>,
    /// What keeps contents, if anything does. It has the states of zones then, too.
    memory: Option<MemoryZones>,
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
    pub(super) fn new(
        zoned: ZonedInfo,
        model: DriveModel,
        time: &Rc<Timeline>,
        keeps_contents: bool,
    ) -> Rc<Self> {
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
        let memory = keeps_contents.then(|| MemoryZones::new(zoned.clone(), 4096, &info.name));
        Rc::new(TimedZones { info, zoned, time: Rc::clone(time), drive, memory })
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

    fn read(&self, offset: DeviceOffset, buffer: Buffer) -> Self::Read {
        let answer = match &self.memory {
            Some(memory) => at_once(memory.read(offset, buffer)),
            None => (buffer, Ok(())),
        };
        self.after(Timed::Read, answer)
    }

    fn flush(&self) -> Self::Done {
        let answer = self.memory.as_ref().map_or(Ok(()), |memory| at_once(memory.flush()));
        self.after(Timed::Flush, answer)
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
        if let Some(memory) = &self.memory {
            return ready(at_once(memory.report(zones)));
        }
        let states = &self.drive.borrow().states;
        ready(Ok((zones.start..zones.end.min(states.count())).map(|zone| states.zone(zone)).collect()))
    }

    fn append(&self, zone: u32, data: Gather, metadata: Option<Slice>, fua: bool) -> Self::Append {
        let bytes = data.len() as u64;
        let place = match &self.memory {
            Some(memory) => at_once(memory.append(zone, data, metadata, fua)),
            None => {
                let place = self.drive.borrow_mut().states.append(zone, bytes);
                place.map_err(|kind| error(kind, "append"))
            }
        };
        self.after(Timed::Append(zone, bytes), place)
    }

    fn write_at(&self, to: ZoneOffset, data: Gather, metadata: Option<Slice>, fua: bool) -> Self::Changed {
        let bytes = data.len() as u64;
        let (pending, filler) = pending();
        let mut drive = self.drive.borrow_mut();
        let written = match &self.memory {
            Some(memory) => at_once(memory.write_at(to, data, metadata, fua)),
            None => {
                let written = drive.states.write(to.zone, to.in_zone_bytes, bytes);
                written.map_err(|kind| error(kind, "write"))
            }
        };
        let write = (bytes, filler, written);
        if let Some(waiting) = drive.lanes.get_mut(&to.zone) {
            waiting.push_back(write);
        } else {
            drive.lanes.insert(to.zone, VecDeque::new());
            drop(drive);
            send(&self.drive, &self.time, to.zone, write);
        }
        pending
    }

    fn read_metadata(&self, from: ZoneOffset, data: Buffer, metadata: Buffer) -> Self::ReadMetadata {
        let answer = match &self.memory {
            Some(memory) => at_once(memory.read_metadata(from, data, metadata)),
            None => (data, metadata, Ok(())),
        };
        self.after(Timed::Read, answer)
    }

    fn change(&self, zone: u32, change: ZoneChange) -> Self::Changed {
        let changed = match &self.memory {
            Some(memory) => at_once(memory.change(zone, change)),
            None => {
                let changed = self.drive.borrow_mut().states.change(zone, change);
                changed.map_err(|kind| error(kind, "change"))
            }
        };
        self.after(Timed::Change(change), changed)
    }
}

/// What memory answers, which takes no time.
fn at_once<T>(answer: impl Future<Output = T>) -> T {
    match pin!(answer).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => unreachable!("memory answers when it is asked"),
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
