//! Reads of one stripe by its owner: what members hold, and what is made where they cannot read or are missing.

use smallvec::SmallVec;

use super::engine::Owned;
use super::salvage::salvage;
use crate::buffer::Slice;
use crate::code::image::{Held, Image};
use crate::code::plan::plan_read;
use crate::code::recover::extract;
use crate::code::rows::Fragment;
use crate::device::Device;
use crate::error::VolumeError;
use crate::executor::ahead;
use crate::members::port::MemberError;

/// Reads fragments into the image. A member that fails here is planned around by the caller.
pub(super) async fn fetch<D: Device>(
    owned: Owned<'_, D>,
    fragments: &[Fragment],
    image: &mut Image,
) -> Result<(), VolumeError> {
    if fragments.is_empty() {
        return Ok(());
    }
    let reads: SmallVec<[_; 4]> = fragments.iter().map(|fragment| owned.read_of(fragment)).collect();
    for (fragment, result) in fragments.iter().zip(ahead(owned.port().read(&reads)).await) {
        match result {
            Ok(buffer) => image.insert(*fragment, Held::Owned(buffer)),
            Err(MemberError::Unreadable) => {
                if let Some(contents) = salvage(owned, fragment).await? {
                    image.insert(*fragment, Held::Shared(contents));
                }
            }
            Err(MemberError::Gone) => {}
            Err(MemberError::Request(error)) => return Err(error),
        }
    }
    Ok(())
}

/// Reads fragments, lost ones included.
pub(super) async fn read_owned<D: Device>(
    owned: Owned<'_, D>,
    fragments: &[Fragment],
) -> Result<SmallVec<[Slice; 4]>, VolumeError> {
    let mut image = Image::default();
    let missing = loop {
        let missing = owned.missing();
        let needs_parity = fragments.iter().any(|fragment| missing.contains(fragment.chunk));
        if needs_parity && let Some(error) = owned.unrecoverable() {
            return Err(error);
        }
        let wanted = plan_read(owned.shape(), missing, fragments);
        let mut wanted = wanted.map_err(|_| owned.too_many_missing(missing))?;
        wanted.retain(|fragment| image.get(fragment.chunk, fragment.rows).is_none());
        if wanted.is_empty() {
            break missing;
        }
        fetch(owned, &wanted, &mut image).await?;
    };
    owned.port().counters().reconstructed_reads.add(1);
    Ok(fragments
        .iter()
        .map(|fragment| {
            extract(owned.geometry(), owned.stripe(), missing, fragment, &mut image, owned.pool())
        })
        .collect())
}
