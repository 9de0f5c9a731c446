//! Writes of a mirror, to every copy, as the owner of the regions that they touch.

use smallvec::SmallVec;

use super::agree::make_copies_agree;
use super::engine::MirrorEngine;
use super::region::{no_copy, regions};
use crate::buffer::Gather;
use crate::device::Device;
use crate::error::VolumeError;
use crate::limits::REGION_BYTES;
use crate::members::port::{MemberError, MemberWrite, in_use};
use crate::stages::Watch;
use crate::stripe::stripe_table::Claim;

pub(crate) async fn write_copies<D: Device>(
    engine: &MirrorEngine<D>,
    offset_bytes: u64,
    data: Gather,
    fua: bool,
) -> Result<(), VolumeError> {
    let shared = &*engine.shared;
    let (mut done, bytes) = (0, data.len() as u64);
    let range = offset_bytes..offset_bytes + bytes;
    let _marked = shared.intent.mark(&Watch::off(engine.shard), &shared.members, range).await?;
    while done < bytes {
        let at = offset_bytes + done;
        let regions = regions(at, bytes - done);
        let claims = shared.table.claim_whole_run(*regions.start(), regions.end() + 1, engine.shard).await;
        let end_region = regions.start() + claims.len() as u64;
        let part = (bytes - done).min(end_region * REGION_BYTES - at);
        let data = data.part(to_usize(done), to_usize(part));
        write_regions(engine, &claims, at, &data, fua).await?;
        done += part;
    }
    Ok(())
}

/// Writes what lies in these regions.
async fn write_regions<D: Device>(
    engine: &MirrorEngine<D>,
    regions: &[Claim],
    offset_bytes: u64,
    data: &Gather,
    fua: bool,
) -> Result<(), VolumeError> {
    let shared = &*engine.shared;
    for region in regions.iter().filter(|region| shared.consistency.is_suspect(region.stripe())) {
        // A new write builds on nothing, so it goes ahead where this fails; the region stays suspect then.
        let _ = make_copies_agree(engine, region).await;
    }
    match write_owned(engine, offset_bytes, data, fua).await {
        Ok(()) if shared.members.is_settled() => Ok(()),
        Ok(()) => Ok(shared.members.settled().await?), // invariants 1 and 8
        Err(error) => {
            regions.iter().for_each(|region| shared.suspect_place(region.stripe(), &error.to_string()));
            Err(error)
        }
    }
}

async fn write_owned<D: Device>(
    engine: &MirrorEngine<D>,
    offset_bytes: u64,
    data: &Gather,
    fua: bool,
) -> Result<(), VolumeError> {
    let mut writes = SmallVec::<[MemberWrite; 4]>::new();
    let mut done = 0;
    while done < data.len() {
        let at = offset_bytes + done as u64;
        let copies = engine.shared.geometry.copies(at, (data.len() - done) as u64);
        let bytes = usize::try_from(copies.len).expect("a request fits in memory");
        let before = writes.len();
        for place in &copies.places {
            if in_use(engine.shared.members.state(place.member)) {
                let data = data.part(done, bytes);
                writes.push(MemberWrite { slot: place.member, offset: place.member_offset, data });
            }
        }
        if writes.len() == before {
            return Err(no_copy(&copies.places));
        }
        done += bytes;
    }
    for result in engine.port.write(&writes, fua).await {
        match result {
            // A member that fails is one that the array can do without: another copy was written.
            Ok(()) | Err(MemberError::Gone | MemberError::Unreadable) => {}
            Err(MemberError::Request(error)) => return Err(error),
        }
    }
    Ok(())
}

fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).expect("a request fits in memory")
}
