//! Making the parity of one stripe agree with its data, as its owner.
//!
//! A block of data that can be neither read nor made leaves no parity to write: none would be right. The parity of its rows is
//! recorded as bad in the logs of its members, as md has it for what cannot be rebuilt, and the work goes on. So nothing takes
//! it for true, in a later run and in md neither (invariant 10), and the array becomes clean. What is on the medium stays
//! there: an operator who knows better takes the entry out of the log.

use smallvec::SmallVec;

use super::engine::Owned;
use super::fetch::fetch;
use super::redo::retire::without_unmade_records;
use crate::code::chunk_set::{Chunk, data_chunk};
use crate::code::image::Image;
use crate::code::parity_step::encode_all;
use crate::code::rows::{Fragment, Rows, cut_at_blocks, windows};
use crate::device::Device;
use crate::error::VolumeError;
use crate::limits::BLOCK_BYTES;
use crate::members::bad_place;
use crate::members::health::Failing;
use crate::members::port::{MemberError, MemberPort, MemberRead, MemberWrite};

/// New parity from all data.
pub(super) async fn make_parity_agree<D: Device>(owned: Owned<'_, D>) -> Result<(), VolumeError> {
    owned.forget_parity();
    without_unmade_records(owned.redo(), owned.stripe()).await?;
    for rows in windows(owned.geometry().chunk_bytes()) {
        match make_rows_agree(owned, rows).await {
            Err(VolumeError::Unreadable { .. }) => Box::pin(make_blocks_agree(owned, rows)).await?,
            result => result?,
        }
    }
    owned.trust();
    Ok(())
}

/// New parity of some rows.
pub(super) async fn make_rows_agree<D: Device>(owned: Owned<'_, D>, rows: Rows) -> Result<(), VolumeError> {
    let count = owned.geometry().data_chunks();
    // Not from what a failed or half rebuilt member holds: parity is all there is of its data.
    let missing = owned.missing();
    if !missing.and(owned.data()).is_empty() {
        return Err(owned.too_many_missing(missing));
    }
    let mut image = Image::default();
    let data = (0..count)
        .map(|index| Fragment { chunk: data_chunk(index), rows })
        .collect::<SmallVec<[Fragment; 16]>>();
    fetch(owned, &data, &mut image).await?;
    let missing = owned.missing();
    if data.iter().any(|fragment| image.get(fragment.chunk, rows).is_none()) {
        return Err(owned.too_many_missing(missing)); // a member failed just now
    }
    let contents = |chunk: Chunk| image.expect(chunk, rows);
    let parity = encode_all(owned.geometry(), owned.stripe(), rows, missing, contents, owned.pool());
    let writes: SmallVec<[MemberWrite; 2]> =
        parity.into_iter().map(|new| owned.write_of(new.chunk, new.start, new.slice)).collect();
    write_parity(owned.port(), &writes).await
}

/// New parity of some rows, block by block, where one of data cannot be had: bad.
pub(super) async fn make_blocks_agree<D: Device>(owned: Owned<'_, D>, rows: Rows) -> Result<(), VolumeError> {
    let data = owned.data();
    for rows in cut_at_blocks(rows) {
        match make_rows_agree(owned, rows).await {
            Err(error @ VolumeError::Unreadable { .. }) => {
                // Once a member is missing its chunk is in doubt: that is told apart from what is lost.
                let fails = member_fails(owned, &error).await;
                let is_missing = !owned.missing().and(data).is_empty();
                if fails || is_missing || !give_up_parity(owned, rows) {
                    return Err(error);
                }
            }
            result => result?,
        }
    }
    // The stripe counts as one that agrees only when that is in the logs.
    Ok(owned.shared().members.settled().await?)
}

/// False if a log has no room.
pub(super) fn give_up_parity<D: Device>(owned: Owned<'_, D>, rows: Rows) -> bool {
    let missing = owned.missing();
    let start = owned.offset() + u64::from(rows.start);
    owned.forget_parity();
    owned
        .parity_chunks()
        .filter(|chunk| !missing.contains(*chunk))
        .all(|chunk| bad_place::record_bad(owned.port(), owned.slot_of(chunk), start, rows.bytes() as u64))
}

/// Whether all parity of some rows that is not missing is known to be bad.
pub(super) fn is_parity_bad<D: Device>(owned: Owned<'_, D>, rows: Rows) -> bool {
    let (members, missing) = (&owned.shared().members, owned.missing());
    let start = owned.offset() + u64::from(rows.start);
    let range = start..start + rows.bytes() as u64;
    owned
        .parity_chunks()
        .filter(|chunk| !missing.contains(*chunk))
        .all(|chunk| members.is_all_bad(owned.slot_of(chunk), &range))
}

/// Whether a member that cannot read a place cannot read any: then it is the member that fails, not a block that is lost.
pub(super) async fn member_fails<D: Device>(owned: Owned<'_, D>, error: &VolumeError) -> bool {
    let VolumeError::Unreadable { member: slot, .. } = *error else { return false };
    let end = owned.geometry().member_bytes();
    for offset in [0, end / 2, end].map(|at| at.saturating_sub(BLOCK_BYTES as u64) / BLOCK_BYTES as u64) {
        let read = MemberRead { slot, offset: offset * BLOCK_BYTES as u64, bytes: BLOCK_BYTES };
        match owned.port().read_quietly(&read).await {
            Err(MemberError::Unreadable) if !owned.port().is_bad(&read) => {}
            _ => return false,
        }
    }
    owned.port().members.fail(slot, "it cannot be read anywhere") == Failing::Failed
}

pub(super) async fn write_parity<D: Device>(
    port: &MemberPort<D>,
    writes: &[MemberWrite],
) -> Result<(), VolumeError> {
    for result in port.write(writes, false).await {
        match result {
            Ok(()) | Err(MemberError::Gone | MemberError::Unreadable) => {}
            Err(MemberError::Request(error)) => return Err(error),
        }
    }
    Ok(())
}
