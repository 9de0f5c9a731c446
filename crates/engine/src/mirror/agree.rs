//! Makes the copies of a region agree (resync), or rebuilds a member's copy (recovery), as the region's owner.

use smallvec::SmallVec;

use super::engine::MirrorEngine;
use super::region::{OwnedRegion, Region, Run, no_copy, runs_of};
use super::salvage::{copy_blocks, salvage_owned};
use crate::buffer::Gather;
use crate::device::Device;
use crate::error::VolumeError;
use crate::members::health::MemberState;
use crate::members::port::{MemberError, MemberWrite};
use layout::geometry::CopyPlace;
use layout::units::Slot;

/// Copies one region from a copy that is in sync to the others: all others for a resync, or only the one in
/// `slot` for a recovery.
pub(crate) async fn copy_region<D: Device>(
    engine: &MirrorEngine<D>,
    region: Region,
    slot: Option<Slot>,
) -> Result<(), VolumeError> {
    let claim = engine.claim_in_turn(region).await;
    match slot {
        Some(_) => copy_owned(engine, &claim, slot).await,
        None => make_copies_agree(engine, &claim).await,
    }
}

/// Writes one copy of an owned region over all others.
pub(super) async fn make_copies_agree<D: Device>(
    engine: &MirrorEngine<D>,
    region: &OwnedRegion,
) -> Result<(), VolumeError> {
    copy_owned(engine, region, None).await?;
    engine.shared.consistency.trust_region(region.region());
    Ok(())
}

async fn copy_owned<D: Device>(
    engine: &MirrorEngine<D>,
    region: &OwnedRegion,
    slot: Option<Slot>,
) -> Result<(), VolumeError> {
    for run in runs_of(region, &engine.shared.geometry) {
        let state = |place: &CopyPlace| engine.shared.members.state(place.member);
        let wanted = |place: &&CopyPlace| match slot {
            Some(slot) => place.member == slot && state(place) == MemberState::Recovering,
            // Recovering members too: their recovery may have passed this region already.
            None => matches!(state(place), MemberState::InSync | MemberState::Recovering),
        };
        if run.places.iter().filter(wanted).count() == 0 {
            continue; // the member in `slot` holds no copy of this run
        }
        let Some(source) = engine.first_copy(&run.places) else {
            return Err(no_copy(&run.places));
        };
        let targets = run.places.iter().filter(wanted).filter(|place| place.member != source.member);
        let contents = match read_any_copy_owned(engine, region, &run).await {
            Err(VolumeError::Unreadable { .. }) => {
                let targets: SmallVec<[Slot; 4]> = targets.map(|place| place.member).collect();
                copy_blocks(engine, &run, source.member, &targets).await?;
                continue;
            }
            contents => contents?,
        };
        let write = |place: &CopyPlace| MemberWrite {
            slot: place.member,
            offset: place.member_offset,
            data: contents.clone(),
        };
        let writes: SmallVec<[MemberWrite; 4]> = targets.map(write).collect();
        for result in engine.port.write(&writes, false).await {
            if let Err(MemberError::Request(error)) = result {
                return Err(error);
            }
        }
    }
    Ok(())
}

/// Reads a run from the first copy that can be read. A member that fails is no longer in sync, so it is not chosen again.
async fn read_any_copy_owned<D: Device>(
    engine: &MirrorEngine<D>,
    region: &OwnedRegion,
    run: &Run,
) -> Result<Gather, VolumeError> {
    while let Some(place) = engine.first_copy(&run.places) {
        let read = run.read_of(&place);
        match engine.port.read(&[read]).await.remove(0) {
            Ok(buffer) => return Ok(Gather::from(buffer.freeze())),
            Err(MemberError::Gone) => {}
            Err(MemberError::Unreadable) => {
                return Ok(Gather::from(salvage_owned(engine, region, run, place.member).await?));
            }
            Err(MemberError::Request(error)) => return Err(error),
        }
    }
    Err(no_copy(&run.places))
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use crate::members::MemberState;
    use crate::stripe::fake::World;
    use layout::geometry::Level;
    use layout::units::{MemberOffset, Slot};

    /// The recovery may have passed the region: it does not come back to it.
    #[test]
    fn a_resync_writes_members_that_are_being_rebuilt_too() {
        let world = World::new(Level::Raid1, 3);
        world.fill();
        let members = &world.set.shared.members;
        members.fail(Slot::new(2), "a test");
        assert!(
            members.remove(Slot::new(2))
                && members.begin_recovery(Slot::new(2), 0)
                && world.state(Slot::new(2)) == MemberState::Recovering
        );
        world.fakes[2].flip(MemberOffset::new(4096));
        let set = Rc::clone(&world.set);
        world.run(async move { set.copy_region(0, None).await }).expect("copied");
        assert!(world.fakes[2].area() == world.fakes[0].area());
    }
}
