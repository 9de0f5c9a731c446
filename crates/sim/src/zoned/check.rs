//! What must hold after every start, beside what blocks hold.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use engine::array::scrub::ScrubState;
use engine::array::zoned::check::check;
use engine::error::VolumeError;
use engine::log::paging::all_entries;
use engine::mismatch::{Mismatch, ScrubMode};
use layout::zoned::MapEntry;

use super::array::Array;
use super::workload::read_all;
use crate::world::NO_LIMIT;

/// After a start: every block holds what it may, counts are those of the map, nothing that is mapped was reset, and all of it
/// can be made when as many members fail as the level survives.
pub(super) fn after_start(array: &Rc<Array>) -> bool {
    if array.report.lost_blocks > 0
        || array.report.unknown_blocks > 0 && array.machine.lost.borrow().is_empty()
    {
        array.machine.world.fail(format!(
            "Z-I7: durable blocks are called lost, though drives kept them: {:?}",
            array.report
        ));
    }
    if let Some(fault) = array.report.checkpoint_fault {
        array
            .machine
            .world
            .fail(format!("Z-I17: the checkpoint that superblocks name cannot be used: {fault}"));
    }
    // Not always: groups that a start leaves in the log are to be there when clients come.
    let is_looked_at =
        array.machine.scenario.map_limits.changed.is_none() || array.machine.world.random().one_in(2);
    if is_looked_at && let Some((entries, counts)) = mapped(array) {
        nothing_mapped_was_reset(array, &mapped_slots(&entries));
        counts_are_those_of_the_map(array, &entries, &counts);
    }
    limits_are_kept(array);
    read_all(array, "after the start") && is_redundant(array) && a_check_finds_nothing(array)
}

/// The whole map, and what each slot counts.
type Mapped = (Vec<(u64, MapEntry)>, Vec<Counted>);

#[derive(Debug)]
struct Counted {
    /// A segment is there.
    is_there: bool,
    /// Its live blocks.
    live: u32,
    /// Those that have a bit, if bits are kept, and known.
    valid: Option<u32>,
}

/// Reads the whole map. None: reclaim moved something meanwhile, or it cannot be read, which is a failure.
fn mapped(array: &Rc<Array>) -> Option<Mapped> {
    array.run(NO_LIMIT);
    let own = Rc::clone(array);
    let read = array.wait(async move {
        let shared = &own.shared;
        let before = shared.space.totals();
        let entries = all_entries(&own.sets[0].0.port).await?;
        let count = |slot| Counted {
            is_there: shared.table.get(slot).is_some(),
            live: shared.table.mapped(slot),
            valid: shared.valid.as_ref().and_then(|valid| valid.count(slot)),
        };
        let counts = (0..shared.config.slots()).map(count).collect();
        Ok::<_, VolumeError>((shared.space.totals() == before).then_some((entries, counts)))
    });
    match read {
        Some(Ok(mapped)) => mapped,
        read => {
            array.machine.world.fail(format!("the map cannot be read: {read:?}"));
            None
        }
    }
}

/// A check follows one start in so many.
const CHECKS_ONE_IN: u64 = 4;

/// A recovery leaves nothing that a check takes for damage, unless drives failed.
fn a_check_finds_nothing(array: &Rc<Array>) -> bool {
    let machine = &array.machine;
    if !machine.scenario.faults.is_empty() || !machine.world.random().one_in(CHECKS_ONE_IN) {
        return true;
    }
    machine.world.counts.borrow_mut().zoned_checks += 1;
    let found = mismatches(array);
    if !found.is_empty() {
        machine.world.fail(format!("a check after the start finds {found:?}"));
    }
    found.is_empty()
}

/// What a check finds.
pub(super) fn mismatches(array: &Rc<Array>) -> Vec<Mismatch> {
    let port = Rc::clone(&array.sets[0].0.port);
    let state = Rc::new(RefCell::new(Some(ScrubState::new(1, ScrubMode::default()))));
    let own = Rc::clone(&state);
    array.wait(async move { check(port, own).await });
    state.take().map(|state| state.report.found).unwrap_or_default()
}

/// Z-I4: no zone of a segment that something maps to was reset. One that only has a header of it left, from before the member was
/// exchanged, is none: after a cut a hostile drive may show contents of an earlier life below its pointer.
fn nothing_mapped_was_reset(array: &Array, mapped_slots: &BTreeSet<u32>) {
    let resets = array.machine.watch.resets.borrow();
    for &slot in mapped_slots {
        let Some(segment) = array.shared.table.get(slot) else { continue };
        let (number, tag) = (segment.number(), segment.headers[0].tag);
        let mut zones = segment.zones().filter_map(|(_, slot, zone)| Some((slot, zone?, (number, tag))));
        if zones.any(|zone| resets.contains(&zone)) {
            array.machine.world.fail(format!("Z-I4: a zone of segment {number} was reset, and it is mapped"));
        }
    }
}

fn mapped_slots(entries: &[(u64, MapEntry)]) -> BTreeSet<u32> {
    let slot = |(_, entry): &(u64, MapEntry)| match entry {
        MapEntry::At { place, .. } => Some(place.slot),
        _ => None,
    };
    entries.iter().filter_map(slot).collect()
}

/// Every mapped block is counted in its segment, which is there.
fn counts_are_those_of_the_map(array: &Array, entries: &[(u64, MapEntry)], counts: &[Counted]) {
    let is_invalid = |entry: &MapEntry| {
        let valid = array.shared.valid.as_ref();
        entry.place().and_then(|place| valid?.has(place)) == Some(false)
    };
    for (slot, counted) in (0..).zip(counts) {
        let is_of = |entry: &MapEntry| matches!(entry, MapEntry::At { place, .. } if place.slot == slot);
        let mapped = entries.iter().filter(|(_, entry)| is_of(entry)).count();
        let Counted { is_there, live, valid } = counted;
        if mapped > 0 && !is_there || *live as usize != mapped {
            let fail = format!("Z-I4: slot {slot} counts {live} live blocks, and {mapped} are mapped");
            array.machine.world.fail(fail);
        }
        if valid.is_some_and(|valid| valid as usize != mapped) {
            let fail = format!("slot {slot} has {valid:?} valid bits, and {mapped} blocks are mapped");
            array.machine.world.fail(fail);
        }
    }
    if let Some((block, entry)) = entries.iter().find(|(_, entry)| is_invalid(entry)) {
        array.machine.world.fail(format!("block {block} is mapped to {entry:?}, which has no valid bit"));
    }
}

/// Z-I9: the engine's count of active zones is the drive's, or more.
fn limits_are_kept(array: &Array) {
    for drive in &array.machine.drives {
        let medium = drive.medium.borrow();
        let states = (engine::log::config::SUPERBLOCK_ZONES..array.machine.scenario.zones)
            .map(|zone| medium.zone(zone).state);
        let active = states.filter(|state| state.is_active()).count() as u32;
        let counted = array.shared.table.active_zones(drive.slot).saturating_sub(1);
        let serves = array.shared.members.in_sync().contains(&drive.slot);
        if serves && active > counted {
            let slot = drive.slot;
            let fail = format!("Z-I9: {active} zones of drive {slot} are active, and {counted} are counted");
            array.machine.world.fail(fail);
        }
    }
}

/// As many more members as the level survives cannot be read.
fn is_redundant(array: &Rc<Array>) -> bool {
    let machine = &array.machine;
    let mut lost = machine.lost.borrow().clone();
    lost.extend(machine.absent.borrow().iter());
    let mut blind = Vec::new();
    while lost.len() < machine.scenario.losses() {
        let left: Vec<usize> =
            (0..array.shared.members.width()).filter(|slot| !lost.contains(slot)).collect();
        let slot = machine.world.random().pick(&left);
        lost.insert(slot);
        blind.push(slot);
    }
    blind.iter().for_each(|slot| machine.drives[*slot].is_blind.set(true));
    let is_right = blind.is_empty() || read_all(array, &format!("members {blind:?} cannot be read"));
    blind.iter().for_each(|slot| machine.drives[*slot].is_blind.set(false));
    is_right
}
