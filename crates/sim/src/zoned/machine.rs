//! What outlives a power cut: drives, with their superblocks, and what the oracle knows.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use engine::members::MemberState;

use super::drive::{Drive, Watch};
use super::medium::{Medium, Survival};
use super::plant::Plant;
use super::scenario::Scenario;
use super::superblocks::{Superblock, newest};
use crate::oracle::Oracle;
use crate::random::Random;
use crate::world::World;

pub(super) struct Machine {
    pub(super) world: Rc<World>,
    pub(super) scenario: Rc<Scenario>,
    pub(super) watch: Rc<Watch>,
    pub(super) drives: Vec<Rc<Drive>>,
    pub(super) oracle: RefCell<Oracle>,
    /// Drives that the next start does not see.
    pub(super) absent: RefCell<BTreeSet<usize>>,
    /// Members that have lost something, or were left out: no more of them than the level survives.
    pub(super) lost: RefCell<BTreeSet<usize>>,
    /// A member that has joined, or is about to: before it did, superblocks called it failed.
    pub(super) joined: Cell<Option<usize>>,
    /// A bit of what the drives hold was flipped.
    pub(super) is_flipped: Cell<bool>,
    /// Power cuts that came before.
    pub(super) depth: Cell<u32>,
}

impl Machine {
    pub(super) fn new(world: Rc<World>, scenario: Rc<Scenario>) -> Rc<Machine> {
        let watch = Rc::new(Watch::default());
        let told = scenario.zoned();
        let mut does = told.clone();
        if scenario.limits_lie {
            let less = |limit: Option<u32>| limit.map(|limit| limit - 1);
            (does.open_max, does.active_max) = (less(does.open_max), less(does.active_max));
        }
        let does = Rc::new(does);
        let drive = |slot| {
            let medium = Medium::new(Rc::clone(&does), u64::from(scenario.unit));
            let drive = Drive::new(&world, &watch, slot, told.clone(), scenario.unit, medium);
            drive.plant.set(scenario.plant);
            drive
        };
        let drives: Vec<Rc<Drive>> = (0..scenario.members + scenario.added).map(drive).collect();
        for (member, at, fault) in &scenario.faults {
            drives[*member].fault.set(Some((*at, *fault)));
        }
        for drive in &drives[..scenario.members] {
            let states = vec![MemberState::InSync; scenario.members];
            let superblock = Superblock {
                sequence: 1,
                epoch: 0,
                served: 0,
                numbers: 1,
                checkpoint: None,
                states,
                devices: scenario.config().devices[..scenario.members].to_vec(),
                growing: false,
            };
            *drive.superblock.borrow_mut() = Some(superblock);
        }
        let oracle = RefCell::new(Oracle::new(scenario.logical_blocks, false));
        let lost = RefCell::new(scenario.hard_faults().collect());
        let absent = RefCell::default();
        Rc::new(Machine {
            world,
            scenario,
            watch,
            drives,
            oracle,
            absent,
            lost,
            joined: Cell::new(None),
            is_flipped: Cell::new(false),
            depth: Cell::new(0),
        })
    }

    /// The machine after a power cut, in a world of its own.
    pub(super) fn cut(&self, world: &Rc<World>, survival: Survival) -> Rc<Machine> {
        let watch = Rc::new(Watch::default());
        let drives = self.drives.iter().map(|drive| drive.cut(world, &watch, survival, world.random()));
        let drives = drives.collect();
        let mut oracle = self.oracle.borrow().clone();
        oracle.cut();
        let lost = RefCell::new(self.lost.borrow().clone());
        lost.borrow_mut().extend(self.out());
        lost.borrow_mut().retain(|slot| !self.is_whole_again(*slot));
        Rc::new(Machine {
            world: Rc::clone(world),
            scenario: Rc::clone(&self.scenario),
            watch,
            drives,
            oracle: RefCell::new(oracle),
            absent: RefCell::new(self.absent.borrow().clone()),
            lost,
            joined: self.joined.clone(),
            is_flipped: Cell::new(false),
            depth: Cell::new(self.depth.get() + 1),
        })
    }

    /// Members that any superblock does not call in sync.
    fn out(&self) -> BTreeSet<usize> {
        let mut out = BTreeSet::new();
        for drive in &self.drives {
            if let Some(superblock) = &*drive.superblock.borrow() {
                let states = superblock.states.iter().enumerate();
                out.extend(states.filter(|(_, state)| **state != MemberState::InSync).map(|(slot, _)| slot));
            }
        }
        out
    }

    /// A member that came back and lacks nothing any more, as superblocks say since it has caught up.
    pub(super) fn is_whole_again(&self, slot: usize) -> bool {
        let all: Vec<Superblock> =
            self.drives.iter().filter_map(|drive| drive.superblock.borrow().clone()).collect();
        self.joined.get() == Some(slot)
            && newest(all.iter()).is_some_and(|newest| newest.states[slot] == MemberState::InSync)
    }

    /// Another member that may be lost now, if the level survives it.
    pub(super) fn another_loss(&self, random: &Random) -> Option<usize> {
        let lost = self.lost.borrow();
        let left: Vec<usize> = (0..self.drives.len()).filter(|slot| !lost.contains(slot)).collect();
        (lost.len() < self.scenario.losses() && !left.is_empty()).then(|| random.pick(&left))
    }

    /// The drives of the next start that it sees.
    pub(super) fn present(&self) -> Vec<Option<Rc<Drive>>> {
        let absent = self.absent.borrow();
        let see = |drive: &Rc<Drive>| {
            (!absent.contains(&drive.slot) && !drive.is_gone.get()).then(|| Rc::clone(drive))
        };
        self.drives.iter().map(see).collect()
    }

    /// From here on the array serves.
    pub(super) fn serves(&self) {
        self.drives.iter().for_each(|drive| drive.is_serving.set(true));
    }

    pub(super) fn has(&self, plant: Plant) -> bool {
        self.scenario.plant == Some(plant)
    }

    /// The superblock that speaks for the drives that are present.
    pub(super) fn superblock(&self, present: &[Option<Rc<Drive>>]) -> Option<Superblock> {
        let all: Vec<Superblock> =
            present.iter().flatten().filter_map(|drive| drive.superblock.borrow().clone()).collect();
        newest(all.iter()).cloned()
    }

    /// Replaces a drive by an empty one in the same slot, superblock and all but its zones.
    pub(super) fn erase(&self, slot: usize) {
        let zoned = Rc::new(self.scenario.zoned());
        *self.drives[slot].medium.borrow_mut() = Medium::new(zoned, u64::from(self.scenario.unit));
    }
}
