//! A zoned drive that takes time and keeps its zones' states, and contents as far as they are needed. Writes in order are sent to a zone one after the
//! other, as those of the kernel's zoned drives are: what waits for its zone keeps nothing else of the drive busy.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::{Future, Ready, ready};
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use engine::buffer::{Buffer, Gather, Slice};
use engine::device::{Device, DeviceError, DeviceErrorKind, DeviceInfo};
use engine::limits::BLOCK_BYTES;
use engine::zone_device::memory::MemoryZones;
use engine::zone_device::states::ZoneStates;
use engine::zone_device::timing::{DriveModel, DriveTiming, Timed};
use engine::zone_device::{Zone, ZoneChange, ZoneDevice, ZoneOffset, ZonedInfo};

use super::sparse::SparseZones;
use crate::timeline::Timeline;
use crate::world::{Filler, Pending, pending};
use layout::units::DeviceOffset;

pub(super) struct TimedZones {
    info: DeviceInfo,
    zoned: ZonedInfo,
    time: Rc<Timeline>,
    drive: Rc<RefCell<Drive>>,
    contents: Contents,
    /// Reads, and their bytes.
    reads: Cell<(u64, u64)>,
}

/// Which contents a drive keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keeps {
    /// None.
    Nothing,
    /// What is not zeroes, and metadata out of band of zones that are not finished: see [`SparseZones`].
    Metadata,
    /// All.
    All,
}

enum Contents {
    Nothing,
    Metadata(RefCell<SparseZones>),
    /// It has the states of zones, too.
    All(MemoryZones),
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
    pub(super) fn new(zoned: ZonedInfo, model: DriveModel, time: &Rc<Timeline>, keeps: Keeps) -> Rc<Self> {
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
        let contents = match keeps {
            Keeps::Nothing => Contents::Nothing,
            Keeps::Metadata => Contents::Metadata(RefCell::default()),
            Keeps::All => Contents::All(MemoryZones::new(zoned.clone(), 4096, &info.name)),
        };
        let reads = Cell::default();
        Rc::new(TimedZones { info, zoned, time: Rc::clone(time), drive, contents, reads })
    }

    /// Reads so far, and their bytes.
    pub(super) fn reads(&self) -> (u64, u64) {
        self.reads.get()
    }

    fn count_read(&self, bytes: usize) {
        let (reads, before) = self.reads.get();
        self.reads.set((reads + 1, before + bytes as u64));
    }

    /// What was written is kept, if it is to be.
    fn keep(&self, (zone, in_zone_bytes): (u32, u64), data: &Gather, metadata: Option<&Slice>) {
        if let Contents::Metadata(sparse) = &self.contents {
            sparse.borrow_mut().put(zone, in_zone_bytes / BLOCK_BYTES as u64, data, metadata);
        }
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
        self.count_read(buffer.bytes().len());
        let answer = match &self.contents {
            Contents::All(memory) => at_once(memory.read(offset, buffer)),
            Contents::Metadata(sparse) => (sparse.borrow().read(&self.zoned, offset, buffer), Ok(())),
            Contents::Nothing => (buffer, Ok(())),
        };
        self.after(Timed::Read, answer)
    }

    fn flush(&self) -> Self::Done {
        let answer = match &self.contents {
            Contents::All(memory) => at_once(memory.flush()),
            Contents::Metadata(_) | Contents::Nothing => Ok(()),
        };
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
        if let Contents::All(memory) = &self.contents {
            return ready(at_once(memory.report(zones)));
        }
        let states = &self.drive.borrow().states;
        ready(Ok((zones.start..zones.end.min(states.count())).map(|zone| states.zone(zone)).collect()))
    }

    fn append(&self, zone: u32, data: Gather, metadata: Option<Slice>, fua: bool) -> Self::Append {
        let bytes = data.len() as u64;
        let place = match &self.contents {
            Contents::All(memory) => at_once(memory.append(zone, data, metadata, fua)),
            Contents::Metadata(_) | Contents::Nothing => {
                let place = self.drive.borrow_mut().states.append(zone, bytes);
                place.iter().for_each(|place| self.keep((zone, *place), &data, metadata.as_ref()));
                place.map_err(|kind| error(kind, "append"))
            }
        };
        self.after(Timed::Append(zone, bytes), place)
    }

    fn write_at(&self, to: ZoneOffset, data: Gather, metadata: Option<Slice>, fua: bool) -> Self::Changed {
        let bytes = data.len() as u64;
        let (pending, filler) = pending();
        let mut drive = self.drive.borrow_mut();
        let written = match &self.contents {
            Contents::All(memory) => at_once(memory.write_at(to, data, metadata, fua)),
            Contents::Metadata(_) | Contents::Nothing => {
                let written = drive.states.write(to.zone, to.in_zone_bytes, bytes);
                let at = (to.zone, to.in_zone_bytes);
                written.iter().for_each(|()| self.keep(at, &data, metadata.as_ref()));
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
        self.count_read(data.bytes().len());
        let answer = match &self.contents {
            Contents::All(memory) => at_once(memory.read_metadata(from, data, metadata)),
            Contents::Metadata(sparse) => {
                let sparse = sparse.borrow();
                let offset = self.zoned.offset_bytes(from.zone, from.in_zone_bytes);
                let data = sparse.read(&self.zoned, offset, data);
                (
                    data,
                    sparse.read_metadata(from.zone, from.in_zone_bytes / BLOCK_BYTES as u64, metadata),
                    Ok(()),
                )
            }
            Contents::Nothing => (data, metadata, Ok(())),
        };
        self.after(Timed::Read, answer)
    }

    fn change(&self, zone: u32, change: ZoneChange) -> Self::Changed {
        if let Contents::Metadata(sparse) = &self.contents {
            sparse.borrow_mut().change(zone, change);
        }
        let changed = match &self.contents {
            Contents::All(memory) => at_once(memory.change(zone, change)),
            Contents::Metadata(_) | Contents::Nothing => {
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
