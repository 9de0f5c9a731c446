//! An array in the world: devices with superblocks on them, and what the program makes of them when it starts: one
//! engine a shard, the keeper of the superblocks and the manager, all of them the program's own.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use engine::array::assemble::{Assembly, Refusal};
use engine::array::bad_block_log;
use engine::array::bitmap::Bitmaps;
use engine::array::keeper::{Keeper, Spare};
use engine::array::redo::{Repair, replay, take_doubts};
use engine::array::start_bitmap::StartBitmap;
use engine::array::state::Manager;
use engine::buffer::Pool;
use engine::counters::CounterTotals;
use engine::executor::Executor;
use engine::members::{MemberState, Members};
use engine::stripe::intent::Intent;
use engine::stripe::stripe_table::StripeTable;
use engine::stripe::{Attached, Shared, StripeSet};
use engine::volume::{ArrayVolume, VolumeMode};
use layout::geometry::{Geometry, Level};
use layout::md_superblock::Superblock;

use crate::disk::cache::Survivors;
use crate::disk::{Disk, SimDevice};
use crate::oracle::Oracle;
use crate::platform::SimPlatform;
use crate::random::Random;
use crate::recorded::Guard;
use crate::scenario::{Consistency, Scenario};
use crate::start::{self, Slots};
use crate::trace::Note;
use crate::world::{Ended, World};

/// Small, so that neighbouring reads of a mirror go to different copies.
const READ_TURN_BYTES: u64 = 8 << 10;

/// What outlives a crash: devices with all that is on them, and what the oracle knows.
pub(crate) struct Machine {
    pub(crate) world: Rc<World>,
    pub(crate) scenario: Scenario,
    pub(crate) guard: Rc<Guard>,
    /// The device in each slot of the running array.
    pub(crate) disks: RefCell<Vec<Option<Rc<Disk>>>>,
    /// The device that is to replace the one in each slot.
    pub(crate) coming: RefCell<Vec<Option<Rc<Disk>>>>,
    /// Every device there is.
    pub(crate) all_disks: RefCell<Vec<Rc<Disk>>>,
    pub(crate) oracle: RefCell<Oracle>,
    pub(crate) excuses: Excuses,
    /// Ids of generations that were drawn.
    generations: Cell<u64>,
}

/// What has happened that a client's error may come from.
#[derive(Default)]
pub(crate) struct Excuses {
    /// More members failed than the level survives, or superblocks cannot be written.
    pub(crate) beyond: Cell<bool>,
    /// A member had no space.
    pub(crate) full: Cell<bool>,
    /// Stripes, or places of a mirror, that a failed request touched.
    pub(crate) hurt: RefCell<BTreeSet<u64>>,
    /// Stripes whose missing chunks nobody knows, since a crash with members missing.
    pub(crate) doubted: RefCell<BTreeSet<u64>>,
    /// Stripes of which nobody can make a block: parity may not have agreed when a place could not be read.
    pub(crate) lost: RefCell<BTreeSet<u64>>,
    /// Blocks of a mirror whose copies a crash left different: until the resync is over, or a write with FUA, the first counts.
    pub(crate) uneven: RefCell<BTreeSet<u64>>,
    /// A member lies: what it holds is compared when that is over.
    pub(crate) lying: Cell<bool>,
    /// When the power went every write was logged before it touched its stripe, and no stripe was in doubt.
    pub(crate) all_logged: Cell<bool>,
}

impl Machine {
    pub(crate) fn new(world: Rc<World>, scenario: Scenario) -> Rc<Self> {
        let geometry = scenario.geometry;
        let oracle =
            Oracle::new(geometry.array_bytes() / u64::from(scenario.unit), !geometry.level().is_striped());
        let machine = Self::empty(world, scenario, oracle);
        machine.create();
        machine
    }

    /// A machine without devices.
    pub(crate) fn empty(world: Rc<World>, scenario: Scenario, oracle: Oracle) -> Rc<Self> {
        let members = scenario.geometry.members() as usize;
        let machine = Rc::new(Machine {
            world,
            scenario,
            guard: Rc::new(Guard::default()),
            disks: RefCell::new(vec![None; members]),
            coming: RefCell::new(vec![None; members]),
            all_disks: RefCell::default(),
            oracle: RefCell::new(oracle),
            excuses: Excuses::default(),
            generations: Cell::new(0),
        });
        machine.guard.watch(&machine);
        machine
    }

    /// An array was started whose crash left stripes in doubt, or none. Where the log was in force when the power went
    /// none may be (invariant 10).
    fn start_in_doubt(&self, repair: &Repair) {
        let stripes = repair.doubts.iter().flat_map(|range| range.first..range.end);
        self.excuses.doubted.borrow_mut().extend(stripes);
        if repair.doubts.is_empty() {
            return;
        }
        self.world.counts.borrow_mut().started_in_doubt += 1;
        if self.excuses.all_logged.get() {
            let (doubts, reason) = (&repair.doubts, &repair.reason);
            self.world.fail(format!(
                "invariant 10: the redo log was in force, and after the crash stripes are in doubt: {doubts:?}, {reason:?}"
            ));
        }
    }

    pub(crate) fn geometry(&self) -> &Geometry {
        &self.scenario.geometry
    }

    pub(crate) fn unit(&self) -> u64 {
        u64::from(self.scenario.unit)
    }

    /// Devices that are plugged in.
    pub(crate) fn connected(&self) -> Vec<Rc<Disk>> {
        self.all_disks.borrow().iter().filter(|disk| disk.connected.get()).cloned().collect()
    }

    fn new_generation(&self) -> u64 {
        self.generations.set(self.generations.get() + 1);
        self.generations.get()
    }

    /// The power goes: on all devices, and for the oracle.
    pub(crate) fn cut_power(&self, survives: impl Fn(u64, &Random) -> Survivors) {
        self.all_disks.borrow().iter().for_each(|disk| disk.cut(&survives));
        self.oracle.borrow_mut().cut();
    }

    /// Member and offset of each copy of a byte of the array; one for levels without copies.
    pub(crate) fn places(&self, offset: u64) -> Vec<(u32, u64)> {
        let geometry = self.geometry();
        if !geometry.level().is_striped() {
            let copies = geometry.copies(offset, self.unit());
            return copies.places.iter().map(|place| (place.member, place.member_offset)).collect();
        }
        let place = geometry.locate(offset);
        let member = geometry.data_member(place.stripe, place.data_index);
        vec![(member, geometry.member_offset(place.stripe) + u64::from(place.chunk_offset))]
    }

    /// Whether a place of a member's data area holds a copy of something.
    pub(crate) fn holds_copy(&self, slot: u32, at: u64) -> bool {
        let mut offsets = (0..self.geometry().array_bytes()).step_by(self.unit() as usize);
        offsets.any(|offset| self.places(offset).contains(&(slot, at)))
    }

    /// Number of the stripe of a byte, or of a mirror's place.
    pub(crate) fn stripe_of(&self, offset: u64) -> u64 {
        offset / self.scenario.spot_bytes()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.guard.forget();
    }
}

/// An assembled array.
pub(crate) struct Array {
    pub(crate) machine: Rc<Machine>,
    pub(crate) world: Rc<World>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) shards: Vec<Shard>,
    pub(crate) requests_left: Cell<u64>,
    pub(crate) bytes_left: Cell<u64>,
    pub(crate) clients: Cell<u64>,
    /// Requests and other work that has not ended, in words.
    pub(crate) open: RefCell<BTreeMap<u64, String>>,
    next_open: Cell<u64>,
    /// Resyncs of some stripes that the operator asked for.
    pub(crate) resyncs: Cell<u64>,
    pub(crate) keeper: Rc<Keeper<SimDevice>>,
    pub(crate) manager: Rc<Manager<SimDevice, SimPlatform>>,
}

pub(crate) struct Shard {
    pub(crate) executor: Executor,
    pub(crate) set: Rc<StripeSet<SimDevice>>,
    pub(crate) volume: ArrayVolume<SimDevice>,
}

impl Array {
    /// Starts the array that the devices make, as the program does. None: that is no array, and the world knows.
    pub(crate) fn assemble(machine: &Rc<Machine>, force: bool) -> Option<Result<Rc<Self>, Refusal>> {
        machine.world.counts.borrow_mut().assemblies += 1;
        let candidates = machine.candidates();
        let assembly = machine.one_array(&candidates, force)?;
        machine.world.note(Note::Words(format!("assembly: {:?}", assembly.verdicts)));
        match assembly.start {
            Err(refusal) => Some(Err(refusal)),
            Ok(()) => Self::start(machine, &assembly, force).map(Ok),
        }
    }

    fn start(machine: &Rc<Machine>, assembly: &Assembly, force: bool) -> Option<Rc<Self>> {
        let (scenario, world) = (&machine.scenario, Rc::clone(&machine.world));
        assert_eq!(assembly.geometry, Some(scenario.geometry), "the geometry that was created");
        let (connected, candidates) = (machine.connected(), machine.candidates());
        let superblock =
            |index: usize| candidates[index].superblock.clone().expect("a member has a superblock");
        let disk = |slot: &Option<usize>| slot.map(|index| Rc::clone(&connected[index]));
        *machine.disks.borrow_mut() = assembly.slots.iter().map(disk).collect();
        machine.coming.borrow_mut().fill(None);
        let superblocks: Vec<Option<Superblock>> =
            assembly.slots.iter().map(|slot| slot.map(superblock)).collect();
        let (bitmap, found) = {
            let slots = Slots { disks: &machine.disks.borrow(), superblocks: &superblocks };
            let bitmap = scenario.has_bitmap().then(|| start::bitmap(machine, assembly, &slots)).flatten();
            let found = start::redo(machine, assembly, &slots, bitmap.as_ref(), force);
            (bitmap, found)
        };
        let shared = share(machine, assembly, &superblocks, bitmap.as_ref());
        let shards: Vec<Shard> =
            (0..scenario.shards).map(|shard| Shard::new(machine, &shared, shard)).collect();
        let set = Rc::clone(&shards[0].set);
        replay_now(machine, &shards, &found.repair)?;
        take_doubts(&set, &found.repair);
        machine.start_in_doubt(&found.repair);
        let bitmap =
            bitmap.map(|start| Bitmaps::new(Rc::clone(&set), start.image, &superblocks, &start.whole));
        let clock = Rc::clone(&world);
        let now = Box::new(move || clock.now());
        let events = assembly.events;
        let keeper = Keeper::new(Rc::clone(&set), superblocks, events, found.resync_from_bytes, now);
        let drawing = Rc::clone(machine);
        keeper.keep_generations(&assembly.generations, Box::new(move || drawing.new_generation()));
        if scenario.redo_log && !(scenario.unlogged_starts && world.random().one_in(2)) {
            keeper.keep_redo_log(&found.repair, &found.bitmaps);
        }
        for &spare in &assembly.spares {
            let device = Rc::new(SimDevice(Rc::clone(&connected[spare])));
            keeper.spares().borrow_mut().push(Spare { superblock: superblock(spare), device });
        }
        if let Some(bitmap) = bitmap {
            keeper.keep_bitmap(Rc::clone(&bitmap));
            shards[0].executor.spawn(async move { bitmap.run().await });
        }
        let sets = shards.iter().map(|shard| Rc::clone(&shard.set)).collect();
        let platform = SimPlatform::new(machine, sets);
        let manager = Manager::new(set, Rc::clone(&keeper), platform, None, false);
        for &(index, slot) in &assembly.replacements {
            manager.resume_later(slot, Rc::new(SimDevice(Rc::clone(&connected[index]))), superblock(index));
        }
        Some(Rc::new(Array {
            machine: Rc::clone(machine),
            world,
            shared,
            shards,
            requests_left: Cell::new(0),
            bytes_left: Cell::new(0),
            clients: Cell::new(0),
            open: RefCell::default(),
            next_open: Cell::new(0),
            resyncs: Cell::new(0),
            keeper,
            manager,
        }))
    }

    /// Starts the keeper of the superblocks alone: nothing is repaired, and nothing called clean, unasked.
    pub(crate) fn start_keeper(&self) {
        let keeper = Rc::clone(&self.keeper);
        self.shards[0].executor.spawn(async move { keeper.run().await });
    }

    /// Starts whoever looks after the array.
    pub(crate) fn start_manager(&self) {
        self.start_keeper();
        let manager = Rc::clone(&self.manager);
        self.shards[0].executor.spawn(async move { manager.run().await });
        if self.keeper.bitmap().is_some() {
            let clearing = clear_bits(Rc::clone(&self.manager), Rc::clone(&self.machine));
            self.shards[0].executor.spawn(clearing);
        }
    }

    /// Runs the world until nothing is left to do, or `steps` steps were made. What is idle with work left is stuck.
    pub(crate) fn run(&self, steps: u64) -> Ended {
        let executors: Vec<Executor> = self.shards.iter().map(|shard| shard.executor.clone()).collect();
        let ended = self.world.run(&executors, steps);
        let what = match ended {
            Ended::Idle if !self.open.borrow().is_empty() => "stuck: nothing can run",
            Ended::Circles => "the world runs in circles",
            _ => return ended,
        };
        self.world.fail(self.unfinished(what));
        Ended::Failed
    }

    /// Runs a piece of work on a shard, known by `words` while it lasts.
    pub(crate) fn spawn(
        self: &Rc<Self>,
        shard: usize,
        words: impl Into<String>,
        work: impl Future<Output = ()> + 'static,
    ) {
        let open = self.open(words.into());
        let array = Rc::clone(self);
        self.shards[shard].executor.spawn(async move {
            work.await;
            array.close(open);
        });
    }

    pub(crate) fn open(&self, words: String) -> u64 {
        let open = self.next_open.replace(self.next_open.get() + 1);
        self.open.borrow_mut().insert(open, words);
        open
    }

    pub(crate) fn close(&self, open: u64) {
        self.open.borrow_mut().remove(&open);
    }

    pub(crate) fn any_shard(&self) -> usize {
        self.world.random().below(self.shards.len() as u64) as usize
    }

    /// Whether a crash now leaves no stripe in doubt.
    pub(crate) fn is_all_logged(&self) -> bool {
        self.shared.redo.in_force() && !self.has_doubts() && self.shared.doubts.untold().is_none()
    }

    /// Whether any stripe is in doubt.
    pub(crate) fn has_doubts(&self) -> bool {
        self.shared.doubts.count(self.shared.geometry.stripes()) > 0
    }

    /// Ends the process: no task runs any more.
    pub(crate) fn kill(&self) {
        self.shards.iter().for_each(|shard| shard.executor.abandon());
        self.open.borrow_mut().clear();
        let totals = CounterTotals::of(&self.shared.counters);
        let counts = &mut *self.world.counts.borrow_mut();
        counts.add_engine(&totals);
        counts.cache_hits += self.shared.cache.counters().hits;
    }

    fn unfinished(&self, what: &str) -> String {
        let open = self.open.borrow();
        let members = &self.shared.members;
        format!(
            "{what}, and this has not ended:\n    {}\n  stripes owned {}, members {:?}, metadata {} \
             (settled {}), suspects {}",
            open.values().cloned().collect::<Vec<_>>().join("\n    "),
            self.shared.table.active(),
            members.states(),
            members.metadata_version(),
            members.is_settled(),
            self.shared.suspects(),
        )
    }
}

/// Clears bits of idle chunks now and then, as the program does every few seconds.
async fn clear_bits(manager: Rc<Manager<SimDevice, SimPlatform>>, machine: Rc<Machine>) {
    while !manager.is_stopping() {
        let ticks = machine.world.random().between(1, 2 * machine.scenario.look);
        machine.world.look_after(ticks).await;
        manager.keeper().clear_idle_bits().await;
    }
}

/// Makes the logged writes again before anything else begins. None: that failed, and the world knows.
fn replay_now(machine: &Machine, shards: &[Shard], repair: &Repair) -> Option<()> {
    if repair.records.is_empty() {
        return Some(());
    }
    machine.world.counts.borrow_mut().logs_replayed += 1;
    machine.world.counts.borrow_mut().records_replayed += repair.records.len() as u64;
    let (set, own) = (Rc::clone(&shards[0].set), repair.clone());
    let handle = shards[0].executor.spawn_with_result(async move { replay(&set, &own).await });
    let executors: Vec<Executor> = shards.iter().map(|shard| shard.executor.clone()).collect();
    machine.world.run(&executors, u64::MAX);
    match handle.try_take() {
        Some(Ok(())) => Some(()),
        result => {
            machine.world.fail(format!("what a crash left half done is not made good: {result:?}"));
            None
        }
    }
}

/// What all shards share, as the program makes it.
fn share(
    machine: &Machine,
    assembly: &Assembly,
    superblocks: &[Option<Superblock>],
    bitmap: Option<&StartBitmap>,
) -> Arc<Shared> {
    let (scenario, world) = (&machine.scenario, &machine.world);
    let heard = Arc::clone(&world.events);
    let sink = Box::new(move |event| heard.lock().expect("one thread").push(event));
    let states = assembly.states();
    let members = Members::new(scenario.geometry, &states, sink);
    for (slot, superblock) in (0u32..).zip(superblocks) {
        if let Some((superblock, disk)) =
            superblock.as_ref().zip(machine.disks.borrow()[slot as usize].as_ref())
        {
            let (bad, room) = (start::bad_blocks(disk, superblock), bad_block_log::room(superblock));
            members.begin_with(slot, superblock.corrected_reads().into(), bad, room);
        }
        let recovered = superblock.as_ref().and_then(Superblock::recovery_offset);
        if let (MemberState::Recovering, Some(offset)) = (states[slot as usize], recovered) {
            let lacks_marked =
                bitmap.zip(superblock.as_ref()).is_some_and(|(bitmap, of)| bitmap.lets_catch_up(of));
            members.resume_recovery(slot, offset.bytes(), lacks_marked);
        }
    }
    let is_used = scenario.geometry.level() != Level::Raid0 && scenario.consistency != Consistency::None;
    let intent = match bitmap {
        Some(start) => start.intent(assembly.resync_from_bytes, scenario.bitmap.0),
        None => Intent::new(scenario.shards, is_used, false),
    };
    let mut shared = Shared::new(scenario.geometry, members, intent, scenario.shards, scenario.cache_bytes);
    let own = Arc::get_mut(&mut shared).expect("not shared yet");
    own.table = StripeTable::with_entries(scenario.table_entries, own.intent.locks());
    let is_spread = |start: &StartBitmap| start.image.superblock().mapping().is_spread();
    world.counts.borrow_mut().add_bitmap(bitmap.map(|start| (own.intent.locks(), is_spread(start))));
    own.two_phase = scenario.two_phase.into();
    own.read_turn_bytes = READ_TURN_BYTES;
    if let Some(start) = bitmap {
        start.limit_doubts(own);
    }
    own.loads.set_clock(Arc::clone(&world.ticks) as _);
    own.loads.set_policy(scenario.policy);
    own.loads.set_avoid_slow(scenario.avoid_slow);
    shared
}

impl Shard {
    fn new(machine: &Machine, shared: &Arc<Shared>, shard: usize) -> Self {
        let executor = Executor::new(Box::new(|| {}));
        let members = machine.disks.borrow().iter().map(|disk| disk.as_ref().map(attach)).collect();
        let set = StripeSet::new(Arc::clone(shared), shard, Pool::new(1 << 20), executor.clone(), members);
        let mode = Arc::new(VolumeMode::default());
        let volume = ArrayVolume::new(Rc::clone(&set), machine.scenario.unit, mode);
        Shard { executor, set, volume }
    }
}

pub(crate) fn attach(disk: &Rc<Disk>) -> Attached<SimDevice> {
    Attached { device: SimDevice(Rc::clone(disk)), data_offset_bytes: disk.places.data }
}
