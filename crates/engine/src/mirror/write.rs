//! Writes of a mirror, to every copy, as the owner of the regions that they touch.

use smallvec::SmallVec;

use super::agree::make_copies_agree;
use super::engine::MirrorEngine;
use super::region::{OwnedRegion, no_copy, regions};
use crate::buffer::Gather;
use crate::device::Device;
use crate::error::VolumeError;
use crate::events::Event;
use crate::limits::REGION_BYTES;
use crate::members::port::{MemberError, MemberWrite, in_use};
use crate::stages::Unwatched;
use crate::stripe::shared::Shared;
use layout::units::ArrayOffset;

/// Writes a range of a mirror.
pub(crate) async fn write_copies<D: Device>(
    engine: &MirrorEngine<D>,
    offset: ArrayOffset,
    data: Gather,
    fua: bool,
) -> Result<(), VolumeError> {
    let shared = &*engine.shared;
    let (mut done, bytes) = (0, data.len() as u64);
    let range = offset.get()..(offset + bytes).get();
    let _marked = shared.intent.mark(Unwatched(engine.shard), &shared.members, range).await?;
    while done < bytes {
        let at = offset + done;
        let (first, last) = regions(at, bytes - done);
        let owned = engine.claim_all(first, last).await;
        let end = ArrayOffset::new((first.0 + owned.len() as u64) * REGION_BYTES);
        let part = (bytes - done).min(end - at);
        let data = data.part(to_usize(done), to_usize(part));
        write_regions(engine, &owned, at, &data, fua).await?;
        done += part;
    }
    Ok(())
}

/// Writes data that lies in these regions.
async fn write_regions<D: Device>(
    engine: &MirrorEngine<D>,
    regions: &[OwnedRegion],
    offset: ArrayOffset,
    data: &Gather,
    fua: bool,
) -> Result<(), VolumeError> {
    let shared = &*engine.shared;
    for region in regions.iter().filter(|region| shared.consistency.is_suspect(region.region())) {
        // If this fails the region stays suspect, and the write goes ahead: it builds on no old contents.
        let _ = make_copies_agree(engine, region).await;
    }
    match write_owned(engine, offset, data, fua).await {
        Ok(()) if shared.members.is_settled() => Ok(()),
        Ok(()) => Ok(shared.members.settled().await?), // invariants 1 and 8
        Err(error) => {
            regions.iter().for_each(|region| suspect(shared, region, &error.to_string()));
            Err(error)
        }
    }
}

/// Marks a region whose write failed half way: some of its copies may be older than others.
fn suspect(shared: &Shared, region: &OwnedRegion, reason: &str) {
    let region = region.region();
    if shared.consistency.suspect_region(region) {
        let offset_bytes = region.bytes(shared.geometry.array_bytes()).start;
        let reason = reason.to_string();
        shared.members.report(Event::RegionSuspect { region: region.0, offset_bytes, reason });
    }
}

async fn write_owned<D: Device>(
    engine: &MirrorEngine<D>,
    offset: ArrayOffset,
    data: &Gather,
    fua: bool,
) -> Result<(), VolumeError> {
    let mut writes = SmallVec::<[MemberWrite; 4]>::new();
    let mut done = 0;
    while done < data.len() {
        let at = offset + done as u64;
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
            // The array can do without a member that failed: another copy was written.
            Ok(()) | Err(MemberError::Gone | MemberError::Unreadable) => {}
            Err(MemberError::Request(error)) => return Err(error),
        }
    }
    Ok(())
}

fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).expect("a request fits in memory")
}

#[cfg(test)]
mod tests {
    use crate::error::VolumeError;
    use crate::events::Event;
    use crate::stripe::fake::World;
    use crate::stripe::unit_number::UnitNumber;
    use layout::geometry::Level;
    use layout::units::ArrayOffset;

    #[test]
    fn a_region_written_to_some_copies_only_is_named_as_a_region() {
        let world = World::new(Level::Raid1, 2);
        world.fill();
        world.fakes[1].set_full(true);
        assert!(matches!(world.write(4096, &[7; 4096]), Err(VolumeError::NoSpace { .. })));
        assert_eq!(world.set.shared.consistency.suspect_units(), [UnitNumber::new(0)]);
        let named = |event: &Event| {
            matches!(event, Event::RegionSuspect { region: 0, offset_bytes: ArrayOffset::START, .. })
        };
        assert_eq!(world.heard(named), 1);
        assert_eq!(world.heard(|event| matches!(event, Event::StripeSuspect { .. })), 0);
        world.fakes[1].set_full(false);
        world.write(0, &[8; 4096]).expect("room again");
        assert_eq!(world.set.shared.consistency.suspects(), 0, "its copies were made to agree first");
    }
}
