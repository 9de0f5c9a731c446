//! Blocks of a mirror that a member cannot read: read from another copy, written again and read back ([`bad_place`]).

use smallvec::SmallVec;

use super::engine::MirrorEngine;
use super::region::{OwnedRegion, Region, Run, no_copy};
use crate::buffer::{Gather, Slice};
use crate::device::Device;
use crate::error::VolumeError;
use crate::members::bad_place;
use crate::members::health::MemberState;
use crate::members::port::{MemberError, MemberRead, MemberWrite};
use layout::geometry::CopyPlace;
use layout::units::Slot;

/// Reads a run whose copy in `slot` cannot be read whole, as the owner of one of its regions after the other.
pub(super) async fn salvage_run<D: Device>(
    engine: &MirrorEngine<D>,
    run: &Run,
    slot: Slot,
) -> Result<Gather, VolumeError> {
    let (mut gather, mut done) = (Gather::new(), 0);
    while done < run.bytes {
        let region = Region::of(run.offset + done as u64);
        let end = region.bytes(u64::MAX).end;
        let left = usize::try_from(end - run.offset).unwrap_or(usize::MAX).min(run.bytes) - done;
        let claim = engine.claim(region).await;
        gather.push(salvage_owned(engine, &claim, &run.part(done, left), slot).await?);
        done += left;
    }
    Ok(gather)
}

/// Reads a run block by block, each from the first copy that can be read, beginning with the one in `slot`. The run lies in
/// the owned region.
pub(super) async fn salvage_owned<D: Device>(
    engine: &MirrorEngine<D>,
    _owned: &OwnedRegion,
    run: &Run,
    slot: Slot,
) -> Result<Slice, VolumeError> {
    let mut whole = engine.port.pool.take(run.bytes);
    for block in run.blocks() {
        let contents = salvage_copy(engine, &run.part(block.start as usize, block.bytes()), slot).await?;
        whole.bytes_mut()[block.start as usize..block.end as usize].copy_from_slice(contents.bytes());
    }
    Ok(whole.freeze())
}

/// Reads one block from the first copy that can be read, beginning with the one in `slot`, and writes it again to the
/// members that could not read it.
pub(super) async fn salvage_copy<D: Device>(
    engine: &MirrorEngine<D>,
    block: &Run,
    slot: Slot,
) -> Result<Slice, VolumeError> {
    let in_sync = |member| engine.shared.members.state(member) == MemberState::InSync;
    let mut places = block.places.clone();
    places.sort_by_key(|place| place.member != slot);
    let mut unreadable = SmallVec::<[MemberRead; 4]>::new();
    // The filter is lazy: the state is checked before each read, since another device may have taken a slot (invariant 8).
    for place in places.iter().filter(|place| in_sync(place.member)) {
        let read = block.read_of(place);
        match engine.port.read_quietly(&read).await {
            Ok(contents) => {
                for read in unreadable.iter().filter(|read| in_sync(read.slot)) {
                    bad_place::put_back(&engine.port, read, &contents).await;
                }
                return Ok(contents);
            }
            Err(MemberError::Unreadable) => {
                unreadable.push(read);
                if unreadable.len() == 1
                    && engine.may_differ(block)
                    && let Some(contents) = by_sectors(engine, block, &places).await
                {
                    bad_place::put_back(&engine.port, &unreadable[0], &contents).await;
                    return Ok(contents);
                }
            }
            Err(MemberError::Gone) => {}
            Err(MemberError::Request(error)) => return Err(error),
        }
    }
    Err(unreadable
        .first()
        .map_or_else(|| no_copy(&block.places), |read| bad_place::unreadable(&engine.port, read)))
}

/// Reads one block sector by sector, each from the first copy that can be read. Where copies may differ, a later read must not return
/// older data (invariant 6): only the sectors that the first copy cannot read are taken from another. None: a sector cannot be read
/// from any copy, or the block is a single sector.
async fn by_sectors<D: Device>(engine: &MirrorEngine<D>, block: &Run, places: &[CopyPlace]) -> Option<Slice> {
    let sector_of = |place: &CopyPlace| {
        engine.port.devices.attached(place.member).map(|member| member.device.info().logical_block_bytes)
    };
    let sector = places.iter().filter_map(sector_of).max()? as usize;
    if block.bytes <= sector {
        return None;
    }
    let mut whole = engine.port.pool.take(block.bytes);
    for start in (0..block.bytes).step_by(sector) {
        let bytes = sector.min(block.bytes - start);
        let mut found = None;
        for place in places {
            if engine.shared.members.state(place.member) == MemberState::InSync {
                let (slot, offset) = (place.member, place.member_offset + start as u64);
                found = engine.port.read_quietly(&MemberRead { slot, offset, bytes }).await.ok();
            }
            if found.is_some() {
                break;
            }
        }
        whole.bytes_mut()[start..start + bytes].copy_from_slice(found?.bytes());
    }
    Some(whole.freeze())
}

/// Copies a run that cannot be read whole to the members in `targets`, block by block, each from the first copy that can be
/// read, beginning with `source`. A block that no copy can supply is recorded as bad on the targets.
pub(super) async fn copy_blocks<D: Device>(
    engine: &MirrorEngine<D>,
    run: &Run,
    source: Slot,
    targets: &[Slot],
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
    // The copies count as consistent only once the bad-block logs on disk say so.
    Ok(engine.shared.members.settled().await?)
}

#[cfg(test)]
mod tests {
    use crate::stripe::fake::World;
    use layout::geometry::Level;
    use layout::units::MemberOffset;

    /// Seed 33239: after a crash one sector of a block could not be read. Its other sectors had been read before, from the first copy; the block was
    /// taken from another copy whole, in which they were older.
    #[test]
    fn where_copies_may_differ_only_sectors_that_cannot_be_read_come_from_another() {
        for agree in [false, true] {
            let world = World::new(Level::Raid1, 2);
            world.fill();
            world.set.shared.loads.set_parity_agrees(agree);
            world.fakes[1].flip(MemberOffset::new(0));
            let (first, second) = (world.fakes[0].area(), world.fakes[1].area());
            assert_eq!(world.read(0, 512).expect("readable"), first[..512]);
            world.fakes[0].break_sector(MemberOffset::new(1024));
            let read = world.read(0, 4096).expect("another copy has it");
            assert_eq!(read, if agree { &second[..4096] } else { &first[..4096] });
            assert_eq!(world.read(0, 512).expect("readable"), read[..512], "and so it stays");
        }
    }
}
