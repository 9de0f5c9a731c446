//! A chunk that a target makes of what others contribute, all of it from what the drives hold.

use std::sync::Arc;

use smallvec::SmallVec;

use super::ask::{carry_out, first_round};
use super::place::{Participant, Prepared, factor, place_of};
use crate::buffer::Gather;
use crate::code::chunk_set::{Chunk, ChunkSet};
use crate::code::combination::{Combination, combination};
use crate::code::rows::{Fragment, Rows};
use crate::device::Device;
use crate::error::VolumeError;
use crate::fabric::host::Attach;
use crate::fabric::order::{Base, Destination, How, PeerIndex, Role, Sink};
use crate::stripe::engine::Owned;

/// What a target makes.
pub(super) struct Reducing {
    /// The chunk at whose place it is made.
    pub(super) chunk: Chunk,
    pub(super) base: Base,
    /// What the others contribute.
    pub(super) sum: Combination,
}

impl Reducing {
    /// The contents of a chunk, made at its own place. None: too many are missing.
    pub(super) fn of<D: Device>(owned: Owned<'_, D>, chunk: Chunk, missing: ChunkSet) -> Option<Self> {
        let sum = sum_of(owned, chunk, missing)?;
        Some(Reducing { chunk, base: Base::Zero, sum })
    }
}

/// The chunks that make up another one. None: too many are missing.
pub(super) fn sum_of<D: Device>(owned: Owned<'_, D>, chunk: Chunk, missing: ChunkSet) -> Option<Combination> {
    combination(owned.shape(), chunk, missing, |of| factor(owned, of))
}

/// The orders that make chunks of these rows; the reducers are the first participants, in the same order. None: a target cannot
/// take its order, or the bad-block log of a member lists its rows, of which a target does not know.
pub(super) fn reduction<D: Device>(
    owned: Owned<'_, D>,
    rows: Rows,
    sink: Sink,
    all: &[Reducing],
) -> Option<(Arc<Attach>, Prepared<D>)> {
    let (bytes, mut attach) = (rows.bytes() as u64, None);
    let mut participants = SmallVec::<[Participant<D>; 4]>::new();
    let mut contributors = ChunkSet::EMPTY;
    for one in all {
        let place = place_of(owned, &mut attach, one.chunk, bytes)?;
        let contributions = u8::try_from(one.sum.len()).ok()?;
        let rows = place.range(owned, rows);
        participants
            .push(place.takes(Role::Reduce { base: one.base, rows, contributions, sink }, Gather::new()));
        one.sum.iter().for_each(|(chunk, _)| contributors.insert(*chunk));
    }
    let reducers: SmallVec<[PeerIndex; 2]> = participants.iter().map(|one| one.place.index).collect();
    for chunk in contributors.iter() {
        let place = place_of(owned, &mut attach, chunk, bytes)?;
        let coefficient = |one: &Reducing| Some(one.sum.iter().find(|(of, _)| *of == chunk)?.1);
        let to = all
            .iter()
            .zip(&reducers)
            .filter_map(|(one, &peer)| coefficient(one).map(|coefficient| Destination { peer, coefficient }));
        let (rows, to) = (place.range(owned, rows), to.collect());
        let role = Role::Contribute { how: How::Old, own: rows.start..rows.start, rows, to };
        participants.push(place.takes(role, Gather::new()));
    }
    let attach = attach?;
    let is_bad = |one: &Participant<D>| {
        owned.port().is_bad(&owned.read_of(&Fragment { chunk: one.place.chunk, rows }))
    };
    let step = Prepared { rows, base: Base::Zero, participants, is_partial: false };
    let is_possible = step.is_connected(&attach) && !step.participants.iter().any(is_bad);
    is_possible.then_some((attach, step))
}

/// Has it carried out. What came for the host; None: too many ops wait for members, or the targets have no memory left.
pub(super) async fn reduce<D: Device>(
    owned: Owned<'_, D>,
    attach: &Arc<Attach>,
    step: &mut Prepared<D>,
) -> Result<Option<Gather>, VolumeError> {
    let Some(op) = attach.begin(step.costs()) else { return Ok(None) };
    let requests = first_round(step, op.stamp(), false);
    carry_out(owned, step, requests, op.stamp()).await.map(Some)
}
