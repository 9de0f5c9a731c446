//! A member that lies: bits flip on it, a write that it acknowledged never got there or went elsewhere, places become
//! unreadable. A check has to name each, where the level can tell on which member; nothing may be repaired wrongly.

use std::ops::Range;
use std::rc::Rc;

use engine::array::scrub::{Phase, ScrubRequest, ScrubState};
use engine::members::MemberState;
use engine::mismatch::{Mismatch, Outcome, ScrubMode, Unit, Wrong};
use layout::geometry::Level;
use layout::units::{MemberOffset, Slot};

use crate::array::Array;
use crate::check;
use crate::disk::{Astray, Damage, Disk};
use crate::trace::Note;
use crate::workload::{self, Kind};
use crate::world::{Ended, NO_LIMIT};

/// Requests until one of them is led astray.
const WRITES_MAX: u64 = 12;
const BLOCK_BYTES: u64 = 4096;

/// One member of a quiet, whole array lies; a scrub follows, and then all has to be as it should.
pub(crate) fn trial(array: &Rc<Array>) {
    if !is_whole(array) {
        return;
    }
    let random = array.world.random();
    let slot = random.slot(array.machine.geometry());
    let disk = array.machine.disks.borrow()[slot.index()].clone().expect("a member in sync");
    array.machine.excuses.lying.set(true);
    // A lost message has the host read what it has just written, and make parity of that.
    let reads_again = array.machine.scenario.fabric.is_some_and(|plan| plan.loses());
    if random.one_in(2) && !reads_again {
        lead_astray(array, &disk);
    }
    for _ in 0..random.between(1, 3) {
        flip(array, slot, &disk);
    }
    let latent = random.one_in(2) && spoil(array, slot, &disk);
    let unit = array.machine.unit() as usize;
    let used = |lie: &Damage| lie.range.clone().step_by(unit).all(|at| is_used(array, slot, at));
    let (damage, nowhere): (Vec<Damage>, Vec<Damage>) =
        disk.damage().into_iter().filter(|damage| disk.still_lies(damage, &damage.range)).partition(used);
    nowhere.iter().for_each(|lie| disk.put(disk.places.data + lie.range.start, &lie.right));
    let words: Vec<Range<u64>> = damage.iter().map(|damage| damage.range.clone()).collect();
    array.world.note(Note::Words(format!("  member {slot} lies at {words:?}, unreadable places: {latent}")));
    if let Some(found) = scrub(array, false) {
        named(array, slot, &disk, &damage, &found.report.found);
        // One that had too many read errors is out meanwhile, and a spare may have been made from the others.
        let is_there =
            array.machine.disks.borrow()[slot.index()].as_ref().is_some_and(|now| now.number == disk.number);
        let is_in = is_there && array.shared.members.state(slot) == MemberState::InSync;
        if is_in && !disk.faults.borrow().bad.is_empty() {
            array
                .world
                .fail(format!("scrub: unreadable places of device {} were not rewritten", disk.number));
        }
        if is_in {
            heal(array, &disk, &damage);
        }
    }
    array.machine.excuses.lying.set(false);
    if array.world.failure().is_none() {
        check::quiet(array);
    }
}

fn is_whole(array: &Array) -> bool {
    let (machine, shared) = (&array.machine, &array.shared);
    let well = |disk: &Option<Rc<Disk>>| disk.as_ref().is_some_and(|disk| !disk.faults.borrow().hard());
    machine.geometry().losses_survived() > 0
        && shared.members.all_in_sync()
        && shared.consistency.suspects() == 0
        && array.writer.resync_from_bytes().is_none()
        && !machine.excuses.beyond.get()
        && !machine.excuses.full.get()
        && machine.excuses.lost.borrow().is_empty()
        && machine.disks.borrow().iter().all(well)
}

/// A client writes until the member was sent something, which it loses or puts elsewhere.
fn lead_astray(array: &Rc<Array>, disk: &Rc<Disk>) {
    let random = array.world.random();
    let astray = if random.one_in(2) { Astray::Lost } else { Astray::Elsewhere };
    disk.faults.borrow_mut().astray = Some(astray);
    let (own, unit) = (Rc::clone(array), array.machine.unit());
    let watched = Rc::clone(disk);
    array.spawn(0, "writes, one of them astray", async move {
        let (blocks, of_row) = (own.machine.geometry().array_bytes() / unit, BLOCK_BYTES / unit);
        for _ in 0..WRITES_MAX {
            let first = own.world.random().below(blocks);
            // Of one row: a member gets one write of it, which cannot go where the request reads or writes later.
            let count = own.world.random().between(1, of_row - first % of_row);
            workload::write(&own, 0, Kind::Write, first..first + count, false).await;
            if watched.faults.borrow().astray.is_none() {
                break;
            }
        }
    });
    array.run(NO_LIMIT);
    let missed = disk.faults.borrow_mut().astray.take().is_some();
    let mut counts = array.world.counts.borrow_mut();
    match astray {
        _ if missed => {}
        Astray::Lost => counts.lost_writes += 1,
        Astray::Elsewhere => counts.misdirected_writes += 1,
    }
}

fn flip(array: &Array, slot: Slot, disk: &Disk) {
    let (random, unit) = (array.world.random(), array.machine.unit());
    let at = random.below(array.machine.geometry().member_bytes() / unit) * unit;
    if is_used(array, slot, at) && disk.flip(at, random.below(unit * 8)) {
        array.world.counts.borrow_mut().bit_flips += 1;
    }
}

/// Places of the member cannot be read until they are written, none of them where it lies.
fn spoil(array: &Array, slot: Slot, disk: &Disk) -> bool {
    let (random, unit) = (array.world.random(), array.machine.unit());
    let blocks = array.machine.geometry().member_bytes() / unit;
    for _ in 0..random.between(1, 4) {
        let at = random.below(blocks) * unit;
        let row = at / BLOCK_BYTES * BLOCK_BYTES..(at / BLOCK_BYTES + 1) * BLOCK_BYTES;
        let lies = |damage: &Damage| damage.range.start < row.end && row.start < damage.range.end;
        if is_used(array, slot, at) && !disk.damage().iter().any(lies) {
            disk.faults.borrow_mut().bad.insert((disk.places.data + at).get() / unit);
            array.world.counts.borrow_mut().latent_errors += 1;
        }
    }
    !disk.faults.borrow().bad.is_empty()
}

/// Whether a place of a member's data area belongs to the array: the end of RAID-10's may not.
fn is_used(array: &Array, slot: Slot, at: u64) -> bool {
    let geometry = array.machine.geometry();
    match geometry.level() {
        Level::Raid10 => array.machine.holds_copy(slot, at),
        Level::Raid1 => at < geometry.array_bytes(),
        _ => at < geometry.stripes() * u64::from(geometry.chunk_bytes()),
    }
}

/// A check, or a repair, of all of the array. None: it did not end well, and the world knows.
fn scrub(array: &Rc<Array>, repair: bool) -> Option<ScrubState> {
    let mode = ScrubMode { repair, trust_data: false };
    array
        .manager
        .request_scrub(ScrubRequest::Start { mode, restart: true })
        .expect("a level with redundancy");
    let ended = array.run(NO_LIMIT);
    array.world.counts.borrow_mut().scrubs += 1;
    let state = array.manager.scrub().expect("it was asked for");
    if ended == Ended::Idle && state.phase != Phase::Finished {
        array.world.fail(format!("scrub: it does not finish: {:?}", state.phase));
    }
    (array.world.failure().is_none()).then_some(state)
}

/// Each block that lies is named, and nothing else.
fn named(array: &Array, slot: Slot, disk: &Disk, damage: &[Damage], found: &[Mismatch]) {
    let machine = &array.machine;
    let locates = locates(array);
    for lie in damage {
        let mut at = lie.range.start;
        while at < lie.range.end {
            let block = at..(at / BLOCK_BYTES + 1) * BLOCK_BYTES;
            at = block.end;
            let block = block.start..block.end.min(lie.range.end);
            if !disk.still_lies(lie, &block) {
                continue;
            }
            if !found.iter().any(|mismatch| names(array, slot, disk, block.start, mismatch)) {
                array.world.fail(format!(
                    "scrub: it does not name what is wrong on member {slot} at {block:?}: {found:?}"
                ));
            }
            let mut counts = machine.world.counts.borrow_mut();
            if locates { counts.lies_located += 1 } else { counts.lies_named += 1 }
        }
    }
    let about = |mismatch: &Mismatch| {
        damage.iter().any(|lie| {
            let mut blocks = (lie.range.start..lie.range.end).step_by(machine.unit() as usize);
            blocks.any(|at| names(array, slot, disk, at, mismatch))
        })
    };
    if let Some(other) = found.iter().find(|mismatch| !about(mismatch)) {
        array.world.fail(format!("scrub: it names what is right: {other:?}"));
    }
}

/// RAID-6 computes which chunk is wrong; of three or more copies the majority is right.
fn locates(array: &Array) -> bool {
    let geometry = array.machine.geometry();
    match geometry.parity_chunks() {
        0 => array.machine.places(0).len() > 2,
        parities => parities == 2,
    }
}

/// Whether a mismatch names the block at `at` of the member's data area.
fn names(array: &Array, slot: Slot, disk: &Disk, at: u64, mismatch: &Mismatch) -> bool {
    let geometry = array.machine.geometry();
    let place = disk.places.data + at;
    let member = mismatch.blocks.iter().any(|block| {
        block.member == slot && (block.offset_bytes..block.offset_bytes + mismatch.bytes).contains(&place)
    });
    if geometry.parity_chunks() != 1 {
        return member && (mismatch.wrong == Wrong::Unknown) != locates(array);
    }
    let chunk = u64::from(geometry.chunk_bytes());
    let rows = mismatch.row_bytes..mismatch.row_bytes + mismatch.bytes;
    mismatch.wrong == Wrong::Unknown
        && mismatch.unit == Unit::Stripe(geometry.stripe_at(MemberOffset::new(at)))
        && rows.contains(&(at % chunk))
}

/// Where the level can tell which member lies, a repair restores its data. Elsewhere the repair says that it guessed, and
/// an operator puts back the right data.
fn heal(array: &Rc<Array>, disk: &Disk, damage: &[Damage]) {
    let guesses = array.machine.geometry().parity_chunks() == 1 && array.world.random().one_in(2);
    if locates(array) || guesses {
        let Some(state) = scrub(array, true) else { return };
        let expected = if guesses { Outcome::ParityRewritten } else { Outcome::BlockRewritten };
        if let Some(other) = state.report.found.iter().find(|mismatch| mismatch.outcome != expected) {
            array.world.fail(format!("repair: {expected:?} was expected: {other:?}"));
        }
    }
    if !locates(array) {
        damage.iter().for_each(|lie| disk.put(disk.places.data + lie.range.start, &lie.right));
        if guesses && scrub(array, true).is_none() {
            return;
        }
    }
    if let Some(lie) = damage.iter().find(|lie| disk.still_lies(lie, &lie.range)) {
        array.world.fail(format!("repair: device {} still lies at {:?}", disk.number, lie.range));
    }
    let Some(state) = scrub(array, false) else { return };
    if state.report.count() > 0 {
        array.world.fail(format!("scrub: after the repair something is wrong: {:?}", state.report.found));
    }
    disk.forget_damage();
}
