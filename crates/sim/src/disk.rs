//! A member device: sparse contents behind a volatile write cache, with faults.
//!
//! Fault model:
//! - An operation is applied at some moment between its start and its end, in two parts at two moments now and then.
//!   Logical blocks are never torn (512 B or 4 KiB; torn blocks are to come).
//! - A write that returned sits in the cache. A flush makes durable what had returned when it was sent; a write with
//!   FUA is durable when it returns. At a power cut every other write since then is durable in any part.
//! - A failed write was applied in any part. A failed flush loses any part of what it should have made durable.
//! - A device fails an operation once, reads badly at a place until that is written, has no space, fails its flushes,
//!   or fails everything: as an error, as gone, or silent until the time limit.
//!
//! Contract checks: alignment of addresses and memory, and that the engine stays inside the data area.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashSet};
use std::rc::Rc;

use engine::buffer::{Buffer, Gather};
use engine::device::{Device, DeviceError, DeviceErrorKind, DeviceInfo};

use crate::pages::Pages;
use crate::trace::Note;
use crate::world::{Pending, World, pending};

pub(crate) struct Disk {
    pub(crate) number: u32,
    /// Where the data area starts on the device.
    pub(crate) data_offset: u64,
    info: DeviceInfo,
    abilities: Abilities,
    world: Rc<World>,
    guard: Rc<Guard>,
    state: RefCell<State>,
    pub(crate) faults: RefCell<Faults>,
}

/// What a device can do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Abilities {
    pub(crate) write_zeroes: bool,
    pub(crate) discard: bool,
    pub(crate) discard_zeroes: bool,
}

/// Whether the superblocks allow a stripe to become inconsistent now (invariant 2).
#[derive(Default)]
pub(crate) struct Guard {
    pub(crate) dirty: Cell<bool>,
    /// Levels without redundancy, and repairs that change nothing a client sees, need no intent.
    pub(crate) exempt: Cell<u32>,
}

#[derive(Default)]
pub(crate) struct Faults {
    /// Everything fails in this way.
    pub(crate) dead: Option<DeviceErrorKind>,
    /// Logical blocks that cannot be read until they are written.
    pub(crate) bad: BTreeSet<u64>,
    /// Writes fail for want of space, one in two.
    pub(crate) full: bool,
    /// Every flush fails in this way.
    pub(crate) flush_fails: Option<DeviceErrorKind>,
    /// Times that an operation takes.
    pub(crate) slow: u64,
    /// One in so many operations fails once; 0 is never. What failed once never does again: the retry succeeds.
    pub(crate) transient_one_in: u64,
    spent: HashSet<(&'static str, u64, u64)>,
}

impl Faults {
    /// Whether the device is bound to be failed by the engine.
    pub(crate) fn hard(&self) -> bool {
        self.dead.is_some() || !self.bad.is_empty() || self.flush_fails.is_some()
    }
}

struct State {
    /// What a read finds.
    volatile: Pages,
    /// What survives a power cut for certain.
    durable: Pages,
    /// Applied since, in order.
    log: Vec<Logged>,
    /// Counts operations and their returns.
    clock: u64,
}

struct Logged {
    operation: u64,
    offset: u64,
    written: Written,
    /// When its operation returned.
    returned: Option<u64>,
    /// It survives a power cut: its operation had FUA and returned.
    kept: bool,
}

#[derive(Clone)]
enum Written {
    Data(Gather),
    Zeroes(u64),
}

impl Written {
    fn bytes(&self) -> u64 {
        match self {
            Written::Data(data) => data.len() as u64,
            Written::Zeroes(bytes) => *bytes,
        }
    }

    fn part(&self, start: u64, bytes: u64) -> Written {
        match self {
            Written::Data(data) => Written::Data(data.part(start as usize, bytes as usize)),
            Written::Zeroes(_) => Written::Zeroes(bytes),
        }
    }

    fn apply(&self, pages: &mut Pages, offset: u64) {
        match self {
            Written::Data(data) => {
                let mut at = offset;
                for slice in data.slices() {
                    pages.write(at, slice.bytes());
                    at += slice.len() as u64;
                }
            }
            Written::Zeroes(bytes) => pages.zero(offset, *bytes),
        }
    }
}

impl Disk {
    pub(crate) fn new(
        (number, foreign): (u32, bool),
        world: &Rc<World>,
        guard: &Rc<Guard>,
        (data_offset, area_bytes, unit): (u64, u64, u32),
        abilities: Abilities,
    ) -> Rc<Self> {
        let pages = Pages::new(area_bytes, foreign.then_some(number));
        Rc::new(Disk {
            number,
            data_offset,
            info: DeviceInfo {
                size_bytes: data_offset + area_bytes,
                logical_block_bytes: unit,
                discard_zeroes: abilities.discard_zeroes,
                name: format!("device {number}"),
            },
            abilities,
            world: Rc::clone(world),
            guard: Rc::clone(guard),
            state: RefCell::new(State { volatile: pages.clone(), durable: pages, log: Vec::new(), clock: 0 }),
            faults: RefCell::new(Faults { slow: 1, ..Faults::default() }),
        })
    }

    /// What a read of the data area finds now.
    pub(crate) fn peek(&self, offset: u64, target: &mut [u8]) {
        self.state.borrow().volatile.read(offset, target);
    }

    /// Whether this part of the data area was never written.
    pub(crate) fn untouched(&self, offset: u64, bytes: u64) -> bool {
        self.state.borrow().volatile.untouched(offset, bytes)
    }

    /// Every content that a power cut now could leave in this part of the data area (one logical block).
    pub(crate) fn peek_durable(&self, offset: u64, block: &mut [u8], mut visit: impl FnMut(&[u8])) {
        let state = self.state.borrow();
        let bytes = block.len() as u64;
        for logged in state.log.iter().rev() {
            let start = logged.offset;
            if offset < start || start + logged.written.bytes() < offset + bytes {
                continue;
            }
            match logged.written.part(offset - start, bytes) {
                Written::Data(data) => data.copy_to(block),
                Written::Zeroes(_) => block.fill(0),
            }
            visit(block);
            if logged.kept {
                return;
            }
        }
        state.durable.read(offset, block);
        visit(block);
    }

    /// The power is gone: of what was not durable each block survives with this chance, in percent.
    pub(crate) fn cut(&self, survive_percent: u64) {
        let state = &mut *self.state.borrow_mut();
        let unit = u64::from(self.info.logical_block_bytes);
        for logged in std::mem::take(&mut state.log) {
            let blocks = logged.written.bytes() / unit;
            if logged.kept || survive_percent == 100 {
                logged.written.apply(&mut state.durable, logged.offset);
                continue;
            }
            let whole = self.world.random().one_in(2); // or a part of it
            let all = self.world.random().percent(survive_percent);
            for block in 0..blocks {
                if if whole { all } else { self.world.random().percent(survive_percent) } {
                    let at = logged.offset + block * unit;
                    logged.written.part(block * unit, unit).apply(&mut state.durable, at);
                }
            }
        }
        state.volatile = state.durable.clone();
    }

    /// The device works again; what it holds is as old as it is.
    pub(crate) fn mend(&self) {
        *self.faults.borrow_mut() = Faults { slow: 1, ..Faults::default() };
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
        let inside = offset >= self.data_offset && offset + bytes <= self.info.size_bytes;
        if !inside || !offset.is_multiple_of(unit) || !bytes.is_multiple_of(unit) {
            let number = self.number;
            self.world
                .fail(format!("device {number}: {operation} of {bytes} at {offset}: outside or misaligned"));
        }
        let changes = !matches!(operation, "read" | "flush");
        if changes && !self.guard.dirty.get() && self.guard.exempt.get() == 0 {
            let number = self.number;
            self.world.fail(format!(
                "device {number}: {operation} of {bytes} at {offset} while superblocks say clean (invariant 2)"
            ));
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
        let full =
            matches!(operation, "write" | "write zeroes") && faults.full && self.world.random().one_in(2);
        let dead = faults.dead;
        let kind = match dead {
            Some(kind) => Some(kind),
            None if operation == "flush" => faults.flush_fails,
            None if full => Some(DeviceErrorKind::NoSpace),
            None if broken || self.transient(faults, (operation, offset, bytes)) => Some(DeviceErrorKind::Io),
            None => None,
        };
        let errno = 0;
        match kind {
            None => Ok(()),
            Some(kind) => Err(DeviceError { kind, operation, offset_bytes: offset, bytes, errno }),
        }
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
        let error = DeviceError { kind, operation, offset_bytes: offset, bytes, errno: 0 };
        self.world.after(self.delay(), move || filler.fill(Err(error)));
        pending
    }

    fn done(&self, operation: &'static str, offset: u64, bytes: u64, result: &Result<(), DeviceError>) {
        let error = result.as_ref().err().map(|error| error.kind);
        self.world.note(Note::Done { disk: self.number, operation, offset, bytes, error });
    }

    fn next_operation(&self) -> u64 {
        let mut state = self.state.borrow_mut();
        state.clock += 1;
        state.clock
    }

    /// Applies the blocks `from` to `to` of a write to what reads find, and remembers them as not durable.
    fn apply(&self, operation: u64, offset: u64, written: &Written, (from, to): (u64, u64)) {
        if from >= to {
            return;
        }
        let unit = u64::from(self.info.logical_block_bytes);
        let part = written.part(from * unit, (to - from) * unit);
        let offset = offset + from * unit;
        let state = &mut *self.state.borrow_mut();
        part.apply(&mut state.volatile, offset);
        state.log.push(Logged { operation, offset, written: part, returned: None, kept: false });
        let device = offset + self.data_offset;
        let blocks = device / unit..device / unit + (to - from);
        let faults = &mut *self.faults.borrow_mut();
        faults.bad.retain(|block| !blocks.contains(block));
    }

    fn returned(&self, operation: u64, kept: bool) {
        let state = &mut *self.state.borrow_mut();
        state.clock += 1;
        for logged in state.log.iter_mut().filter(|logged| logged.operation == operation) {
            (logged.returned, logged.kept) = (Some(state.clock), kept);
        }
    }

    /// A write or zeroing from its start to its end.
    fn change(
        self: &Rc<Self>,
        name: &'static str,
        device_offset: u64,
        written: Written,
        fua: bool,
    ) -> Pending<Result<(), DeviceError>> {
        let (bytes, operation) = (written.bytes(), self.next_operation());
        self.sent(name, device_offset, bytes, fua);
        let offset = device_offset.saturating_sub(self.data_offset);
        let blocks = bytes / u64::from(self.info.logical_block_bytes);
        let dead = self.faults.borrow().dead.is_some();
        let early = match self.world.random().below(4) {
            _ if dead => 0,
            0 => blocks,
            1 => self.world.random().between(0, blocks),
            _ => 0,
        };
        self.apply(operation, offset, &written, (0, early));
        let (pending, filler) = pending();
        let disk = Rc::clone(self);
        self.world.after(self.delay(), move || {
            let result = disk.fault(name, device_offset, bytes);
            let to = match &result {
                Ok(()) => blocks,
                Err(_) if dead => early,
                Err(_) => disk.world.random().between(early, blocks),
            };
            disk.apply(operation, offset, &written, (early, to));
            disk.returned(operation, fua && result.is_ok());
            disk.done(name, device_offset, bytes, &result);
            filler.fill(result);
        });
        pending
    }

    /// What had returned when the flush was sent becomes durable, or any part of it where the flush fails.
    fn flushed(&self, sent: u64, failed: bool) {
        let state = &mut *self.state.borrow_mut();
        for logged in std::mem::take(&mut state.log) {
            if logged.returned.is_none_or(|returned| returned > sent) {
                state.log.push(logged);
            } else if !failed || logged.kept || self.world.random().one_in(2) {
                logged.written.apply(&mut state.durable, logged.offset);
            }
        }
    }
}

/// One shard's way to a [`Disk`].
pub(crate) struct SimDevice(pub(crate) Rc<Disk>);

impl Device for SimDevice {
    type Read = Pending<(Buffer, Result<(), DeviceError>)>;
    type Done = Pending<Result<(), DeviceError>>;

    fn info(&self) -> &DeviceInfo {
        &self.0.info
    }

    fn read(&self, offset_bytes: u64, mut buffer: Buffer) -> Self::Read {
        let disk = Rc::clone(&self.0);
        disk.world.counts.borrow_mut().member_reads += 1;
        let bytes = buffer.len() as u64;
        disk.sent("read", offset_bytes, bytes, false);
        disk.check_memory(std::iter::once(buffer.bytes().as_ptr() as usize));
        let offset = offset_bytes.saturating_sub(disk.data_offset);
        let early = disk.world.random().one_in(2);
        if early {
            disk.peek(offset, buffer.bytes_mut());
        }
        let (pending, filler) = pending();
        self.0.world.after(self.0.delay(), move || {
            let result = disk.fault("read", offset_bytes, bytes);
            match &result {
                Ok(()) if early => {}
                Ok(()) => disk.peek(offset, buffer.bytes_mut()),
                Err(_) => buffer.bytes_mut().fill(0xbd), // nobody may look at it
            }
            disk.done("read", offset_bytes, bytes, &result);
            filler.fill((buffer, result));
        });
        pending
    }

    fn write(&self, offset_bytes: u64, data: Gather, fua: bool) -> Self::Done {
        self.0.world.counts.borrow_mut().member_writes += 1;
        self.0.check_memory(data.slices().iter().map(|slice| slice.bytes().as_ptr() as usize));
        self.0.change("write", offset_bytes, Written::Data(data), fua)
    }

    fn flush(&self) -> Self::Done {
        let disk = Rc::clone(&self.0);
        disk.world.counts.borrow_mut().member_flushes += 1;
        disk.sent("flush", disk.data_offset, 0, false);
        let sent = disk.next_operation();
        let (pending, filler) = pending();
        self.0.world.after(self.0.delay(), move || {
            let result = disk.fault("flush", disk.data_offset, 0);
            disk.flushed(sent, result.is_err());
            disk.done("flush", disk.data_offset, 0, &result);
            filler.fill(result);
        });
        pending
    }

    fn discard(&self, offset_bytes: u64, bytes: u64) -> Self::Done {
        self.0.world.counts.borrow_mut().member_discards += 1;
        if !self.0.abilities.discard_zeroes {
            self.0.world.fail(format!("device {} was sent a discard and promised no zeroes", self.0.number));
        }
        if !self.0.abilities.discard {
            return self.0.unsupported("discard", offset_bytes, bytes);
        }
        self.0.change("discard", offset_bytes, Written::Zeroes(bytes), false)
    }

    fn write_zeroes(&self, offset_bytes: u64, bytes: u64, _may_unmap: bool) -> Self::Done {
        self.0.world.counts.borrow_mut().member_zeroes += 1;
        if !self.0.abilities.write_zeroes {
            return self.0.unsupported("write zeroes", offset_bytes, bytes);
        }
        self.0.change("write zeroes", offset_bytes, Written::Zeroes(bytes), false)
    }
}
