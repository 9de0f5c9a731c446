//! Blocks that a member cannot read: latent errors of the medium, and places that its bad-block log lists. They are made
//! from the other members, written again and read back; the member stays ([`bad_place`]).
//!
//! Nothing is made from a stripe whose parity may not agree with its data (invariant 10): then the request fails.
//! A block that is written again holds what it held, so no intent is needed.

use smallvec::SmallVec;

use super::engine::Owned;
use crate::buffer::Slice;
use crate::code::chunk_set::{Chunk, ChunkSet, P, Q, data_chunk};
use crate::code::image::{Held, Image};
use crate::code::parity_step::encode_one;
use crate::code::plan::plan_read;
use crate::code::recover::extract;
use crate::code::rows::{Fragment, Rows, cut_at_blocks};
use crate::device::Device;
use crate::error::VolumeError;
use crate::members::bad_place;
use crate::members::port::{MemberError, MemberRead};

/// The contents of a fragment whose member could not read all of it. None if the member has failed meanwhile: plan
/// again without it.
pub(super) async fn salvage<D: Device>(
    owned: Owned<'_, D>,
    fragment: &Fragment,
) -> Result<Option<Slice>, VolumeError> {
    let mut whole = owned.pool().take(fragment.rows.bytes());
    for wanted in cut_at_blocks(fragment.rows) {
        // Invariant 8: another device may have taken the slot while the last block was made.
        if owned.missing().contains(fragment.chunk) {
            return Ok(None);
        }
        let Some(contents) = salvage_block(owned, fragment.chunk, wanted).await? else {
            return Ok(None);
        };
        let at = (wanted.start - fragment.rows.start) as usize;
        whole.bytes_mut()[at..at + wanted.bytes()].copy_from_slice(contents.bytes());
    }
    Ok(Some(whole.freeze()))
}

/// Some rows within one block.
async fn salvage_block<D: Device>(
    owned: Owned<'_, D>,
    chunk: Chunk,
    wanted: Rows,
) -> Result<Option<Slice>, VolumeError> {
    let rows = wanted.block_around(owned.geometry().chunk_bytes());
    let read = owned.read_of(&Fragment { chunk, rows });
    let contents = match owned.port().read_quietly(&read).await {
        Ok(contents) => contents,
        Err(MemberError::Unreadable) => {
            let Some(contents) = remake(owned, chunk, rows).await? else {
                return Err(bad_place::unreadable(owned.port(), &read));
            };
            if owned.missing().contains(chunk) {
                return Ok(None);
            }
            bad_place::put_back(owned.port(), &read, &contents).await;
            contents
        }
        Err(MemberError::Gone) => return Ok(None),
        Err(MemberError::Request(error)) => return Err(error),
    };
    Ok(Some(contents.part((wanted.start - rows.start) as usize, wanted.bytes())))
}

/// Rows of a chunk from the other chunks. None if too few of them can be read, or they may not agree.
pub(super) async fn remake<D: Device>(
    owned: Owned<'_, D>,
    chunk: Chunk,
    rows: Rows,
) -> Result<Option<Slice>, VolumeError> {
    if owned.unrecoverable().is_some() {
        return Ok(None); // invariant 10
    }
    let geometry = owned.geometry();
    let data = (0..geometry.data_chunks()).map(|index| Fragment { chunk: data_chunk(index), rows });
    let wanted: SmallVec<[Fragment; 16]> = match chunk {
        P | Q => data.collect(),
        data => [Fragment { chunk: data, rows }].into_iter().collect(),
    };
    let mut image = Image::default();
    let mut lost = ChunkSet::one(chunk);
    loop {
        lost = lost.or(owned.missing());
        let Ok(mut helpers) = plan_read(owned.shape(), lost, &wanted) else { return Ok(None) };
        helpers.retain(|helper| image.get(helper.chunk, helper.rows).is_none());
        if helpers.is_empty() {
            break;
        }
        let reads: SmallVec<[MemberRead; 16]> = helpers.iter().map(|helper| owned.read_of(helper)).collect();
        for (helper, result) in helpers.iter().zip(owned.port().read(&reads).await) {
            match result {
                Ok(buffer) => image.insert(*helper, Held::Owned(buffer)),
                Err(MemberError::Unreadable | MemberError::Gone) => lost.insert(helper.chunk),
                Err(MemberError::Request(error)) => return Err(error),
            }
        }
    }
    let mut slices: SmallVec<[Slice; 16]> = wanted
        .iter()
        .map(|fragment| extract(owned.geometry(), owned.stripe(), lost, fragment, &mut image, owned.pool()))
        .collect();
    if !matches!(chunk, P | Q) {
        return Ok(slices.pop());
    }
    let contents = |data| slices[usize::from(data)].bytes();
    Ok(Some(encode_one(geometry, owned.stripe(), chunk, rows, contents, owned.pool())))
}
