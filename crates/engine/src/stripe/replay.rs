//! Replay of the redo log's records, before the array serves anything.

use smallvec::smallvec;

use super::agree::give_up_parity;
use super::engine::{Owned, ParityEngine};
use super::runner::{Method, update_by};
use crate::buffer::{Gather, Slice};
use crate::code::image::Image;
use crate::code::rows::{Fragment, Rows, cut_at_blocks};
use crate::code::union::{NewData, StripeWrite, Union};
use crate::device::Device;
use crate::error::VolumeError;
use crate::members::port::{MemberError, MemberPort, MemberWrite};
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

async fn reconstruct<D: Device>(owned: Owned<'_, D>, union: &Union) -> Result<(), VolumeError> {
    let watch = Unwatched(owned.engine().shard);
    Box::pin(update_by(owned, Method::Reconstruct, union, Image::default(), false, watch)).await
}
