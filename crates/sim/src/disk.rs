//! A device: contents behind a volatile write cache, with faults.
//!
//! Fault model:
//! - An operation is applied at some moment between its start and its end, in two parts at two moments now and then.
//!   Logical blocks (512 B or 4 KiB) are never torn; what is larger is torn between any two of them.
//! - A write that returned sits in the cache. A flush makes durable what had returned when it was sent; a write with
//!   FUA is durable when it returns. At a power cut every other write since then is durable in any part.
//! - A failed write was applied in any part. A failed flush loses any part of what it should have made durable.
//! - An acknowledged write is lost or goes elsewhere, or a bit flips (`lies.rs`).
//! - A device fails an operation once, reads badly at a place until that is written, has no space, fails its flushes,
//!   takes no superblocks, or fails everything: as an error, as gone, or silent until the time limit.
//!
//! Contract checks: alignment of addresses and memory, that the engine stays inside the device, and that nothing
//! reaches both the data area and what lies around it.

pub(crate) mod cache;
mod lies;
pub(crate) mod remote;
mod watch;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashSet};
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;

use engine::buffer::{Buffer, Gather};
use engine::device::{
    Answering, Device, DeviceError, DeviceErrorKind, DeviceInfo, PeerMember, Place, ReadForeign,
};
use engine::fabric::order::{Order, Settle, Stamp};
use engine::foreign_buffer::Lease;
use layout::md_superblock::SUPERBLOCK_BYTES_MAX;

use crate::pages::Pages;
use crate::random::Random;
use crate::trace::Note;
use crate::world::{Pending, World, pending};
use cache::{Cache, Survivors, Written};
use layout::units::DeviceOffset;
use lies::Lies;
pub(crate) use lies::{Astray, Damage};
use remote::{Done, Gate, SimLink, Work};
pub(crate) use watch::{Change, Watch};

pub(crate) struct Disk {
    pub(crate) number: u32,
    pub(crate) places: Places,
    info: DeviceInfo,
    abilities: Abilities,
    world: Rc<World>,
    watch: Rc<Watch>,
    cache: RefCell<Cache>,
    pub(crate) faults: RefCell<Faults>,
    /// Where it does not hold what it should.
    lies: RefCell<Lies>,
    /// It is plugged in: an assembly finds it.
    connected: Cell<bool>,
    /// The target that serves it, while that takes part in ops.
    pub(crate) target: RefCell<Option<Rc<dyn SimTarget>>>,
    /// The current host's way to it, if it is on another machine.
    pub(crate) link: RefCell<Option<Rc<dyn SimLink>>>,
    /// Which host its target serves.
    pub(crate) gate: Gate,
}

/// What lies where on a device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Places {
    pub(crate) size: u64,
    pub(crate) superblock: DeviceOffset,
    pub(crate) data: DeviceOffset,
    pub(crate) data_end: DeviceOffset,
    pub(crate) block: u32,
}

impl Places {
    /// Whether a range lies in the data area; None if it lies partly in it.
    fn is_data(&self, range: &Range<u64>) -> Option<bool> {
        let data = self.data.get()..self.data_end.get();
        match range.start >= data.start && range.end <= data.end {
            true => Some(true),
            false if range.end <= data.start || range.start >= data.end => Some(false),
            false => None,
        }
    }
}

/// What a device can do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Abilities {
    pub(crate) write_zeroes: bool,
    pub(crate) discard: bool,
    pub(crate) discard_zeroes: bool,
}

#[derive(Default)]
pub(crate) struct Faults {
    /// Everything fails in this way.
    pub(crate) dead: Option<DeviceErrorKind>,
    /// Logical blocks that cannot be read until they are written.
    pub(crate) bad: BTreeSet<u64>,
    /// One in this many writes fails because the device has no space; 0 is never.
    pub(crate) full_one_in: u64,
    /// Every flush fails in this way.
    pub(crate) flush_fails: Option<DeviceErrorKind>,
    /// Writes outside the data area fail.
    pub(crate) no_superblocks: bool,
    /// The next write to the data area is acknowledged, and goes astray in this way.
    pub(crate) astray: Option<Astray>,
    /// Flush and FUA do nothing.
    pub(crate) flushes_lie: bool,
    /// An operation takes this many times as long.
    pub(crate) slow: u64,
    /// One in this many operations fails once; 0 is never. The same operation does not fail again, so a retry succeeds.
    pub(crate) transient_one_in: u64,
    spent: HashSet<(&'static str, u64, u64)>,
}

impl Faults {
    /// Whether the engine will fail this device sooner or later.
    pub(crate) fn hard(&self) -> bool {
        self.dead.is_some() || !self.bad.is_empty() || self.flush_fails.is_some() || self.no_superblocks
    }
}

impl Disk {
    /// Whether an assembly finds it.
    pub(crate) fn is_connected(&self) -> bool {
        self.connected.get()
    }

    /// From here on an assembly finds it, or does not.
    pub(crate) fn plug(&self, is_in: bool) {
        self.connected.set(is_in);
        self.watch.metadata_changed();
    }

    /// A device with these contents.
    pub(crate) fn new(
        number: u32,
        contents: Pages,
        (world, watch): (&Rc<World>, &Rc<Watch>),
        places: Places,
        abilities: Abilities,
    ) -> Rc<Self> {
        Rc::new(Disk {
            number,
            places,
            info: DeviceInfo {
                size_bytes: places.size,
                logical_block_bytes: places.block,
                discard_zeroes: abilities.discard_zeroes,
                name: format!("device {number}"),
            },
            abilities,
            world: Rc::clone(world),
            watch: Rc::clone(watch),
            cache: RefCell::new(Cache::new(contents, places.block)),
            faults: RefCell::new(Faults { slow: 1, ..Faults::default() }),
            lies: RefCell::default(),
            connected: Cell::new(true),
            target: RefCell::default(),
            link: RefCell::default(),
            gate: Gate::default(),
        })
    }

    /// The same device in another world, with the same contents and nothing wrong with it.
    pub(crate) fn twin(&self, world: &Rc<World>, watch: &Rc<Watch>) -> Rc<Self> {
        Rc::new(Disk {
            number: self.number,
            places: self.places,
            info: self.info.clone(),
            abilities: self.abilities,
            world: Rc::clone(world),
            watch: Rc::clone(watch),
            cache: self.cache.clone(),
            faults: RefCell::new(Faults { slow: 1, ..Faults::default() }),
            lies: RefCell::default(),
            connected: self.connected.clone(),
            target: RefCell::default(),
            link: RefCell::default(),
            gate: Gate::default(),
        })
    }

    /// What a read of the data area finds now.
    pub(crate) fn peek(&self, offset: u64, target: &mut [u8]) {
        self.cache.borrow().read((self.places.data + offset).get(), target);
    }

    /// What a read of the device finds now.
    pub(crate) fn peek_device(&self, offset: DeviceOffset, target: &mut [u8]) {
        self.cache.borrow().read(offset.get(), target);
    }

    /// What a read of the device finds now, as bytes.
    pub(crate) fn read_at_once(&self, offset: DeviceOffset, bytes: usize) -> Vec<u8> {
        let mut read = vec![0; bytes];
        self.peek_device(offset, &mut read);
        read
    }

    /// Where reads of this device and of another find different contents, if anywhere.
    pub(crate) fn differs(&self, other: &Disk) -> Option<u64> {
        self.cache.borrow().differs(&other.cache.borrow())
    }

    /// Whether this part of the data area was never written.
    pub(crate) fn untouched(&self, offset: u64, bytes: u64) -> bool {
        self.cache.borrow().untouched((self.places.data + offset).get(), bytes)
    }

    /// Every content that a power cut now could leave in this part of the data area (one logical block).
    pub(crate) fn peek_durable(&self, offset: u64, block: &mut [u8], visit: impl FnMut(&[u8])) {
        self.cache.borrow().may_leave((self.places.data + offset).get(), block, visit);
    }

    /// The first place of the data area below `end` at which a power cut now need not leave what a read finds.
    pub(crate) fn first_volatile(&self, end: u64) -> Option<u64> {
        let data = self.places.data.get();
        self.cache.borrow().first_volatile(data..data.saturating_add(end)).map(|at| at - data)
    }

    /// Every content that a power cut now could leave in the block that holds a byte of the device.
    pub(crate) fn may_hold_byte(&self, offset: u64, mut visit: impl FnMut(u8)) {
        let unit = u64::from(self.places.block);
        let mut block = vec![0; unit as usize];
        let first = offset / unit * unit;
        self.cache.borrow().may_leave(first, &mut block, |block| visit(block[(offset - first) as usize]));
    }

    /// Every first block of a superblock that a power cut now could leave, newest first.
    pub(crate) fn superblocks(&self) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        let mut block = vec![0; self.places.block as usize];
        self.cache
            .borrow()
            .may_leave(self.places.superblock.get(), &mut block, |block| all.push(block.to_vec()));
        all
    }

    /// Writes at once and durably, without faults or checks, as a new array or a spare is made.
    pub(crate) fn put(&self, offset: DeviceOffset, bytes: &[u8]) {
        let mut cache = self.cache.borrow_mut();
        let operation = cache.begin();
        let written = Written::Data(Gather::from(engine::buffer::Slice::from_bytes(bytes)));
        let blocks = bytes.len() as u64 / u64::from(self.places.block);
        cache.apply(operation, offset.get(), &written, (0, blocks));
        cache.returned(operation, true);
        self.watch.metadata_changed();
    }

    /// The power is gone; `survives` says what is left of each write that was not durable, given its blocks.
    pub(crate) fn cut(&self, survives: &impl Fn(u64, &Random) -> Survivors) {
        self.gate.ledger.take();
        self.end_operations(survives);
    }

    /// The host is gone, with all that was under way; the power and the target are not.
    pub(crate) fn lose_host(&self) {
        self.end_operations(&|_, _: &Random| Survivors::All);
    }

    fn end_operations(&self, survives: &impl Fn(u64, &Random) -> Survivors) {
        self.gate.clear();
        self.cache.borrow_mut().cut(|blocks| survives(blocks, self.world.random()));
        self.watch.metadata_changed();
    }

    /// Whether its host does not reach it now.
    pub(crate) fn is_away(&self) -> bool {
        self.dead().is_some() || self.link.borrow().as_ref().is_some_and(|link| link.is_away())
    }

    /// The device works again, with the contents that it had when it failed.
    pub(crate) fn mend(&self) {
        let flushes_lie = self.faults.borrow().flushes_lie;
        *self.faults.borrow_mut() = Faults { slow: 1, flushes_lie, ..Faults::default() };
    }

    /// Flips a bit of a logical block of the data area, for good. False if the device lies there already.
    pub(crate) fn flip(&self, at: u64, bit: u64) -> bool {
        let range = at..at + u64::from(self.places.block);
        if self.lies.borrow().overlap(&range) {
            return false;
        }
        let mut bytes = vec![0; self.places.block as usize];
        self.peek(at, &mut bytes);
        self.lies.borrow_mut().add(range, bytes.clone());
        bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
        self.put(self.places.data + at, &bytes);
        true
    }

    /// Where the device lies, or did before that was written again.
    pub(crate) fn damage(&self) -> Vec<Damage> {
        self.lies.borrow().all()
    }

    /// Whether the device still holds something else than it should in a part of the damage.
    pub(crate) fn still_lies(&self, damage: &Damage, part: &Range<u64>) -> bool {
        let mut held = vec![0; (part.end - part.start) as usize];
        self.peek(part.start, &mut held);
        damage.differs(part.start, &held)
    }

    /// All is as it should be again.
    pub(crate) fn forget_damage(&self) {
        self.lies.borrow_mut().clear();
    }

    fn delay(&self) -> u64 {
        let slow = self.faults.borrow().slow;
        let ticks = match self.world.random().below(20) {
            0 => self.world.random().between(1, 300),
            _ => self.world.random().between(1, 30),
        };
        ticks * slow
    }

    fn sent(&self, operation: &'static str, offset: u64, bytes: u64, fua: bool) {
        self.world.note(Note::Sent { disk: self.number, operation, offset, bytes, fua });
        let unit = u64::from(self.info.logical_block_bytes);
        let range = offset..offset + bytes;
        let inside = range.end <= self.info.size_bytes && self.places.is_data(&range).is_some();
        if !inside || !offset.is_multiple_of(unit) || !bytes.is_multiple_of(unit) {
            let number = self.number;
            self.world
                .fail(format!("device {number}: {operation} of {bytes} at {offset}: outside or misaligned"));
        }
    }

    fn check_memory(&self, addresses: impl Iterator<Item = usize>) {
        let unit = self.info.logical_block_bytes as usize;
        if addresses.into_iter().any(|address| !address.is_multiple_of(unit)) {
            self.world.fail(format!("device {}: memory that is not aligned to {unit} bytes", self.number));
        }
    }

    /// The fault that an operation meets, if any.
    fn fault(&self, operation: &'static str, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        let faults = &mut *self.faults.borrow_mut();
        let unit = u64::from(self.info.logical_block_bytes);
        let blocks = offset / unit..(offset + bytes) / unit;
        let broken = operation == "read" && faults.bad.range(blocks).next().is_some();
        // What was written before has its space: superblocks do.
        let wants_space =
            matches!(operation, "write" | "write zeroes") && !self.is_metadata(operation, offset, bytes);
        let full = wants_space && faults.full_one_in > 0 && self.world.random().one_in(faults.full_one_in);
        let dead = faults.dead;
        let kind = match dead {
            Some(kind) => Some(kind),
            None if operation == "flush" => faults.flush_fails,
            None if faults.no_superblocks && self.is_metadata(operation, offset, bytes) => {
                Some(DeviceErrorKind::Io)
            }
            None if full => Some(DeviceErrorKind::NoSpace),
            None if broken || self.transient(faults, (operation, offset, bytes)) => Some(DeviceErrorKind::Io),
            None => None,
        };
        let errno = 0;
        match kind {
            None => Ok(()),
            Some(kind) => {
                Err(DeviceError { kind, operation, offset: DeviceOffset::new(offset), bytes, errno })
            }
        }
    }

    fn is_metadata(&self, operation: &'static str, offset: u64, bytes: u64) -> bool {
        operation == "write" && self.places.is_data(&(offset..offset + bytes)) == Some(false)
    }

    fn transient(&self, faults: &mut Faults, key: (&'static str, u64, u64)) -> bool {
        // A failed flush or zeroing fails the member at once, so those are no passing errors.
        let retried = matches!(key.0, "read" | "write" | "discard");
        if faults.transient_one_in == 0 || !retried || !self.world.random().one_in(faults.transient_one_in) {
            return false;
        }
        let first = faults.spent.insert(key);
        self.world.counts.borrow_mut().transient_errors += u64::from(first);
        first
    }

    fn unsupported(
        &self,
        operation: &'static str,
        offset: u64,
        bytes: u64,
    ) -> Pending<Result<(), DeviceError>> {
        let kind = DeviceErrorKind::Unsupported;
        let (pending, filler) = pending();
        let error = DeviceError { kind, operation, offset: DeviceOffset::new(offset), bytes, errno: 0 };
        self.world.after(self.delay(), move || filler.fill(Err(error)));
        pending
    }

    fn done(&self, operation: &'static str, offset: u64, bytes: u64, result: &Result<(), DeviceError>) {
        let error = result.as_ref().err().map(|error| error.kind);
        self.world.note(Note::Done { disk: self.number, operation, offset, bytes, error });
    }

    /// Applies the blocks `from` to `to` of a write to what reads find, and remembers them as not durable.
    fn apply(&self, operation: u64, offset: u64, written: &Written, (from, to): (u64, u64)) {
        self.cache.borrow_mut().apply(operation, offset, written, (from, to));
        if from < to {
            self.watch.boundary();
            let first = offset / u64::from(self.places.block);
            self.faults.borrow_mut().bad.retain(|block| !(first + from..first + to).contains(block));
            self.changed(offset);
        }
    }

    fn changed(&self, offset: u64) {
        let superblock = self.places.superblock.get();
        let superblock = superblock..superblock + SUPERBLOCK_BYTES_MAX as u64;
        if superblock.contains(&offset) {
            self.watch.metadata_changed();
        }
    }

    /// A read from its start to its end.
    fn read(
        self: &Rc<Self>,
        offset_bytes: u64,
        mut buffer: Buffer,
        done: impl FnOnce((Buffer, Result<(), DeviceError>)) + 'static,
    ) {
        let disk = Rc::clone(self);
        disk.world.counts.borrow_mut().member_reads += 1;
        let bytes = buffer.len() as u64;
        disk.sent("read", offset_bytes, bytes, false);
        disk.check_memory(std::iter::once(buffer.bytes().as_ptr() as usize));
        let early = disk.world.random().one_in(2);
        if early {
            disk.peek_device(DeviceOffset::new(offset_bytes), buffer.bytes_mut());
        }
        self.world.after(self.delay(), move || {
            let result = disk.fault("read", offset_bytes, bytes);
            match &result {
                Ok(()) if early => {}
                Ok(()) => disk.peek_device(DeviceOffset::new(offset_bytes), buffer.bytes_mut()),
                Err(_) => buffer.bytes_mut().fill(0xbd), // garbage: the reader must not use it
            }
            disk.done("read", offset_bytes, bytes, &result);
            done((buffer, result));
        });
    }

    /// A write or zeroing from its start to its end.
    fn change_then(
        self: &Rc<Self>,
        name: &'static str,
        offset: u64,
        written: Written,
        fua: bool,
        then: impl FnOnce(Result<(), DeviceError>) + 'static,
    ) {
        let (bytes, operation) = (written.bytes(), self.cache.borrow_mut().begin());
        self.sent(name, offset, bytes, fua);
        if self.places.is_data(&(offset..offset + bytes)) == Some(true) {
            let data = self.places.data.get();
            let changes = |range: Range<u64>| {
                let cache = self.cache.borrow();
                cache.changes(offset, &written, data + range.start..data + range.end)
            };
            let range = offset - data..offset - data + bytes;
            self.watch.check(&Change { device: self.number, operation: name, range, changes: &changes });
        }
        let mut blocks = bytes / u64::from(self.info.logical_block_bytes);
        let (dead, fua) = {
            let faults = self.faults.borrow();
            (faults.dead.is_some(), fua && !faults.flushes_lie)
        };
        let (meant, mut offset) = (offset, offset);
        if name == "write" && self.places.is_data(&(offset..offset + bytes)) == Some(true) {
            let astray = self.faults.borrow_mut().astray.take();
            if let Some(astray) = astray {
                (offset, blocks) = self.led_astray(astray, offset, &written);
            }
        }
        let early = match self.world.random().below(4) {
            _ if dead => 0,
            0 => blocks,
            1 => self.world.random().between(0, blocks),
            _ => 0,
        };
        self.apply(operation, offset, &written, (0, early));
        let disk = Rc::clone(self);
        self.world.after(self.delay(), move || {
            let result = disk.fault(name, meant, bytes);
            let to = match &result {
                Ok(()) => blocks,
                Err(_) if dead => early,
                Err(_) => disk.world.random().between(early, blocks),
            };
            disk.apply(operation, offset, &written, (early, to));
            disk.cache.borrow_mut().returned(operation, fua && result.is_ok());
            disk.watch.boundary();
            disk.changed(offset);
            disk.done(name, meant, bytes, &result);
            then(result);
        });
    }

    /// Where on the device a write to the data area really goes, and how many of its blocks.
    fn led_astray(&self, astray: Astray, offset: u64, written: &Written) -> (u64, u64) {
        let (data, bytes) = (self.places.data.get(), written.bytes());
        let mut right = vec![0; bytes as usize];
        written.copy_to(&mut right);
        let lies = &mut *self.lies.borrow_mut();
        lies.add(offset - data..offset - data + bytes, right);
        let unit = u64::from(self.places.block);
        let room = self.places.data_end - self.places.data - bytes;
        let at = self.world.random().below(room / unit + 1) * unit;
        if astray == Astray::Lost || lies.overlap(&(at..at + bytes)) {
            return (offset, 0);
        }
        let mut right = vec![0; bytes as usize];
        self.peek(at, &mut right);
        lies.add(at..at + bytes, right);
        (data + at, bytes / unit)
    }
}

/// The target of a device.
pub(crate) trait SimTarget: PeerMember {
    /// Cancels the steps of former ops that have not begun, as for a host that attaches again. Whether the device still writes for them.
    fn end_ops(&self) -> bool;
}

/// What its target does for itself.
impl Disk {
    /// Waits, as a target does before it lets its host in again, until nothing of former ops is written any more (F-I6).
    pub(crate) async fn end_ops(&self) {
        loop {
            let target = self.target.borrow().clone();
            if !target.is_some_and(|target| target.end_ops()) {
                return;
            }
            self.world.sleep(100).await;
        }
    }

    /// Makes durable what had returned when it was sent.
    fn flush_then(self: &Rc<Self>, then: impl FnOnce(Result<(), DeviceError>) + 'static) {
        let disk = Rc::clone(self);
        disk.sent("flush", 0, 0, false);
        let sent = disk.cache.borrow_mut().begin();
        self.world.after(self.delay(), move || {
            let result = disk.fault("flush", 0, 0);
            let failed = result.is_err();
            let sent = if disk.faults.borrow().flushes_lie { 0 } else { sent };
            disk.cache.borrow_mut().flushed(sent, || failed && disk.world.random().one_in(2));
            disk.watch.metadata_changed();
            disk.watch.boundary();
            disk.done("flush", 0, 0, &result);
            then(result);
        });
    }

    /// Does what a host on another machine asks for.
    pub(crate) fn carry_out(self: &Rc<Self>, work: Work, then: impl FnOnce(Done) + 'static) {
        let name = work.name();
        match work {
            Work::Read { offset, bytes } => {
                self.read(offset, Buffer::new(bytes as usize), |(buffer, result)| {
                    then(result.map(|()| Some(buffer)));
                });
            }
            Work::Write { offset, data, fua } => {
                self.change_then(name, offset, Written::Data(data), fua, |result| {
                    then(result.map(|()| None));
                });
            }
            Work::Zeroes { offset, bytes } | Work::Discard { offset, bytes } => {
                let zeroes = Written::Zeroes(bytes);
                self.change_then(name, offset, zeroes, false, |result| then(result.map(|()| None)));
            }
            Work::Flush => self.flush_then(|result| then(result.map(|()| None))),
        }
    }

    /// A read of a target for itself.
    pub(crate) fn read_then(
        self: &Rc<Self>,
        rows: &Range<u64>,
        then: impl FnOnce(Result<Buffer, DeviceError>) + 'static,
    ) {
        let buffer = Buffer::new((rows.end - rows.start) as usize);
        self.read(rows.start, buffer, |(buffer, result)| then(result.map(|()| buffer)));
    }

    /// A write of a target for itself.
    pub(crate) fn write_then(
        self: &Rc<Self>,
        start: u64,
        data: Gather,
        fua: bool,
        then: impl FnOnce(Result<(), DeviceError>) + 'static,
    ) {
        self.world.counts.borrow_mut().member_writes += 1;
        if let Some(link) = self.link.borrow().as_ref().filter(|_| !fua) {
            link.has_written();
        }
        self.change_then("write", start, Written::Data(data), fua, then);
    }

    /// Its machine restarts, and any part of what was not flushed is gone. No host uses it any more as it is (F-I17).
    pub(crate) fn restart_for_good(&self) {
        self.faults.borrow_mut().dead = Some(DeviceErrorKind::Gone);
        self.cut(&|blocks, random| Survivors::some(blocks, 50, random));
        self.gate.has_lost_writes.set(true);
    }

    /// How everything on it fails, if it does.
    pub(crate) fn dead(&self) -> Option<DeviceErrorKind> {
        self.faults.borrow().dead
    }
}

/// One shard's way to a [`Disk`].
#[derive(Clone)]
pub(crate) struct SimDevice(pub(crate) Rc<Disk>, Option<Rc<dyn SimLink>>);

impl SimDevice {
    /// By the link that it has now: a later one is another attach's.
    pub(crate) fn new(disk: &Rc<Disk>) -> Self {
        SimDevice(Rc::clone(disk), disk.link.borrow().clone())
    }

    /// Has something done that returns no data, here or by the target.
    fn work(&self, work: Work) -> Pending<Result<(), DeviceError>> {
        let (pending, filler) = pending();
        let done = move |done: Done| filler.fill(done.map(drop));
        match &self.1 {
            Some(link) => link.send(work, Box::new(done)),
            None => self.0.carry_out(work, done),
        }
        pending
    }

    /// Reads here, or by the target.
    fn read_then(
        &self,
        offset: u64,
        mut buffer: Buffer,
        then: impl FnOnce((Buffer, Result<(), DeviceError>)) + 'static,
    ) {
        let Some(link) = &self.1 else { return self.0.read(offset, buffer, then) };
        self.0.check_memory(std::iter::once(buffer.bytes().as_ptr() as usize));
        let bytes = buffer.len() as u64;
        let done = Box::new(move |done: Done| {
            let result = done.map(|read| {
                buffer.bytes_mut().copy_from_slice(read.expect("a read has its data").bytes());
            });
            then((buffer, result));
        });
        link.send(Work::Read { offset, bytes }, done);
    }
}

impl Device for SimDevice {
    type Read = Pending<(Buffer, Result<(), DeviceError>)>;
    type Done = Pending<Result<(), DeviceError>>;

    fn info(&self) -> &DeviceInfo {
        &self.0.info
    }

    fn read(&self, offset: DeviceOffset, buffer: Buffer) -> Self::Read {
        let (pending, filler) = pending();
        self.read_then(offset.get(), buffer, |read| filler.fill(read));
        pending
    }

    fn write(&self, offset: DeviceOffset, data: Gather, fua: bool) -> Self::Done {
        self.0.world.counts.borrow_mut().member_writes += 1;
        self.0.check_memory(data.slices().iter().map(|slice| slice.bytes().as_ptr() as usize));
        self.work(Work::Write { offset: offset.get(), data, fua })
    }

    fn flush(&self) -> Self::Done {
        self.0.world.counts.borrow_mut().member_flushes += 1;
        self.work(Work::Flush)
    }

    fn discard(&self, offset: DeviceOffset, bytes: u64) -> Self::Done {
        self.0.world.counts.borrow_mut().member_discards += 1;
        if !self.0.abilities.discard_zeroes {
            self.0.world.fail(format!("device {} was sent a discard and promised no zeroes", self.0.number));
        }
        if !self.0.abilities.discard {
            return self.0.unsupported("discard", offset.get(), bytes);
        }
        self.work(Work::Discard { offset: offset.get(), bytes })
    }

    fn write_zeroes(&self, offset: DeviceOffset, bytes: u64, _may_unmap: bool) -> Self::Done {
        self.0.world.counts.borrow_mut().member_zeroes += 1;
        if !self.0.abilities.write_zeroes {
            return self.0.unsupported("write zeroes", offset.get(), bytes);
        }
        self.work(Work::Zeroes { offset: offset.get(), bytes })
    }

    fn peer(&self) -> Option<&dyn PeerMember> {
        self.0.target.borrow().is_some().then_some(self as _)
    }
}

impl PeerMember for SimDevice {
    fn place(&self) -> Option<Place> {
        self.0.target.borrow().as_ref().and_then(|target| target.place())
    }

    fn order(&self, key: u64, order: Order, data: Gather) -> Answering {
        self.0.target.borrow().as_ref().expect("it has a place").order(key, order, data)
    }

    fn settle(&self, key: u64, stamp: Stamp, how: Settle) -> Answering {
        self.0.target.borrow().as_ref().expect("it has a place").settle(key, stamp, how)
    }

    fn attached(&self) -> Pin<Box<dyn Future<Output = ()>>> {
        self.0.target.borrow().as_ref().expect("it has a place").attached()
    }
}

impl ReadForeign for SimDevice {
    fn read_into(&self, offset: DeviceOffset, bytes: usize, target: Lease) -> Option<Self::Done> {
        let (world, (pending, filler)) = (Rc::clone(&self.0.world), pending());
        self.read_then(offset.get(), Buffer::new(bytes), move |(buffer, result)| {
            world.foreign_buffers.fill(&target, buffer.bytes());
            drop(target);
            filler.fill(result);
        });
        Some(pending)
    }
}
