//! Copies what a member holds to the device that is to replace it, stripe by stripe.
//!
//! The replacement gets every write that the member gets, so the order of the stripes does not matter, and a stripe may be
//! released as soon as it is copied.

use std::ops::Range;

use super::engine::{Owned, ParityEngine};
use super::salvage::reconstruct_rows;
use super::stripe_table::Claim;
use crate::buffer::Gather;
use crate::code::rows::{Fragment, Rows, cut_at_blocks, windows};
use crate::device::Device;
use crate::error::VolumeError;
use crate::members::port::{MemberError, MemberRead};
use crate::members::replacing::{copy_block, failed, read_to_copy};
use layout::units::Slot;

/// Copies what the member in `slot` holds of a run of adjacent stripes.
pub(crate) async fn copy_run<D: Device>(
    engine: &ParityEngine<D>,
    run: Range<u64>,
    slot: Slot,
) -> Result<(), VolumeError> {
    let mut at = run.start;
    while at < run.end {
        let claims = engine.claim_run_in_turn(at, run.end).await;
        copy_owned(engine, &claims, slot).await?;
        at += claims.len() as u64;
    }
    Ok(())
}

async fn copy_owned<D: Device>(
    engine: &ParityEngine<D>,
    claims: &[Claim],
    slot: Slot,
) -> Result<(), VolumeError> {
    let geometry = &engine.shared.geometry;
    let chunk_bytes = geometry.chunk_bytes();
    let all = MemberRead {
        slot,
        offset: geometry.member_offset(claims[0].stripe()),
        bytes: chunk_bytes as usize * claims.len(),
    };
    // A chunk larger than a window is copied window by window.
    let whole = windows(chunk_bytes).count() == 1;
    if whole && let Some(contents) = read_to_copy(&engine.port, &all).await? {
        return engine.port.write_replacement(slot, all.offset, Gather::from(contents.freeze())).await;
    }
    for owned in claims.iter().map(|claim| engine.owned(claim)) {
        for rows in windows(chunk_bytes) {
            copy_rows(owned, slot, rows).await?;
        }
    }
    Ok(())
}

async fn copy_rows<D: Device>(owned: Owned<'_, D>, slot: Slot, rows: Rows) -> Result<(), VolumeError> {
    let fragment = Fragment { chunk: owned.chunk_on(slot), rows };
    let read = owned.read_of(&fragment);
    if let Some(contents) = read_to_copy(owned.port(), &read).await? {
        return owned.port().write_replacement(slot, read.offset, Gather::from(contents.freeze())).await;
    }
    for rows in cut_at_blocks(rows) {
        let fragment = Fragment { rows, ..fragment };
        let read = owned.read_of(&fragment);
        let contents = match owned.port().read_quietly(&read).await {
            Err(MemberError::Unreadable) => reconstruct_rows(owned, fragment.chunk, rows).await?,
            result => Some(result.map_err(|error| failed(slot, error))?),
        };
        copy_block(owned.port(), &read, contents).await?;
    }
    Ok(())
}
