//! Reads of a mirror: one copy of each run, another where that cannot be read.

use super::engine::MirrorEngine;
use super::region::{Run, no_copy, regions, runs};
use super::salvage::salvage_run;
use crate::buffer::Gather;
use crate::device::Device;
use crate::error::VolumeError;
use crate::members::port::MemberError;
use crate::members::read_into::Reads;

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
            Err(MemberError::Gone) => read_any_copy(engine, run).await?,
            Err(MemberError::Unreadable) => salvage_run(engine, run, read.slot).await?,
            Err(MemberError::Request(error)) => read_other_copy(engine, run, read.slot, error).await?,
        };
        pieces.slices().iter().for_each(|slice| gather.push(slice.clone()));
    }
    Ok(gather)
}

/// The reads of a range, one copy of each part.
pub(crate) fn reads<D: Device>(engine: &MirrorEngine<D>, offset_bytes: u64, bytes: u64) -> Option<Reads> {
    copy_reads(engine, &runs(&engine.shared.geometry, offset_bytes, bytes)).ok()
}

/// One copy of each run.
fn copy_reads<D: Device>(engine: &MirrorEngine<D>, runs: &[Run]) -> Result<Reads, VolumeError> {
    let read = |run: &Run| {
        let place = engine.copy_to_read(&run.places, turn(engine, run));
        let place = place.ok_or_else(|| no_copy(&run.places))?;
        Ok(run.read_of(&place))
    };
    runs.iter().map(read).collect()
}

/// Which copy a run is read from. Where copies may differ it is the one that is written over the others later: what was
/// read once does not change back (invariant 6).
fn turn<D: Device>(engine: &MirrorEngine<D>, run: &Run) -> usize {
    if may_differ(engine, run) {
        return 0;
    }
    usize::try_from(run.places[0].member_offset / engine.shared.read_turn_bytes).unwrap_or(0)
}

/// Whether the copies of a run may differ.
fn may_differ<D: Device>(engine: &MirrorEngine<D>, run: &Run) -> bool {
    let shared = &engine.shared;
    let is_suspect = || {
        let mut regions = regions(run.offset_bytes, run.bytes as u64);
        shared.consistency.suspects() > 0 && regions.any(|region| shared.consistency.is_suspect(region))
    };
    !shared.loads.parity_agrees() || is_suspect()
}

/// Tries copy after copy; a member that is gone is not chosen again.
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

/// A member does not answer that the array needs for other data: of this there may be another copy. Where copies may
/// differ only one of them is read (invariant 6).
async fn read_other_copy<D: Device>(
    engine: &MirrorEngine<D>,
    run: &Run,
    not: u32,
    error: VolumeError,
) -> Result<Gather, VolumeError> {
    let others = run.places.iter().filter(|place| place.member != not && !may_differ(engine, run));
    for place in others.filter(|place| engine.in_sync(place)) {
        let read = run.read_of(place);
        if let Ok(buffer) = engine.port.read(&[read]).await.remove(0) {
            return Ok(Gather::from(buffer.freeze()));
        }
    }
    Err(error)
}
