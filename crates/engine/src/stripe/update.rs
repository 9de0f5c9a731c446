//! The update of a stripe, and the fallback where old contents that it needs can be neither read nor reconstructed.
//!
//! Such a block is lost, and its row has no parity that would be right. The other blocks of the row still work:
//! - A write of the lost block makes the row consistent: reconstruct-write needs neither the old block nor the old parity.
//! - A write of another block leaves parity alone. Before it does, the bad-block logs record that parity as bad.

use super::agree::{give_up_parity, is_parity_bad, member_fails};
use super::engine::Owned;
use super::runner::{Method, store, update_by};
use crate::code::chunk_set::ChunkSet;
use crate::code::image::Image;
use crate::code::plan::{plan_data_only, plan_reconstruct};
use crate::code::rows::{Rows, cut_at_blocks};
use crate::code::union::Union;
use crate::device::Device;
use crate::error::VolumeError;
use crate::stages::Watch;

/// Updates a stripe with the union of its writes. `image` holds what was pre-read.
pub(super) async fn update<D: Device>(
    owned: Owned<'_, D>,
    union: &Union,
    image: Image,
    fua: bool,
    watch: impl Watch,
) -> Result<(), VolumeError> {
    match update_by(owned, Method::Best, union, image, fua, watch).await {
        // Boxed, so that this rare case does not enlarge the task of every write.
        Err(VolumeError::Unreadable { .. }) => Box::pin(update_by_blocks(owned, union, fua, watch)).await,
        result => result,
    }
}

/// Updates a stripe block by block, since old contents that the whole update needs cannot be read.
async fn update_by_blocks<D: Device>(
    owned: Owned<'_, D>,
    union: &Union,
    fua: bool,
    watch: impl Watch,
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
    watch: impl Watch,
) -> Result<(), VolumeError> {
    let mut error = match update_by(owned, Method::Best, part, Image::default(), fua, watch).await {
        Err(error @ VolumeError::Unreadable { .. }) => error,
        result => return result,
    };
    let can_reconstruct = || {
        let missing = owned.missing();
        plan_reconstruct(owned.shape(), missing, &part.fragments(), &[]).is_ok()
    };
    if can_reconstruct() {
        match update_by(owned, Method::Reconstruct, part, Image::default(), fua, watch).await {
            Err(again @ VolumeError::Unreadable { .. }) => error = again,
            // A member failed during the reads. Nothing was written, or the stripe would be suspect: try further.
            Err(_) if !can_reconstruct() && !owned.is_suspect() => {}
            result => return result,
        }
    }
    if member_fails(owned, &error).await {
        return update_by(owned, Method::Best, part, Image::default(), fua, watch).await;
    }
    write_without_parity(owned, rows, part, fua, error).await
}

/// Writes data and leaves parity, which is recorded as bad first. Fails with `error` if that would lose more than is lost
/// already.
async fn write_without_parity<D: Device>(
    owned: Owned<'_, D>,
    rows: Rows,
    part: &Union,
    fua: bool,
    error: VolumeError,
) -> Result<(), VolumeError> {
    let missing = owned.missing();
    let written: ChunkSet = part.fragments().iter().map(|fragment| fragment.chunk).collect();
    // Parity is the only record of missing chunks, and new contents of one could be stored nowhere else.
    let may_give_up = missing.is_empty() || (missing.and(written).is_empty() && is_parity_bad(owned, rows));
    if !may_give_up || !give_up_parity(owned, rows) {
        return Err(error);
    }
    owned.shared().members.settled().await?;
    let plan = plan_data_only(owned.shape(), missing, &part.fragments());
    store(owned, &plan, part, &[], fua).await?;
    // Without parity a block whose member failed during the write is stored nowhere.
    if owned.missing().and(written).is_empty() { Ok(()) } else { Err(error) }
}
