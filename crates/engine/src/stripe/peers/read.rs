//! Reads of a lost chunk that another member's target puts together.

use super::place::Prepared;
use super::reduction::{Reducing, reduce, reduction, sum_of};
use crate::buffer::Slice;
use crate::code::rows::Fragment;
use crate::device::Device;
use crate::fabric::order::{Base, Ending, Sink};
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
    // Every helper has its turn.
    let turn = (owned.stripe().get() % sum.len() as u64) as usize;
    let (chunk, coefficient) = sum.remove(turn);
    let reducing = Reducing { chunk, base: Base::Own(coefficient), sum };
    let (attach, mut step) = reduction(owned, lost.rows, Sink::Host, &[reducing])?;
    let data = reduce(owned, &attach, &mut step).await.ok()??;
    let Prepared { participants, .. } = step;
    let read = participants[0].last.answer()?;
    let [whole] = data.slices() else { return None };
    let is_good = read.ending == Ending::Done
        && whole.len() == lost.rows.bytes()
        && owned.missing().contains(lost.chunk);
    is_good.then(|| whole.clone())
}
