//! Reads. While every member is in sync a read takes no lock and looks at no shared state but the health flag.
//! A read of a lost chunk owns the stripe while it recovers: parity and data of a stripe in motion do not agree.

use smallvec::SmallVec;

use super::avoid::read_avoiding;
use super::engine::ParityEngine;
use super::fetch::read_owned;
use crate::buffer::{Gather, Slice};
use crate::code::rows::{ChunkPiece, Fragment, pieces};
use crate::device::Device;
use crate::error::VolumeError;
use crate::members::port::{MemberError, MemberRead};
use crate::members::read_into::Reads;

/// Reads a range of a parity array.
pub(crate) async fn read_stripes<D: Device>(
    engine: &ParityEngine<D>,
    offset_bytes: u64,
    bytes: u64,
) -> Result<Gather, VolumeError> {
    let pieces: SmallVec<[ChunkPiece; 2]> = pieces(&engine.shared.geometry, offset_bytes, bytes).collect();
    if engine.shared.loads.may_avoid(engine.shard, pieces.len())
        && let Some(gather) = read_avoiding(engine, &pieces).await
    {
        return Ok(gather);
    }
    // After anything that waits: between this look and the reads nobody can take a member away.
    if any_lost(engine, &pieces) {
        return read_around(engine, &pieces).await;
    }
    let mut gather = Gather::new();
    read_present(engine, &pieces, &mut gather).await?;
    Ok(gather)
}

/// The reads of a range, if all members that it needs are there and none is avoided.
pub(crate) fn present_reads<D: Device>(
    engine: &ParityEngine<D>,
    offset_bytes: u64,
    bytes: u64,
) -> Option<Reads> {
    let pieces: SmallVec<[ChunkPiece; 2]> = pieces(&engine.shared.geometry, offset_bytes, bytes).collect();
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

/// A request that meets lost chunks: stripe by stripe, each row read once.
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

/// Reads fragments of a stripe of which some are lost, as its owner.
async fn read_lost<D: Device>(
    engine: &ParityEngine<D>,
    stripe: u64,
    fragments: &[Fragment],
) -> Result<SmallVec<[Slice; 4]>, VolumeError> {
    let claim = engine.claim(stripe).await;
    read_owned(engine.owned(&claim), fragments).await
}
