//! The invariants, checked from outside: against the members' raw contents, the geometry and the oracle.

use std::ops::Range;
use std::rc::Rc;

use engine::buffer::Gather;
use engine::code::chunk_set::P;
use engine::code::chunk_set::Q;
use engine::limits::BLOCK_BYTES;
use engine::members::{MemberState, Replacing};
use layout::geometry::Role;
use layout::md_superblock::Superblock;
use layout::units::{MemberOffset, Slot, Stripe};

use crate::array::Array;
use crate::disk::Disk;
use crate::oracle::{Read, Write};
use crate::pages::{describe, identify};
use crate::recorded;

/// Invariant 6: a read found what it may.
pub(crate) fn read(array: &Array, read: &Read, blocks: Range<u64>, data: &Gather) {
    let (machine, unit) = (&array.machine, array.machine.unit() as usize);
    let mut bytes = vec![0; data.len()];
    data.copy_to(&mut bytes);
    if bytes.len() != (blocks.end - blocks.start) as usize * unit {
        array.world.fail(format!("read of blocks {blocks:?} gave {} bytes", bytes.len()));
        return;
    }
    array.world.counts.borrow_mut().blocks_read += blocks.end - blocks.start;
    let oracle = &mut *machine.oracle.borrow_mut();
    for (number, block) in blocks.zip(bytes.chunks_exact(unit)) {
        let content = identify(block, number);
        if !content.is_some_and(|content| oracle.found(read, number, content)) {
            let (found, expected) = (describe(block, number), oracle.expected(number));
            array.world.fail(format!(
                "invariant 6: block {number} {} reads as {found}; it may be: {expected}",
                machine.where_is(number)
            ));
            return;
        }
    }
}

/// Invariants 1, 7 and 8 at an acknowledgement: every member that the superblocks call in sync has the data; with
/// FUA, durably.
pub(crate) fn acknowledged(array: &Array, write: &Write, fua: bool) {
    let machine = &array.machine;
    if machine.excuses.lying.get() {
        return;
    }
    let mut block = vec![0; machine.unit() as usize];
    let oracle = machine.oracle.borrow();
    for number in write.blocks.clone() {
        for (slot, disk, offset) in recorded::in_sync_places(machine, number) {
            if !fua && disk.gate.has_lost_writes.get() {
                continue; // a flush would fail, and the member with it (F-I17)
            }
            disk.peek(offset, &mut block);
            array.world.counts.borrow_mut().blocks_on_acknowledgement += 1;
            if !identify(&block, number).is_some_and(|content| oracle.may_hold(number, content)) {
                let (found, expected) = (describe(&block, number), oracle.expected(number));
                array.world.fail(format!(
                    "invariant 8: write {} was acknowledged; its block {number} {} on member {slot} (device {}), \
                     which the superblocks call in sync, holds {found}; it may be: {expected}",
                    write.number,
                    machine.where_is(number),
                    disk.number
                ));
                return;
            }
        }
    }
    drop(oracle);
    if fua {
        machine.excuses.uneven.borrow_mut().retain(|block| !write.blocks.contains(block));
        durable(array, write.blocks.clone(), "after a write with FUA");
    }
}

/// Invariant 7: whatever a power cut leaves of these blocks is what may survive.
pub(crate) fn durable(array: &Array, blocks: impl Iterator<Item = u64>, when: &str) {
    let machine = &array.machine;
    if machine.excuses.lying.get() {
        return;
    }
    if array.writer.resync_from_bytes().is_none() {
        machine.excuses.uneven.borrow_mut().clear();
    }
    let mut block = vec![0; machine.unit() as usize];
    let oracle = machine.oracle.borrow();
    for number in blocks {
        for (slot, disk, offset) in recorded::in_sync_places(machine, number) {
            array.world.counts.borrow_mut().blocks_durable += 1;
            disk.peek_durable(offset, &mut block, |block| {
                if identify(block, number).is_some_and(|content| oracle.may_survive(number, content)) {
                    return;
                }
                let (found, expected) = (describe(block, number), oracle.expected(number));
                array.world.fail(format!(
                    "invariant 7: {when} a power cut could leave {found} in block {number} {} on member {slot} \
                     (device {}); it may be: {expected}",
                    machine.where_is(number),
                    disk.number
                ));
            });
        }
    }
}

/// After a crash and a resync: every block holds one of the contents that may have survived, and later reads find that one: what the
/// first copy holds that can be read.
pub(crate) fn settle(array: &Array) {
    let machine = &array.machine;
    let unit = machine.unit() as usize;
    let (mut block, mut other) = (vec![0; unit], vec![0; unit]);
    let oracle = &mut *machine.oracle.borrow_mut();
    machine.excuses.uneven.borrow_mut().clear();
    for number in oracle.touched() {
        let mut places: Vec<_> = recorded::in_sync_places(machine, number).collect();
        let first = places.iter().position(|(_, disk, offset)| can_read(disk, *offset)).unwrap_or(0);
        if places.is_empty() {
            continue;
        }
        let (_, disk, offset) = places.remove(first);
        disk.peek(offset, &mut block);
        let content = identify(&block, number).filter(|content| oracle.may_hold(number, *content));
        let mut others = Vec::new();
        if array.writer.resync_from_bytes().is_some() {
            for (_, disk, offset) in places {
                disk.peek(offset, &mut other);
                if other != block {
                    machine.excuses.uneven.borrow_mut().insert(number);
                    others.extend(identify(&other, number));
                }
            }
            let away = recorded::in_sync_elsewhere(machine, number);
            others.extend(away.iter().filter_map(|held| identify(held, number)));
        }
        match content {
            Some(content) => oracle.settle(number, content, &others),
            None => {
                let (found, expected) = (describe(&block, number), oracle.expected(number));
                array.world.fail(format!("after a resync block {number} is {found}; it may be: {expected}"));
                return;
            }
        }
    }
}

/// Whether a block of a device's data area can be read.
fn can_read(disk: &Disk, offset: u64) -> bool {
    let block = (disk.places.data + offset).get() / u64::from(disk.places.block);
    !disk.faults.borrow().bad.contains(&block)
}

/// What must hold when nothing is on its way: invariants 4 and 5, parity and copies that agree, and superblocks
/// from which the array starts again.
pub(crate) fn quiet(array: &Array) {
    array.shared.self_check();
    let owned = array.shared.table.active();
    array.world.counts.borrow_mut().tables_empty += 1;
    if owned != 0 {
        array.world.fail(format!("invariant 4: {owned} stripes are owned while no task runs"));
    }
    match (array.shared.geometry.parity_chunks(), array.shared.geometry.level().is_striped()) {
        (0, true) => {}
        (0, false) => copies(array),
        // The machine of a member restarted and nothing was asked of it since: the array does not know yet what it lost (F-I17).
        _ if has_lost_unnoticed(array) => {}
        _ => {
            cached_parity(array);
            Stripe::first(array.shared.geometry.stripes()).for_each(|stripe| parity(array, stripe));
        }
    }
}

/// Whether a member in sync has lost what was not flushed, and was asked for nothing since.
fn has_lost_unnoticed(array: &Array) -> bool {
    let disks = array.machine.disks.borrow();
    let in_sync = Slot::all()
        .zip(disks.iter())
        .filter(|(slot, _)| array.shared.members.state(*slot) == MemberState::InSync);
    in_sync.filter_map(|(_, disk)| disk.as_ref()).any(|disk| disk.gate.has_lost_writes.get())
}

/// What must be done once the array is idle: all that can be rebuilt is rebuilt, and a clean array is called clean.
pub(crate) fn at_rest(array: &Array) {
    let (members, excuses) = (&array.shared.members, &array.machine.excuses);
    if excuses.beyond.get() || excuses.full.get() || array.shared.consistency.suspects() > 0 {
        return;
    }
    if (!members.all_in_sync() && array.has_doubts()) || may_end_rebuilds(array) {
        return; // a stripe in doubt cannot be rebuilt
    }
    let states = members.states();
    let free = states.iter().any(|s| matches!(s, MemberState::Missing | MemberState::Failed));
    let outcome = &recorded::outcomes(&array.machine)[0];
    let redundant = array.shared.geometry.losses_survived() > 0;
    let replaced = |slot| members.replacing(slot) != Replacing::No;
    let problem = if states.contains(&MemberState::Recovering) {
        "a recovery never ends"
    } else if array.shared.geometry.slots().any(replaced) {
        "a replacement never ends"
    } else if redundant && free && !array.writer.superblocks().spares().borrow().is_empty() {
        "a spare waits beside a free slot"
    } else if members.all_in_sync() && array.writer.resync_from_bytes().is_some() {
        "a resync never ends"
    } else if outcome
        .states
        .iter()
        .zip(&states)
        .any(|(told, state)| (*told == MemberState::InSync) != (*state == MemberState::InSync))
    {
        "the superblocks tell other states"
    } else if redundant && array.writer.resync_from_bytes().is_none() && outcome.resync_from.is_some() {
        "a quiet array is not called clean"
    } else {
        return;
    };
    let verdicts = recorded::one_array(&array.machine, &recorded::candidates(&array.machine), false)
        .map(|array| array.verdicts);
    array.world.fail(format!("at rest: {problem}; members {states:?}, superblocks say {verdicts:?}"));
}

fn copies(array: &Array) {
    let machine = &array.machine;
    let (mut first, mut other) = (vec![0; machine.unit() as usize], vec![0; machine.unit() as usize]);
    let hurt = machine.excuses.hurt.borrow();
    for number in machine.oracle.borrow().touched() {
        let offset = number * machine.unit();
        if hurt.contains(&machine.spot_of(offset)) && array.shared.consistency.suspects() > 0 {
            continue;
        }
        let mut seen = None;
        for (slot, at) in machine.places(offset) {
            let Some(disk) = in_sync_disk(array, slot, u64::MAX) else { continue };
            if array
                .shared
                .members
                .is_bad(slot, &(MemberOffset::new(at)..MemberOffset::new(at + machine.unit())))
            {
                continue;
            }
            disk.peek(at, if seen.is_none() { &mut first } else { &mut other });
            array.world.counts.borrow_mut().copies_equal += 1;
            match seen {
                None => seen = Some(slot),
                Some(with) if first != other => {
                    let (one, two) = (describe(&first, number), describe(&other, number));
                    array.world.fail(format!(
                        "copies of block {number} differ: {one} on member {with}, {two} on member {slot}"
                    ));
                    return;
                }
                Some(_) => {}
            }
        }
    }
}

/// Invariant 5: cached parity is what the members hold, or their block is recorded as bad: a replacement may lack parity that
/// the cache has.
fn cached_parity(array: &Array) {
    let geometry = &array.shared.geometry;
    for (stripe, chunk, start, slice) in array.shared.cache.contents() {
        let member = if chunk == P { geometry.p_member(stripe) } else { geometry.q_member(stripe) };
        let (member, at) = (member.expect("a level with this parity"), geometry.member_offset(stripe));
        let Some(disk) = in_sync_disk(array, member, (at + u64::from(geometry.chunk_bytes())).get()) else {
            continue;
        };
        let at = at + u64::from(start);
        if array.shared.members.is_bad(member, &(at..at + slice.len() as u64)) {
            continue;
        }
        let mut held = vec![0; slice.len()];
        disk.peek(at.get(), &mut held);
        array.world.counts.borrow_mut().cached_parity += 1;
        if held != slice.bytes() {
            let name = if chunk == P { "P" } else { "Q" };
            array.world.fail(format!(
                "invariant 5: cached {name} of stripe {stripe} from row {start} is not what device {} holds",
                disk.number
            ));
        }
    }
}

/// The parity of a stripe agrees with its data as far as the members there can tell.
fn parity(array: &Array, stripe: Stripe) {
    let geometry = &array.shared.geometry;
    let (at, bytes) = (geometry.member_offset(stripe), geometry.chunk_bytes() as usize);
    let disks: Vec<_> =
        geometry.slots().map(|slot| in_sync_disk(array, slot, (at + bytes as u64).get())).collect();
    if disks.iter().flatten().all(|disk| disk.untouched(at.get(), bytes as u64)) {
        return;
    }
    let mut data: Vec<Option<Vec<u8>>> = vec![None; geometry.data_chunks() as usize];
    let (mut p, mut q) = (None, None);
    for (slot, disk) in Slot::all().zip(&disks) {
        let Some(disk) = disk else { continue };
        let mut held = vec![0; bytes];
        disk.peek(at.get(), &mut held);
        match geometry.role(stripe, slot) {
            Role::Data(index) => data[index as usize] = Some(held),
            Role::P => p = Some(held),
            Role::Q => q = Some(held),
        }
    }
    let lost: Vec<usize> = (0..data.len()).filter(|index| data[*index].is_none()).collect();
    if let ([lost], Some(p)) = (&lost[..], &p) {
        // One is lost: P gives it back, and Q tells whether P was right.
        let known: Vec<&[u8]> = data.iter().flatten().map(Vec::as_slice).collect();
        let mut out = vec![0; bytes];
        ::parity::recover_data_from_p(&known, p, &mut out);
        data[*lost] = Some(out);
    }
    let Some(data) = data.into_iter().collect::<Option<Vec<_>>>() else { return };
    array.world.counts.borrow_mut().stripes_parity += 1;
    let excused = array.machine.excuses.hurt.borrow().contains(&stripe.get())
        && array.shared.consistency.suspects() > 0
        || array.shared.consistency.is_in_doubt(stripe) && !array.shared.members.all_in_sync()
        || array.writer.resync_from_bytes().is_some() && may_end_rebuilds(array);
    for (chunk, held) in [(P, p), (Q, q)] {
        let Some(held) = held else { continue };
        let expected = expected_parity(array, stripe, chunk, &data);
        let differs = rows(&expected, &held).any(|rows| !is_bad(array, stripe, rows));
        if differs && !excused {
            let name = if chunk == P { "P" } else { "Q" };
            array.world.fail(format!(
                "parity: {name} of stripe {stripe} does not agree with its data; members {:?}",
                array.shared.members.states()
            ));
        }
    }
}

/// Blocks in which two chunks differ.
fn rows(one: &[u8], other: &[u8]) -> impl Iterator<Item = Range<u64>> {
    let blocks = one.chunks(BLOCK_BYTES).zip(other.chunks(BLOCK_BYTES)).enumerate();
    blocks.filter(|(_, (one, other))| one != other).map(|(block, (one, _))| {
        let start = (block * BLOCK_BYTES) as u64;
        start..start + one.len() as u64
    })
}

/// Whether some of these rows is known to be bad on a member.
fn is_bad(array: &Array, stripe: Stripe, rows: Range<u64>) -> bool {
    let (geometry, members) = (&array.shared.geometry, &array.shared.members);
    let at = geometry.member_offset(stripe);
    geometry.slots().any(|slot| members.is_bad(slot, &(at + rows.start..at + rows.end)))
}

fn expected_parity(array: &Array, stripe: Stripe, chunk: u8, data: &[Vec<u8>]) -> Vec<u8> {
    let geometry = &array.shared.geometry;
    let mut out = vec![0; geometry.chunk_bytes() as usize];
    if chunk == P {
        let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        ::parity::encode_p(&data, &mut out);
        return out;
    }
    let zeroes = vec![0; out.len()];
    let mut placed = vec![&zeroes[..]; geometry.syndrome_width() as usize];
    for (index, data) in (0u32..).zip(data) {
        placed[geometry.syndrome_index(stripe, index) as usize] = data;
    }
    ::parity::encode_q(&placed, &mut out);
    out
}

/// The device of a member that the engine trusts up to `end` in its data area.
fn in_sync_disk(array: &Array, slot: Slot, end: u64) -> Option<Rc<Disk>> {
    let trusted = array.shared.members.in_sync_to(slot, MemberOffset::new(end));
    let of_replacement = array.shared.members.replacing(slot).has_slot();
    let disk = || {
        let coming = array.machine.coming.borrow()[slot.index()].clone().filter(|_| of_replacement);
        coming.or_else(|| array.machine.disks.borrow()[slot.index()].clone())
    };
    trusted.then(disk).flatten()
}

/// Whether a block that cannot be reconstructed may end a rebuild: some member has no bad-block log to record it in.
fn may_end_rebuilds(array: &Array) -> bool {
    let has_log = |slot: Slot| {
        let superblock = array.writer.superblocks().try_superblock(slot).flatten();
        superblock.as_ref().is_none_or(|superblock: &Superblock| superblock.bad_block_log().is_some())
    };
    !array.machine.excuses.lost.borrow().is_empty() && !array.machine.geometry().slots().all(has_log)
}
