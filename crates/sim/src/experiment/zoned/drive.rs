//! A zoned drive that takes time and keeps its zones' states, and contents as far as they are needed. Writes in order are sent to a zone one after the
//! other, as those of the kernel's zoned drives are: what waits for its zone keeps nothing else of the drive busy. An ordinary drive has no
//! pointers, and takes writes of a zone in any order: they take the time of appends, which do not wait for each other either.
//!
//! Operations take effect when they are asked for, and return when their time is over. Where the power is to be cut, contents lie behind
//! a volatile cache: what did not return is there after the cut, or is not, as the simulator's drives have it.

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
use engine::zone_device::{Zone, ZoneAccess, ZoneChange, ZoneDevice, ZoneOffset, ZonedInfo};

use super::sparse::SparseZones;
use crate::random::Random;
use crate::timeline::Timeline;
use crate::world::{Filler, Pending, pending};
use crate::zoned::medium::{Medium, Operation, Survival};
use layout::units::DeviceOffset;

/// What a drive keeps of what is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keeps {
    /// States and pointers of zones.
    States,
    /// These, what is not zeroes, and metadata out of band of zones that are not finished: see [`SparseZones`].
    Metadata,
    /// Contents.
    Contents,
    /// Contents behind a volatile cache: the power may be cut.
    Cache,
}

/// Bytes of a logical block.
const UNIT: u32 = 4096;
const NAME: &str = "a zoned drive that takes time";

pub(super) struct TimedZones {
    info: DeviceInfo,
    zoned: ZonedInfo,
    model: DriveModel,
    time: Rc<Timeline>,
    drive: Rc<RefCell<Drive>>,
    held: Held,
    /// What a drive does as it likes.
    random: Random,
    /// Blocks that were written to it, whatever they are.
    written_blocks: Cell<u64>,
    /// Reads, and their bytes.
    reads: Cell<(u64, u64)>,
}

/// What it keeps.
enum Held {
    States(RefCell<ZoneStates>),
    Metadata(RefCell<ZoneStates>, RefCell<SparseZones>),
    Contents(MemoryZones),
    Cache(Rc<RefCell<Medium>>),
}

struct Drive {
    timing: DriveTiming,
    /// The writes of each zone that wait for those before them; a zone is there while a write of it is under way.
    lanes: HashMap<u32, VecDeque<Write>>,
}

/// A write in order that has taken effect, and has not returned.
struct Write {
    bytes: u64,
    filler: Filler<Result<(), DeviceError>>,
    written: Returning<u64>,
}

/// The answer of an operation that has taken effect, and what its return means to the cache.
struct Returning<T> {
    answer: Result<T, DeviceError>,
    cached: Option<Cached>,
}

/// An operation that a power cut may undo, until it has returned with FUA or was flushed after it had returned.
struct Cached {
    medium: Rc<RefCell<Medium>>,
    operation: Operation,
    fua: bool,
}

impl<T> Returning<T> {
    fn cached(
        medium: &Rc<RefCell<Medium>>,
        made: Result<(T, Operation), DeviceErrorKind>,
        name: &'static str,
        fua: bool,
    ) -> Self {
        match made {
            Ok((answer, operation)) => {
                let cached = Cached { medium: Rc::clone(medium), operation, fua };
                Returning { answer: Ok(answer), cached: Some(cached) }
            }
            Err(kind) => Returning { answer: Err(error(kind, name)), cached: None },
        }
    }

    /// Its time is over.
    fn returned(self) -> Result<T, DeviceError> {
        if let Some(Cached { medium, operation, fua }) = self.cached {
            medium.borrow_mut().returned(operation, fua);
        }
        self.answer
    }
}

impl Held {
    /// Writes at a place, or at the pointer. The place.
    fn write(
        &self,
        (zone, at): (u32, Option<u64>),
        data: Gather,
        metadata: Option<Slice>,
        fua: bool,
    ) -> Returning<u64> {
        let answer = match self {
            Held::States(states) => {
                let (mut states, bytes) = (states.borrow_mut(), data.len() as u64);
                let place = match at {
                    Some(at) => states.write(zone, at, bytes).map(|()| at),
                    None => states.append(zone, bytes),
                };
                place.map_err(|kind| error(kind, "write"))
            }
            Held::Metadata(states, sparse) => {
                let (mut states, bytes) = (states.borrow_mut(), data.len() as u64);
                let place = match at {
                    Some(at) => states.write(zone, at, bytes).map(|()| at),
                    None => states.append(zone, bytes),
                };
                place.iter().for_each(|place| {
                    sparse.borrow_mut().put(zone, place / BLOCK_BYTES as u64, &data, metadata.as_ref());
                });
                place.map_err(|kind| error(kind, "write"))
            }
            Held::Contents(memory) => match at {
                Some(in_zone_bytes) => {
                    let to = ZoneOffset { zone, in_zone_bytes };
                    at_once(memory.write_at(to, data, metadata, fua)).map(|()| in_zone_bytes)
                }
                None => at_once(memory.append(zone, data, metadata, fua)),
            },
            Held::Cache(medium) => {
                let written = medium.borrow_mut().write(zone, at, &data, metadata.as_ref());
                return Returning::cached(medium, written, "write", fua);
            }
        };
        Returning { answer, cached: None }
    }

    fn change(&self, zone: u32, change: ZoneChange, random: &Random) -> Returning<()> {
        let answer = match self {
            Held::States(states) => {
                let changed = states.borrow_mut().change(zone, change);
                changed.map_err(|kind| error(kind, "change"))
            }
            Held::Metadata(states, sparse) => {
                sparse.borrow_mut().change(zone, change);
                let changed = states.borrow_mut().change(zone, change);
                changed.map_err(|kind| error(kind, "change"))
            }
            Held::Contents(memory) => at_once(memory.change(zone, change)),
            Held::Cache(medium) => {
                let changed = medium.borrow_mut().change(zone, change, random);
                let changed = changed.map(|operation| ((), operation));
                return Returning::cached(medium, changed, "change", false);
            }
        };
        Returning { answer, cached: None }
    }
}

impl TimedZones {
    pub(super) fn new(zoned: ZonedInfo, model: DriveModel, time: &Rc<Timeline>, keeps: Keeps) -> Rc<Self> {
        let held = match keeps {
            Keeps::States => Held::States(ZoneStates::new(&zoned).into()),
            Keeps::Metadata => Held::Metadata(ZoneStates::new(&zoned).into(), RefCell::default()),
            Keeps::Contents => Held::Contents(MemoryZones::new(zoned.clone(), UNIT, NAME)),
            Keeps::Cache => {
                let medium = Medium::new(Rc::new(zoned.clone()), UNIT.into());
                Held::Cache(Rc::new(RefCell::new(medium)))
            }
        };
        TimedZones::holding(held, zoned, model, time)
    }

    fn holding(held: Held, zoned: ZonedInfo, model: DriveModel, time: &Rc<Timeline>) -> Rc<Self> {
        let info = DeviceInfo {
            size_bytes: u64::from(zoned.zones) * zoned.zone_bytes,
            logical_block_bytes: UNIT,
            discard_zeroes: false,
            name: NAME.to_owned(),
        };
        let drive = Drive { timing: DriveTiming::new(model, zoned.zones, 1), lanes: HashMap::new() };
        let drive = Rc::new(RefCell::new(drive));
        Rc::new(TimedZones {
            info,
            zoned,
            model,
            time: Rc::clone(time),
            drive,
            held,
            random: Random::new(5),
            written_blocks: Cell::new(0),
            reads: Cell::default(),
        })
    }

    /// What a power cut leaves of a drive with a cache. One without keeps everything.
    pub(super) fn cut(self: &Rc<Self>, survival: Survival, random: &Random) -> Rc<Self> {
        let Held::Cache(medium) = &self.held else { return Rc::clone(self) };
        let left = medium.borrow().cut(survival, random);
        let held = Held::Cache(Rc::new(RefCell::new(left)));
        TimedZones::holding(held, self.zoned.clone(), self.model, &self.time)
    }

    /// Blocks that were written to it since it was made, or left by a power cut.
    pub(super) fn written_blocks(&self) -> u64 {
        self.written_blocks.get()
    }

    /// Reads so far, and their bytes.
    pub(super) fn reads(&self) -> (u64, u64) {
        self.reads.get()
    }

    fn count_read(&self, bytes: usize) {
        let (reads, before) = self.reads.get();
        self.reads.set((reads + 1, before + bytes as u64));
    }

    fn count(&self, bytes: u64) {
        self.written_blocks.set(self.written_blocks.get() + bytes / u64::from(UNIT));
    }

    /// Takes its time, and then answers.
    fn after<T: 'static>(&self, operation: Timed, answer: impl FnOnce() -> T + 'static) -> Pending<T> {
        let (pending, filler) = pending();
        let now_ns = self.time.now_ns();
        let done_ns = self.drive.borrow_mut().timing.done_at_ns(now_ns, operation);
        self.time.after(done_ns - now_ns, move || filler.fill(answer()));
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

    fn read(&self, offset: DeviceOffset, mut buffer: Buffer) -> Self::Read {
        self.count_read(buffer.bytes().len());
        let answer = match &self.held {
            Held::States(_) => (buffer, Ok(())),
            Held::Metadata(_, sparse) => (sparse.borrow().read(&self.zoned, offset, buffer), Ok(())),
            Held::Contents(memory) => at_once(memory.read(offset, buffer)),
            Held::Cache(medium) => {
                let result = read(&medium.borrow(), offset, buffer.bytes_mut(), &mut []);
                (buffer, result)
            }
        };
        self.after(Timed::Read, || answer)
    }

    fn flush(&self) -> Self::Done {
        match &self.held {
            Held::States(_) | Held::Metadata(..) => self.after(Timed::Flush, || Ok(())),
            Held::Contents(memory) => {
                let answer = at_once(memory.flush());
                self.after(Timed::Flush, || answer)
            }
            Held::Cache(medium) => {
                let covered = medium.borrow().flush_covers();
                let medium = Rc::clone(medium);
                self.after(Timed::Flush, move || {
                    medium.borrow_mut().made_durable(&covered);
                    Ok(())
                })
            }
        }
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
        let zones = zones.start..zones.end.min(self.zoned.zones);
        ready(match &self.held {
            Held::States(states) | Held::Metadata(states, _) => {
                Ok(zones.map(|zone| states.borrow().zone(zone)).collect())
            }
            Held::Contents(memory) => at_once(memory.report(zones)),
            Held::Cache(medium) => Ok(zones.map(|zone| medium.borrow().zone(zone)).collect()),
        })
    }

    fn append(&self, zone: u32, data: Gather, metadata: Option<Slice>, fua: bool) -> Self::Append {
        let bytes = data.len() as u64;
        self.count(bytes);
        let appended = self.held.write((zone, None), data, metadata, fua);
        self.after(Timed::Append(zone, bytes), || appended.returned())
    }

    fn write_at(&self, to: ZoneOffset, data: Gather, metadata: Option<Slice>, fua: bool) -> Self::Changed {
        let bytes = data.len() as u64;
        self.count(bytes);
        let place = (to.zone, Some(to.in_zone_bytes));
        let written = self.held.write(place, data, metadata, fua);
        if self.zoned.access == ZoneAccess::Placed {
            return self.after(Timed::Append(to.zone, bytes), || written.returned().map(drop));
        }
        let (pending, filler) = pending();
        let mut drive = self.drive.borrow_mut();
        let write = Write { bytes, filler, written };
        if let Some(waiting) = drive.lanes.get_mut(&to.zone) {
            waiting.push_back(write);
        } else {
            drive.lanes.insert(to.zone, VecDeque::new());
            drop(drive);
            send(&self.drive, &self.time, to.zone, write);
        }
        pending
    }

    fn read_metadata(&self, from: ZoneOffset, mut data: Buffer, mut metadata: Buffer) -> Self::ReadMetadata {
        self.count_read(data.bytes().len());
        let answer = match &self.held {
            Held::States(_) => (data, metadata, Ok(())),
            Held::Metadata(_, sparse) => {
                let (sparse, block) = (sparse.borrow(), from.in_zone_bytes / BLOCK_BYTES as u64);
                let offset = self.zoned.offset_bytes(from.zone, from.in_zone_bytes);
                let data = sparse.read(&self.zoned, offset, data);
                (data, sparse.read_metadata(from.zone, block, metadata), Ok(()))
            }
            Held::Contents(memory) => at_once(memory.read_metadata(from, data, metadata)),
            Held::Cache(medium) => {
                let offset = self.zoned.offset_bytes(from.zone, from.in_zone_bytes);
                let result = read(&medium.borrow(), offset, data.bytes_mut(), metadata.bytes_mut());
                (data, metadata, result)
            }
        };
        self.after(Timed::Read, || answer)
    }

    fn change(&self, zone: u32, change: ZoneChange) -> Self::Changed {
        let changed = self.held.change(zone, change, &self.random);
        self.after(Timed::Change(change), || changed.returned())
    }
}

fn read(
    medium: &Medium,
    offset: DeviceOffset,
    data: &mut [u8],
    metadata: &mut [u8],
) -> Result<(), DeviceError> {
    medium.readable(offset, data.len() as u64).map_err(|kind| error(kind, "read"))?;
    medium.read(offset, data, metadata);
    Ok(())
}

/// What memory answers, which takes no time.
fn at_once<T>(answer: impl Future<Output = T>) -> T {
    match pin!(answer).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => unreachable!("memory answers when it is asked"),
    }
}

/// Sends a write, and those that wait for it when it has returned.
fn send(drive: &Rc<RefCell<Drive>>, time: &Rc<Timeline>, zone: u32, write: Write) {
    let now_ns = time.now_ns();
    let done_ns = drive.borrow_mut().timing.done_at_ns(now_ns, Timed::Write(zone, write.bytes));
    let (of, clock) = (Rc::clone(drive), Rc::clone(time));
    time.after(done_ns - now_ns, move || {
        write.filler.fill(write.written.returned().map(drop));
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
