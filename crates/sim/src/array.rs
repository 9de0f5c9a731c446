//! An array in the world: members, the superblocks as far as they matter here, and one engine a shard.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use engine::buffer::Pool;
use engine::counters::CounterTotals;
use engine::executor::Executor;
use engine::members::{MemberState, Members};
use engine::stripe::intent::Intent;
use engine::stripe::stripe_table::StripeTable;
use engine::stripe::{Attached, Shared, StripeSet};
use engine::volume::{ArrayVolume, VolumeMode};
use layout::geometry::{Geometry, Level};

use crate::disk::{Disk, Guard, SimDevice};
use crate::oracle::Oracle;
use crate::scenario::Scenario;
use crate::world::{Ended, World};

/// What outlives a crash: members, what their superblocks say, and what the oracle knows.
pub(crate) struct Machine {
    pub(crate) world: Rc<World>,
    pub(crate) scenario: Scenario,
    pub(crate) guard: Rc<Guard>,
    pub(crate) disks: RefCell<Vec<Option<Rc<Disk>>>>,
    next_disk: Cell<u32>,
    pub(crate) recorded: RefCell<Recorded>,
    pub(crate) oracle: RefCell<Oracle>,
    pub(crate) excuses: Excuses,
}

/// What the superblocks say.
#[derive(Clone)]
pub(crate) struct Recorded {
    pub(crate) states: Vec<MemberState>,
    pub(crate) disks: Vec<Option<Rc<Disk>>>,
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
}

impl Machine {
    pub(crate) fn new(world: Rc<World>, scenario: Scenario) -> Rc<Self> {
        let geometry = scenario.geometry;
        let oracle =
            Oracle::new(geometry.array_bytes() / u64::from(scenario.unit), !geometry.level().is_striped());
        let members = geometry.members() as usize;
        let machine = Rc::new(Machine {
            world,
            scenario,
            guard: Rc::new(Guard::default()),
            disks: RefCell::new(vec![None; members]),
            next_disk: Cell::new(0),
            recorded: RefCell::new(Recorded {
                states: vec![MemberState::InSync; members],
                disks: Vec::new(),
            }),
            oracle: RefCell::new(oracle),
            excuses: Excuses::default(),
        });
        let disks: Vec<_> = (0..members).map(|_| Some(machine.new_disk(false))).collect();
        machine.recorded.borrow_mut().disks.clone_from(&disks);
        *machine.disks.borrow_mut() = disks;
        if machine.geometry().losses_survived() == 0 {
            machine.guard.exempt.set(1);
        }
        machine
    }

    pub(crate) fn geometry(&self) -> &Geometry {
        &self.scenario.geometry
    }

    pub(crate) fn unit(&self) -> u64 {
        u64::from(self.scenario.unit)
    }

    /// A device of the right size: zeroes, or with `foreign` contents of its own.
    pub(crate) fn new_disk(&self, foreign: bool) -> Rc<Disk> {
        let number = self.next_disk.replace(self.next_disk.get() + 1);
        let random = self.world.random();
        let data_offset = random.pick(&[0, 4096, 1 << 20]);
        let abilities = self.scenario.abilities(random);
        let area = (data_offset, self.geometry().member_bytes(), self.scenario.unit);
        let disk = Disk::new((number, foreign), &self.world, &self.guard, area, abilities);
        disk.faults.borrow_mut().transient_one_in = self.scenario.faults.transient_one_in;
        disk
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

    /// Number of the stripe of a byte, or of a mirror's place.
    pub(crate) fn stripe_of(&self, offset: u64) -> u64 {
        offset / self.scenario.spot_bytes()
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
    /// Slots with a recovery on its way.
    pub(crate) recovering: RefCell<BTreeSet<u32>>,
    /// Repairs on their way: the superblocks stay dirty.
    pub(crate) repairs: Cell<u64>,
    /// The superblocks are about to say clean.
    pub(crate) closing: Cell<bool>,
}

pub(crate) struct Shard {
    pub(crate) executor: Executor,
    pub(crate) set: Rc<StripeSet<SimDevice>>,
    pub(crate) volume: ArrayVolume<SimDevice>,
}

impl Array {
    /// Assembles what the superblocks say.
    pub(crate) fn assemble(machine: &Rc<Machine>) -> Rc<Self> {
        let (scenario, world) = (&machine.scenario, Rc::clone(&machine.world));
        world.counts.borrow_mut().assemblies += 1;
        let heard = Arc::clone(&world.events);
        let sink = Box::new(move |event| heard.lock().expect("one thread").push(event));
        let states = machine.recorded.borrow().states.clone();
        let members = Members::new(scenario.geometry, &states, sink);
        let dirty = machine.guard.dirty.get();
        let used = scenario.geometry.level() != Level::Raid0;
        let intent = Intent::new(scenario.shards, used, dirty);
        let mut shared =
            Shared::new(scenario.geometry, members, intent, scenario.shards, scenario.cache_bytes);
        let own = Arc::get_mut(&mut shared).expect("not shared yet");
        own.table = StripeTable::with_entries(scenario.table_entries);
        own.two_phase = scenario.two_phase.into();
        own.loads.set_clock(Arc::clone(&world.ticks) as _);
        own.loads.set_policy(scenario.policy);
        own.loads.set_avoid_slow(scenario.avoid_slow);
        own.loads.set_parity_agrees(!dirty);
        let shards = (0..scenario.shards).map(|shard| Shard::new(machine, &shared, shard)).collect();
        Rc::new(Array {
            machine: Rc::clone(machine),
            world,
            shared,
            shards,
            requests_left: Cell::new(0),
            bytes_left: Cell::new(0),
            clients: Cell::new(0),
            open: RefCell::default(),
            next_open: Cell::new(0),
            recovering: RefCell::default(),
            repairs: Cell::new(0),
            closing: Cell::new(false),
        })
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

impl Shard {
    fn new(machine: &Machine, shared: &Arc<Shared>, shard: usize) -> Self {
        let executor = Executor::new(Box::new(|| {}));
        let recorded = machine.recorded.borrow();
        let attached = |(state, disk): (&MemberState, &Option<Rc<Disk>>)| {
            let disk = disk.as_ref().filter(|_| *state == MemberState::InSync)?;
            Some(attach(disk))
        };
        let members = recorded.states.iter().zip(&recorded.disks).map(attached).collect();
        let set = StripeSet::new(Arc::clone(shared), shard, Pool::new(1 << 20), executor.clone(), members);
        let mode = Arc::new(VolumeMode::default());
        let volume = ArrayVolume::new(Rc::clone(&set), machine.scenario.unit, mode);
        Shard { executor, set, volume }
    }
}

pub(crate) fn attach(disk: &Rc<Disk>) -> Attached<SimDevice> {
    Attached { device: SimDevice(Rc::clone(disk)), data_offset_bytes: disk.data_offset }
}
