//! Reads of a mirror: one copy of each run, or another if that one cannot be read.

use super::engine::MirrorEngine;
use super::region::{Run, no_copy, regions, runs};
use super::salvage::salvage_run;
use crate::buffer::Gather;
use crate::device::Device;
use crate::error::VolumeError;
use crate::members::port::MemberError;
use crate::members::read_into::Reads;
use layout::units::Slot;

/// Reads a range of a mirror.
pub(crate) async fn read_copies<D: Device>(
    engine: &MirrorEngine<D>,
    offset_bytes: u64,
    bytes: u64,
) -> Result<Gather, VolumeError> {
    let runs = runs(&engine.shared.geometry, offset_bytes, bytes);
    let reads = copy_reads(engine, &runs)?;
    let mut gather = Gather::new();
    for ((run, read), result) in runs.iter().zip(&reads).zip(engine.port.read(&reads).await) {
        let pieces = match result {
            Ok(buffer) => Gather::from(buffer.freeze()),
            // On the heap: the future of a read that succeeds carries nothing of the other ways.
            Err(MemberError::Gone) => Box::pin(read_any_copy(engine, run)).await?,
            Err(MemberError::Unreadable) => Box::pin(salvage_run(engine, run, read.slot)).await?,
            Err(MemberError::Request(error)) => {
                Box::pin(read_other_copy(engine, run, read.slot, error)).await?
            }
        };
        pieces.slices().iter().for_each(|slice| gather.push(slice.clone()));
    }
    Ok(gather)
}

/// The member reads of a range, of one copy of each run. None if a run has no copy in sync.
pub(crate) fn reads<D: Device>(engine: &MirrorEngine<D>, offset_bytes: u64, bytes: u64) -> Option<Reads> {
    copy_reads(engine, &runs(&engine.shared.geometry, offset_bytes, bytes)).ok()
}

/// One copy of each run.
fn copy_reads<D: Device>(engine: &MirrorEngine<D>, runs: &[Run]) -> Result<Reads, VolumeError> {
    let read = |run: &Run| {
        let place = engine.copy_to_read(&run.places, read_turn(engine, run));
        let place = place.ok_or_else(|| no_copy(&run.places))?;
        Ok(run.read_of(&place))
    };
    runs.iter().map(read).collect()
}

/// Which copy a run is read from: the copies take turns along the array. Where copies may differ it is always the first,
/// which a resync will write over the others: a later read does not return older data (invariant 6).
fn read_turn<D: Device>(engine: &MirrorEngine<D>, run: &Run) -> usize {
    if may_differ(engine, run) {
        return 0;
    }
    usize::try_from(run.places[0].member_offset / engine.shared.read_turn_bytes).unwrap_or(0)
}

/// Whether the copies of a run may differ.
fn may_differ<D: Device>(engine: &MirrorEngine<D>, run: &Run) -> bool {
    let shared = &engine.shared;
    let is_suspect = || {
        let (first, last) = regions(run.offset_bytes, run.bytes as u64);
        shared.consistency.suspects() > 0
            && (first.0..=last.0).any(|region| shared.consistency.is_suspect(region))
    };
    !shared.loads.parity_agrees() || is_suspect()
}

/// Reads a run from the first copy that can be read. A member that fails is no longer in sync, so it is not chosen again.
async fn read_any_copy<D: Device>(engine: &MirrorEngine<D>, run: &Run) -> Result<Gather, VolumeError> {
    while let Some(place) = engine.copy_to_read(&run.places, 0) {
        let read = run.read_of(&place);
        match engine.port.read(&[read]).await.remove(0) {
            Ok(buffer) => return Ok(Gather::from(buffer.freeze())),
            Err(MemberError::Gone) => {}
            Err(MemberError::Unreadable) => return salvage_run(engine, run, place.member).await,
            Err(MemberError::Request(error)) => {
                return read_other_copy(engine, run, place.member, error).await;
            }
        }
    }
    Err(no_copy(&run.places))
}

/// A member that the array needs for other data failed to read this run: another member may hold a copy. Where copies may
/// differ no other copy is read (invariant 6).
async fn read_other_copy<D: Device>(
    engine: &MirrorEngine<D>,
    run: &Run,
    failed: Slot,
    error: VolumeError,
) -> Result<Gather, VolumeError> {
    let others = run.places.iter().filter(|place| place.member != failed && !may_differ(engine, run));
    for place in others.filter(|place| engine.in_sync(place)) {
        let read = run.read_of(place);
        if let Ok(buffer) = engine.port.read(&[read]).await.remove(0) {
            return Ok(Gather::from(buffer.freeze()));
        }
    }
    Err(error)
}
