//! An array in the world: devices with superblocks on them, and what the program makes of them when it starts: one
//! engine a shard, the writer of the superblocks and the manager, all of them the program's own.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use engine::array::assemble::{Assembly, Candidate, Refusal};
use engine::array::manager::Manager;
use engine::array::redo::Repair;
use engine::array::running::Running;
use engine::array::start::{Assembled, Prepared, start as start_array};
use engine::array::superblock_writer::SuperblockWriter;
use engine::array::volume::{ArrayVolume, VolumeMode};
use engine::buffer::Pool;
use engine::counters::CounterTotals;
use engine::executor::Executor;
use engine::in_place::InPlace;
use engine::members::Attached;
use engine::stripe::Shared;
use engine::stripe::stripe_table::StripeTable;
use layout::geometry::Geometry;

use crate::check;
use crate::disk::cache::Survivors;
use crate::disk::{Disk, SimDevice};
use crate::oracle::Oracle;
use crate::platform::SimPlatform;
use crate::random::Random;
use crate::recorded::Guard;
use crate::scenario::Scenario;
use crate::start::{self, How};
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
    /// A run since the last repair by hand wrote nothing down before stripes changed: no record says which parity agrees.
    pub(crate) unmarked: Cell<bool>,
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
            unmarked: Cell::new(false),
        });
        machine.guard.watch(&machine);
        machine
    }

    /// An array starts. Where the redo log was in force when the power went, no stripe may be in doubt (invariant 10).
    fn starts(&self, how: How, repair: &Repair) {
        let counts = &mut *self.world.counts.borrow_mut();
        counts.logs_replayed += u64::from(!repair.records.is_empty());
        counts.records_replayed += repair.records.len() as u64;
        counts.logs_voided += u64::from(repair.in_force && (how.unlogged || how.unmarked) && !how.read_only);
        counts.started_unmarked += u64::from(how.unmarked);
        let stripes = repair.doubts.iter().flat_map(|range| range.first..range.end);
        self.excuses.doubted.borrow_mut().extend(stripes);
        if repair.doubts.is_empty() || how.read_only {
            return; // a read-only start doubts what it may not make good
        }
        counts.started_in_doubt += 1;
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

    /// An id that no generation of this machine has yet.
    pub(crate) fn new_generation(&self) -> u64 {
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

    /// The program refused to start the array: not while failures are within the level.
    pub(crate) fn refused(&self, refusal: &Refusal) {
        self.world.note(Note::Words(format!("refused: {refusal:?}")));
        if !self.excuses.beyond.get() {
            self.world.fail(format!("invariant 6: the array does not start: {refusal:?}"));
        }
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
    pub(crate) writer: Rc<SuperblockWriter<SimDevice>>,
    pub(crate) manager: Rc<Manager<SimDevice, SimPlatform>>,
    pub(crate) running: Running<SimDevice, SimPlatform>,
    /// An earlier run wrote nothing down, and nothing was repaired since.
    pub(crate) after_unmarked: bool,
}

pub(crate) struct Shard {
    pub(crate) executor: Executor,
    pub(crate) set: Rc<InPlace<SimDevice>>,
    pub(crate) volume: ArrayVolume<InPlace<SimDevice>>,
}

impl Array {
    /// Starts the array that the devices make, as the program does. None: that is no array, and the world knows.
    pub(crate) fn assemble(machine: &Rc<Machine>, how: How) -> Option<Result<Rc<Self>, Refusal>> {
        machine.world.counts.borrow_mut().assemblies += 1;
        let candidates = machine.candidates();
        let assembly = machine.one_array(&candidates, how.force)?;
        machine.world.note(Note::Words(format!("assembly: {:?}; {how:?}", assembly.verdicts)));
        match assembly.start {
            Err(refusal) => Some(Err(refusal)),
            Ok(()) => Self::start(machine, &candidates, &assembly, how).map(Ok),
        }
    }

    fn start(
        machine: &Rc<Machine>,
        candidates: &[Candidate],
        assembly: &Assembly,
        how: How,
    ) -> Option<Rc<Self>> {
        let (scenario, world) = (&machine.scenario, Rc::clone(&machine.world));
        assert_eq!(assembly.geometry, Some(scenario.geometry), "the geometry that was created");
        let connected = machine.connected();
        let disk = |slot: &Option<usize>| slot.map(|index| Rc::clone(&connected[index]));
        *machine.disks.borrow_mut() = assembly.slots.iter().map(disk).collect();
        machine.coming.borrow_mut().fill(None);
        let inspection = start::inspection(machine, candidates, assembly);
        let assembled =
            Assembled::read(&inspection, how.policy(scenario)).expect("a member that was written");
        let after_unmarked = machine.unmarked.replace(machine.unmarked.get() || how.unmarked);
        machine.starts(how, &assembled.redo().repair);
        let prepared = share(machine, assembled);
        let shared = Arc::clone(prepared.shared());
        let shards: Vec<Shard> =
            (0..scenario.shards).map(|shard| Shard::new(machine, &shared, shard, how)).collect();
        let running = run_start(machine, prepared, &shards)?;
        check::after_cut(machine); // also of what the redo log wrote again
        let manager = Rc::clone(running.manager());
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
            writer: Rc::clone(manager.writer()),
            manager,
            running,
            after_unmarked,
        }))
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
        self.shared.redo.in_force() && !self.has_doubts() && self.shared.consistency.unpersisted().is_none()
    }

    /// Whether any stripe is in doubt.
    pub(crate) fn has_doubts(&self) -> bool {
        self.shared.consistency.stripes_in_doubt(self.shared.geometry.stripes()) > 0
    }

    /// Ends the process: no task runs any more.
    pub(crate) fn kill(&self) {
        self.shared.self_check(); // between two steps of any task
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
            self.shared.consistency.suspects(),
        )
    }
}

/// The engine's own start, until it is done and no further. None: it failed, and the world knows.
fn run_start(
    machine: &Rc<Machine>,
    prepared: Prepared,
    shards: &[Shard],
) -> Option<Running<SimDevice, SimPlatform>> {
    let sets = shards.iter().map(|shard| Rc::clone(&shard.set)).collect();
    let (set, platform) = (Rc::clone(&shards[0].set), SimPlatform::new(machine, sets));
    let connected = machine.connected();
    let device = move |candidate: usize| Some(Rc::new(SimDevice(Rc::clone(&connected[candidate]))));
    let starting = async move { start_array(prepared, set, platform, device, None).await };
    let started = shards[0].executor.spawn_with_result(starting);
    let executors: Vec<Executor> = shards.iter().map(|shard| shard.executor.clone()).collect();
    loop {
        match started.try_take() {
            Some(Ok(running)) => return Some(running),
            Some(Err(error)) => {
                machine.world.fail(format!("what a crash left half done is not made good: {error}"));
                return None;
            }
            None if machine.world.run(&executors, 1) == Ended::Steps => {}
            None => {
                machine.world.fail("the start of the array does not end".to_string());
                return None;
            }
        }
    }
}

/// What all shards share, with a stripe table that is full now and then.
fn share(machine: &Machine, assembled: Assembled) -> Prepared {
    let (scenario, world) = (&machine.scenario, &machine.world);
    let heard = Arc::clone(&world.events);
    let sink = Box::new(move |event| heard.lock().expect("one thread").push(event));
    let is_spread = assembled.bitmap().map(|bitmap| bitmap.image.superblock().mapping().is_spread());
    let mut prepared = Prepared::new(assembled, sink, Arc::clone(&world.ticks) as _);
    let own = prepared.shared_mut();
    own.table = StripeTable::with_entries(scenario.table_entries, own.intent.locks());
    own.read_turn_bytes = READ_TURN_BYTES;
    own.set_verify(true);
    let bitmap = is_spread.map(|is_spread| (own.intent.locks(), is_spread));
    world.counts.borrow_mut().add_bitmap(bitmap);
    prepared
}

impl Shard {
    fn new(machine: &Machine, shared: &Arc<Shared>, shard: usize, how: How) -> Self {
        let executor = Executor::new(Box::new(|| {}));
        let members = machine.disks.borrow().iter().map(|disk| disk.as_ref().map(attach)).collect();
        let set = InPlace::new(Arc::clone(shared), shard, Pool::new(1 << 20), executor.clone(), members);
        let mode = Arc::new(VolumeMode { read_only: how.read_only.into(), ..VolumeMode::default() });
        let volume = ArrayVolume::new(Rc::clone(&set), machine.scenario.unit, mode);
        Shard { executor, set, volume }
    }
}

pub(crate) fn attach(disk: &Rc<Disk>) -> Attached<SimDevice> {
    Attached { device: SimDevice(Rc::clone(disk)), data_offset_bytes: disk.places.data }
}
