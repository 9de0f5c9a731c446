//! An array of test members as the program runs it: assembled from what the members hold, with manager and writer.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use engine::array::assemble::{Candidate, Filter, assemble};
use engine::array::generations::find_record;
use engine::array::manager::Manager;
use engine::array::platform::Platform;
use engine::array::redo::Repair;
use engine::array::scrub::ScrubState;
use engine::array::start::{Assembled, Consistency, Inspection, Policy, Prepared, start as start_array};
use engine::array::volume::{ArrayVolume, VolumeMode};
use engine::buffer::Pool;
use engine::events::Event;
use engine::executor::Executor;
use engine::in_place::InPlace;
use engine::limits::LOOK_NS;
use engine::members::Attached;
use engine::members::load::{Clock, UpdatePolicy};
use engine::stripe::Shared;
use engine::stripe::locks::Locks;
use engine::stripe::redo::RedoContents;
use layout::geometry::{Geometry, Layout, Level};
use layout::md_superblock::{DeviceRole, MinorVersion, NewArray, NewBitmap, NewMember, Superblock};
use layout::units::{DeviceOffset, Sectors, Slot};

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
    data_offset: DeviceOffset,
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
        role: DeviceRole::Active(Slot::new(i.into())),
    };
    let created = array.create(&(0..members).map(device).collect::<Vec<_>>()).expect("an array");
    let disk = |(i, superblock): (usize, &Superblock)| {
        let disk = Drive::new(world, format!("m{i}"), DEVICE_BYTES);
        disk.poke(superblock.offset(), &superblock.encode(512));
        disk
    };
    let disks = created.superblocks.iter().enumerate().map(disk).collect();
    Machine {
        world: Rc::clone(world),
        disks: RefCell::new(disks),
        data_offset: DeviceOffset::new(data_offset),
    }
}

pub struct TestPlatform {
    world: Rc<World>,
    sets: Vec<Rc<InPlace<TestDevice>>>,
    steps_of_a_look: u64,
    now_ns: Cell<u64>,
}

impl Platform<TestDevice> for TestPlatform {
    async fn attach(&self, slot: Slot, device: Option<(Rc<TestDevice>, DeviceOffset)>) {
        for set in &self.sets {
            self.world.later(|| ()).await;
            set.devices()
                .attach(slot, device.as_ref().map(|(device, data_offset)| attached(&device.0, *data_offset)));
        }
    }

    async fn attach_replacement(&self, _: Slot, _: Option<(Rc<TestDevice>, DeviceOffset)>) {
        unreachable!("nothing is replaced here");
    }

    async fn promote_replacement(&self, _: Slot) {
        unreachable!("nothing is replaced here");
    }

    fn now_ns(&self) -> u64 {
        self.now_ns.get()
    }

    fn now_unix_s(&self) -> u64 {
        1
    }

    fn new_id(&self) -> u64 {
        self.world.below(u64::MAX) + 1
    }

    /// Many steps between two looks, as in life.
    async fn sleep(&self, ns: u64) {
        let until_ns = self.now_ns.get() + ns;
        for _ in 0..self.steps_of_a_look * ns.div_ceil(LOOK_NS) {
            self.world.later(|| ()).await;
        }
        self.now_ns.set(self.now_ns.get().max(until_ns));
    }

    async fn pace(&self, _bytes: u64) {
        self.world.later(|| ()).await;
    }

    fn keep_scrub(&self, _state: &ScrubState) {}
}

fn attached(disk: &Rc<Drive>, data_offset: DeviceOffset) -> Attached<TestDevice> {
    Attached { device: TestDevice(Rc::clone(disk)), data_offset }
}

/// A running array.
pub struct Array {
    pub world: Rc<World>,
    pub geometry: Geometry,
    pub shared: Arc<Shared>,
    pub executors: Vec<Executor>,
    pub volumes: Vec<Rc<ArrayVolume<InPlace<TestDevice>>>>,
    pub manager: Rc<Manager<TestDevice, TestPlatform>>,
    pub events: Arc<Mutex<Vec<Event>>>,
    pub repair: Repair,
}

/// Starts what the living disks hold, as the program does; what the log asks for is done when it returns.
pub fn start(machine: &Machine, force: bool) -> Array {
    let disks: Vec<Rc<Drive>> =
        machine.disks.borrow().iter().filter(|disk| !disk.is_dead()).cloned().collect();
    let candidate = |disk: &Rc<Drive>| {
        let superblock =
            Superblock::parse(&disk.peek(DeviceOffset::new(4096), 4096), MinorVersion::V1_2, DEVICE_BYTES);
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
    let read = |candidate: usize, offset, bytes| Ok(disks[candidate].peek(offset, bytes));
    let inspection = Inspection { candidates: &candidates, assembly: &assembly, read };
    let assembled = Assembled::read(&inspection, policy(force)).unwrap_or_else(|refusal| {
        panic!("{refusal:?}: {:?}", assembly.verdicts);
    });
    let (events, repair) = (Arc::new(Mutex::new(Vec::new())), assembled.redo().repair.clone());
    let heard = Arc::clone(&events);
    let sink = Box::new(move |event| heard.lock().unwrap().push(event));
    let prepared = Prepared::new(assembled, sink, Arc::new(NoClock));
    let shared = Arc::clone(prepared.shared());
    shared.set_verify(true);
    let executors: Vec<Executor> = (0..SHARDS).map(|_| Executor::new(Box::new(|| {}))).collect();
    let set = |shard: usize| {
        let attach = |slot: &Option<usize>| Some(attached(&disks[(*slot)?], machine.data_offset));
        let members = assembly.slots.iter().map(attach).collect();
        InPlace::new(Arc::clone(&shared), shard, Pool::new(1 << 20), executors[shard].clone(), members)
    };
    let sets: Vec<Rc<InPlace<TestDevice>>> = (0..SHARDS).map(set).collect();
    let platform = TestPlatform {
        world: Rc::clone(&machine.world),
        sets: sets.clone(),
        steps_of_a_look: machine.world.below(60) + 3,
        now_ns: Cell::new(0),
    };
    let starting = {
        let (set, device) = (Rc::clone(&sets[0]), |_: usize| None);
        executors[0]
            .spawn_with_result(async move { start_array(prepared, set, platform, device, None).await })
    };
    let running = run(&machine.world, &executors, starting).expect("replay");
    let mode = Arc::new(VolumeMode::default());
    let volume =
        |set: &Rc<InPlace<TestDevice>>| Rc::new(ArrayVolume::new(Rc::clone(set), 512, Arc::clone(&mode)));
    let (volumes, manager) = (sets.iter().map(volume).collect(), Rc::clone(running.manager()));
    let geometry = shared.geometry;
    Array { world: Rc::clone(&machine.world), geometry, shared, executors, volumes, manager, events, repair }
}

fn policy(force: bool) -> Policy {
    Policy {
        read_only: false,
        force,
        consistency: Consistency::Marked,
        redo_log: Some(RedoContents::Lean),
        logical_block_bytes: 512,
        shards: SHARDS,
        parity_cache_bytes: 1 << 20,
        locks: Locks::default(),
        two_phase: true,
        update_policy: UpdatePolicy::default(),
        avoid_slow: false,
    }
}

/// No delay matters here.
struct NoClock;

impl Clock for NoClock {
    fn now_ns(&self) -> u64 {
        0
    }
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
