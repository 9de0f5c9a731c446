//! An array of test members as the program runs it: assembled from what the members hold, with manager and keeper.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use engine::array::assemble::{Assembly, Candidate, Filter, assemble};
use engine::array::generations::find_record;
use engine::array::keeper::Keeper;
use engine::array::redo::{Repair, Situation, decide, member_of, read_log, replay, take_doubts};
use engine::array::scrub::ScrubState;
use engine::array::state::{Manager, Platform};
use engine::buffer::Pool;
use engine::events::Event;
use engine::executor::Executor;
use engine::members::{MemberState, Members};
use engine::stripe::intent::Intent;
use engine::stripe::{Attached, Shared, StripeSet};
use engine::volume::{ArrayVolume, VolumeMode};
use layout::geometry::{Geometry, Layout, Level};
use layout::md_superblock::{DeviceRole, MinorVersion, NewArray, NewBitmap, NewMember, Superblock};
use layout::redo_log::BitmapExtent;
use layout::units::Sectors;

use crate::device::{Drive, TestDevice};
use crate::world::World;

/// Room for a log of four slots or a few more.
pub const DATA_OFFSET: u64 = 300 << 10;
pub const CHUNK: u32 = 16 << 10;
pub const STRIPES: u64 = 12;
pub const DEVICE_BYTES: u64 = DATA_OFFSET + STRIPES * CHUNK as u64;
pub const SHARDS: usize = 2;

/// What outlives a crash.
pub struct Machine {
    pub world: Rc<World>,
    pub disks: RefCell<Vec<Rc<Drive>>>,
}

/// A new array whose parity agrees.
pub fn create(world: &Rc<World>, level: Level, members: u16, data_offset: u64) -> Machine {
    let array = NewArray {
        minor: MinorVersion::V1_2,
        set_uuid: [7; 16],
        name: "test".into(),
        ctime_s: 1,
        level,
        layout: Layout::default_for(level),
        chunk_bytes: CHUNK,
        raid_disks: u32::from(members),
        bitmap: NewBitmap::None,
        member_bytes: Some(STRIPES * u64::from(CHUNK)),
        data_offset: Some(Sectors(data_offset / 512)),
        clean: true,
    };
    let device = |i: u16| NewMember {
        device_bytes: DEVICE_BYTES,
        device_uuid: [i as u8 + 1; 16],
        role: DeviceRole::Active(i),
    };
    let created = array.create(&(0..members).map(device).collect::<Vec<_>>()).expect("an array");
    let disk = |(i, superblock): (usize, &Superblock)| {
        let disk = Drive::new(world, format!("m{i}"), DEVICE_BYTES);
        disk.poke(superblock.offset(), &superblock.encode(512));
        disk
    };
    let disks = created.superblocks.iter().enumerate().map(disk).collect();
    Machine { world: Rc::clone(world), disks: RefCell::new(disks) }
}

pub struct TestPlatform {
    world: Rc<World>,
    sets: RefCell<Vec<Rc<StripeSet<TestDevice>>>>,
    looks: Cell<u64>,
}

impl Platform<TestDevice> for TestPlatform {
    async fn attach(&self, slot: u32, device: Option<(Rc<TestDevice>, u64)>) {
        let sets = self.sets.borrow().clone();
        for set in sets {
            self.world.later(|| ()).await;
            set.attach(
                slot,
                device.as_ref().map(|(device, data_offset_bytes)| attached(&device.0, *data_offset_bytes)),
            );
        }
    }

    async fn attach_replacement(&self, _: u32, _: Option<(Rc<TestDevice>, u64)>) {
        unreachable!("nothing is replaced here");
    }

    async fn promote_replacement(&self, _: u32) {
        unreachable!("nothing is replaced here");
    }

    async fn pause(&self) {
        // Many steps between two looks, as in life.
        for _ in 0..self.looks.get() {
            self.world.later(|| ()).await;
        }
    }

    async fn pace(&self, _bytes: u64) {
        self.world.later(|| ()).await;
    }

    fn keep_scrub(&self, _state: &ScrubState) {}
}

fn attached(disk: &Rc<Drive>, data_offset_bytes: u64) -> Attached<TestDevice> {
    Attached { device: TestDevice(Rc::clone(disk)), data_offset_bytes }
}

/// A running array.
pub struct Array {
    pub world: Rc<World>,
    pub geometry: Geometry,
    pub shared: Arc<Shared>,
    pub executors: Vec<Executor>,
    pub volumes: Vec<Rc<ArrayVolume<TestDevice>>>,
    pub manager: Rc<Manager<TestDevice, TestPlatform>>,
    pub events: Arc<Mutex<Vec<Event>>>,
    pub repair: Repair,
}

/// Assembles what the living disks hold; what the log asks for is done when it returns.
pub fn start(machine: &Machine, force: bool) -> Array {
    let disks: Vec<Rc<Drive>> =
        machine.disks.borrow().iter().filter(|disk| !disk.is_dead()).cloned().collect();
    let candidate = |disk: &Rc<Drive>| {
        let superblock = Superblock::parse(&disk.peek(4096, 4096), MinorVersion::V1_2, DEVICE_BYTES);
        let read = |offset, bytes| Some(disk.peek(offset, bytes));
        let record = |superblock| find_record(superblock, DEVICE_BYTES, read);
        Candidate {
            name: "disk".to_string(),
            size_bytes: DEVICE_BYTES,
            generations: superblock.as_ref().ok().and_then(record),
            superblock: superblock.map_err(|error| error.to_string()),
        }
    };
    let candidates: Vec<Candidate> = disks.iter().map(candidate).collect();
    let assembly = assemble(&candidates, &Filter { force, ..Filter::default() }).arrays.remove(0);
    if let Err(refusal) = &assembly.start {
        panic!("{refusal}: {:?}", assembly.verdicts);
    }
    let geometry = assembly.geometry.expect("a geometry");
    let states = assembly.states();
    let superblock =
        |slot: &Option<usize>| slot.map(|i| candidates[i].superblock.clone().expect("a superblock"));
    let superblocks: Vec<Option<Superblock>> = assembly.slots.iter().map(superblock).collect();
    let repair = find(&machine.world, &assembly.slots, &states, &superblocks, &disks, |repair_states| {
        situation(&assembly, repair_states, force)
    });
    let events = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&events);
    let members = Members::new(geometry, &states, Box::new(move |event| heard.lock().unwrap().push(event)));
    for (slot, superblock) in (0u32..).zip(&superblocks) {
        if let Some(offset) = superblock.as_ref().and_then(Superblock::recovery_offset) {
            members.resume_recovery(slot, offset.bytes(), false);
        }
    }
    let intent = Intent::new(SHARDS, true, false);
    let shared = Shared::new(geometry, members, intent, SHARDS, 1 << 20);
    let executors: Vec<Executor> = (0..SHARDS).map(|_| Executor::new(Box::new(|| {}))).collect();
    let set = |shard: usize| {
        let attach = |(slot, superblock): (&Option<usize>, &Option<Superblock>)| {
            Some(attached(&disks[(*slot)?], superblock.as_ref()?.data_offset().bytes()))
        };
        let members = assembly.slots.iter().zip(&superblocks).map(attach).collect();
        StripeSet::new(Arc::clone(&shared), shard, Pool::new(1 << 20), executors[shard].clone(), members)
    };
    let sets: Vec<Rc<StripeSet<TestDevice>>> = (0..SHARDS).map(set).collect();
    run(&machine.world, &executors, {
        let (set, repair) = (Rc::clone(&sets[0]), repair.clone());
        executors[0].spawn_with_result(async move { replay(&set, &repair).await.expect("replay") })
    });
    take_doubts(&sets[0], &repair);
    let resync = repair.resync_from_bytes(&situation(&assembly, &states, force));
    let keeper = Keeper::new(Rc::clone(&sets[0]), superblocks, assembly.events, resync, Box::new(|| 1));
    let world = Rc::clone(&machine.world);
    keeper.keep_generations(&assembly.generations, Box::new(move || world.below(u64::MAX) + 1));
    keeper.keep_redo_log(&repair, &vec![BitmapExtent::Absent; states.len()]);
    let platform = TestPlatform {
        world: Rc::clone(&machine.world),
        sets: RefCell::new(sets.clone()),
        looks: Cell::new(machine.world.below(60) + 3),
    };
    let manager = Manager::new(Rc::clone(&sets[0]), Rc::clone(&keeper), platform, None, false);
    let (managing, mode) = (Rc::clone(&manager), Arc::new(VolumeMode::default()));
    executors[0].spawn(async move { keeper.run().await });
    executors[0].spawn(async move { managing.run().await });
    let volume =
        |set: &Rc<StripeSet<TestDevice>>| Rc::new(ArrayVolume::new(Rc::clone(set), 512, Arc::clone(&mode)));
    let volumes = sets.iter().map(volume).collect();
    Array { world: Rc::clone(&machine.world), geometry, shared, executors, volumes, manager, events, repair }
}

fn situation<'a>(assembly: &Assembly, states: &'a [MemberState], force: bool) -> Situation<'a> {
    let geometry = assembly.geometry.expect("a geometry");
    let resync_from_bytes = assembly.resync_from_bytes;
    Situation { geometry, states, events: assembly.events, resync_from_bytes, bitmap: None, force }
}

fn find<'a>(
    world: &Rc<World>,
    slots: &[Option<usize>],
    states: &'a [MemberState],
    superblocks: &[Option<Superblock>],
    disks: &[Rc<Drive>],
    situation: impl FnOnce(&'a [MemberState]) -> Situation<'a>,
) -> Repair {
    let executor = Executor::new(Box::new(|| {}));
    let mut logs = Vec::new();
    for (slot, superblock) in superblocks.iter().enumerate() {
        let (Some(superblock), Some(disk)) = (superblock, slots[slot]) else { continue };
        if states[slot] != MemberState::InSync {
            continue;
        }
        let Some(member) = member_of(superblock, BitmapExtent::Absent) else { continue };
        let disk = Rc::clone(&disks[disk]);
        logs.push(run(world, std::slice::from_ref(&executor), {
            executor.spawn_with_result(async move {
                read_log(slot as u32, &member, async |offset, bytes| Ok(disk.peek(offset, bytes))).await
            })
        }));
    }
    decide(&situation(states), &logs)
}

/// Runs the world until this is done.
#[allow(clippy::needless_pass_by_value)] // the end of the handle's life
pub fn run<T>(world: &World, executors: &[Executor], handle: engine::executor::JoinHandle<T>) -> T {
    for _ in 0..5_000_000 {
        if let Some(value) = handle.try_take() {
            return value;
        }
        assert!(world.step(executors), "stuck: nothing can run");
    }
    panic!("the world runs in circles");
}

impl Array {
    /// Ends the process.
    pub fn crash(&self) {
        self.executors.iter().for_each(Executor::abandon);
        self.world.stop();
    }
}
