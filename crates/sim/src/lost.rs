//! Blocks that cannot be reconstructed: a place of a member cannot be read, and parity may not agree there. A client may get
//! errors from these stripes and no others, and never wrong data.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::disk::Disk;
use crate::machine::Machine;
use layout::units::{MemberOffset, Stripe};

/// Parity may not agree in some stripes. Where this member cannot read a place of such a stripe, the block is
/// lost: parity that does not agree cannot reconstruct it. A member that is dead cannot read any until it has failed.
pub(crate) fn may_lose(machine: &Machine, disk: &Disk, may_disagree: impl Fn(Stripe) -> bool) {
    let geometry = machine.geometry();
    if geometry.parity_chunks() == 0 {
        return; // another copy is as good
    }
    let faults = disk.faults.borrow();
    let places = faults.bad.iter().map(|block| block * u64::from(disk.places.block));
    let unreadable = places
        .filter_map(|at| at.checked_sub(disk.places.data.get()))
        .map(|at| geometry.stripe_at(MemberOffset::new(at)));
    let all = if faults.dead.is_some() { geometry.stripes() } else { 0 };
    let stripes = unreadable.chain((0..all).map(Stripe::new)).filter(|stripe| may_disagree(*stripe));
    machine.excuses.lost.borrow_mut().extend(stripes.map(Stripe::get));
}

/// Whether any of these blocks may be lost.
pub(crate) fn is_lost(machine: &Machine, blocks: &Range<u64>) -> bool {
    learn_what_was_given_up(machine);
    let lost = machine.excuses.lost.borrow();
    !lost.is_empty() && blocks.clone().any(|block| lost.contains(&machine.spot_of(block * machine.unit())))
}

/// Whether a part of these bytes of some member may be recorded as bad. Bad blocks may be written at any time: they are not
/// read as data before the bad-block log lets go of them.
pub(crate) fn may_be_bad(machine: &Machine, bytes: Range<u64>) -> bool {
    learn_what_was_given_up(machine);
    let lost = machine.excuses.lost.borrow();
    let chunk_bytes = u64::from(machine.geometry().chunk_bytes());
    match machine.geometry().parity_chunks() {
        0 => !lost.is_empty(),
        _ => lost.range(bytes.start / chunk_bytes..bytes.end.div_ceil(chunk_bytes)).next().is_some(),
    }
}

/// What the engine recorded as bad is lost. That needs an excuse.
fn learn_what_was_given_up(machine: &Machine) {
    for (slot, bytes) in machine.world.given_up.take() {
        let data = machine.scenario.places().data;
        let (start, end) = (bytes.start - data, bytes.end - data);
        let parity = machine.geometry().parity_chunks() > 0;
        let stripes: BTreeSet<u64> = match parity {
            true => [machine.geometry().stripe_at(MemberOffset::new(start)).get()].into(),
            false => (0..machine.geometry().array_bytes())
                .step_by(machine.unit() as usize)
                .filter(|at| {
                    machine.places(*at).iter().any(|(of, at)| *of == slot && (start..end).contains(at))
                })
                .map(|at| machine.spot_of(at))
                .collect(),
        };
        let lost = &mut *machine.excuses.lost.borrow_mut();
        // A write that failed half way, as one without space does, leaves blocks that cannot be reconstructed.
        let excused = machine.excuses.beyond.get() || machine.excuses.full.get();
        if !excused && !stripes.is_subset(lost) {
            machine.world.fail(format!(
                "a block of member {slot} was given up within the level: {bytes:?} of its device"
            ));
        }
        lost.extend(stripes);
    }
}
