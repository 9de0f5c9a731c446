//! Reads. While every member is in sync a read takes no lock and no shared state but the health flag. A read of a lost
//! chunk owns the stripe while it reconstructs: during a write parity and data do not agree.

use smallvec::SmallVec;
use std::rc::Rc;

use super::avoid::read_avoiding;
use super::engine::ParityEngine;
use super::fetch::{keep_read_of_members, read_owned};
use super::peers::read_by_peers;
use crate::buffer::{Gather, Slice};
use crate::code::rows::{ChunkPiece, Fragment, first_piece, pieces};
use crate::device::{Device, DeviceError};
use crate::error::VolumeError;
use crate::members::attachment::Attached;
use crate::members::load::Timed;
use crate::members::port::{MemberError, MemberRead};
use crate::members::read_into::Reads;
use layout::units::{ArrayOffset, Stripe};

/// A read of one piece that is on its way at its member.
pub(crate) struct PieceRead<'a, D: Device> {
    engine: &'a ParityEngine<D>,
    piece: ChunkPiece,
    read: MemberRead,
    from: Rc<Attached<D>>,
    /// What the member answers.
    pub(crate) answer: Timed<'a, D::Read>,
}

/// Fast path: starts the read of a range that is one piece of a stripe, while every member is in sync. None: the range is for
/// [`read_stripes`], and nothing was started.
#[inline]
pub(crate) fn start_piece<D: Device>(
    engine: &ParityEngine<D>,
    offset: ArrayOffset,
    bytes: u64,
) -> Option<PieceRead<'_, D>> {
    let shared = &*engine.shared;
    let piece = first_piece(&shared.geometry, offset, bytes);
    let is_whole = piece.fragment.rows.bytes() as u64 == bytes;
    if !is_whole || !all_agree(engine) || shared.loads.avoid_slow() {
        return None;
    }
    let read = engine.read_of(piece.stripe, &piece.fragment);
    let (from, answer) = engine.port.start_read(&read)?;
    Some(PieceRead { engine, piece, read, from, answer })
}

impl<D: Device> PieceRead<'_, D> {
    /// The member has failed the read: tries again, then does without the member.
    pub(crate) async fn read_again(self, error: DeviceError) -> Result<Gather, VolumeError> {
        let PieceRead { engine, piece, read, from, .. } = self;
        match engine.port.read_again(&read, &from, error).await {
            Ok(buffer) => Ok(Gather::from(buffer.freeze())),
            Err(MemberError::Gone | MemberError::Unreadable) => {
                Ok(Gather::from(read_as_owner(engine, piece.stripe, &[piece.fragment]).await?.remove(0)))
            }
            Err(MemberError::Request(error)) => Err(error),
        }
    }
}

/// Reads a range of a parity array: of any length, with members that are lost or slow.
pub(crate) async fn read_stripes<D: Device>(
    engine: &ParityEngine<D>,
    offset: ArrayOffset,
    bytes: u64,
) -> Result<Gather, VolumeError> {
    let pieces: SmallVec<[ChunkPiece; 2]> = pieces(&engine.shared.geometry, offset, bytes).collect();
    if engine.shared.loads.may_avoid(engine.shard, pieces.len())
        && let Some(gather) = Box::pin(read_avoiding(engine, &pieces)).await
    {
        return Ok(gather);
    }
    // Checked after the last await: no other task of this shard can detach a member between here and the reads.
    if any_needs_owner(engine, &pieces) {
        return Box::pin(read_around(engine, &pieces)).await;
    }
    let mut gather = Gather::new();
    read_present(engine, &pieces, &mut gather).await?;
    Ok(gather)
}

/// The member reads of a range, if every member that it needs is there, they are no matter of the stripe's owner, and reads avoid
/// no slow member.
pub(crate) fn present_reads<D: Device>(
    engine: &ParityEngine<D>,
    offset: ArrayOffset,
    bytes: u64,
) -> Option<Reads> {
    let pieces: SmallVec<[ChunkPiece; 2]> = pieces(&engine.shared.geometry, offset, bytes).collect();
    if engine.shared.loads.avoid_slow() || any_needs_owner(engine, &pieces) {
        return None;
    }
    Some(pieces.iter().map(|piece| engine.read_of(piece.stripe, &piece.fragment)).collect())
}

/// Whether every member is in sync, and holds what parity makes of it.
fn all_agree<D: Device>(engine: &ParityEngine<D>) -> bool {
    let shared = &*engine.shared;
    shared.members.all_in_sync() && (shared.loads.parity_agrees() || shared.shape().parity == 1)
}

fn any_needs_owner<D: Device>(engine: &ParityEngine<D>, pieces: &[ChunkPiece]) -> bool {
    !all_agree(engine) && pieces.iter().any(|piece| needs_owner(engine, piece))
}

/// Whether a piece is lost, or P and Q of its stripe, which a resync has yet to reach, may agree on something else about it.
fn needs_owner<D: Device>(engine: &ParityEngine<D>, piece: &ChunkPiece) -> bool {
    let shared = &*engine.shared;
    let is_lost = shared.missing(piece.stripe).contains(piece.fragment.chunk);
    is_lost || shared.shape().parity == 2 && shared.consistency.is_in_doubt(piece.stripe)
}

/// Reads pieces whose members are there, all at once.
async fn read_present<D: Device>(
    engine: &ParityEngine<D>,
    pieces: &[ChunkPiece],
    gather: &mut Gather,
) -> Result<(), VolumeError> {
    let reads: SmallVec<[MemberRead; 2]> =
        pieces.iter().map(|piece| engine.read_of(piece.stripe, &piece.fragment)).collect();
    for (piece, result) in pieces.iter().zip(engine.port.read(&reads).await) {
        gather.push(match result {
            Ok(buffer) => buffer.freeze(),
            Err(MemberError::Gone | MemberError::Unreadable) => {
                Box::pin(read_as_owner(engine, piece.stripe, &[piece.fragment])).await?.remove(0)
            }
            Err(MemberError::Request(error)) => return Err(error),
        });
    }
    Ok(())
}

/// Reads a range of which stripes' owners read a part: stripe by stripe, each row once.
async fn read_around<D: Device>(
    engine: &ParityEngine<D>,
    pieces: &[ChunkPiece],
) -> Result<Gather, VolumeError> {
    let mut gather = Gather::new();
    for stripe in pieces.chunk_by(|a, b| a.stripe == b.stripe) {
        if stripe.iter().any(|piece| needs_owner(engine, piece)) {
            let fragments: SmallVec<[Fragment; 8]> = stripe.iter().map(|piece| piece.fragment).collect();
            let slices = read_as_owner(engine, stripe[0].stripe, &fragments).await?;
            slices.into_iter().for_each(|slice| gather.push(slice));
        } else {
            read_present(engine, stripe, &mut gather).await?;
        }
    }
    Ok(gather)
}

/// Reads fragments of a stripe as its owner: some are lost, or the stripe is in doubt.
async fn read_as_owner<D: Device>(
    engine: &ParityEngine<D>,
    stripe: Stripe,
    fragments: &[Fragment],
) -> Result<SmallVec<[Slice; 4]>, VolumeError> {
    let claim = engine.claim(stripe).await;
    let owned = engine.owned(&claim);
    if engine.by_peers()
        && let [only] = fragments
        && let Some(contents) = Box::pin(read_by_peers(owned, only)).await
    {
        owned.port().counters().peer_reads.add(1);
        return Ok(SmallVec::from_iter([contents]));
    }
    let slices = read_owned(owned, fragments).await?;
    if owned.shape().parity == 2 && owned.is_in_doubt() {
        Box::pin(keep_read_of_members(owned, fragments, &slices)).await?;
    }
    Ok(slices)
}
