//! Reads of a mirror: one copy of each run, or another if that one cannot be read.

use super::engine::MirrorEngine;
use super::region::{Run, no_copy, runs};
use super::salvage::salvage_run;
use crate::buffer::Gather;
use crate::device::Device;
use crate::error::VolumeError;
use crate::members::port::MemberError;
use crate::members::read_into::Reads;
use layout::geometry::CopyPlace;
use layout::units::{ArrayOffset, Slot};

/// Reads a range of a mirror.
pub(crate) async fn read_copies<D: Device>(
    engine: &MirrorEngine<D>,
    offset: ArrayOffset,
    bytes: u64,
) -> Result<Gather, VolumeError> {
    let runs = runs(&engine.shared.geometry, offset, bytes);
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
pub(crate) fn reads<D: Device>(engine: &MirrorEngine<D>, offset: ArrayOffset, bytes: u64) -> Option<Reads> {
    copy_reads(engine, &runs(&engine.shared.geometry, offset, bytes)).ok()
}

/// One copy of each run.
fn copy_reads<D: Device>(engine: &MirrorEngine<D>, runs: &[Run]) -> Result<Reads, VolumeError> {
    let read = |run: &Run| {
        let place = copy_to_read(engine, run).ok_or_else(|| no_copy(&run.places))?;
        Ok(run.read_of(&place))
    };
    runs.iter().map(read).collect()
}

/// Which copy a run is read from: the copies take turns along the array. Where copies may differ it is always the first,
/// which a resync will write over the others: a later read does not return older data (invariant 6).
fn copy_to_read<D: Device>(engine: &MirrorEngine<D>, run: &Run) -> Option<CopyPlace> {
    if engine.may_differ(run) {
        return engine.first_copy(&run.places);
    }
    let turn = run.places[0].member_offset.get() / engine.shared.read_turn_bytes;
    engine.copy_in_turn(&run.places, usize::try_from(turn).unwrap_or(0))
}

/// Reads a run from the first copy that can be read. A member that fails is no longer in sync, so it is not chosen again.
async fn read_any_copy<D: Device>(engine: &MirrorEngine<D>, run: &Run) -> Result<Gather, VolumeError> {
    while let Some(place) = copy_to_read(engine, run) {
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
    let mut places = run.places.clone();
    places.sort_by_key(|place| engine.shared.members.is_read_last(place.member));
    let others = places.iter().filter(|place| place.member != failed && !engine.may_differ(run));
    for place in others.filter(|place| engine.in_sync(place)) {
        let read = run.read_of(place);
        if let Ok(buffer) = engine.port.read(&[read]).await.remove(0) {
            return Ok(Gather::from(buffer.freeze()));
        }
    }
    Err(error)
}

#[cfg(test)]
mod tests {
    use crate::members::MemberState;
    use crate::stripe::fake::World;
    use layout::geometry::Level;
    use layout::units::{MemberOffset, Slot};

    /// Changes the first bytes of each copy behind the array, of each other ones.
    fn tell_copies_apart(world: &World) {
        for (slot, fake) in (0u64..).zip(&world.fakes) {
            (0..=slot).for_each(|byte| fake.flip(MemberOffset::new(byte)));
        }
    }

    /// Reads from the start, and says which member was read.
    fn read_members(world: &World, bytes: usize) -> Vec<u32> {
        let read = world.read(0, bytes as u64).expect("readable");
        (0..3).filter(|slot| world.fakes[*slot as usize].area()[..bytes] == read[..]).collect()
    }

    #[test]
    fn a_write_mostly_member_is_read_only_if_no_other_can_be() {
        let world = World::new(Level::Raid1, 3);
        world.fill();
        let members = &world.set.shared.members;
        tell_copies_apart(&world);
        assert_eq!(read_members(&world, 4096), [0], "the first of the copies in its turn");
        members.set_read_last(Slot::new(0), true);
        assert_eq!(read_members(&world, 4096), [1]);
        members.fail(Slot::new(1), "a test");
        assert_eq!(read_members(&world, 4096), [2]);
        members.fail(Slot::new(2), "a test");
        assert!(world.state(Slot::new(2)) == MemberState::Failed);
        assert_eq!(read_members(&world, 4096), [0], "no other is there");
    }

    #[test]
    fn where_copies_may_differ_the_first_is_read_whatever_its_flag() {
        let world = World::new(Level::Raid1, 3);
        world.fill();
        tell_copies_apart(&world);
        world.set.shared.members.set_read_last(Slot::new(0), true);
        world.set.shared.loads.set_parity_agrees(false);
        assert_eq!(read_members(&world, 4096), [0], "the resync writes it over the others");
    }
}
