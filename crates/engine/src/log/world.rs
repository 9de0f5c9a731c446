//! A zoned array for tests: members in memory, virtual time, superblocks that are one value, and an oracle of what a block
//! may hold after a crash.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

use layout::geometry::Level;
use layout::zoned::{Access, Carrier, Epoch, MapEntryBytes, MapShape};

use super::config::{LogConfig, MapLimits, OpenCounts, ReclaimOptions};
use super::dispatch::FillWait;
use super::engine::LogSet;
use super::join::{Joining, exchange};
use super::port::{LogPlatform, LogPort};
use super::reclaim::choose::ReclaimPolicy;
use super::recover::found::{RecoverError, RecoveryReport};
use super::recover::{Start, recover};
use crate::buffer::{Gather, Pool, Slice};
use crate::counters::Counters;
use crate::device::DeviceErrorKind;
use crate::error::VolumeError;
use crate::events::Event;
use crate::executor::{Executor, JoinHandle};
use crate::limits::BLOCK_BYTES;
use crate::members::MemberState;
use crate::volume::Space;
use crate::zone_device::memory::MemoryZones;
use crate::zone_device::{Zone, ZoneAccess, ZonedInfo};

/// A small generator: tests need chance that is the same each time.
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

/// Virtual time.
pub(crate) struct Platform {
    now_ns: Cell<u64>,
    timers: RefCell<Vec<(u64, Waker)>>,
    chance: RefCell<Chance>,
}

impl LogPlatform for Rc<Platform> {
    fn now_ns(&self) -> u64 {
        self.now_ns.get()
    }

    fn sleep_until(&self, at_ns: u64) -> Pin<Box<dyn Future<Output = ()>>> {
        let platform = Rc::clone(self);
        Box::pin(std::future::poll_fn(move |context| {
            if platform.now_ns.get() >= at_ns {
                return Poll::Ready(());
            }
            platform.timers.borrow_mut().push((at_ns, context.waker().clone()));
            Poll::Pending
        }))
    }

    fn random(&self) -> u64 {
        self.chance.borrow_mut().next()
    }
}

/// What the superblocks say. They are one value here: writing them is another file's matter.
#[derive(Clone, Debug)]
pub(crate) struct Saved {
    pub(crate) epoch: u32,
    pub(crate) numbers: u64,
    pub(crate) checkpoint: Option<layout::zoned::Checkpoint>,
    pub(crate) states: Vec<MemberState>,
    pub(crate) uuids: Vec<[u8; 16]>,
    /// Members were added, and older segments are narrower.
    pub(crate) growing: bool,
}

/// The shape of an array under test.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) level: Level,
    pub(crate) members: usize,
    pub(crate) access: ZoneAccess,
    pub(crate) zones: u32,
    pub(crate) zone_blocks: u64,
    pub(crate) logical_blocks: u64,
    pub(crate) entry: MapEntryBytes,
    /// Where metadata lies.
    pub(crate) carrier: Carrier,
    /// Blocks of the longest small and large record.
    pub(crate) record_blocks: [u16; 2],
    /// Segments that the shard has open.
    pub(crate) open: OpenCounts,
    /// Zones that a drive keeps open at most.
    pub(crate) open_max: Option<u32>,
    /// Entries of a group of the map.
    pub(crate) map_entries: u32,
    pub(crate) map_limits: MapLimits,
    pub(crate) reclaim: ReclaimOptions,
}

pub(crate) const RAID5: Shape = Shape {
    level: Level::Raid5,
    members: 4,
    access: ZoneAccess::Placed,
    zones: 40,
    zone_blocks: 64,
    logical_blocks: 200,
    entry: MapEntryBytes::Eight,
    carrier: Carrier::Inband,
    record_blocks: [4, 8],
    open: OpenCounts::ONE,
    open_max: Some(8),
    map_entries: 512,
    map_limits: MapLimits { groups: None, changed: None },
    reclaim: ReclaimOptions { policy: ReclaimPolicy::Greedy, idle_ns: None },
};

/// A running array.
pub(crate) struct Array {
    pub(crate) executor: Executor,
    pub(crate) set: Rc<LogSet<MemoryZones>>,
    /// Another shard of the same array.
    pub(crate) second: Rc<LogSet<MemoryZones>>,
    pub(crate) report: RecoveryReport,
}

impl Drop for Array {
    /// Its tasks hold it and its executor: a test that makes many arrays would keep them all.
    fn drop(&mut self) {
        self.executor.abandon();
    }
}

/// Members, superblocks and time, which outlive a run.
pub(crate) struct World {
    pub(crate) shape: Shape,
    pub(crate) devices: Vec<MemoryZones>,
    pub(crate) saved: Rc<RefCell<Saved>>,
    pub(crate) platform: Rc<Platform>,
    pub(crate) events: Arc<parking_lot::Mutex<Vec<Event>>>,
    /// Members that a start does not get to see.
    pub(crate) absent: Vec<usize>,
}

impl World {
    pub(crate) fn new(shape: Shape, seed: u64) -> Self {
        let zoned = ZonedInfo {
            access: shape.access,
            zones: shape.zones,
            zone_bytes: shape.zone_blocks * BLOCK_BYTES as u64,
            capacity_bytes: shape.zone_blocks * BLOCK_BYTES as u64,
            record_bytes_max: 64 << 12,
            metadata_bytes: if shape.carrier == Carrier::Oob { 64 } else { 0 },
            open_max: shape.open_max.filter(|_| shape.access != ZoneAccess::Placed),
            active_max: shape.open_max.filter(|_| shape.access != ZoneAccess::Placed),
        };
        let device = |member: usize| MemoryZones::new(zoned.clone(), 4096, &format!("member {member}"));
        let saved = Saved {
            epoch: 0,
            numbers: 1,
            checkpoint: None,
            states: vec![MemberState::InSync; shape.members],
            uuids: (1..=shape.members as u8).map(|member| [member; 16]).collect(),
            growing: false,
        };
        let chance = RefCell::new(Chance(seed));
        let platform = Platform { now_ns: Cell::new(0), timers: RefCell::new(Vec::new()), chance };
        World {
            shape,
            devices: (0..shape.members).map(device).collect(),
            saved: Rc::new(RefCell::new(saved)),
            platform: Rc::new(platform),
            events: Arc::default(),
            absent: Vec::new(),
        }
    }

    pub(crate) fn config(&self) -> LogConfig {
        let shape = &self.shape;
        let capacity_blocks = shape.zone_blocks as u32;
        let access = match shape.access {
            ZoneAccess::Append => Access::Append,
            ZoneAccess::Sequential => Access::Sequential,
            ZoneAccess::Placed => Access::Placed,
        };
        LogConfig {
            set_uuid: [7; 16],
            devices: {
                let mut slots = self.saved.borrow().uuids.clone();
                slots.resize(2 * shape.members, [0; 16]);
                slots
            },
            level: shape.level,
            access,
            carrier: shape.carrier,
            zones: shape.zones,
            capacity_blocks,
            record_blocks: shape.record_blocks,
            group: 3,
            open: shape.open,
            band_blocks: 12,
            map: MapShape::new(shape.entry, 2 * shape.members as u8, capacity_blocks)
                .expect("a shape")
                .with_groups_of(shape.map_entries),
            logical_blocks: shape.logical_blocks,
            fill_wait: FillWait::Auto,
            zone_limits: vec![shape.open_max; 2 * shape.members],
            record_bytes_max: 64 << 12,
            map_limits: shape.map_limits,
            reclaim: shape.reclaim,
        }
    }

    /// Begins a start. The future is the recovery; what it returns serves once the epoch is called served.
    pub(crate) fn begin(
        &self,
        executor: &Executor,
    ) -> impl Future<Output = Result<Array, RecoverError>> + use<> {
        let (epoch, numbers, states) = {
            let mut saved = self.saved.borrow_mut();
            saved.epoch += 1;
            let first = saved.numbers;
            saved.numbers += 8;
            (saved.epoch, first..saved.numbers, saved.states.clone())
        };
        let events = Arc::clone(&self.events);
        let device = |(slot, device): (usize, &MemoryZones)| {
            (!self.absent.contains(&slot)).then(|| Rc::new(device.clone()))
        };
        let devices: Vec<Option<Rc<MemoryZones>>> =
            self.devices.iter().take(states.len()).enumerate().map(device).collect();
        let mut states = states;
        self.absent.iter().for_each(|&slot| states[slot] = MemberState::Missing);
        let start = Start {
            config: self.config(),
            devices: devices.clone(),
            states,
            growing: self.saved.borrow().growing,
            epoch: Epoch { number: epoch, random: self.platform.random() as u32 },
            numbers,
            checkpoint: self.saved.borrow().checkpoint,
            counters: vec![Counters::default(), Counters::default()].into(),
            events: Box::new(move |event| events.lock().push(event)),
        };
        let (executor, pool) = (executor.clone(), Pool::new(1 << 20));
        let platform: Rc<dyn LogPlatform> = Rc::new(Rc::clone(&self.platform));
        let saved = Rc::clone(&self.saved);
        async move {
            let (shared, report) = recover(start, &executor, &pool, &platform).await?;
            // The epoch has served: a member that is missing now is stale from here on.
            saved.borrow_mut().states = shared.members.shown();
            let shard = |shard| {
                let (shared, pool, platform) = (Arc::clone(&shared), Arc::clone(&pool), Rc::clone(&platform));
                let port = LogPort::new(shared, shard, executor.clone(), pool, platform, devices.clone());
                Rc::new(LogSet::serve(port))
            };
            let (set, second) = (shard(0), shard(1));
            executor.spawn(async move {
                loop {
                    let version = shared.members.metadata_wanted().await;
                    let numbers = shared.table.numbers_to_reserve();
                    let states = shared.members.shown();
                    let uuids = (0..states.len()).map(|slot| shared.members.uuid(slot)).collect();
                    let checkpoint = shared.checkpoints.said();
                    let growing =
                        shared.members.is_growing() || shared.members.listed() > shared.members.width();
                    *saved.borrow_mut() = Saved { epoch, numbers, checkpoint, states, uuids, growing };
                    shared.table.numbers_are_reserved(numbers);
                    shared.members.metadata_written(version);
                }
            });
            Ok(Array { executor, set, second, report })
        }
    }

    /// Starts the array and waits until it serves.
    pub(crate) fn start(&self) -> Result<Array, RecoverError> {
        let executor = Executor::new(Box::new(|| {}));
        let starting = executor.spawn_with_result(self.begin(&executor));
        self.run(&executor);
        starting.try_take().expect("the start ends")
    }

    /// Runs until nothing is ready and no timer is left.
    pub(crate) fn run(&self, executor: &Executor) {
        loop {
            executor.run_ready(usize::MAX);
            if !self.advance() {
                break;
            }
        }
    }

    /// Moves time on to the next timer. False if there is none.
    pub(crate) fn advance(&self) -> bool {
        let mut timers = self.platform.timers.borrow_mut();
        let Some(next) = timers.iter().map(|(at_ns, _)| *at_ns).min() else { return false };
        self.platform.now_ns.set(self.platform.now_ns.get().max(next));
        let due: Vec<Waker> =
            timers.iter().filter(|(at_ns, _)| *at_ns <= next).map(|(_, waker)| waker.clone()).collect();
        timers.retain(|(at_ns, _)| *at_ns > next);
        drop(timers);
        due.into_iter().for_each(Waker::wake);
        true
    }

    /// Ends the program: what is in flight takes effect, and drives keep all that they were told.
    pub(crate) fn kill(&self, executor: &Executor) {
        executor.abandon();
        self.platform.timers.borrow_mut().clear();
    }

    /// What every zone of every member holds, with its state and pointer.
    pub(crate) fn image(&self) -> Vec<(Zone, Vec<u8>)> {
        self.devices.iter().flat_map(MemoryZones::image).collect()
    }

    /// Cuts the power: what is in flight is made or not, what is not durable is kept or not, by `chance`.
    pub(crate) fn cut(&self, executor: &Executor, chance: &mut Chance) {
        let kept = chance.below(3); // nothing, some, all
        for (_, device) in self.devices.iter().enumerate().filter(|(slot, _)| !self.absent.contains(slot)) {
            let mut own = Chance(chance.next());
            // A future that is dropped lets its operation take effect: half of them get an error instead.
            device.set_fault(move |_, _| own.one_in(2).then_some(DeviceErrorKind::Gone));
        }
        executor.abandon();
        self.platform.timers.borrow_mut().clear();
        for device in &self.devices {
            device.set_fault(|_, _| None);
            let (mut pointers, mut blocks) = (Chance(chance.next()), Chance(chance.next()));
            let block = BLOCK_BYTES as u64;
            let pointer = |_, durable: u64, written: u64| match kept {
                0 => durable,
                1 => durable + pointers.below((written - durable) / block + 1) * block,
                _ => written,
            };
            device.cut(pointer, |_| kept == 2 || kept == 1 && blocks.one_in(2));
        }
    }
}

impl Array {
    pub(crate) fn write(&self, world: &World, block: u64, data: &[u8]) -> Result<(), VolumeError> {
        let set = Rc::clone(&self.set);
        let data = Gather::from(Slice::from_bytes(data));
        self.wait(world, async move { set.write(block * BLOCK_BYTES as u64, data, false).await })
    }

    pub(crate) fn read(&self, world: &World, block: u64, blocks: u64) -> Result<Vec<u8>, VolumeError> {
        let set = Rc::clone(&self.set);
        let (at, bytes) = (block * BLOCK_BYTES as u64, blocks * BLOCK_BYTES as u64);
        let data = self.wait(world, async move { set.read(at, bytes).await })?;
        let mut read = vec![0; data.len()];
        data.copy_to(&mut read);
        Ok(read)
    }

    pub(crate) fn flush(&self, world: &World) -> Result<(), VolumeError> {
        let set = Rc::clone(&self.set);
        self.wait(world, async move { set.flush().await })
    }

    /// A device gets the slot of a member that is out of use, and takes part when it has been run. The number of its columns
    /// that count as they are.
    pub(crate) fn join(&self, world: &mut World, slot: usize, device: MemoryZones, uuid: [u8; 16]) -> usize {
        let joining = self.start_join(world, slot, device, uuid);
        world.run(&self.executor);
        joining.try_take().expect("the exchange ends")
    }

    /// Begins what [`Array::join`] does.
    pub(crate) fn start_join(
        &self,
        world: &mut World,
        slot: usize,
        device: MemoryZones,
        uuid: [u8; 16],
    ) -> JoinHandle<usize> {
        world.devices[slot] = device.clone();
        let sets = [Rc::clone(&self.set), Rc::clone(&self.second)];
        let joining = async move {
            for set in &sets {
                set.renew().await;
                set.0.port.detach(slot);
            }
            let (port, device) = (&sets[0].0.port, Rc::new(device));
            let joining = Joining { slot, uuid, device: Rc::clone(&device) };
            let adopted = exchange(port, &joining).await.expect("the device works");
            sets.iter().for_each(|set| set.0.port.attach(slot, Rc::clone(&device)));
            port.shared.members.join(slot);
            for set in &sets {
                set.renew().await;
            }
            adopted
        };
        self.executor.spawn_with_result(joining)
    }

    /// Begins to grow the array by these devices. True: it has them, and rewrites what is narrower.
    pub(crate) fn start_grow(
        &self,
        world: &mut World,
        added: Vec<(MemoryZones, [u8; 16])>,
    ) -> JoinHandle<bool> {
        let sets = [Rc::clone(&self.set), Rc::clone(&self.second)];
        let first = sets[0].0.port.shared.members.width();
        world.devices.truncate(first);
        world.devices.extend(added.iter().map(|(device, _)| device.clone()));
        let growing = async move {
            let (port, width) = (&sets[0].0.port, first + added.len());
            let members = &port.shared.members;
            for (slot, (device, uuid)) in (first..).zip(added) {
                let device = Rc::new(device);
                let joining = Joining { slot, uuid, device: Rc::clone(&device) };
                exchange(port, &joining).await.expect("the device works");
                sets.iter().for_each(|set| set.0.port.attach(slot, Rc::clone(&device)));
            }
            members.list(width);
            members.settled().await.expect("superblocks are one value");
            let has_grown = members.widen(width);
            port.shared.space.want();
            for set in &sets {
                set.renew().await;
            }
            has_grown
        };
        self.executor.spawn_with_result(growing)
    }

    pub(crate) fn stop(&self, world: &World) -> Result<(), VolumeError> {
        let set = Rc::clone(&self.set);
        let second = Rc::clone(&self.second);
        self.wait(world, async move { second.stop().await.and(set.stop().await) })
    }

    pub(crate) fn wait<T: 'static>(&self, world: &World, future: impl Future<Output = T> + 'static) -> T {
        let handle = self.executor.spawn_with_result(future);
        world.run(&self.executor);
        handle.try_take().expect("the request ends")
    }

    /// Live blocks of the table are those that the map names, and what else is kept.
    pub(crate) fn self_check(&self) {
        let shared = &self.set.0.port.shared;
        let mut live: BTreeMap<u32, u64> = BTreeMap::new();
        for (_, entry) in shared.map.mapped() {
            if let layout::zoned::MapEntry::At { place, .. } = entry {
                *live.entry(place.slot).or_default() += 1;
                assert!(shared.table.get(place.slot).is_some(), "a mapped segment is there (Z-I4)");
            }
        }
        for (slot, mapped) in live {
            assert!(shared.table.live(slot) >= mapped, "slot {slot}: every mapped block is counted");
        }
    }
}

/// A block whose every 8 bytes tell which write it is of.
pub(crate) fn pattern(block: u64, version: u64) -> Vec<u8> {
    let word = (block << 32 | version).to_le_bytes();
    word.iter().copied().cycle().take(BLOCK_BYTES).collect()
}
