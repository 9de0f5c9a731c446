//! A simulated zoned drive: operations take effect and return when the world says, appends in any order, writes of a zone in
//! the order in which they were started. It checks what the engine asks of it, and does what its faults say.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::rc::Rc;

use engine::buffer::{Buffer, Gather, Slice};
use engine::device::{Device, DeviceError, DeviceErrorKind, DeviceInfo};
use engine::zone_device::{Zone, ZoneAccess, ZoneChange, ZoneDevice, ZoneOffset, ZoneState, ZonedInfo};

use layout::zoned::SegmentHeader;

use super::medium::{BLOCK, Medium, Operation, Survival};
use super::plant::Plant;
use super::superblocks::Superblock;
use crate::random::Random;
use crate::trace::Note;
use crate::world::{Filler, Pending, World, pending};
use layout::units::DeviceOffset;

/// How fences and footers begin, but for what tells them apart.
const END: &[u8] = b"TwZonF";

/// How the root of a checkpoint begins.
const ROOT: &[u8] = b"TwZonRt\0";

/// Of so many reads one is slow: it may outlast all that reclaim does between a move and the reset.
const SLOW_READS_ONE_IN: u64 = 16;
const SLOW_READ_TICKS_MAX: u64 = 1000;

/// What a drive does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// It answers nothing any more.
    Gone,
    /// The zone that is written turns read-only.
    ReadOnly,
    /// The zone that is written turns offline.
    Offline,
    /// A write fails, and a part of it may have been made.
    WriteFails,
    /// The drive finishes the zone that is written.
    Finishes,
    /// An append returns another place than its own.
    WrongPlace,
    /// An append succeeds and writes nothing.
    LostAppend,
    /// Records with a root of a checkpoint are acknowledged and not written, for ever.
    LostRoot,
}

impl Fault {
    /// Faults that take no data with them.
    pub(super) const SOFT: [Fault; 3] = [Fault::ReadOnly, Fault::WriteFails, Fault::Finishes];
    /// Faults that the array survives as the loss of a member.
    pub(super) const HARD: [Fault; 4] = [Fault::Gone, Fault::Offline, Fault::WrongPlace, Fault::LostAppend];

    /// Whether the array survives it as the loss of a member.
    pub(super) fn is_hard(self) -> bool {
        self == Fault::LostRoot || Fault::HARD.contains(&self)
    }
}

/// A zone that was reset: the drive's slot, its number, and the segment by number and tag.
pub(super) type Reset = (usize, u32, (u64, u64));

/// What all drives of a machine report.
#[derive(Default)]
pub(super) struct Watch {
    boundaries: Cell<u64>,
    /// Zones that were reset since the machine started, each with the segment that its header named.
    pub(super) resets: RefCell<BTreeSet<Reset>>,
}

impl Watch {
    /// What a power cut would leave has changed.
    pub(super) fn boundary(&self) {
        self.boundaries.set(self.boundaries.get() + 1);
    }

    pub(super) fn boundaries(&self) -> u64 {
        self.boundaries.get()
    }
}

/// A drive.
pub(super) struct Drive {
    /// The slot that it was made for.
    pub(super) slot: usize,
    world: Rc<World>,
    watch: Rc<Watch>,
    info: DeviceInfo,
    zoned: ZonedInfo,
    pub(super) medium: RefCell<Medium>,
    /// What its superblock log says last. Written with FUA, in one block.
    pub(super) superblock: RefCell<Option<Superblock>>,
    /// Writes of each zone that have not taken effect, in the order in which they were started.
    waiting: RefCell<BTreeMap<u32, VecDeque<Waiting>>>,
    tickets: Cell<u64>,
    /// Operations of each zone that have not returned.
    in_flight: RefCell<BTreeMap<u32, u32>>,
    /// Reads of each zone that have not returned.
    reads: RefCell<BTreeMap<u32, u32>>,
    /// Writes that took effect, and the fault at one of them.
    writes: Cell<u64>,
    pub(super) fault: Cell<Option<(u64, Fault)>>,
    pub(super) is_gone: Cell<bool>,
    /// It is on its way into the array: what it holds of segments that go on without it is emptied.
    pub(super) is_joining: Cell<bool>,
    /// The start is over.
    pub(super) is_serving: Cell<bool>,
    /// A bug of the engine that asks this drive.
    pub(super) plant: Cell<Option<Plant>>,
    /// Reads fail: to see whether the others make its blocks.
    pub(super) is_blind: Cell<bool>,
}

struct Waiting {
    ticket: u64,
    at: u64,
    data: Gather,
    metadata: Option<Slice>,
    fua: bool,
    filler: Filler<Result<(), DeviceError>>,
}

impl Drive {
    pub(super) fn new(
        world: &Rc<World>,
        watch: &Rc<Watch>,
        slot: usize,
        zoned: ZonedInfo,
        unit: u32,
        medium: Medium,
    ) -> Rc<Drive> {
        let info = DeviceInfo {
            size_bytes: u64::from(zoned.zones) * zoned.zone_bytes,
            logical_block_bytes: unit,
            discard_zeroes: false,
            name: format!("drive {slot}"),
        };
        Rc::new(Drive {
            slot,
            world: Rc::clone(world),
            watch: Rc::clone(watch),
            info,
            zoned,
            medium: RefCell::new(medium),
            superblock: RefCell::new(None),
            waiting: RefCell::default(),
            tickets: Cell::new(0),
            in_flight: RefCell::default(),
            reads: RefCell::default(),
            writes: Cell::new(0),
            fault: Cell::new(None),
            is_gone: Cell::new(false),
            is_joining: Cell::new(false),
            is_serving: Cell::new(false),
            plant: Cell::new(None),
            is_blind: Cell::new(false),
        })
    }

    /// The drive after a power cut, in another world.
    pub(super) fn cut(
        &self,
        world: &Rc<World>,
        watch: &Rc<Watch>,
        survival: Survival,
        random: &Random,
    ) -> Rc<Drive> {
        let medium = self.medium.borrow().cut(survival, random);
        let unit = self.info.logical_block_bytes;
        let drive = Drive::new(world, watch, self.slot, self.zoned.clone(), unit, medium);
        *drive.superblock.borrow_mut() = self.superblock.borrow().clone();
        drive.plant.set(self.plant.get());
        drive.fault.set(self.fault.get().filter(|(_, fault)| *fault == Fault::LostRoot));
        drive
    }

    /// Writes a superblock, as one block with FUA.
    pub(super) async fn write_superblock(&self, superblock: Superblock) -> bool {
        self.world.sleep_up_to(20).await;
        if self.is_gone.get() {
            return false;
        }
        *self.superblock.borrow_mut() = Some(superblock);
        self.watch.boundary();
        self.world.sleep_up_to(20).await;
        true
    }

    /// Nothing is in flight at it.
    pub(super) fn is_idle(&self) -> bool {
        let none = |counts: &RefCell<BTreeMap<u32, u32>>| counts.borrow().values().all(|count| *count == 0);
        none(&self.in_flight) && none(&self.reads)
    }

    fn has(&self, plant: Plant) -> bool {
        self.plant.get() == Some(plant)
    }

    fn error(
        &self,
        kind: DeviceErrorKind,
        operation: &'static str,
        (offset, bytes): (DeviceOffset, u64),
    ) -> DeviceError {
        DeviceError { kind, operation, offset, bytes, errno: 0 }
    }

    fn note(&self, operation: &'static str, at: (DeviceOffset, u64), error: Option<DeviceErrorKind>) {
        let (offset, bytes) = (at.0.get(), at.1);
        self.world.note(Note::Done { disk: self.slot as u32, operation, offset, bytes, error });
    }

    fn started(&self, zone: u32) {
        *self.in_flight.borrow_mut().entry(zone).or_default() += 1;
    }

    fn ended(&self, zone: u32) {
        *self.in_flight.borrow_mut().get_mut(&zone).expect("it was started") -= 1;
    }

    /// A write takes effect: where it went, which is what the drive says unless it lies.
    fn write(
        &self,
        zone: u32,
        at: Option<u64>,
        data: &Gather,
        metadata: Option<&Slice>,
    ) -> Result<(u64, Option<Operation>), DeviceErrorKind> {
        if self.is_gone.get() {
            return Err(DeviceErrorKind::Gone);
        }
        if self.has(Plant::NoFence) && !self.is_serving.get() && begins_with(data, END) {
            return Ok((pointer_of(&self.medium.borrow(), zone), None));
        }
        self.writes.set(self.writes.get() + 1);
        let mut medium = self.medium.borrow_mut();
        let random = self.world.random();
        match self.fault.get().filter(|(count, _)| self.writes.get() >= *count) {
            None => {}
            Some((_, Fault::WrongPlace | Fault::LostAppend)) if at.is_some() => {} // the next append
            Some((_, Fault::LostRoot)) if !has_root(data) => {}
            Some((_, fault)) => {
                self.fault.set(self.fault.get().filter(|_| fault == Fault::LostRoot));
                self.watch.boundary();
                self.world.note(Note::Words(format!("  drive {}: {fault:?} at zone {zone}", self.slot)));
                let has_pointer = self.zoned.access != ZoneAccess::Placed;
                match fault {
                    Fault::Gone => {
                        self.is_gone.set(true);
                        return Err(DeviceErrorKind::Gone);
                    }
                    Fault::ReadOnly if has_pointer => medium.turn(zone, ZoneState::ReadOnly),
                    Fault::Offline if has_pointer => medium.turn(zone, ZoneState::Offline),
                    Fault::Finishes if has_pointer => medium.turn(zone, ZoneState::Full),
                    Fault::LostAppend => return Ok((pointer_of(&medium, zone), None)),
                    Fault::LostRoot => return Ok((at.unwrap_or(pointer_of(&medium, zone)), None)),
                    Fault::WrongPlace => {
                        let (place, operation) = medium.write(zone, at, data, metadata)?;
                        let blocks = self.zoned.capacity_bytes / BLOCK;
                        let other = random.below(blocks) * BLOCK;
                        let wrong = if other == place { place + BLOCK } else { other };
                        return Ok((wrong, Some(operation)));
                    }
                    _ => {
                        let made = random.below(data.len() as u64 / BLOCK + 1) * BLOCK;
                        if made > 0 {
                            let part = data.part(0, made as usize);
                            let metadata = metadata.map(|all| all.part(0, (made / BLOCK * 64) as usize));
                            medium.write(zone, at, &part, metadata.as_ref())?;
                        }
                        return Err(DeviceErrorKind::Io);
                    }
                }
            }
        }
        medium.write(zone, at, data, metadata).map(|(place, operation)| (place, Some(operation)))
    }

    /// The writes of a zone up to this one take effect.
    fn write_in_order(self: &Rc<Self>, zone: u32, ticket: u64) {
        loop {
            let next = {
                let mut waiting = self.waiting.borrow_mut();
                let queue = waiting.entry(zone).or_default();
                let first = match self.zoned.access {
                    ZoneAccess::Placed => queue.iter().position(|write| write.ticket == ticket),
                    _ => queue.front().is_some_and(|first| first.ticket <= ticket).then_some(0),
                };
                first.and_then(|at| queue.remove(at))
            };
            let Some(Waiting { at, data, metadata, fua, filler, .. }) = next else { return };
            let result = self.write(zone, Some(at), &data, metadata.as_ref());
            let place = (self.zoned.offset_bytes(zone, at), data.len() as u64);
            self.note("write", place, result.err());
            self.finish_write("write", place, zone, result, fua, move |result| {
                filler.fill(result.map(|_| ()));
            });
        }
    }

    fn finish_write(
        self: &Rc<Self>,
        name: &'static str,
        at: (DeviceOffset, u64),
        zone: u32,
        result: Result<(u64, Option<Operation>), DeviceErrorKind>,
        fua: bool,
        fill: impl FnOnce(Result<u64, DeviceError>) + 'static,
    ) {
        self.watch.boundary();
        let drive = Rc::clone(self);
        self.world.after(self.world.random().between(1, 20), move || {
            drive.ended(zone);
            if let Ok((_, Some(operation))) = result {
                drive.medium.borrow_mut().returned(operation, fua);
                if fua {
                    drive.watch.boundary();
                }
            }
            fill(result.map(|(place, _)| place).map_err(|kind| drive.error(kind, name, at)));
        });
    }

    fn check(&self, to: ZoneOffset, data: &Gather, metadata: Option<&Slice>) -> Result<(), DeviceErrorKind> {
        self.zoned.check_record(self.info.logical_block_bytes, to, data, metadata)
    }

    /// Z-I8: a zone is changed when nothing else is in flight at it.
    fn change(&self, zone: u32, change: ZoneChange) -> Result<Operation, DeviceErrorKind> {
        if self.is_gone.get() {
            return Err(DeviceErrorKind::Gone);
        }
        // Of an empty zone contents are those of an earlier life.
        let holds_something = self.medium.borrow().zone(zone).pointer_bytes != Some(0);
        if change == ZoneChange::Reset && holds_something && !self.is_joining.get() {
            let mut header = [0; BLOCK as usize];
            self.medium.borrow().read(self.zoned.offset_bytes(zone, 0), &mut header, &mut []);
            let held = SegmentHeader::parse_anywhere(&header);
            let held = held.map(|(header, _)| (self.slot, zone, (header.segment, header.tag)));
            self.watch.resets.borrow_mut().extend(held);
        }
        self.medium.borrow_mut().change(zone, change, self.world.random())
    }
}

/// Whether a record holds a root of a checkpoint.
fn has_root(data: &Gather) -> bool {
    let blocks = data.len() / BLOCK as usize;
    (0..blocks).any(|block| begins_with(&data.part(block * BLOCK as usize, BLOCK as usize), ROOT))
}

fn begins_with(data: &Gather, bytes: &[u8]) -> bool {
    let mut first = vec![0; bytes.len()];
    data.part(0, bytes.len()).copy_to(&mut first);
    first == bytes
}

fn pointer_of(medium: &Medium, zone: u32) -> u64 {
    medium.zone(zone).pointer_bytes.unwrap_or(0)
}

/// A handle to a drive.
#[derive(Clone)]
pub(super) struct SimZones(pub(super) Rc<Drive>);

impl SimZones {
    fn after(&self, action: impl FnOnce(&Rc<Drive>) + 'static) {
        self.after_ticks(self.0.world.random().between(1, 20), action);
    }

    fn after_ticks(&self, ticks: u64, action: impl FnOnce(&Rc<Drive>) + 'static) {
        let drive = Rc::clone(&self.0);
        self.0.world.after(ticks, move || action(&drive));
    }

    fn refused<T: 'static>(
        &self,
        operation: &'static str,
        kind: DeviceErrorKind,
    ) -> Pending<Result<T, DeviceError>> {
        let (pending, filler) = pending();
        self.0.world.fail(format!("the engine asked a drive for what it refuses: {operation}: {kind:?}"));
        filler.fill(Err(self.0.error(kind, operation, (DeviceOffset::START, 0))));
        pending
    }

    fn read_both(
        &self,
        offset: DeviceOffset,
        mut data: Buffer,
        mut metadata: Buffer,
        fill: impl FnOnce((Buffer, Buffer, Result<(), DeviceError>)) + 'static,
    ) {
        let zone = (offset.get() / self.0.zoned.zone_bytes) as u32;
        *self.0.reads.borrow_mut().entry(zone).or_default() += 1;
        let random = self.0.world.random();
        let ticks_max = if random.one_in(SLOW_READS_ONE_IN) { SLOW_READ_TICKS_MAX } else { 20 };
        self.after_ticks(random.between(1, ticks_max), move |drive| {
            *drive.reads.borrow_mut().get_mut(&zone).expect("it was started") -= 1;
            let at = (offset, data.len() as u64);
            let is_allowed = drive.info.allows(at.0, at.1);
            let result = match () {
                () if drive.is_gone.get() => Err(DeviceErrorKind::Gone),
                () if drive.is_blind.get() => Err(DeviceErrorKind::Io),
                () if !is_allowed => Err(DeviceErrorKind::Invalid),
                () => drive.medium.borrow().readable(at.0, at.1),
            };
            if result.is_ok() {
                drive.medium.borrow().read(offset, data.bytes_mut(), metadata.bytes_mut());
            }
            fill((data, metadata, result.map_err(|kind| drive.error(kind, "read", at))));
        });
    }
}

impl Device for SimZones {
    type Read = Pending<(Buffer, Result<(), DeviceError>)>;
    type Done = Pending<Result<(), DeviceError>>;

    fn info(&self) -> &DeviceInfo {
        &self.0.info
    }

    fn read(&self, offset: DeviceOffset, buffer: Buffer) -> Self::Read {
        let (pending, filler) = pending();
        self.read_both(offset, buffer, Buffer::new(0), move |(data, _, result)| {
            filler.fill((data, result));
        });
        pending
    }

    fn write(&self, _offset: DeviceOffset, _data: Gather, _fua: bool) -> Self::Done {
        self.refused("write", DeviceErrorKind::Unsupported)
    }

    fn flush(&self) -> Self::Done {
        let (pending, filler) = pending();
        let is_ignored = self.0.has(Plant::FlushIgnored)
            || self.0.has(Plant::RecoveryNotFlushed) && !self.0.is_serving.get();
        let covered = if is_ignored { Vec::new() } else { self.0.medium.borrow().flush_covers() };
        self.after(move |drive| {
            if drive.is_gone.get() {
                return filler.fill(Err(drive.error(
                    DeviceErrorKind::Gone,
                    "flush",
                    (DeviceOffset::START, 0),
                )));
            }
            drive.medium.borrow_mut().made_durable(&covered);
            drive.watch.boundary();
            drive.note("flush", (DeviceOffset::START, 0), None);
            filler.fill(Ok(()));
        });
        pending
    }

    fn discard(&self, _offset: DeviceOffset, _bytes: u64) -> Self::Done {
        self.refused("discard", DeviceErrorKind::Unsupported)
    }

    fn write_zeroes(&self, _offset: DeviceOffset, _bytes: u64, _may_unmap: bool) -> Self::Done {
        self.refused("write zeroes", DeviceErrorKind::Unsupported)
    }
}

impl ZoneDevice for SimZones {
    type Append = Pending<Result<u64, DeviceError>>;
    type Changed = Pending<Result<(), DeviceError>>;
    type Report = Pending<Result<Vec<Zone>, DeviceError>>;
    type ReadMetadata = Pending<(Buffer, Buffer, Result<(), DeviceError>)>;

    fn zoned(&self) -> &ZonedInfo {
        &self.0.zoned
    }

    fn report(&self, zones: Range<u32>) -> Self::Report {
        let (pending, filler) = pending();
        self.after(move |drive| {
            if drive.is_gone.get() {
                return filler.fill(Err(drive.error(
                    DeviceErrorKind::Gone,
                    "report zones",
                    (DeviceOffset::START, 0),
                )));
            }
            let medium = drive.medium.borrow();
            let zones = zones.start..zones.end.min(drive.zoned.zones);
            let zones = zones.map(|zone| match medium.zone(zone) {
                zone if drive.has(Plant::ClosedZonesIgnored) && zone.state == ZoneState::Closed => {
                    Zone { state: ZoneState::Empty, pointer_bytes: Some(0), ..zone }
                }
                zone => zone,
            });
            filler.fill(Ok(zones.collect()));
        });
        pending
    }

    fn append(&self, zone: u32, data: Gather, metadata: Option<Slice>, fua: bool) -> Self::Append {
        if let Err(kind) = self.0.check(ZoneOffset::start(zone), &data, metadata.as_ref()) {
            return self.refused("append", kind);
        }
        let (pending, filler) = pending();
        self.0.started(zone);
        let fua = fua && !self.0.has(Plant::FuaIgnored);
        let guessed = self.0.has(Plant::PlaceGuessed).then(|| pointer_of(&self.0.medium.borrow(), zone));
        self.after(move |drive| {
            let result = drive.write(zone, None, &data, metadata.as_ref());
            let result = result.map(|(place, operation)| (guessed.unwrap_or(place), operation));
            let at = result.map_or(0, |(place, _)| place);
            let at = (drive.zoned.offset_bytes(zone, at), data.len() as u64);
            drive.note("append", at, result.err());
            drive.finish_write("append", at, zone, result, fua, move |result| filler.fill(result));
        });
        pending
    }

    fn write_at(&self, to: ZoneOffset, data: Gather, metadata: Option<Slice>, fua: bool) -> Self::Changed {
        let ZoneOffset { zone, in_zone_bytes: at } = to;
        if let Err(kind) = self.0.check(to, &data, metadata.as_ref()) {
            return self.refused("write", kind);
        }
        let (pending, filler) = pending();
        let is_kept = !(self.0.has(Plant::FuaIgnored) || self.0.has(Plant::HeaderNotDurable) && at == 0);
        let fua = fua && is_kept;
        let ticket = self.0.tickets.get() + 1;
        self.0.tickets.set(ticket);
        self.0.started(zone);
        let write = Waiting { ticket, at, data, metadata, fua, filler };
        self.0.waiting.borrow_mut().entry(zone).or_default().push_back(write);
        self.after(move |drive| drive.write_in_order(zone, ticket));
        pending
    }

    fn read_metadata(&self, from: ZoneOffset, data: Buffer, metadata: Buffer) -> Self::ReadMetadata {
        let ZoneOffset { zone, in_zone_bytes: at } = from;
        let (pending, filler) = pending();
        let at = self.0.zoned.offset_bytes(zone, at);
        self.read_both(at, data, metadata, move |all| filler.fill(all));
        pending
    }

    fn change(&self, zone: u32, change: ZoneChange) -> Self::Changed {
        let (pending, filler) = pending();
        let is_busy = self.0.in_flight.borrow().get(&zone).is_some_and(|count| *count > 0);
        if is_busy {
            let (name, slot) = (change.name(), self.0.slot);
            self.0.world.fail(format!("Z-I8: {name} {zone} of drive {slot} with operations in flight at it"));
        }
        let is_read = self.0.reads.borrow().get(&zone).is_some_and(|count| *count > 0);
        if is_read && change == ZoneChange::Reset {
            let slot = self.0.slot;
            self.0.world.fail(format!("Z-I4: zone {zone} of drive {slot} is reset under a read"));
        }
        self.0.started(zone);
        self.after(move |drive| {
            let result = drive.change(zone, change);
            let at = (drive.zoned.offset_bytes(zone, 0), 0);
            drive.note(change.name(), at, result.err());
            drive.watch.boundary();
            let later = Rc::clone(drive);
            drive.world.after(drive.world.random().between(1, 20), move || {
                later.ended(zone);
                if let Ok(operation) = result {
                    later.medium.borrow_mut().returned(operation, false);
                }
                filler.fill(result.map(|_| ()).map_err(|kind| later.error(kind, change.name(), at)));
            });
        });
        pending
    }
}
