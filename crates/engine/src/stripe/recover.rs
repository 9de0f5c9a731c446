//! Lost data from what is left of a stripe.

use smallvec::SmallVec;
use std::sync::Arc;

use super::chunk_set::{Chunk, ChunkSet, P, Q};
use super::plan::Rows;
use crate::buffer::{Buffer, Pool};
use layout::geometry::Geometry;

/// The data chunks among `missing`, in ascending order, recovered from the `known` chunks of the same rows. Asserts
/// that what the plan calls needed is known.
pub(super) fn recover_data<'a>(
    geometry: &Geometry,
    stripe: u64,
    missing: ChunkSet,
    rows: Rows,
    known: impl Fn(Chunk) -> Option<&'a [u8]>,
    pool: &Arc<Pool>,
) -> SmallVec<[(Chunk, Buffer); 2]> {
    let data = ChunkSet::first(geometry.data_chunks());
    let lost: SmallVec<[Chunk; 2]> = data.and(missing).iter().collect();
    let index = |chunk: Chunk| geometry.syndrome_index(stripe, u32::from(chunk)) as usize;
    let rest: SmallVec<[(usize, &[u8]); 16]> = data
        .without(missing)
        .iter()
        .map(|chunk| (index(chunk), known(chunk).expect("the data that is left is known")))
        .collect();
    let mut recovered: SmallVec<[(Chunk, Buffer); 2]> =
        lost.iter().map(|&chunk| (chunk, pool.take(rows.bytes()))).collect();
    match (&lost[..], &mut recovered[..]) {
        ([], _) => {}
        (&[one], [(_, out)]) => match (known(P), known(Q)) {
            (Some(p), _) => {
                let rest: SmallVec<[&[u8]; 16]> = rest.iter().map(|&(_, bytes)| bytes).collect();
                parity::recover_data_from_p(&rest, p, out.bytes_mut());
            }
            (None, Some(q)) => parity::recover_data_from_q(&rest, q, index(one), out.bytes_mut()),
            (None, None) => unreachable!("one chunk is recovered from P or Q"),
        },
        (&[one, two], [(_, first), (_, second)]) => {
            let parity = |chunk| known(chunk).expect("two chunks are recovered from P and Q");
            let out = (first.bytes_mut(), second.bytes_mut());
            parity::recover_two_data(&rest, parity(P), parity(Q), (index(one), index(two)), out);
        }
        _ => unreachable!("at most two chunks are recovered"),
    }
    recovered
}
