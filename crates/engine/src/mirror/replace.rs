//! What a member of a mirror holds, copied to the device that is to replace it, region by region.

use std::ops::Range;

use super::engine::MirrorEngine;
use super::region::{Run, region_bytes};
use super::salvage::salvage_copy;
use crate::buffer::Gather;
use crate::device::Device;
use crate::error::VolumeError;
use crate::members::port::MemberRead;
use crate::members::replacing::{copy_block, read_to_copy};
use crate::stripe::stripe_table::Claim;

/// Copies what the member in `slot` holds of a region of a mirror.
pub(crate) async fn replace_region<D: Device>(
    engine: &MirrorEngine<D>,
    region: u64,
    slot: u32,
) -> Result<(), VolumeError> {
    let claim = engine.claim_in_turn(region).await;
    replace_owned(engine, &claim, slot).await
}

async fn replace_owned<D: Device>(
    engine: &MirrorEngine<D>,
    region: &Claim,
    slot: u32,
) -> Result<(), VolumeError> {
    let geometry = &engine.shared.geometry;
    let Range { start: mut at, end } = region_bytes(region.stripe(), geometry.array_bytes());
    while at < end {
        let copies = geometry.copies(at, end - at);
        let bytes = usize::try_from(copies.len).expect("less than a region");
        let run = Run { offset_bytes: at, places: copies.places.into_iter().collect(), bytes };
        at += copies.len;
        let Some(place) = run.places.iter().find(|place| place.member == slot) else { continue };
        let read = MemberRead { slot, offset: place.member_offset, bytes };
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
    slot: u32,
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
