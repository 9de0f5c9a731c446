//! Copies what a member of a mirror holds to the device that is to replace it, region by region.

use super::engine::MirrorEngine;
use super::region::{OwnedRegion, Region, Run, runs_of};
use super::salvage::salvage_copy;
use crate::buffer::Gather;
use crate::device::Device;
use crate::error::VolumeError;
use crate::members::port::MemberRead;
use crate::members::replacing::{copy_block, read_to_copy};
use layout::units::Slot;

/// Copies what the member in `slot` holds of a region to its replacement.
pub(crate) async fn replace_region<D: Device>(
    engine: &MirrorEngine<D>,
    region: Region,
    slot: Slot,
) -> Result<(), VolumeError> {
    let claim = engine.claim_in_turn(region).await;
    replace_owned(engine, &claim, slot).await
}

async fn replace_owned<D: Device>(
    engine: &MirrorEngine<D>,
    region: &OwnedRegion,
    slot: Slot,
) -> Result<(), VolumeError> {
    for run in runs_of(region, &engine.shared.geometry) {
        let Some(place) = run.places.iter().find(|place| place.member == slot) else { continue };
        let read = run.read_of(place);
        match read_to_copy(&engine.port, &read).await? {
            Some(contents) => {
                engine.port.write_replacement(slot, read.offset, Gather::from(contents.freeze())).await?;
            }
            None => replace_by_blocks(engine, &run, slot).await?,
        }
    }
    Ok(())
}

async fn replace_by_blocks<D: Device>(
    engine: &MirrorEngine<D>,
    run: &Run,
    slot: Slot,
) -> Result<(), VolumeError> {
    for block in run.blocks() {
        let part = run.part(block.start as usize, block.bytes());
        let place = part.places.iter().find(|place| place.member == slot);
        let offset = place.expect("its run has a part of every block").member_offset;
        let read = MemberRead { slot, offset, bytes: part.bytes };
        let contents = match salvage_copy(engine, &part, slot).await {
            Ok(contents) => Some(contents),
            Err(VolumeError::Unreadable { .. }) => None,
            Err(error) => return Err(error),
        };
        copy_block(&engine.port, &read, contents).await?;
    }
    Ok(())
}
