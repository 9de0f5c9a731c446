//! What the superblocks on the members say: the array that the program's own assembly would make of them after a
//! crash at this moment. Checks ask this, never what the running array believes of itself.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::{Rc, Weak};

use engine::array::assemble::{Assembly, Candidate, Filter, Refusal, assemble};
use engine::members::MemberState;
use layout::geometry::Level;
use layout::md_bitmap;
use layout::md_superblock::{SUPERBLOCK_BYTES_MAX, Superblock};

use crate::array::Machine;
use crate::check;
use crate::disk::Disk;
use crate::random::Random;
use crate::scenario::{Consistency, Scenario};
use crate::world::World;

/// One of the arrays that a crash now could leave.
pub(crate) struct Outcome {
    pub(crate) states: Vec<MemberState>,
    pub(crate) disks: Vec<Option<Rc<Disk>>>,
    /// Where the bitmap begins on the device in each slot, if there is one.
    bitmaps: Vec<Option<u64>>,
    /// From here on, in bytes of the data area, parity or copies need not agree.
    pub(crate) resync_from: Option<u64>,
    pub(crate) refusal: Option<Refusal>,
}

impl Outcome {
    /// Whether the array has this device in sync.
    fn trusts(&self, device: u32) -> bool {
        self.states.iter().zip(&self.disks).any(|(state, disk)| {
            *state == MemberState::InSync && disk.as_ref().is_some_and(|disk| disk.number == device)
        })
    }

    /// A device in sync whose bitmap need not have the bits of a range of the members' data areas after a power cut,
    /// where that range changes. RAID-10's bits are about the array, not about members: its copies are compared after each crash.
    fn unmarked(
        &self,
        scenario: &Scenario,
        range: Range<u64>,
        changes: &impl Fn(Range<u64>) -> bool,
    ) -> Option<u32> {
        let mapping = scenario.mapping()?;
        if scenario.geometry.level() == Level::Raid10 || self.resync_from.is_none() {
            return None;
        }
        let shift = mapping.unit_shift();
        for (slot, disk) in self.disks.iter().enumerate() {
            let in_sync = self.states[slot] == MemberState::InSync;
            let Some((disk, start)) = disk.as_ref().filter(|_| in_sync).zip(self.bitmaps[slot]) else {
                continue;
            };
            for unit in range.start >> shift..range.end.div_ceil(1 << shift) {
                let (mut set, bit) = (true, mapping.bit(unit));
                let byte = start + md_bitmap::SUPER_BYTES as u64 + bit / 8;
                disk.may_hold_byte(byte, |byte| set &= byte & (1 << (bit % 8)) != 0);
                if !set && changes(unit << shift..(unit + 1) << shift) {
                    return Some(disk.number);
                }
            }
        }
        None
    }
}

/// Knows when superblocks changed, and holds invariant 2 against every write.
#[derive(Default)]
pub(crate) struct Guard {
    machine: RefCell<Weak<Machine>>,
    generation: Cell<u64>,
    /// Counts what may change what a power cut leaves.
    boundaries: Cell<u64>,
    known: RefCell<Option<(u64, Rc<Vec<Outcome>>)>>,
}

impl Guard {
    pub(crate) fn watch(&self, machine: &Rc<Machine>) {
        *self.machine.borrow_mut() = Rc::downgrade(machine);
    }

    /// A write was applied, or what was applied became durable.
    pub(crate) fn boundary(&self) {
        self.boundaries.set(self.boundaries.get() + 1);
    }

    pub(crate) fn boundaries(&self) -> u64 {
        self.boundaries.get()
    }

    /// The machine is gone. What is known of its devices leads back here: they would stay for ever.
    pub(crate) fn forget(&self) {
        *self.known.borrow_mut() = None;
    }

    pub(crate) fn metadata_changed(&self) {
        self.generation.set(self.generation.get() + 1);
    }

    /// Invariant 2: what the superblocks call in sync and clean changes only to what it is already. With a bitmap what
    /// no bit marks is as good as clean.
    pub(crate) fn check(
        &self,
        world: &World,
        device: u32,
        operation: &'static str,
        (offset, bytes): (u64, u64),
        changes: impl Fn(Range<u64>) -> bool,
    ) {
        let Some(machine) = self.machine.borrow().upgrade() else { return };
        if machine.excuses.lying.get() {
            return; // a repair writes what is right over what lies
        }
        if !machine.promises_redundancy() || machine.may_be_bad(offset..offset + bytes) {
            return;
        }
        let clean = |outcome: &Outcome| {
            outcome.trusts(device) && outcome.resync_from.is_none_or(|from| offset < from)
        };
        let unmarked = |outcome: &Outcome| {
            let range = offset..offset + bytes;
            outcome.trusts(device).then(|| outcome.unmarked(&machine.scenario, range, &changes)).flatten()
        };
        let outcomes = machine.outcomes();
        if outcomes.iter().any(clean) && changes(offset..offset + bytes) {
            world.fail(format!(
                "invariant 2: device {device}: {operation} of {bytes} at {offset} of the data area while superblocks \
                 say clean"
            ));
        } else if let Some(other) = outcomes.iter().find_map(unmarked) {
            world.fail(format!(
                "invariant 2: device {device}: {operation} of {bytes} at {offset} of the data area, and after a power \
                 cut the bitmap of device {other} need not have its bit"
            ));
        }
    }
}

/// Invariant 2, its other half: what the superblocks call clean is durable. Else a power cut could leave a part of it,
/// and nobody would look for that.
fn clean_is_durable(machine: &Machine, outcomes: &[Outcome]) {
    if machine.excuses.lying.get() || !machine.promises_redundancy() || machine.may_be_bad(0..u64::MAX) {
        return;
    }
    for outcome in outcomes.iter().filter(|outcome| outcome.refusal.is_none()) {
        let below = outcome.resync_from.unwrap_or(u64::MAX).min(machine.geometry().member_bytes());
        let in_sync =
            outcome.states.iter().zip(&outcome.disks).filter(|(state, _)| **state == MemberState::InSync);
        for disk in in_sync.filter_map(|(_, disk)| disk.as_ref()) {
            if let Some(at) = disk.first_volatile(below) {
                let device = disk.number;
                machine.world.fail(format!(
                    "invariant 2: superblocks say clean, and what device {device} has at {at} of the data area is not durable"
                ));
            }
        }
    }
}

impl Machine {
    /// Whether there is anything that could disagree, and a promise that it does not.
    pub(crate) fn promises_redundancy(&self) -> bool {
        self.geometry().losses_survived() > 0
            && self.scenario.consistency != Consistency::None
            && !self.unmarked.get()
    }

    /// What a crash now could leave: with the oldest superblock of each device that is possible, with the newest, and
    /// with some of both.
    pub(crate) fn outcomes(&self) -> Rc<Vec<Outcome>> {
        let generation = self.guard.generation.get();
        if let Some((known, outcomes)) = &*self.guard.known.borrow()
            && *known == generation
        {
            return Rc::clone(outcomes);
        }
        let disks = self.connected();
        let choices: Vec<Vec<Vec<u8>>> = disks.iter().map(|disk| disk.superblocks()).collect();
        let several = choices.iter().any(|of_disk| of_disk.len() > 1);
        let random = Random::new(generation);
        let mut outcomes = vec![self.outcome(&disks, &choices, |count| count - 1)];
        if several {
            outcomes.push(self.outcome(&disks, &choices, |_| 0));
            outcomes.push(self.outcome(&disks, &choices, |count| random.below(count as u64) as usize));
        }
        let outcomes = Rc::new(outcomes);
        *self.guard.known.borrow_mut() = Some((generation, Rc::clone(&outcomes)));
        check::starts(self);
        clean_is_durable(self, &outcomes);
        outcomes
    }

    fn outcome(
        &self,
        disks: &[Rc<Disk>],
        choices: &[Vec<Vec<u8>>],
        choose: impl Fn(usize) -> usize,
    ) -> Outcome {
        let candidates: Vec<Candidate> = disks
            .iter()
            .zip(choices)
            .map(|(disk, of_disk)| self.candidate(disk, &of_disk[choose(of_disk.len())]))
            .collect();
        let Some(assembly) = self.one_array(&candidates, false) else {
            let states = vec![MemberState::Missing; self.geometry().members() as usize];
            let disks = vec![None; states.len()];
            return Outcome { states, disks, bitmaps: Vec::new(), resync_from: None, refusal: None };
        };
        let bitmap = |slot: &Option<usize>| {
            Some(candidates[(*slot)?].superblock.as_ref().ok()?.bitmap_start()?.bytes())
        };
        Outcome {
            states: assembly.states(),
            bitmaps: assembly.slots.iter().map(bitmap).collect(),
            disks: assembly.slots.iter().map(|slot| slot.map(|index| Rc::clone(&disks[index]))).collect(),
            resync_from: assembly.resync_from_bytes,
            refusal: assembly.start.err(),
        }
    }

    /// What a device has to say for itself.
    fn candidate(&self, disk: &Disk, superblock: &[u8]) -> Candidate {
        let parsed = Superblock::parse(superblock, self.scenario.metadata, disk.places.size);
        let generations = parsed.as_ref().ok().and_then(|superblock| crate::start::record(disk, superblock));
        Candidate {
            name: format!("device {}", disk.number),
            size_bytes: disk.places.size,
            superblock: parsed.map_err(|error| error.to_string()),
            generations,
        }
    }

    /// What is on all devices that are plugged in, as the program reads it when it starts.
    pub(crate) fn candidates(&self) -> Vec<Candidate> {
        let read = |disk: &Rc<Disk>| {
            let mut bytes = vec![0; SUPERBLOCK_BYTES_MAX];
            disk.peek_device(disk.places.superblock, &mut bytes);
            self.candidate(disk, &bytes)
        };
        self.connected().iter().map(read).collect()
    }

    /// The one array that the candidates make.
    pub(crate) fn one_array(&self, candidates: &[Candidate], force: bool) -> Option<Assembly> {
        let mut arrays = assemble(candidates, &Filter { force, ..Filter::default() }).arrays;
        if arrays.len() != 1 {
            self.world.fail(format!("{} arrays where there was one", arrays.len()));
        }
        arrays.pop()
    }
}
