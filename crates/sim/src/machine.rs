//! What outlives a crash: the devices with all that is on them, and what the oracle knows.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use engine::array::assemble::Refusal;
use engine::executor::Executor;
use engine::fabric::epochs::Epochs;
use layout::geometry::Geometry;
use layout::units::{ArrayOffset, Slot};

use crate::disk::cache::Survivors;
use crate::disk::{Disk, Watch};
use crate::network::{self, Hosts};
use crate::oracle::Oracle;
use crate::outcome::Outcome;
use crate::pages::Pages;
use crate::random::Random;
use crate::scenario::{Consistency, Scenario};
use crate::trace::Note;
use crate::world::World;

/// One machine, which runs one array at a time.
pub(crate) struct Machine {
    pub(crate) world: Rc<World>,
    pub(crate) scenario: Scenario,
    pub(crate) watch: Rc<Watch>,
    /// What a crash could leave, as of a generation of the superblocks.
    pub(crate) outcomes: RefCell<Option<(u64, Rc<Vec<Outcome>>)>>,
    /// The device in each slot of the running array.
    pub(crate) disks: RefCell<Vec<Option<Rc<Disk>>>>,
    /// The device that is to replace the one in each slot.
    pub(crate) coming: RefCell<Vec<Option<Rc<Disk>>>>,
    /// Every device there is.
    pub(crate) all_disks: RefCell<Vec<Rc<Disk>>>,
    pub(crate) oracle: RefCell<Oracle>,
    pub(crate) excuses: Excuses,
    /// Ids of generations that were drawn.
    pub(crate) generations: Cell<u64>,
    /// The operator has asked to fail a member, which takes its time.
    pub(crate) is_failing_one: Cell<bool>,
    /// Which host has the members, where they are on other machines.
    pub(crate) hosts: Rc<Hosts>,
    /// The present host's writes that are under way, where members' targets record them.
    pub(crate) epochs: RefCell<Option<Arc<Epochs>>>,
    /// Shards of hosts from which the members were taken.
    pub(crate) fenced: RefCell<Vec<Executor>>,
    /// A run since the last repair by hand wrote nothing down before stripes changed: no record says which parity agrees.
    pub(crate) unmarked: Cell<bool>,
}

/// What excuses an error that a client gets, or a check that would fail otherwise.
#[derive(Default)]
pub(crate) struct Excuses {
    /// More members failed than the level survives, or superblocks cannot be written.
    pub(crate) beyond: Cell<bool>,
    /// A member had no space.
    pub(crate) full: Cell<bool>,
    /// Stripes, or places of a mirror, that a failed request touched.
    pub(crate) hurt: RefCell<BTreeSet<u64>>,
    /// Stripes in doubt since a crash with members missing: their missing chunks cannot be reconstructed.
    pub(crate) doubted: RefCell<BTreeSet<u64>>,
    /// Stripes with a block that cannot be reconstructed: parity may not have agreed when a place could not be read.
    pub(crate) lost: RefCell<BTreeSet<u64>>,
    /// Blocks of a mirror whose copies a crash left different. The first copy counts until the resync is over or a write with
    /// FUA replaces the block.
    pub(crate) uneven: RefCell<BTreeSet<u64>>,
    /// Another host takes the members.
    pub(crate) fenced: Cell<bool>,
    /// A member lies on purpose: its contents are compared once the trial is over.
    pub(crate) lying: Cell<bool>,
    /// When the power went every write was logged before it touched its stripe, and no stripe was in doubt.
    pub(crate) all_logged: Cell<bool>,
}

impl Machine {
    /// A machine without devices.
    pub(crate) fn empty(world: Rc<World>, scenario: Scenario, oracle: Oracle) -> Rc<Self> {
        let members = scenario.geometry.members() as usize;
        Rc::new(Machine {
            world,
            scenario,
            watch: Rc::default(),
            outcomes: RefCell::default(),
            disks: RefCell::new(vec![None; members]),
            coming: RefCell::new(vec![None; members]),
            all_disks: RefCell::default(),
            oracle: RefCell::new(oracle),
            excuses: Excuses::default(),
            generations: Cell::new(0),
            is_failing_one: Cell::new(false),
            hosts: Rc::default(),
            epochs: RefCell::default(),
            fenced: RefCell::default(),
            unmarked: Cell::new(false),
        })
    }

    /// What runs: an array's shards, and those of fenced hosts.
    pub(crate) fn executors(&self, own: impl Iterator<Item = Executor>) -> Vec<Executor> {
        own.chain(self.fenced.borrow().iter().cloned()).collect()
    }

    /// The processes of fenced hosts end.
    pub(crate) fn kill_fenced(&self) {
        let fenced = std::mem::take(&mut *self.fenced.borrow_mut());
        fenced.iter().for_each(Executor::abandon);
    }

    /// Gives a device a connection of the current host, if members are on other machines.
    pub(crate) fn connect(&self, disk: &Rc<Disk>) {
        if let Some(plan) = self.scenario.network {
            network::connect(&self.world, plan, &self.hosts, self.epochs.borrow().clone(), disk);
        }
    }

    pub(crate) fn geometry(&self) -> &Geometry {
        &self.scenario.geometry
    }

    pub(crate) fn unit(&self) -> u64 {
        u64::from(self.scenario.unit)
    }

    /// Whether the array has parity or copies, and keeps records by which they agree again after a crash.
    pub(crate) fn promises_redundancy(&self) -> bool {
        self.geometry().losses_survived() > 0
            && self.scenario.consistency != Consistency::None
            && !self.unmarked.get()
    }

    /// A device of the right size: zeroes, or with `foreign` contents of its own.
    pub(crate) fn new_disk(&self, foreign: bool) -> Rc<Disk> {
        let number = u32::try_from(self.all_disks.borrow().len()).expect("few devices");
        let places = self.scenario.places();
        let contents = Pages::new(places.size, foreign.then_some(number));
        let abilities = self.scenario.abilities(self.world.random());
        let disk = Disk::new(number, contents, (&self.world, &self.watch), places, abilities);
        disk.faults.borrow_mut().transient_one_in = self.scenario.faults.transient_one_in;
        disk.faults.borrow_mut().flushes_lie = self.scenario.faults.flushes_lie;
        self.all_disks.borrow_mut().push(Rc::clone(&disk));
        self.watch.metadata_changed();
        disk
    }

    /// Devices that are plugged in.
    pub(crate) fn connected(&self) -> Vec<Rc<Disk>> {
        self.all_disks.borrow().iter().filter(|disk| disk.is_connected()).cloned().collect()
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

    /// The host's process ends; devices and their targets go on.
    pub(crate) fn lose_host(&self) {
        self.all_disks.borrow().iter().for_each(|disk| disk.lose_host());
        self.oracle.borrow_mut().cut();
    }

    /// Member and offset of each copy of a byte of the array; one for levels without copies.
    pub(crate) fn places(&self, offset: u64) -> Vec<(Slot, u64)> {
        let geometry = self.geometry();
        if !geometry.level().is_striped() {
            let copies = geometry.copies(ArrayOffset::new(offset), self.unit());
            return copies.places.iter().map(|place| (place.member, place.member_offset.get())).collect();
        }
        let place = geometry.locate(ArrayOffset::new(offset));
        let member = geometry.data_member(place.stripe, place.data_index);
        vec![(member, geometry.member_offset(place.stripe).get() + u64::from(place.chunk_offset))]
    }

    /// Where a block is, for a message.
    pub(crate) fn where_is(&self, block: u64) -> String {
        let offset = block * self.unit();
        match self.geometry().level().is_striped() {
            true => {
                let place = self.geometry().locate(ArrayOffset::new(offset));
                format!("(stripe {} chunk {} row {})", place.stripe, place.data_index, place.chunk_offset)
            }
            false => format!("(offset {offset})"),
        }
    }

    /// Whether a place of a member's data area holds a copy of something.
    pub(crate) fn holds_copy(&self, slot: Slot, at: u64) -> bool {
        let mut offsets = (0..self.geometry().array_bytes()).step_by(self.unit() as usize);
        offsets.any(|offset| self.places(offset).contains(&(slot, at)))
    }

    /// The program refused to start the array, which it may not while failures are within the level (invariant 6).
    pub(crate) fn refused(&self, refusal: &Refusal) {
        self.world.note(Note::Words(format!("refused: {refusal:?}")));
        if !self.excuses.beyond.get() {
            self.world.fail(format!("invariant 6: the array does not start: {refusal:?}"));
        }
    }

    /// The number of the stripe, or of a mirror's place, that has a byte.
    pub(crate) fn spot_of(&self, offset: u64) -> u64 {
        offset / self.scenario.spot_bytes()
    }
}
