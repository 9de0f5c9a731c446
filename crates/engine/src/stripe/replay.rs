//! Replay of the redo log's records, before the array serves anything.

use smallvec::smallvec;

use super::agree::give_up_parity;
use super::engine::{Owned, ParityEngine};
use super::runner::{Method, update_by};
use crate::buffer::{Gather, Slice};
use crate::code::chunk_set::Chunk;
use crate::code::image::Image;
use crate::code::rows::{Fragment, Rows, cut_at_blocks};
use crate::code::union::{NewData, StripeWrite, Union};
use crate::device::Device;
use crate::error::VolumeError;
use crate::members::port::{MemberError, MemberPort, MemberRead, MemberWrite};
use crate::stages::Unwatched;
use layout::units::{MemberOffset, Slot};

/// Redoes one logged write of a member: `data`, or zeroes without it.
pub(crate) async fn redo_piece<D: Device>(
    port: &MemberPort<D>,
    slot: Slot,
    offset: MemberOffset,
    bytes: u64,
    data: Option<Gather>,
) -> Result<(), VolumeError> {
    let result = match data {
        Some(data) => port.write(&[MemberWrite { slot, offset, data }], false).await.remove(0),
        None => port.write_zeroes(slot, offset, bytes).await,
    };
    match result {
        Ok(()) | Err(MemberError::Gone | MemberError::Unreadable) => Ok(()),
        Err(MemberError::Request(error)) => Err(error),
    }
}

/// Redoes a logged write of a missing chunk, whose member's data area was to hold `contents` from `offset` on: makes parity
/// of them and of the data on the other members. Where a data block of those cannot be read, no parity would be right: it
/// is recorded as bad.
pub(crate) async fn redo_missing<D: Device>(
    engine: &ParityEngine<D>,
    slot: Slot,
    offset: MemberOffset,
    contents: Slice,
) -> Result<(), VolumeError> {
    let chunk_bytes = u64::from(engine.shared.geometry.chunk_bytes());
    let claim = engine.claim(engine.shared.geometry.stripe_at(offset)).await;
    let owned = engine.owned(&claim);
    let start = (offset.get() % chunk_bytes) as u32;
    let rows = Rows { start, end: start + contents.len() as u32 };
    let fragment = Fragment { chunk: owned.chunk_on(slot), rows };
    let parts = smallvec![NewData { fragment, data: contents }];
    let union = Union::of(std::iter::once(&StripeWrite { parts, fua: false, in_stream: false }));
    match reconstruct(owned, &union).await {
        Err(VolumeError::Unreadable { .. }) => {}
        result => return result,
    }
    for rows in cut_at_blocks(rows) {
        match reconstruct(owned, &union.within(rows)).await {
            Err(VolumeError::Unreadable { .. }) if give_up_parity(owned, rows) => {}
            Err(VolumeError::Unreadable { .. }) => owned.doubt(),
            result => result?,
        }
    }
    Ok(())
}

/// The contents of some rows of a missing chunk, within one stripe: of what parity said of them without the data of some members, and
/// of the data of the others as they hold it. Where a block of those cannot be read neither chunk is known: parity is recorded as
/// bad there, and the block is left out.
pub(crate) async fn missing_of_partial<D: Device>(
    engine: &ParityEngine<D>,
    (slot, offset): (Slot, MemberOffset),
    partial: &[u8],
    without: &[Slot],
) -> Result<Vec<(MemberOffset, Slice)>, VolumeError> {
    let chunk_bytes = u64::from(engine.shared.geometry.chunk_bytes());
    let claim = engine.claim(engine.shared.geometry.stripe_at(offset)).await;
    let owned = engine.owned(&claim);
    let start = (offset.get() % chunk_bytes) as u32;
    let all = Rows { start, end: start + partial.len() as u32 };
    let is_needed = |chunk: &Chunk| {
        let own = owned.slot_of(*chunk);
        own != slot && !without.contains(&own)
    };
    let others: Vec<Chunk> = owned.data().iter().filter(is_needed).collect();
    let of = |rows: Rows| {
        let at = (rows.start - start) as usize;
        let (partial, others) = (&partial[at..at + rows.bytes()], &others);
        async move {
            let mut contents = partial.to_vec();
            let reads: Vec<MemberRead> =
                others.iter().map(|chunk| owned.read_of(&Fragment { chunk: *chunk, rows })).collect();
            for read in owned.port().read(&reads).await {
                let data = read.map_err(|error| match error {
                    MemberError::Request(error) => Some(error),
                    MemberError::Gone => Some(owned.too_many_missing(owned.missing())),
                    MemberError::Unreadable => None,
                })?;
                contents.iter_mut().zip(data.bytes()).for_each(|(sum, byte)| *sum ^= byte);
            }
            Ok::<_, Option<VolumeError>>((offset + at as u64, Slice::from_bytes(&contents)))
        }
    };
    match of(all).await {
        Ok(made) => return Ok(vec![made]),
        Err(Some(error)) => return Err(error),
        Err(None) => {}
    }
    let mut made = Vec::new();
    for rows in cut_at_blocks(all) {
        match of(rows).await {
            Ok(block) => made.push(block),
            Err(Some(error)) => return Err(error),
            Err(None) if give_up_parity(owned, rows) => {}
            Err(None) => owned.doubt(),
        }
    }
    Ok(made)
}

async fn reconstruct<D: Device>(owned: Owned<'_, D>, union: &Union) -> Result<(), VolumeError> {
    let watch = Unwatched(owned.engine().shard);
    Box::pin(update_by(owned, Method::Reconstruct, union, Image::default(), false, watch)).await
}
