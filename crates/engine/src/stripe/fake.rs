//! Members for tests: memory with sectors that cannot be read until they are written, or never.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::Shared;
use crate::buffer::{Buffer, Gather, Pool};
use crate::device::{Device, DeviceError, DeviceErrorKind, DeviceInfo, ReadForeign};
use crate::events::Event;
use crate::executor::Executor;
use crate::foreign_buffer::Lease;
use crate::in_place::InPlace;
use crate::members::Attached;
use crate::members::{MemberState, Members};
use crate::stripe::intent::Intent;
use crate::stripe::locks::Locks;
use crate::stripe::redo::{RedoMember, RedoStart};
use crate::volume::Space;
use layout::geometry::{Geometry, Layout, Level, Raid0Zones};
use layout::md_bitmap::Mapping;
use layout::redo_log::RedoArea;
use layout::units::{DeviceOffset, MemberOffset, Slot, Stripe};

/// Where the data area starts.
pub(crate) const DATA_OFFSET: DeviceOffset = DeviceOffset::new(8192);
const SECTOR: u64 = 512;

#[derive(Default)]
struct Medium {
    bytes: Vec<u8>,
    /// Sectors that cannot be read until they are written.
    latent: BTreeSet<u64>,
    /// Sectors that can be neither read nor written.
    dead: BTreeSet<u64>,
    /// Every write fails with ENOSPC.
    full: bool,
    /// Every operation fails: the device was pulled.
    gone: bool,
    /// Reads left until the closure runs, and the closure.
    at_read: Option<(usize, Box<dyn FnOnce()>)>,
    /// Operations take some turns of the executor, drawn from this.
    delays: Option<u64>,
}

impl Medium {
    fn delay(&mut self) -> u64 {
        let Some(seed) = &mut self.delays else { return 0 };
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*seed >> 33) % 7
    }

    fn write(&mut self, offset: DeviceOffset, data: &Gather) -> Result<(), DeviceError> {
        let range = sectors(offset, data.len());
        if self.gone {
            let error = Fake::error("write", offset, data.len() as u64);
            return Err(DeviceError { kind: DeviceErrorKind::Gone, ..error });
        }
        if self.dead.range(range.clone()).next().is_some() {
            return Err(Fake::error("write", offset, data.len() as u64));
        }
        if self.full {
            let error = Fake::error("write", offset, data.len() as u64);
            return Err(DeviceError { kind: DeviceErrorKind::NoSpace, ..error });
        }
        self.latent.retain(|sector| !range.contains(sector));
        data.copy_to(&mut self.bytes[offset.get() as usize..][..data.len()]);
        Ok(())
    }
}

/// A member in memory. Clones share the medium.
#[derive(Clone)]
pub(crate) struct Fake {
    info: DeviceInfo,
    medium: Rc<RefCell<Medium>>,
}

impl Fake {
    pub(crate) fn new(name: String, area_bytes: u64) -> Self {
        let size_bytes = DATA_OFFSET.get() + area_bytes;
        let info = DeviceInfo { size_bytes, logical_block_bytes: 512, discard_zeroes: true, name };
        let bytes = vec![0; size_bytes as usize];
        Fake { info, medium: Rc::new(RefCell::new(Medium { bytes, ..Medium::default() })) }
    }

    /// The block at `offset` of the data area cannot be read until it is written; if `dead`, never.
    pub(crate) fn break_block(&self, offset: MemberOffset, dead: bool) {
        let first = offset.on_device(DATA_OFFSET).get() / SECTOR;
        let medium = &mut *self.medium.borrow_mut();
        let sectors = if dead { &mut medium.dead } else { &mut medium.latent };
        sectors.extend(first..first + 8);
    }

    /// The sector at `offset` of the data area cannot be read until it is written.
    pub(crate) fn break_sector(&self, offset: MemberOffset) {
        let sector = offset.on_device(DATA_OFFSET).get() / SECTOR;
        self.medium.borrow_mut().latent.insert(sector);
    }

    /// Whether writes fail with ENOSPC from now on.
    pub(crate) fn set_full(&self, full: bool) {
        self.medium.borrow_mut().full = full;
    }

    /// From now on every operation fails.
    pub(crate) fn set_gone(&self) {
        self.medium.borrow_mut().gone = true;
    }

    /// From now on operations take effect after some turns of the executor.
    pub(crate) fn delay(&self, seed: u64) {
        self.medium.borrow_mut().delays = Some(seed);
    }

    /// Runs `happens` while the `nth` read from now on is in flight.
    pub(crate) fn at_read(&self, nth: usize, happens: impl FnOnce() + 'static) {
        self.medium.borrow_mut().at_read = Some((nth, Box::new(happens)));
    }

    fn happens(&self) -> Option<Box<dyn FnOnce()>> {
        let (left, happens) = self.medium.borrow_mut().at_read.take()?;
        if left == 1 {
            return Some(happens);
        }
        self.medium.borrow_mut().at_read = Some((left - 1, happens));
        None
    }

    pub(crate) fn latent_sectors(&self) -> usize {
        self.medium.borrow().latent.len()
    }

    /// Flips the bits of a byte of the data area.
    pub(crate) fn flip(&self, offset: MemberOffset) {
        self.medium.borrow_mut().bytes[offset.on_device(DATA_OFFSET).get() as usize] ^= 0xff;
    }

    /// What the device holds.
    pub(crate) fn peek(&self, offset: DeviceOffset, bytes: usize) -> Vec<u8> {
        self.medium.borrow().bytes[offset.get() as usize..][..bytes].to_vec()
    }

    /// What the data area holds.
    pub(crate) fn area(&self) -> Vec<u8> {
        self.medium.borrow().bytes[DATA_OFFSET.get() as usize..].to_vec()
    }

    /// Puts bytes where the data area begins, as a cache that lost what came later.
    pub(crate) fn put_back(&self, bytes: &[u8]) {
        self.medium.borrow_mut().bytes[DATA_OFFSET.get() as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    fn error(operation: &'static str, offset: DeviceOffset, bytes: u64) -> DeviceError {
        DeviceError { kind: DeviceErrorKind::Io, operation, offset, bytes, errno: 5 }
    }
}

/// A read on its way.
pub(crate) struct Reading {
    medium: Rc<RefCell<Medium>>,
    offset: DeviceOffset,
    buffer: Option<Buffer>,
    happens: Option<Box<dyn FnOnce()>>,
    delay: u64,
}

impl Future for Reading {
    type Output = (Buffer, Result<(), DeviceError>);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(happens) = self.happens.take() {
            happens();
        }
        if self.delay > 0 {
            self.delay -= 1;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let mut buffer = self.buffer.take().expect("polled once");
        let medium = self.medium.borrow();
        let (start, range) = (self.offset.get() as usize, sectors(self.offset, buffer.len()));
        if medium.gone {
            let error = Fake::error("read", self.offset, buffer.len() as u64);
            drop(medium);
            return Poll::Ready((buffer, Err(DeviceError { kind: DeviceErrorKind::Gone, ..error })));
        }
        if medium.latent.range(range.clone()).chain(medium.dead.range(range)).next().is_some() {
            let error = Fake::error("read", self.offset, buffer.len() as u64);
            drop(medium);
            return Poll::Ready((buffer, Err(error)));
        }
        let end = start + buffer.len();
        buffer.bytes_mut().copy_from_slice(&medium.bytes[start..end]);
        drop(medium);
        Poll::Ready((buffer, Ok(())))
    }
}

/// Another operation on its way.
pub(crate) struct Doing {
    medium: Rc<RefCell<Medium>>,
    what: What,
    delay: u64,
}

enum What {
    Write(DeviceOffset, Gather),
    /// A read into a foreign buffer.
    ReadInto(Box<Reading>, Lease),
    Nothing,
}

thread_local! {
    /// What a foreign buffer holds, where fakes can reach it.
    static FOREIGN_MEMORY: RefCell<Option<Vec<u8>>> = const { RefCell::new(None) };
}

/// Lets fakes of this thread fill a foreign buffer of `bytes` bytes.
pub(crate) fn register_foreign_memory(bytes: usize) {
    FOREIGN_MEMORY.replace(Some(vec![0; bytes]));
}

/// What the foreign buffer holds.
pub(crate) fn foreign_memory() -> Vec<u8> {
    FOREIGN_MEMORY.with_borrow(|memory| memory.clone().expect("made before"))
}

impl Future for Doing {
    type Output = Result<(), DeviceError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.delay > 0 {
            self.delay -= 1;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let Doing { medium, what, .. } = &mut *self;
        Poll::Ready(match what {
            What::Write(offset, data) => medium.borrow_mut().write(*offset, data),
            What::Nothing => Ok(()),
            What::ReadInto(read, target) => {
                let Poll::Ready((buffer, result)) = Pin::new(&mut **read).poll(context) else {
                    return Poll::Pending;
                };
                let start = target.offset_bytes() as usize;
                FOREIGN_MEMORY.with_borrow_mut(|memory| {
                    let memory = memory.as_mut().expect("made before");
                    memory[start..start + buffer.len()].copy_from_slice(buffer.bytes());
                });
                result
            }
        })
    }
}

fn sectors(offset: DeviceOffset, bytes: usize) -> std::ops::Range<u64> {
    let offset = offset.get();
    offset / SECTOR..(offset + bytes as u64) / SECTOR
}

impl Device for Fake {
    type Read = Reading;
    type Done = Doing;

    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn read(&self, offset: DeviceOffset, buffer: Buffer) -> Self::Read {
        let happens = self.happens();
        let delay = self.medium.borrow_mut().delay();
        Reading { medium: Rc::clone(&self.medium), offset, buffer: Some(buffer), happens, delay }
    }

    fn write(&self, offset: DeviceOffset, data: Gather, _fua: bool) -> Self::Done {
        let delay = self.medium.borrow_mut().delay();
        Doing { medium: Rc::clone(&self.medium), what: What::Write(offset, data), delay }
    }

    fn flush(&self) -> Self::Done {
        let delay = self.medium.borrow_mut().delay();
        Doing { medium: Rc::clone(&self.medium), what: What::Nothing, delay }
    }

    fn discard(&self, offset: DeviceOffset, bytes: u64) -> Self::Done {
        self.write_zeroes(offset, bytes, true)
    }

    fn write_zeroes(&self, offset: DeviceOffset, bytes: u64, _may_unmap: bool) -> Self::Done {
        let zeroes = Buffer::new(bytes as usize).freeze();
        self.write(offset, Gather::from(zeroes), false)
    }
}

impl ReadForeign for Fake {
    fn read_into(&self, offset: DeviceOffset, bytes: usize, target: Lease) -> Option<Self::Done> {
        FOREIGN_MEMORY.with_borrow(Option::is_some).then(|| {
            let read = Box::new(self.read(offset, Buffer::new(bytes)));
            Doing { medium: Rc::clone(&self.medium), what: What::ReadInto(read, target), delay: 0 }
        })
    }
}

/// An array of fakes.
pub(crate) struct World {
    pub(crate) set: Rc<InPlace<Fake>>,
    pub(crate) fakes: Vec<Fake>,
    pub(crate) events: Arc<parking_lot::Mutex<Vec<Event>>>,
}

pub(crate) const CHUNK: u32 = 16 << 10;
pub(crate) const STRIPES: u64 = 8;

impl World {
    pub(crate) fn new(level: Level, members: u32) -> Self {
        World::with_intent(level, members, STRIPES, Intent::new(1, false, false))
    }

    /// An array of `stripes` stripes with a bitmap, whose bits are durable as soon as they are wanted.
    pub(crate) fn with_bitmap(level: Level, members: u32, stripes: u64, mapping: Mapping) -> Self {
        let world =
            World::with_intent(level, members, stripes, Intent::with_bitmap(mapping, true, Locks::default()));
        let shared = Arc::clone(&world.set.shared);
        world.set.executor.spawn(async move {
            while let Some(chunks) = shared.intent.bits_wanted().await {
                shared.intent.bits_written(&chunks);
            }
        });
        world
    }

    /// An array without its first member and with the redo log in force. The log lies in the second half of the data area.
    pub(crate) fn logging(level: Level, members: u32) -> Self {
        World::logging_with(level, members, Intent::new(1, false, false))
    }

    pub(crate) fn logging_with(level: Level, members: u32, intent: Intent) -> Self {
        const BYTES: u64 = 1 << 20;
        let world = World::with_intent(level, members, 2 * BYTES / u64::from(CHUNK), intent);
        let redo = &world.set.shared.redo;
        for slot in Slot::first(members).skip(1) {
            let area = RedoArea { start: DATA_OFFSET + BYTES, bytes: BYTES };
            let member = RedoMember { area, set_uuid: [1; 16], device_uuid: [2; 16], digest: 3 };
            redo.set_member(slot, Some(member));
        }
        redo.begin(RedoStart::default(), 0);
        world.set.shared.members.fail(Slot::new(0), "by hand");
        let set = Rc::clone(&world.set);
        world.run(async move {
            let _announcing = set.shared.redo.announce().await;
            set.open_redo(false).await;
        });
        assert!(redo.in_force());
        world
    }

    /// An array of `stripes` stripes.
    pub(crate) fn with_intent(level: Level, members: u32, stripes: u64, intent: Intent) -> Self {
        let layout = Layout::default_for(level);
        let chunk = if level == Level::Raid1 { 0 } else { CHUNK };
        let geometry =
            Geometry::new(level, layout, members, chunk, u64::from(CHUNK) * stripes).expect("an array");
        World::over(geometry, None, intent, &vec![geometry.member_bytes(); members as usize])
    }

    /// A RAID-0 whose members differ in size.
    pub(crate) fn unequal(layout: Layout, member_bytes: &[u64]) -> Self {
        let zones = Arc::new(Raid0Zones::new(layout, CHUNK, member_bytes).expect("an array"));
        World::over(zones.geometry(), Some(&zones), Intent::new(1, false, false), member_bytes)
    }

    fn over(
        geometry: Geometry,
        zones: Option<&Arc<Raid0Zones>>,
        intent: Intent,
        member_bytes: &[u64],
    ) -> Self {
        let events = Arc::<parking_lot::Mutex<Vec<Event>>>::default();
        let heard = Arc::clone(&events);
        let sink = Box::new(move |event| heard.lock().push(event));
        let health = Members::new(geometry, &vec![MemberState::InSync; member_bytes.len()], sink);
        let mut shared = Shared::new(geometry, health, intent, 1, 1 << 20);
        if let Some(zones) = zones {
            Arc::get_mut(&mut shared).expect("nobody else has it yet").set_unequal_zones(zones);
        }
        shared.loads.set_parity_agrees(true);
        shared.set_verify(true);
        let fake = |(slot, bytes): (usize, &u64)| Fake::new(format!("m{slot}"), *bytes);
        let fakes: Vec<Fake> = member_bytes.iter().enumerate().map(fake).collect();
        let attached = fakes.iter().map(|fake| Some(attached(fake))).collect();
        let executor = Executor::new(Box::new(|| {}));
        let set = InPlace::new(shared, 0, Pool::new(1 << 20), executor, attached);
        World { set, fakes, events }
    }

    /// Runs a task of the array to its end.
    pub(crate) fn run<T: 'static>(&self, task: impl Future<Output = T> + 'static) -> T {
        let executor = &self.set.executor;
        let handle = executor.spawn_with_result(task);
        for _ in 0..100_000 {
            executor.run_ready(usize::MAX);
            if let Some(result) = handle.try_take() {
                return result;
            }
            // Stands in for the superblock writer: every write of superblocks succeeds.
            let members = &self.set.shared.members;
            members.metadata_written(members.metadata_version());
        }
        panic!("the task does not end");
    }

    /// Writes a pattern over the whole array and returns it.
    pub(crate) fn fill(&self) -> Vec<u8> {
        let bytes = self.set.shared.geometry.array_bytes() as usize;
        let pattern: Vec<u8> = (0..bytes).map(|at| (at / 512 * 31 + at % 251) as u8).collect();
        let (set, data) = (Rc::clone(&self.set), Gather::from(crate::buffer::Slice::from_bytes(&pattern)));
        self.run(async move { set.write(0, data, false).await }).expect("written");
        pattern
    }

    /// Reads a range, or says why not.
    pub(crate) fn read(&self, offset: u64, bytes: u64) -> Result<Vec<u8>, crate::error::VolumeError> {
        let set = Rc::clone(&self.set);
        let gather = self.run(async move { set.read(offset, bytes).await })?;
        let mut read = vec![0; gather.len()];
        gather.copy_to(&mut read);
        Ok(read)
    }

    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), crate::error::VolumeError> {
        let (set, data) = (Rc::clone(&self.set), Gather::from(crate::buffer::Slice::from_bytes(bytes)));
        self.run(async move { set.write(offset, data, false).await })
    }

    pub(crate) fn state(&self, slot: Slot) -> MemberState {
        self.set.shared.members.state(slot)
    }

    pub(crate) fn heard(&self, wanted: impl Fn(&Event) -> bool) -> usize {
        self.events.lock().iter().filter(|event| wanted(event)).count()
    }
}

pub(crate) fn attached(fake: &Fake) -> Attached<Fake> {
    Attached { device: fake.clone(), data_offset: DATA_OFFSET }
}

/// Fills the member in a slot of a parity array as the owner of all stripes.
pub(crate) async fn recover_all(set: &InPlace<Fake>, slot: Slot) -> Result<(), crate::error::VolumeError> {
    let claims = set.shared.table.claim_run(Stripe::FIRST..Stripe::new(STRIPES), set.shard).await;
    assert_eq!(claims.len() as u64, STRIPES, "no stripe has another owner");
    set.recover_run(&claims, slot).await
}
