//! Reads. While every member is in sync a read takes no lock and no shared state but the health flag. A read of a lost
//! chunk owns the stripe while it reconstructs: during a write parity and data do not agree.

use smallvec::SmallVec;

use super::avoid::read_avoiding;
use super::engine::ParityEngine;
use super::fetch::read_owned;
use super::peers::read_by_peers;
use crate::buffer::{Gather, Slice};
use crate::code::rows::{ChunkPiece, Fragment, first_piece, pieces};
use crate::device::Device;
use crate::error::VolumeError;
use crate::members::port::{MemberError, MemberRead};
use crate::members::read_into::Reads;
use layout::units::{ArrayOffset, Stripe};

/// Reads a range of a parity array.
pub(crate) async fn read_stripes<D: Device>(
    engine: &ParityEngine<D>,
    offset: ArrayOffset,
    bytes: u64,
) -> Result<Gather, VolumeError> {
    let shared = &*engine.shared;
    let piece = first_piece(&shared.geometry, offset, bytes);
    let is_whole = piece.fragment.rows.bytes() as u64 == bytes;
    if is_whole && shared.members.all_in_sync() && !shared.loads.avoid_slow() {
        return read_piece(engine, &piece).await;
    }
    // On the heap: the future of a read of one piece carries nothing of the other ways.
    Box::pin(read_pieces(engine, offset, bytes)).await
}

/// Fast path: reads one piece from its member, without a list.
async fn read_piece<D: Device>(engine: &ParityEngine<D>, piece: &ChunkPiece) -> Result<Gather, VolumeError> {
    match engine.port.read_one(&engine.read_of(piece.stripe, &piece.fragment)).await {
        Ok(buffer) => Ok(Gather::from(buffer.freeze())),
        Err(MemberError::Gone | MemberError::Unreadable) => {
            Ok(Gather::from(Box::pin(read_lost(engine, piece.stripe, &[piece.fragment])).await?.remove(0)))
        }
        Err(MemberError::Request(error)) => Err(error),
    }
}

/// The general path: a range of any length, with members that are lost or slow.
async fn read_pieces<D: Device>(
    engine: &ParityEngine<D>,
    offset: ArrayOffset,
    bytes: u64,
) -> Result<Gather, VolumeError> {
    let pieces: SmallVec<[ChunkPiece; 2]> = pieces(&engine.shared.geometry, offset, bytes).collect();
    if engine.shared.loads.may_avoid(engine.shard, pieces.len())
        && let Some(gather) = read_avoiding(engine, &pieces).await
    {
        return Ok(gather);
    }
    // Checked after the last await: no other task of this shard can detach a member between here and the reads.
    if any_lost(engine, &pieces) {
        return read_around(engine, &pieces).await;
    }
    let mut gather = Gather::new();
    read_present(engine, &pieces, &mut gather).await?;
    Ok(gather)
}

/// The member reads of a range, if every member that it needs is there and reads avoid no slow member.
pub(crate) fn present_reads<D: Device>(
    engine: &ParityEngine<D>,
    offset: ArrayOffset,
    bytes: u64,
) -> Option<Reads> {
    let pieces: SmallVec<[ChunkPiece; 2]> = pieces(&engine.shared.geometry, offset, bytes).collect();
    if engine.shared.loads.avoid_slow() || any_lost(engine, &pieces) {
        return None;
    }
    Some(pieces.iter().map(|piece| engine.read_of(piece.stripe, &piece.fragment)).collect())
}

fn any_lost<D: Device>(engine: &ParityEngine<D>, pieces: &[ChunkPiece]) -> bool {
    !engine.shared.members.all_in_sync() && pieces.iter().any(|piece| is_lost(engine, piece))
}

fn is_lost<D: Device>(engine: &ParityEngine<D>, piece: &ChunkPiece) -> bool {
    engine.shared.missing(piece.stripe).contains(piece.fragment.chunk)
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
                read_lost(engine, piece.stripe, &[piece.fragment]).await?.remove(0)
            }
            Err(MemberError::Request(error)) => return Err(error),
        });
    }
    Ok(())
}

/// Reads a range that meets lost chunks: stripe by stripe, each row once.
async fn read_around<D: Device>(
    engine: &ParityEngine<D>,
    pieces: &[ChunkPiece],
) -> Result<Gather, VolumeError> {
    let mut gather = Gather::new();
    for stripe in pieces.chunk_by(|a, b| a.stripe == b.stripe) {
        if stripe.iter().any(|piece| is_lost(engine, piece)) {
            let fragments: SmallVec<[Fragment; 8]> = stripe.iter().map(|piece| piece.fragment).collect();
            let slices = read_lost(engine, stripe[0].stripe, &fragments).await?;
            slices.into_iter().for_each(|slice| gather.push(slice));
        } else {
            read_present(engine, stripe, &mut gather).await?;
        }
    }
    Ok(gather)
}

/// Reads fragments of a stripe, some of them lost, as its owner.
async fn read_lost<D: Device>(
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
    read_owned(owned, fragments).await
}
