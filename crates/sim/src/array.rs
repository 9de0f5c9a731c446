//! An array that runs on a machine: one engine a shard, the superblock writer and the manager, all of them the program's
//! own and started by the engine's own start.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
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

use crate::disk::{Disk, SimDevice};
use crate::fabric::Fabric;
use crate::ledgers::Keeper;
use crate::machine::Machine;
use crate::platform::SimPlatform;
use crate::recorded;
use crate::start::{self, How};
use crate::trace::Note;
use crate::world::{Ended, World};

/// Small, so that neighbouring reads of a mirror go to different copies.
const READ_TURN_BYTES: u64 = 8 << 10;

/// An assembled array.
pub(crate) struct Array {
    pub(crate) machine: Rc<Machine>,
    /// The host that it runs on.
    pub(crate) host: u64,
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
    ledgers: Keeper,
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
        let candidates = recorded::candidates(machine);
        let assembly = recorded::one_array(machine, &candidates, how.force)?;
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
        let mut assembled =
            Assembled::read(&inspection, how.policy(scenario)).expect("a member that was written");
        let after_unmarked = machine.unmarked.replace(machine.unmarked.get() || how.unmarked);
        note_start(machine, how, &assembled.redo().repair);
        let ledger = |slot: &Option<usize>| connected[(*slot)?].gate.listed();
        match assembled.use_ledgers(|| assembly.slots.iter().map(ledger).collect()) {
            Ok(()) => world.counts.borrow_mut().ledgers_used += 1,
            Err(why) => world.note(Note::Words(format!("no ledgers: {why}"))),
        }
        let prepared = share(machine, assembled);
        let shared = Arc::clone(prepared.shared());
        let records =
            scenario.network.is_some_and(|plan| plan.ledgers) && shared.geometry.parity_chunks() > 0;
        *machine.epochs.borrow_mut() = records.then(|| Arc::clone(shared.consistency.keep_epochs()));
        connected.iter().for_each(|disk| machine.connect(disk));
        if let Some(plan) = scenario.fabric {
            let epochs = machine.epochs.borrow().clone();
            Fabric::attach(&world, plan, &machine.hosts, epochs, &connected);
            shared.peers.enable(plan.is_auto);
            shared.peers.set_up(true);
        }
        let shards: Vec<Shard> =
            (0..scenario.shards).map(|shard| Shard::new(machine, &shared, shard, how)).collect();
        let running = run_start(machine, prepared, &shards)?;
        recorded::check_after_cut(machine); // also of what the redo log wrote again
        let manager = Rc::clone(running.manager());
        Some(Rc::new(Array {
            machine: Rc::clone(machine),
            host: machine.hosts.current(),
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
            ledgers: Keeper::default(),
        }))
    }

    /// Runs the world until nothing is left to do, or `steps` steps were made. What is idle with work left is stuck.
    pub(crate) fn run(&self, steps: u64) -> Ended {
        let ended = self.world.run(&self.machine.executors(self.executors()), steps);
        let what = match ended {
            Ended::Idle if !self.open.borrow().is_empty() => "stuck: nothing can run",
            Ended::Circles => "the world runs in circles",
            _ => return ended,
        };
        self.world.fail(self.unfinished(what));
        Ended::Failed
    }

    /// Some messages by which members' targets come to record what is under way.
    pub(crate) fn keep_ledgers(&self, messages: usize) {
        (0..messages).for_each(|_| self.ledgers.step(&self.shared, &self.machine, self.host));
    }

    /// Runs a piece of work on a shard, known by `words` while it lasts.
    pub(crate) fn spawn<T>(
        self: &Rc<Self>,
        shard: usize,
        words: impl Into<String>,
        work: impl Future<Output = T> + 'static,
    ) {
        let open = self.open(words.into());
        let array = Rc::clone(self);
        self.shards[shard].executor.spawn(async move {
            let _ = work.await;
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

    pub(crate) fn executors(&self) -> impl Iterator<Item = Executor> {
        self.shards.iter().map(|shard| shard.executor.clone())
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

/// An array starts. Where the redo log was in force when the power went, no stripe may be in doubt (invariant 10).
fn note_start(machine: &Machine, how: How, repair: &Repair) {
    let counts = &mut *machine.world.counts.borrow_mut();
    counts.logs_replayed += u64::from(!repair.records.is_empty());
    counts.records_replayed += repair.records.len() as u64;
    counts.logs_voided += u64::from(repair.in_force && (how.unlogged || how.unmarked) && !how.read_only);
    counts.started_unmarked += u64::from(how.unmarked);
    let stripes = repair.doubts.iter().flat_map(|range| range.first..range.end);
    machine.excuses.doubted.borrow_mut().extend(stripes);
    if repair.doubts.is_empty() || how.read_only {
        return; // a read-only start doubts what it may not make good
    }
    counts.started_in_doubt += 1;
    if machine.excuses.all_logged.get() {
        let (doubts, reason) = (&repair.doubts, &repair.reason);
        machine.world.fail(format!(
                "invariant 10: the redo log was in force, and after the crash stripes are in doubt: {doubts:?}, {reason:?}"
            ));
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
    let device = move |candidate: usize| Some(Rc::new(SimDevice::new(&connected[candidate])));
    let starting = async move { start_array(prepared, set, platform, device, None).await };
    let started = shards[0].executor.spawn_with_result(starting);
    let executors = machine.executors(shards.iter().map(|shard| shard.executor.clone()));
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
    Attached { device: SimDevice::new(disk), data_offset: disk.places.data }
}
