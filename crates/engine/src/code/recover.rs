//! Recovers lost data from the rest of a stripe.

use smallvec::SmallVec;
use std::sync::Arc;

use super::chunk_set::{Chunk, ChunkSet, P, Q};
use super::image::Image;
use super::rows::{Fragment, Rows};
use crate::buffer::{Buffer, Pool, Slice};
use layout::geometry::Geometry;
use layout::units::Stripe;

/// Recovers the data chunks among `missing`, in ascending order, from the `known` chunks of the same rows. Asserts that
/// every chunk that this needs is known.
pub(crate) fn recover_data<'a>(
    geometry: &Geometry,
    stripe: Stripe,
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

/// A fragment of a stripe out of its image: shared with the image, or recovered where the fragment's chunk is among
/// `missing`.
pub(crate) fn extract(
    geometry: &Geometry,
    stripe: Stripe,
    missing: ChunkSet,
    fragment: &Fragment,
    image: &mut Image,
    pool: &Arc<Pool>,
) -> Slice {
    let Fragment { chunk, rows } = *fragment;
    if !missing.contains(chunk) {
        return image.share(chunk, rows);
    }
    let known = |chunk: Chunk| image.get(chunk, rows);
    let recovered = recover_data(geometry, stripe, missing, rows, known, pool);
    let (_, buffer) =
        recovered.into_iter().find(|(lost, _)| *lost == chunk).expect("a missing data chunk is recovered");
    buffer.freeze()
}
