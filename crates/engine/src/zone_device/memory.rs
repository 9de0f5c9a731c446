//! A zoned device in memory, of any kind, without timing: for tests of what runs on zones.
//!
//! It keeps the contract of [`super`] and uses its freedom where a test asks for it: with [`MemoryZones::shuffle`]
//! operations take effect and return in an order drawn from a seed, so appends get their places in any order (writes of one
//! zone stay in order). A power cut ([`MemoryZones::cut`]) leaves each unflushed block and pointer as the test says. A test can fail operations and
//! wear zones out.
//!
//! An operation takes effect when its future is polled or dropped, whichever comes first. A flush makes everything durable
//! that took effect before it, which is more than the contract asks; the simulator's drive does less.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::states::ZoneStates;
use super::{Zone, ZoneAccess, ZoneChange, ZoneDevice, ZoneOffset, ZoneState, ZonedInfo};
use crate::buffer::{Buffer, Gather, Slice};
use crate::device::{Device, DeviceError, DeviceErrorKind, DeviceInfo};
use layout::units::DeviceOffset;

/// What one logical block holds: data, then metadata.
type Block = Box<[u8]>;

/// A zoned device in memory. Clones are handles to the same.
#[derive(Clone)]
pub struct MemoryZones {
    info: Rc<DeviceInfo>,
    zoned: Rc<ZonedInfo>,
    medium: Rc<RefCell<Medium>>,
}

/// What a test makes of a device before an operation takes effect: the operation's name and its zone in, an error out.
type Fault = Box<dyn FnMut(&'static str, u32) -> Option<DeviceErrorKind>>;

struct Medium {
    states: ZoneStates,
    /// Logical blocks by their number on the device. Absent: zeroes.
    blocks: BTreeMap<u64, Block>,
    /// What unflushed blocks held when they were last durable.
    unflushed: BTreeMap<u64, Option<Block>>,
    /// How far each zone was written when it was last durable.
    durable: Vec<u64>,
    /// Writes of zones that have not taken effect, in the order in which they were started.
    waiting: BTreeMap<u64, (u32, Operation)>,
    /// Results of writes that took effect before their future asked.
    early: BTreeMap<u64, Result<u64, DeviceErrorKind>>,
    tickets: u64,
    seed: Option<u64>,
    fault: Option<Fault>,
}

enum Operation {
    Append { zone: u32, data: Gather, metadata: Option<Slice>, fua: bool },
    Write { zone: u32, at: u64, data: Gather, metadata: Option<Slice>, fua: bool },
    Change { zone: u32, change: ZoneChange },
    Flush,
    Refused(DeviceErrorKind),
}

impl MemoryZones {
    /// A device whose zones are all empty.
    pub fn new(zoned: ZonedInfo, logical_block_bytes: u32, name: &str) -> Self {
        let size_bytes = u64::from(zoned.zones) * zoned.zone_bytes;
        let name = name.to_owned();
        let info = DeviceInfo { size_bytes, logical_block_bytes, discard_zeroes: false, name };
        let medium = Medium {
            states: ZoneStates::new(&zoned),
            blocks: BTreeMap::new(),
            unflushed: BTreeMap::new(),
            durable: vec![0; zoned.zones as usize],
            waiting: BTreeMap::new(),
            early: BTreeMap::new(),
            tickets: 0,
            seed: None,
            fault: None,
        };
        MemoryZones { info: Rc::new(info), zoned: Rc::new(zoned), medium: Rc::new(RefCell::new(medium)) }
    }

    /// From now on operations take effect after some turns of the executor, drawn from `seed`.
    pub fn shuffle(&self, seed: u64) {
        self.medium.borrow_mut().seed = Some(seed);
    }

    /// From now on `fault` says, by name and zone, which operations fail, and how: they change nothing.
    pub fn set_fault(&self, fault: impl FnMut(&'static str, u32) -> Option<DeviceErrorKind> + 'static) {
        self.medium.borrow_mut().fault = Some(Box::new(fault));
    }

    /// The drive puts a zone into a state by itself: see [`ZoneStates::turn`].
    pub fn turn(&self, zone: u32, state: ZoneState) {
        self.medium.borrow_mut().states.turn(zone, state);
    }

    /// A power cut. Of each zone that was not flushed `pointer` says where its pointer is left, from its number, where it was
    /// durable and where it is; on a placed device it is not asked. Of each unflushed block `keeps` says whether its new
    /// contents are left, else those before. Both get what lies between durable and written only.
    pub fn cut(&self, mut pointer: impl FnMut(u32, u64, u64) -> u64, mut keeps: impl FnMut(u64) -> bool) {
        let medium = &mut *self.medium.borrow_mut();
        for (block, before) in std::mem::take(&mut medium.unflushed) {
            if !keeps(block) {
                match before {
                    Some(before) => medium.blocks.insert(block, before),
                    None => medium.blocks.remove(&block),
                };
            }
        }
        let durable = &medium.durable;
        medium.states.restart(|zone, written| match durable[zone as usize] {
            at if at >= written => written,
            at => pointer(zone, at, written).clamp(at, written),
        });
        medium.make_durable();
    }

    /// What the device holds, also where nothing was written: for tests.
    pub fn peek(&self, zone: u32, in_zone_bytes: u64, bytes: usize) -> Vec<u8> {
        let mut data = Buffer::new(bytes);
        let at = self.zoned.offset_bytes(zone, in_zone_bytes);
        self.medium.borrow().copy_out(self.unit(), at, data.bytes_mut(), &mut []);
        data.bytes().to_vec()
    }

    /// What every zone holds, with its state and pointer: of a drive a reset changes only these. For tests.
    pub fn image(&self) -> Vec<(Zone, Vec<u8>)> {
        let bytes = usize::try_from(self.zoned.zone_bytes).expect("a zone in memory");
        (0..self.zoned.zones).map(|zone| (self.zone(zone), self.peek(zone, 0, bytes))).collect()
    }

    /// Another device that holds the same, with nothing in flight: for tests.
    pub fn copy(&self) -> Self {
        let medium = self.medium.borrow();
        let copied = Medium {
            states: medium.states.clone(),
            blocks: medium.blocks.clone(),
            unflushed: medium.unflushed.clone(),
            durable: medium.durable.clone(),
            waiting: BTreeMap::new(),
            early: BTreeMap::new(),
            tickets: 0,
            seed: None,
            fault: None,
        };
        let (info, zoned) = (Rc::clone(&self.info), Rc::clone(&self.zoned));
        MemoryZones { info, zoned, medium: Rc::new(RefCell::new(copied)) }
    }

    /// Flips the bits of a byte: for tests.
    pub fn flip(&self, zone: u32, in_zone_bytes: u64) {
        let (at, unit) = (self.zoned.offset_bytes(zone, in_zone_bytes).get(), self.unit() as u64);
        if let Some(block) = self.medium.borrow_mut().blocks.get_mut(&(at / unit)) {
            block[(at % unit) as usize] ^= 0xff;
        }
    }

    /// One zone as a report would say it.
    pub fn zone(&self, number: u32) -> Zone {
        self.medium.borrow().states.zone(number)
    }

    fn unit(&self) -> usize {
        self.info.logical_block_bytes as usize
    }

    fn check(&self, to: ZoneOffset, data: &Gather, metadata: Option<&Slice>) -> Result<(), DeviceErrorKind> {
        self.zoned.check_record(self.info.logical_block_bytes, to, data, metadata)
    }

    fn start(&self, name: &'static str, at: (DeviceOffset, u64), zone: u32, operation: Operation) -> Doing {
        let medium = &mut *self.medium.borrow_mut();
        let ticket = medium.tickets;
        medium.tickets += 1;
        medium.waiting.insert(ticket, (zone, operation));
        let (delay, device) = (medium.delay(), self.clone());
        Doing { device, name, at, ticket: Some(ticket), delay }
    }

    fn error(
        &self,
        kind: DeviceErrorKind,
        name: &'static str,
        (offset, bytes): (DeviceOffset, u64),
    ) -> DeviceError {
        DeviceError { kind, operation: name, offset, bytes, errno: 0 }
    }
}

impl Medium {
    fn delay(&mut self) -> u64 {
        let Some(seed) = &mut self.seed else { return 0 };
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*seed >> 33) % 7
    }

    fn faulty(&mut self, name: &'static str, zone: u32) -> Result<(), DeviceErrorKind> {
        match self.fault.as_mut().and_then(|fault| fault(name, zone)) {
            Some(kind) => Err(kind),
            None => Ok(()),
        }
    }

    /// The operation takes effect, after those writes of the same zone that were started before it.
    fn finish(&mut self, zoned: &ZonedInfo, unit: usize, ticket: u64) -> Result<u64, DeviceErrorKind> {
        if let Some(result) = self.early.remove(&ticket) {
            return result;
        }
        let (zone, operation) = self.waiting.remove(&ticket).expect("an operation takes effect once");
        if matches!(operation, Operation::Write { .. }) {
            let is_before = |(earlier, (other, operation)): (&u64, &(u32, Operation))| {
                let is_write = matches!(operation, Operation::Write { .. });
                (*earlier < ticket && *other == zone && is_write).then_some(*earlier)
            };
            let before: Vec<u64> = self.waiting.iter().filter_map(is_before).collect();
            for earlier in before {
                let (_, operation) = self.waiting.remove(&earlier).expect("just listed");
                let result = self.apply(zoned, unit, operation);
                self.early.insert(earlier, result);
            }
        }
        self.apply(zoned, unit, operation)
    }

    fn apply(
        &mut self,
        zoned: &ZonedInfo,
        unit: usize,
        operation: Operation,
    ) -> Result<u64, DeviceErrorKind> {
        match operation {
            Operation::Append { zone, data, metadata, fua } => {
                self.faulty("append", zone)?;
                let place = self.states.append(zone, data.len() as u64)?;
                self.put(zoned, unit, (zone, place), &data, metadata.as_ref(), fua);
                Ok(place)
            }
            Operation::Write { zone, at, data, metadata, fua } => {
                self.faulty("write", zone)?;
                self.states.write(zone, at, data.len() as u64)?;
                self.put(zoned, unit, (zone, at), &data, metadata.as_ref(), fua);
                Ok(at)
            }
            Operation::Change { zone, change } => {
                self.faulty(change.name(), zone)?;
                self.change(zoned, unit, zone, change).map(|()| 0)
            }
            Operation::Flush => {
                self.faulty("flush", 0)?;
                self.unflushed.clear();
                self.make_durable();
                Ok(0)
            }
            Operation::Refused(kind) => Err(kind),
        }
    }

    fn put(
        &mut self,
        zoned: &ZonedInfo,
        unit: usize,
        (zone, at): (u32, u64),
        data: &Gather,
        metadata: Option<&Slice>,
        fua: bool,
    ) {
        let mut bytes = vec![0; data.len()];
        data.copy_to(&mut bytes);
        let each = zoned.metadata_bytes as usize;
        let first = zoned.offset_bytes(zone, at).get() / unit as u64;
        for (index, data) in bytes.chunks(unit).enumerate() {
            // Without a buffer the metadata is undefined: a pattern that no format takes for its own.
            let own = metadata.map_or(vec![0xa5; each], |all| all.bytes()[index * each..][..each].to_vec());
            let number = first + index as u64;
            let before = self.blocks.insert(number, [data, &own].concat().into());
            match fua {
                true => drop(self.unflushed.remove(&number)),
                false => drop(self.unflushed.entry(number).or_insert(before)),
            }
        }
        if fua {
            let end = at + data.len() as u64;
            let durable = &mut self.durable[zone as usize];
            *durable = end.max(*durable);
        }
    }

    fn change(
        &mut self,
        zoned: &ZonedInfo,
        unit: usize,
        zone: u32,
        change: ZoneChange,
    ) -> Result<(), DeviceErrorKind> {
        if zoned.access != ZoneAccess::Placed {
            self.states.change(zone, change)?;
            if change == ZoneChange::Reset {
                // This device makes a reset durable at once: it is there after a cut.
                self.durable[zone as usize] = 0;
            }
            return Ok(());
        }
        if zone >= zoned.zones {
            return Err(DeviceErrorKind::Invalid);
        }
        if change == ZoneChange::Reset {
            let header = Slice::from_bytes(&vec![0; super::RESET_BYTES]);
            self.put(zoned, unit, (zone, 0), &header.into(), None, true);
        }
        Ok(())
    }

    fn make_durable(&mut self) {
        for (zone, durable) in (0..).zip(&mut self.durable) {
            let state = self.states.zone(zone);
            *durable = state.pointer_bytes.unwrap_or(state.capacity_bytes);
        }
    }

    fn copy_out(&self, unit: usize, offset: DeviceOffset, data: &mut [u8], metadata: &mut [u8]) {
        let first = offset.get() / unit as u64;
        let count = data.len() / unit;
        let each = metadata.len().checked_div(count).unwrap_or(0);
        for (index, target) in data.chunks_mut(unit).enumerate() {
            let own = &mut metadata[index * each..][..each];
            match self.blocks.get(&(first + index as u64)) {
                Some(block) => {
                    target.copy_from_slice(&block[..target.len()]);
                    own.copy_from_slice(&block[unit..][..each]);
                }
                None => {
                    target.fill(0);
                    own.fill(0);
                }
            }
        }
    }

    /// Whether every zone that a range touches can be read.
    fn readable(&mut self, zoned: &ZonedInfo, at: DeviceOffset, bytes: u64) -> Result<(), DeviceErrorKind> {
        let at = at.get();
        let zones = at / zoned.zone_bytes..=(at + bytes - 1) / zoned.zone_bytes;
        for zone in zones {
            let zone = u32::try_from(zone).expect("the device has a u32 of zones");
            self.faulty("read", zone)?;
            self.states.read(zone)?;
        }
        Ok(())
    }
}

/// An operation on its way. Dropped, it takes effect at once.
pub struct Doing {
    device: MemoryZones,
    name: &'static str,
    at: (DeviceOffset, u64),
    /// None: it has returned.
    ticket: Option<u64>,
    delay: u64,
}

impl Doing {
    fn poll_place(&mut self, context: &mut Context<'_>) -> Poll<Result<u64, DeviceError>> {
        if self.delay > 0 {
            self.delay -= 1;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let result = self.take_effect().expect("polled once after it returned");
        Poll::Ready(result.map_err(|kind| self.device.error(kind, self.name, self.at)))
    }

    fn take_effect(&mut self) -> Option<Result<u64, DeviceErrorKind>> {
        let ticket = self.ticket.take()?;
        let unit = self.device.unit();
        Some(self.device.medium.borrow_mut().finish(&self.device.zoned, unit, ticket))
    }
}

impl Drop for Doing {
    fn drop(&mut self) {
        let _the_result_goes_nowhere = self.take_effect();
    }
}

impl Future for Doing {
    type Output = Result<(), DeviceError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_place(context).map(|place| place.map(|_| ()))
    }
}

/// An append on its way.
pub struct Appending(Doing);

impl Future for Appending {
    type Output = Result<u64, DeviceError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll_place(context)
    }
}

/// A report on its way.
pub struct Reporting {
    device: MemoryZones,
    zones: Range<u32>,
}

impl Future for Reporting {
    type Output = Result<Vec<Zone>, DeviceError>;

    fn poll(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<Self::Output> {
        let medium = &mut *self.device.medium.borrow_mut();
        if let Err(kind) = medium.faulty("report zones", self.zones.start) {
            return Poll::Ready(Err(self.device.error(kind, "report zones", (DeviceOffset::START, 0))));
        }
        let zones = self.zones.start..self.zones.end.min(medium.states.count());
        Poll::Ready(Ok(zones.map(|zone| medium.states.zone(zone)).collect()))
    }
}

/// A read on its way.
pub struct Reading {
    device: MemoryZones,
    offset: DeviceOffset,
    buffers: Option<(Buffer, Buffer)>,
    refused: Option<DeviceErrorKind>,
    delay: u64,
}

impl Reading {
    fn poll_buffers(&mut self, context: &mut Context<'_>) -> Poll<(Buffer, Buffer, Result<(), DeviceError>)> {
        if self.delay > 0 {
            self.delay -= 1;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let (mut data, mut metadata) = self.buffers.take().expect("polled once after it returned");
        let (device, medium) = (&self.device, &mut *self.device.medium.borrow_mut());
        let bytes = data.len() as u64;
        let checked = match self.refused {
            Some(kind) => Err(kind),
            None => medium.readable(&device.zoned, self.offset, bytes),
        };
        let result = checked.map_err(|kind| device.error(kind, "read", (self.offset, bytes)));
        if result.is_ok() {
            medium.copy_out(device.unit(), self.offset, data.bytes_mut(), metadata.bytes_mut());
        }
        Poll::Ready((data, metadata, result))
    }
}

impl Future for Reading {
    type Output = (Buffer, Result<(), DeviceError>);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_buffers(context).map(|(data, _, result)| (data, result))
    }
}

/// A read of data and metadata on its way.
pub struct ReadingMetadata(Reading);

impl Future for ReadingMetadata {
    type Output = (Buffer, Buffer, Result<(), DeviceError>);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll_buffers(context)
    }
}

impl Device for MemoryZones {
    type Read = Reading;
    type Done = Doing;

    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn read(&self, offset: DeviceOffset, buffer: Buffer) -> Reading {
        let is_allowed = self.info.allows(offset, buffer.len() as u64);
        let refused = (!is_allowed).then_some(DeviceErrorKind::Invalid);
        let delay = self.medium.borrow_mut().delay();
        let buffers = Some((buffer, Buffer::new(0)));
        Reading { device: self.clone(), offset, buffers, refused, delay }
    }

    fn write(&self, offset: DeviceOffset, data: Gather, _fua: bool) -> Doing {
        self.refuse("write", offset, data.len() as u64)
    }

    fn flush(&self) -> Doing {
        self.start("flush", (DeviceOffset::START, 0), 0, Operation::Flush)
    }

    fn discard(&self, offset: DeviceOffset, bytes: u64) -> Doing {
        self.refuse("discard", offset, bytes)
    }

    fn write_zeroes(&self, offset: DeviceOffset, bytes: u64, _may_unmap: bool) -> Doing {
        self.refuse("write zeroes", offset, bytes)
    }
}

impl ZoneDevice for MemoryZones {
    type Append = Appending;
    type Changed = Doing;
    type Report = Reporting;
    type ReadMetadata = ReadingMetadata;

    fn zoned(&self) -> &ZonedInfo {
        &self.zoned
    }

    fn report(&self, zones: Range<u32>) -> Reporting {
        Reporting { device: self.clone(), zones }
    }

    fn append(&self, zone: u32, data: Gather, metadata: Option<Slice>, fua: bool) -> Appending {
        let at = (self.zoned.offset_bytes(zone, 0), data.len() as u64);
        let operation = match self.check(ZoneOffset::start(zone), &data, metadata.as_ref()) {
            Err(kind) => Operation::Refused(kind),
            Ok(()) if self.zoned.access != ZoneAccess::Append => {
                Operation::Refused(DeviceErrorKind::Unsupported)
            }
            Ok(()) => Operation::Append { zone, data, metadata, fua },
        };
        Appending(self.start("append", at, zone, operation))
    }

    fn write_at(&self, to: ZoneOffset, data: Gather, metadata: Option<Slice>, fua: bool) -> Doing {
        let ZoneOffset { zone, in_zone_bytes } = to;
        let at = (self.zoned.offset_bytes(zone, in_zone_bytes), data.len() as u64);
        let operation = match self.check(to, &data, metadata.as_ref()) {
            Err(kind) => Operation::Refused(kind),
            Ok(()) => Operation::Write { zone, at: in_zone_bytes, data, metadata, fua },
        };
        self.start("write", at, zone, operation)
    }

    fn read_metadata(&self, from: ZoneOffset, data: Buffer, metadata: Buffer) -> ReadingMetadata {
        let ZoneOffset { zone, in_zone_bytes } = from;
        let offset = self.zoned.offset_bytes(zone, in_zone_bytes);
        let checked = self.zoned.check_read_metadata(&self.info, from, data.len(), metadata.len());
        let refused = checked.err();
        let delay = self.medium.borrow_mut().delay();
        let buffers = Some((data, metadata));
        ReadingMetadata(Reading { device: self.clone(), offset, buffers, refused, delay })
    }

    fn change(&self, zone: u32, change: ZoneChange) -> Doing {
        let at = (self.zoned.offset_bytes(zone, 0), self.zoned.zone_bytes);
        self.start(change.name(), at, zone, Operation::Change { zone, change })
    }
}

impl MemoryZones {
    /// Only [`ZoneDevice`] writes to a zoned device.
    fn refuse(&self, name: &'static str, offset: DeviceOffset, bytes: u64) -> Doing {
        self.start(name, (offset, bytes), 0, Operation::Refused(DeviceErrorKind::Unsupported))
    }
}

#[cfg(test)]
mod tests {
    use super::super::conformance::{conforms, small_zones, worn_zone_conforms};
    use super::*;
    use crate::executor::Executor;

    const BLOCK: u64 = 4096;

    fn zones(access: ZoneAccess, metadata_bytes: u32, logical_block_bytes: u32) -> MemoryZones {
        let zoned = small_zones(access, metadata_bytes);
        MemoryZones::new(zoned, logical_block_bytes, "memory")
    }

    fn run<T: 'static>(future: impl Future<Output = T> + 'static) -> T {
        let executor = Executor::new(Box::new(|| {}));
        let result = executor.spawn_with_result(future);
        for _ in 0..1_000_000 {
            if let Some(value) = result.try_take() {
                return value;
            }
            executor.run_ready(1000);
        }
        panic!("the task does not end");
    }

    #[test]
    fn every_kind_conforms_in_any_order() {
        for (access, metadata, unit) in [
            (ZoneAccess::Append, 64, 4096),
            (ZoneAccess::Append, 0, 512),
            (ZoneAccess::Sequential, 0, 512),
            (ZoneAccess::Placed, 0, 4096),
        ] {
            for seed in 0..20 {
                let device = zones(access, metadata, unit);
                if seed > 0 {
                    device.shuffle(seed);
                }
                let result = run(async move { conforms(&device, 1).await });
                assert_eq!(result, Ok(()), "{access:?} with {metadata} bytes of metadata, seed {seed}");
            }
        }
    }

    #[test]
    fn worn_zones_conform() {
        for state in [ZoneState::ReadOnly, ZoneState::Offline] {
            let device = zones(ZoneAccess::Append, 64, 4096);
            device.turn(2, state);
            assert_eq!(run(async move { worn_zone_conforms(&device, 2, state).await }), Ok(()));
        }
    }

    #[test]
    fn a_cut_leaves_pointers_between_durable_and_written_and_takes_unflushed_blocks() {
        let device = zones(ZoneAccess::Append, 64, 4096);
        let record = |byte: u8| Gather::from(Slice::from_bytes(&[byte; 4096]));
        let handle = device.clone();
        run(async move {
            handle.append(0, record(1), None, true).await.expect("room");
            handle.append(0, record(2), None, false).await.expect("room");
            handle.append(0, record(3), None, false).await.expect("room");
            handle.append(1, record(4), None, false).await.expect("room");
        });
        let mut asked = Vec::new();
        device.cut(
            |zone, durable, written| {
                asked.push((zone, durable, written));
                durable + BLOCK * u64::from(zone == 0)
            },
            |block| block == 1,
        );
        assert_eq!(asked, [(0, BLOCK, 3 * BLOCK), (1, 0, BLOCK)]);
        assert_eq!(
            (device.zone(0).state, device.zone(0).pointer_bytes),
            (ZoneState::Closed, Some(2 * BLOCK))
        );
        assert_eq!(device.zone(1).state, ZoneState::Empty);
        let held: Vec<u8> = (0..3).map(|block| device.peek(0, block * BLOCK, 4096)[0]).collect();
        assert_eq!((held, device.peek(1, 0, 4096)[0]), (vec![1, 2, 0], 0));
    }

    #[test]
    fn a_dropped_operation_takes_effect_and_a_fault_changes_nothing() {
        let device = zones(ZoneAccess::Append, 0, 4096);
        device.shuffle(1);
        drop(device.append(0, Slice::from_bytes(&[1; 4096]).into(), None, false));
        assert_eq!(device.zone(0).pointer_bytes, Some(BLOCK));
        device.set_fault(|name, zone| (name == "append" && zone == 0).then_some(DeviceErrorKind::Timeout));
        let handle = device.clone();
        let result =
            run(async move { handle.append(0, Slice::from_bytes(&[1; 4096]).into(), None, false).await });
        assert_eq!(result.map_err(|error| error.kind), Err(DeviceErrorKind::Timeout));
        assert_eq!(device.zone(0).pointer_bytes, Some(BLOCK));
    }
}
