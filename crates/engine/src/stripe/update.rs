//! The update of a stripe, and what is done where old contents that it needs cannot be had.
//!
//! Other blocks of rows in which a block of data is lost can be read and written, and the rest of the array goes on:
//! - A write of the block itself makes the row whole: parity from all data, which needs neither the old block nor the old
//!   parity.
//! - A write of another block leaves such a parity as it is. Before it does, the parity is bad in the log.

use super::agree::{give_up_parity, is_parity_bad, member_fails};
use super::engine::Owned;
use super::runner::{Way, store, update_by};
use crate::code::chunk_set::ChunkSet;
use crate::code::image::Image;
use crate::code::plan::{plan_data_only, plan_reconstruct};
use crate::code::rows::{Rows, cut_at_blocks};
use crate::code::union::Union;
use crate::device::Device;
use crate::error::VolumeError;
use crate::stages::Watch;

/// Updates a stripe with the union of its writes. `image` holds what was read of it.
pub(super) async fn update<D: Device>(
    owned: Owned<'_, D>,
    union: &Union,
    image: Image,
    fua: bool,
    watch: &mut Watch<'_>,
) -> Result<(), VolumeError> {
    match update_by(owned, Way::Best, union, image, fua, watch).await {
        // In a box: what hardly ever happens does not make the task of every write larger.
        Err(VolumeError::Unreadable { .. }) => Box::pin(update_by_blocks(owned, union, fua, watch)).await,
        result => result,
    }
}

/// Updates a stripe of which old contents that the best way needs cannot be had.
async fn update_by_blocks<D: Device>(
    owned: Owned<'_, D>,
    union: &Union,
    fua: bool,
    watch: &mut Watch<'_>,
) -> Result<(), VolumeError> {
    for rows in cut_at_blocks(union.span()) {
        let part = union.within(rows);
        if !part.is_empty() {
            update_block(owned, rows, &part, fua, watch).await?;
        }
    }
    Ok(())
}

async fn update_block<D: Device>(
    owned: Owned<'_, D>,
    rows: Rows,
    part: &Union,
    fua: bool,
    watch: &mut Watch<'_>,
) -> Result<(), VolumeError> {
    let mut error = match update_by(owned, Way::Best, part, Image::default(), fua, watch).await {
        Err(error @ VolumeError::Unreadable { .. }) => error,
        result => return result,
    };
    let can_reconstruct = || {
        let missing = owned.missing();
        plan_reconstruct(owned.shape(), missing, &part.fragments(), &[]).is_ok()
    };
    if can_reconstruct() {
        match update_by(owned, Way::Reconstruct, part, Image::default(), fua, watch).await {
            Err(again @ VolumeError::Unreadable { .. }) => error = again,
            // A member failed while its part was read: nothing was written yet, or the stripe would be suspect.
            Err(_) if !can_reconstruct() && !owned.is_suspect() => {}
            result => return result,
        }
    }
    if member_fails(owned, &error).await {
        return update_by(owned, Way::Best, part, Image::default(), fua, watch).await;
    }
    write_without_parity(owned, rows, part, fua, error).await
}

/// Only data. It fails with `error` if more would be lost by that than is lost already.
async fn write_without_parity<D: Device>(
    owned: Owned<'_, D>,
    rows: Rows,
    part: &Union,
    fua: bool,
    error: VolumeError,
) -> Result<(), VolumeError> {
    let missing = owned.missing();
    let written: ChunkSet = part.fragments().iter().map(|fragment| fragment.chunk).collect();
    // Parity, bad or not, is all there is of what is missing; new contents of that have no place at all.
    let may_give_up = missing.is_empty() || (missing.and(written).is_empty() && is_parity_bad(owned, rows));
    if !may_give_up || !give_up_parity(owned, rows) {
        return Err(error);
    }
    owned.shared().members.settled().await?;
    let plan = plan_data_only(owned.shape(), missing, &part.fragments());
    store(owned, &plan, part, &[], fua).await?;
    // A member that did not take its block, and has failed for that, is not made up for by anybody.
    if owned.missing().and(written).is_empty() { Ok(()) } else { Err(error) }
}
