//! Rebuild, resync and check at the members' targets: orders go out, and no contents cross the host's network. What is out of the
//! ordinary is declined, or ends without success; the host then does the stripe itself, and finds out what is wrong.

use smallvec::SmallVec;

use super::place::Prepared;
use super::reduction::{Reducing, reduce, reduction};
use crate::code::chunk_set::ChunkSet;
use crate::code::rows::{Rows, windows};
use crate::device::Device;
use crate::error::VolumeError;
use crate::executor::join_all;
use crate::fabric::order::{Answer, Ending, Sink};
use crate::members::Replacing;
use crate::members::health::MemberState;
use crate::stripe::engine::{Owned, ParityEngine};
use crate::stripe::redo::retire::retire_incomplete_records;
use crate::stripe::stripe_table::Claim;
use layout::units::Slot;

/// Has each stripe of a run done by `work`, side by side, where targets work together at all. Those that are left to the host.
pub(in crate::stripe) async fn left_by_peers<
    'a,
    D: Device,
    F: Future<Output = Result<bool, VolumeError>> + 'a,
>(
    engine: &'a ParityEngine<D>,
    run: &'a [Claim],
    work: impl Fn(Owned<'a, D>) -> F,
) -> Result<SmallVec<[&'a Claim; 2]>, VolumeError> {
    if !engine.shared.peers.are_up() {
        return Ok(run.iter().collect());
    }
    let mut left = SmallVec::new();
    let ends = join_all(run.iter().map(|claim| Box::pin(work(engine.owned(claim))))).await;
    for (claim, end) in run.iter().zip(ends) {
        match end? {
            true => engine.port.counters().peer_upkeep.add(1),
            false => left.push(claim),
        }
    }
    Ok(left)
}

/// Rebuilds a stripe of the member in `slot`. False: its contents are still to be made.
pub(in crate::stripe) async fn recover_by_peers<D: Device>(
    owned: Owned<'_, D>,
    slot: Slot,
) -> Result<bool, VolumeError> {
    let chunk = owned.chunk_on(slot);
    for rows in windows(owned.geometry().chunk_bytes()) {
        let is_recovering = owned.shared().members.state(slot) == MemberState::Recovering;
        // Invariant 10, and invariant 8: the members that are missing are those of this moment.
        if !is_recovering || owned.unrecoverable().is_some() {
            return Ok(false);
        }
        let Some(reducing) = Reducing::of(owned, chunk, owned.missing()) else { return Ok(false) };
        if !make(owned, rows, &[reducing]).await? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Writes new parity of the whole stripe, made from all data. False: it is still to be made.
pub(in crate::stripe) async fn make_parity_by_peers<D: Device>(
    owned: Owned<'_, D>,
) -> Result<bool, VolumeError> {
    owned.forget_parity();
    retire_incomplete_records(owned.redo(), owned.stripe()).await?;
    for rows in windows(owned.geometry().chunk_bytes()) {
        let Some(all) = parity_of_all_data(owned) else { return Ok(false) };
        if !make(owned, rows, &all).await? {
            return Ok(false);
        }
    }
    owned.trust();
    Ok(true)
}

/// Whether parity and data of these rows agree. False: that is still to be found out.
pub(in crate::stripe) async fn agree_by_peers<D: Device>(
    owned: Owned<'_, D>,
    rows: Rows,
) -> Result<bool, VolumeError> {
    let Some(all) = parity_of_all_data(owned) else { return Ok(false) };
    let Some((attach, mut step)) = reduction(owned, rows, Sink::Compare, &all) else { return Ok(false) };
    let ended = reduce(owned, &attach, &mut step).await?.is_some();
    Ok(ended && is_done(&step, all.len(), |answer| answer.outcome.equal) && owned.missing().is_empty())
}

/// None: a chunk is missing.
fn parity_of_all_data<D: Device>(owned: Owned<'_, D>) -> Option<SmallVec<[Reducing; 2]>> {
    let all_parity: ChunkSet = owned.parity_chunks().collect();
    let makes = |chunk| Reducing::of(owned, chunk, all_parity);
    owned.missing().is_empty().then(|| owned.parity_chunks().filter_map(makes).collect())
}

/// Has chunks written at their places.
async fn make<D: Device>(owned: Owned<'_, D>, rows: Rows, all: &[Reducing]) -> Result<bool, VolumeError> {
    let members = &owned.shared().members;
    // A write goes to what is to replace the member, too, of which its target does not know.
    let is_alone = |one: &Reducing| members.replacing(owned.slot_of(one.chunk)) == Replacing::No;
    if !all.iter().all(is_alone) {
        return Ok(false);
    }
    let Some((attach, mut step)) = reduction(owned, rows, Sink::Drive, all) else { return Ok(false) };
    let ended = reduce(owned, &attach, &mut step).await?.is_some();
    // Invariant 8: another device may have taken a slot meanwhile, and has nothing of it.
    let devices = &owned.port().devices;
    let is_same = step.participants[..all.len()]
        .iter()
        .all(|one| devices.is_in_slot(one.place.slot, &one.place.member));
    Ok(ended
        && is_same
        && all.iter().all(is_alone)
        && is_done(&step, all.len(), |answer| answer.outcome.applied))
}

/// Whether all reducers of a step, which are its first participants, have done their part.
fn is_done<D: Device>(step: &Prepared<D>, reducers: usize, is_good: impl Fn(&Answer) -> bool) -> bool {
    step.participants[..reducers]
        .iter()
        .all(|one| one.last.answer().is_some_and(|answer| answer.ending == Ending::Done && is_good(&answer)))
}
