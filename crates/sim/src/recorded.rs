//! What the superblocks on the members say: the array that the program's own assembly would make of them after a
//! crash at this moment. Checks ask this, never what the running array believes of itself.

use std::rc::Rc;

use engine::array::assemble::{Assembly, Candidate, Filter, assemble};
use engine::members::MemberState;
use layout::md_superblock::{DeviceRole, SUPERBLOCK_BYTES_MAX, Superblock};
use layout::units::Slot;

use crate::disk::{Change, Disk};
use crate::lost::{is_lost, may_be_bad};
use crate::machine::Machine;
use crate::oracle::Oracle;
use crate::outcome::Outcome;
use crate::pages::{describe, identify};
use crate::random::Random;
use crate::scenario::Scenario;
use crate::start::record;
use crate::world::World;

/// A machine without devices, on which invariant 2 is held against every write.
pub(crate) fn guarded_machine(world: Rc<World>, scenario: Scenario, oracle: Oracle) -> Rc<Machine> {
    let machine = Machine::empty(world, scenario, oracle);
    let weak = Rc::downgrade(&machine);
    machine.watch.set_check(move |change| {
        if let Some(machine) = weak.upgrade() {
            check_change(&machine, change);
        }
    });
    machine
}

/// Invariant 2: a write may not change what the superblocks call in sync and clean. With a bitmap, a range without its
/// bit counts as clean.
fn check_change(machine: &Machine, change: &Change<'_>) {
    let Change { device, operation, range, changes } = change;
    if machine.excuses.lying.get() {
        return; // a repair writes what is right over what lies
    }
    if !machine.promises_redundancy() || may_be_bad(machine, range.clone()) {
        return;
    }
    let (offset, bytes) = (range.start, range.end - range.start);
    let clean =
        |outcome: &Outcome| outcome.trusts(*device) && outcome.resync_from.is_none_or(|from| offset < from);
    let unmarked = |outcome: &Outcome| {
        outcome.trusts(*device).then(|| outcome.unmarked(&machine.scenario, range.clone(), changes)).flatten()
    };
    let outcomes = outcomes(machine);
    if outcomes.iter().any(clean) && changes(range.clone()) {
        machine.world.fail(format!(
            "invariant 2: device {device}: {operation} of {bytes} at {offset} of the data area while superblocks \
             say clean"
        ));
    } else if let Some(other) = outcomes.iter().find_map(unmarked) {
        machine.world.fail(format!(
            "invariant 2: device {device}: {operation} of {bytes} at {offset} of the data area, and after a power \
             cut the bitmap of device {other} need not have its bit"
        ));
    }
}

/// What a crash now could leave: with the oldest superblock of each device that is possible, with the newest, and
/// with some of both.
pub(crate) fn outcomes(machine: &Machine) -> Rc<Vec<Outcome>> {
    let generation = machine.watch.generation();
    if let Some((known, outcomes)) = &*machine.outcomes.borrow()
        && *known == generation
    {
        return Rc::clone(outcomes);
    }
    let disks = machine.connected();
    let choices: Vec<Vec<Vec<u8>>> = disks.iter().map(|disk| disk.superblocks()).collect();
    let several = choices.iter().any(|of_disk| of_disk.len() > 1);
    let random = Random::new(generation);
    let mut outcomes = vec![outcome(machine, &disks, &choices, |count| count - 1)];
    if several {
        outcomes.push(outcome(machine, &disks, &choices, |_| 0));
        outcomes.push(outcome(machine, &disks, &choices, |count| random.below(count as u64) as usize));
    }
    let outcomes = Rc::new(outcomes);
    *machine.outcomes.borrow_mut() = Some((generation, Rc::clone(&outcomes)));
    all_start(machine, &outcomes);
    clean_is_durable(machine, &outcomes);
    outcomes
}

fn outcome(
    machine: &Machine,
    disks: &[Rc<Disk>],
    choices: &[Vec<Vec<u8>>],
    choose: impl Fn(usize) -> usize,
) -> Outcome {
    let candidates: Vec<Candidate> = disks
        .iter()
        .zip(choices)
        .map(|(disk, of_disk)| candidate(machine, disk, &of_disk[choose(of_disk.len())]))
        .collect();
    let Some(assembly) = one_array(machine, &candidates, false) else {
        let states = vec![MemberState::Missing; machine.geometry().members() as usize];
        let disks = vec![None; states.len()];
        return Outcome { states, disks, bitmaps: Vec::new(), resync_from: None, refusal: None };
    };
    let bitmap =
        |slot: &Option<usize>| Some(candidates[(*slot)?].superblock.as_ref().ok()?.bitmap_start()?.bytes());
    Outcome {
        states: assembly.states(),
        bitmaps: assembly.slots.iter().map(bitmap).collect(),
        disks: assembly.slots.iter().map(|slot| slot.map(|index| Rc::clone(&disks[index]))).collect(),
        resync_from: assembly.resync_from_bytes,
        refusal: assembly.start.err(),
    }
}

/// A device as the assembly sees it.
fn candidate(machine: &Machine, disk: &Disk, superblock: &[u8]) -> Candidate {
    let parsed = Superblock::parse(superblock, machine.scenario.metadata, disk.places.size);
    let generations = parsed.as_ref().ok().and_then(|superblock| record(disk, superblock));
    Candidate {
        name: format!("device {}", disk.number),
        size_bytes: disk.places.size,
        superblock: parsed.map_err(|error| error.to_string()),
        generations,
    }
}

/// What is on all devices that are plugged in, as the program reads it when it starts.
pub(crate) fn candidates(machine: &Machine) -> Vec<Candidate> {
    let read = |disk: &Rc<Disk>| {
        let mut bytes = vec![0; SUPERBLOCK_BYTES_MAX];
        disk.peek_device(disk.places.superblock, &mut bytes);
        candidate(machine, disk, &bytes)
    };
    machine.connected().iter().map(read).collect()
}

/// The one array that the candidates make.
pub(crate) fn one_array(machine: &Machine, candidates: &[Candidate], force: bool) -> Option<Assembly> {
    let mut arrays = assemble(candidates, &Filter { force, ..Filter::default() }).arrays;
    if arrays.len() != 1 {
        machine.world.fail(format!("{} arrays where there was one", arrays.len()));
    }
    arrays.pop()
}

/// A crash now leaves an array that starts.
fn all_start(machine: &Machine, outcomes: &[Outcome]) {
    for refusal in outcomes.iter().filter_map(|outcome| outcome.refusal.as_ref()) {
        if !machine.excuses.beyond.get() {
            machine.world.fail(format!("a crash now leaves an array that is refused: {refusal:?}"));
        }
    }
}

/// Invariant 2, its other half: what the superblocks call clean is durable. Otherwise a power cut could leave a part of
/// it, and no resync would find that.
fn clean_is_durable(machine: &Machine, outcomes: &[Outcome]) {
    if machine.excuses.lying.get() || !machine.promises_redundancy() || may_be_bad(machine, 0..u64::MAX) {
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

/// Slot, device and offset of each copy of a block that a crash now could leave in sync.
pub(crate) fn in_sync_places(machine: &Machine, block: u64) -> impl Iterator<Item = (Slot, Rc<Disk>, u64)> {
    let mut found: Vec<(Slot, Rc<Disk>, u64)> = Vec::new();
    if is_lost(machine, &(block..block + 1)) {
        return found.into_iter(); // what a member holds there may be known to be bad
    }
    for (slot, offset) in machine.places(block * machine.unit()) {
        for outcome in outcomes(machine).iter() {
            let in_sync = outcome.states[slot.index()] == MemberState::InSync;
            let Some(disk) = outcome.disks[slot.index()].clone().filter(|_| in_sync) else { continue };
            if found.iter().all(|(_, other, _)| other.number != disk.number) {
                found.push((slot, disk, offset));
            }
        }
    }
    if machine.excuses.uneven.borrow().contains(&block) {
        found.truncate(1);
    }
    found.into_iter()
}

/// What devices that are away hold of a block, if no superblock tells that the array went on without them: back at the next
/// start they are in sync.
pub(crate) fn in_sync_elsewhere(machine: &Machine, block: u64) -> Vec<Vec<u8>> {
    let superblock = |disk: &Rc<Disk>| {
        let mut bytes = vec![0; SUPERBLOCK_BYTES_MAX];
        disk.peek_device(disk.places.superblock, &mut bytes);
        Superblock::parse(&bytes, machine.scenario.metadata, disk.places.size).ok()
    };
    let newest = machine.connected().iter().filter_map(superblock).map(|own| own.events()).max().unwrap_or(0);
    let mut found = Vec::new();
    for disk in machine.all_disks.borrow().iter().filter(|disk| !disk.is_connected()) {
        let Some(own) = superblock(disk).filter(|own| own.events() + 1 >= newest) else { continue };
        for (slot, offset) in machine.places(block * machine.unit()) {
            if own.role() == DeviceRole::Active(slot) {
                let mut bytes = vec![0; machine.unit() as usize];
                disk.peek(offset, &mut bytes);
                found.push(bytes);
            }
        }
    }
    found
}

/// After a power cut every copy on a member that the superblocks call in sync holds what may survive.
pub(crate) fn check_after_cut(machine: &Machine) {
    let mut block = vec![0; machine.unit() as usize];
    let oracle = machine.oracle.borrow();
    for number in oracle.touched() {
        for (slot, disk, offset) in in_sync_places(machine, number) {
            machine.world.counts.borrow_mut().blocks_after_cut += 1;
            disk.peek(offset, &mut block);
            if !identify(&block, number).is_some_and(|content| oracle.may_survive(number, content)) {
                let (found, expected) = (describe(&block, number), oracle.expected(number));
                machine.world.fail(format!(
                    "invariant 7: after a crash block {number} {} on member {slot} (device {}) holds {found}; it \
                     may be: {expected}",
                    machine.where_is(number),
                    disk.number
                ));
                return;
            }
        }
    }
}
