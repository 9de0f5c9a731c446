//! Blocks of a mirror that a member cannot read: read from another copy, written again and read back ([`bad_place`]).

use smallvec::SmallVec;

use super::engine::MirrorEngine;
use super::region::{Run, no_copy, region_bytes, region_of};
use crate::buffer::{Gather, Slice};
use crate::device::Device;
use crate::error::VolumeError;
use crate::members::bad_place;
use crate::members::health::MemberState;
use crate::members::port::{MemberError, MemberRead, MemberWrite};
use crate::stripe::stripe_table::Claim;

/// Reads a run of which the copy in `slot` cannot be read, as the owner of one region after the other.
pub(super) async fn salvage_run<D: Device>(
    engine: &MirrorEngine<D>,
    run: &Run,
    slot: u32,
) -> Result<Gather, VolumeError> {
    let (mut gather, mut done) = (Gather::new(), 0);
    while done < run.bytes {
        let region = region_of(run.offset_bytes + done as u64);
        let end = region_bytes(region, u64::MAX).end;
        let left = usize::try_from(end - run.offset_bytes).unwrap_or(usize::MAX).min(run.bytes) - done;
        let claim = engine.claim(region).await;
        gather.push(salvage_owned(engine, std::slice::from_ref(&claim), &run.part(done, left), slot).await?);
        done += left;
    }
    Ok(gather)
}

/// Reads a run block by block, each from a copy that can be read; the one in `slot` is tried first.
pub(super) async fn salvage_owned<D: Device>(
    engine: &MirrorEngine<D>,
    _owned: &[Claim],
    run: &Run,
    slot: u32,
) -> Result<Slice, VolumeError> {
    let mut whole = engine.port.pool.take(run.bytes);
    for block in run.blocks() {
        let contents = salvage_copy(engine, &run.part(block.start as usize, block.bytes()), slot).await?;
        whole.bytes_mut()[block.start as usize..block.end as usize].copy_from_slice(contents.bytes());
    }
    Ok(whole.freeze())
}

pub(super) async fn salvage_copy<D: Device>(
    engine: &MirrorEngine<D>,
    block: &Run,
    slot: u32,
) -> Result<Slice, VolumeError> {
    let in_sync = |member| engine.shared.members.state(member) == MemberState::InSync;
    let mut places = block.places.clone();
    places.sort_by_key(|place| place.member != slot);
    let mut unreadable = SmallVec::<[MemberRead; 4]>::new();
    // Looked at before each read: another device may have taken a slot meanwhile (invariant 8).
    for place in places.iter().filter(|place| in_sync(place.member)) {
        let read = block.read_of(place);
        match engine.port.read_quietly(&read).await {
            Ok(contents) => {
                for read in unreadable.iter().filter(|read| in_sync(read.slot)) {
                    bad_place::put_back(&engine.port, read, &contents).await;
                }
                return Ok(contents);
            }
            Err(MemberError::Unreadable) => unreadable.push(read),
            Err(MemberError::Gone) => {}
            Err(MemberError::Request(error)) => return Err(error),
        }
    }
    Err(unreadable
        .first()
        .map_or_else(|| no_copy(&block.places), |read| bad_place::unreadable(&engine.port, read)))
}

/// Copies a run that cannot be read whole to the members in `targets`, block by block: what no copy has is recorded as bad
/// there. It is tried first from `source`, which stays as it is.
pub(super) async fn copy_blocks<D: Device>(
    engine: &MirrorEngine<D>,
    run: &Run,
    source: u32,
    targets: &[u32],
) -> Result<(), VolumeError> {
    for block in run.blocks() {
        let part = run.part(block.start as usize, block.bytes());
        let contents = salvage_copy(engine, &part, source).await;
        for place in part.places.iter().filter(|place| targets.contains(&place.member)) {
            let (slot, offset) = (place.member, place.member_offset);
            match &contents {
                Ok(contents) => {
                    let write = MemberWrite { slot, offset, data: Gather::from(contents.clone()) };
                    let written = engine.port.write(&[write], false).await.remove(0);
                    if let Err(MemberError::Request(error)) = written {
                        return Err(error);
                    }
                }
                Err(VolumeError::Unreadable { .. })
                    if bad_place::record_bad(&engine.port, slot, offset, part.bytes as u64) => {}
                Err(error) => return Err(error.clone()),
            }
        }
    }
    // They count as copies that agree only when that is in the logs.
    Ok(engine.shared.members.settled().await?)
}
