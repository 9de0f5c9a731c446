//! Reads of a lost chunk that another member's target puts together.

use smallvec::SmallVec;

use super::place::{Prepared, place_of};
use super::reduction::{Reducing, reduce, reduction, sum_of};
use crate::buffer::{Gather, Slice};
use crate::code::chunk_set::Chunk;
use crate::code::combination::Combination;
use crate::code::rows::Fragment;
use crate::device::Device;
use crate::fabric::order::{Base, Ending, PeerIndex, Sink};
use crate::stripe::engine::Owned;

/// Reads rows of a chunk that is lost, which comes whole from one of the other members' targets: each of those sends its part there
/// (dRAID 6.1; of two lost chunks of RAID-6, too). None: they cannot, or did not, and the host does it.
pub(in crate::stripe) async fn read_by_peers<D: Device>(
    owned: Owned<'_, D>,
    lost: &Fragment,
) -> Option<Slice> {
    let missing = owned.missing();
    if !missing.contains(lost.chunk) || !owned.shared().consistency.is_plain(owned.stripe()) {
        return None;
    }
    let mut sum = sum_of(owned, lost.chunk, missing)?;
    let bytes = lost.rows.bytes() as u64;
    let (chunk, coefficient) = sum.remove(chosen(owned, &sum, bytes)?);
    let reducing = Reducing { chunk, base: Base::Own(coefficient), sum };
    let (attach, mut step) = reduction(owned, lost.rows, Sink::Host, &[reducing])?;
    let now_ns = || owned.port().loads.now_ns();
    let under_way = attach.reducers.begin(step.participants[0].place.index, bytes, now_ns());
    let reduced = reduce(owned, &attach, &mut step).await;
    let came = reduced.ok().flatten().and_then(|data| whole(&step, &data, lost.rows.bytes()));
    under_way.ended(came.is_some(), now_ns());
    came.filter(|_| owned.missing().contains(lost.chunk))
}

/// What the reducer, the first participant, has sent.
fn whole<D: Device>(step: &Prepared<D>, data: &Gather, bytes: usize) -> Option<Slice> {
    let is_done = step.participants[0].last.answer()?.ending == Ending::Done;
    match data.slices() {
        [whole] if is_done && whole.len() == bytes => Some(whole.clone()),
        _ => None,
    }
}

/// The helper that puts the chunk together, by its position: the one that is expected to be first (D9), or any.
fn chosen<D: Device>(owned: Owned<'_, D>, helpers: &Combination, bytes: u64) -> Option<usize> {
    let mut attach = None;
    let index = |(chunk, _): &(Chunk, u8)| Some(place_of(owned, &mut attach, *chunk, bytes)?.index);
    let candidates: SmallVec<[PeerIndex; 8]> = helpers.iter().map(index).collect::<Option<_>>()?;
    let reducers = &attach?.reducers;
    Some(match owned.shared().peers.are_reducers_drawn() {
        true => reducers.draw(candidates.len()),
        false => reducers.pick(&candidates, bytes, owned.port().loads.now_ns()),
    })
}
