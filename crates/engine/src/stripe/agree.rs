//! Makes the parity of one stripe agree with its data, as its owner.
//!
//! Where a data block can be neither read nor reconstructed, no parity would be right. The parity of those rows is recorded
//! in the bad-block logs of its members, as md records what it cannot rebuild, and the resync goes on. No reader builds on
//! such parity, neither a later run nor md (invariant 10), and the array becomes clean. The medium is left as it is: an
//! operator with better knowledge may take the entry out of the log.

use smallvec::SmallVec;

use super::engine::Owned;
use super::fetch::fetch;
use super::redo::retire::retire_incomplete_records;
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
use layout::units::MemberOffset;

/// Writes new parity of the whole stripe, made from all data.
pub(super) async fn make_parity_agree<D: Device>(owned: Owned<'_, D>) -> Result<(), VolumeError> {
    owned.forget_parity();
    retire_incomplete_records(owned.redo(), owned.stripe()).await?;
    for rows in windows(owned.geometry().chunk_bytes()) {
        match make_rows_agree(owned, rows).await {
            Err(VolumeError::Unreadable { .. }) => Box::pin(make_blocks_agree(owned, rows)).await?,
            result => result?,
        }
    }
    owned.trust();
    Ok(())
}

/// Writes new parity of some rows, made from all data.
pub(super) async fn make_rows_agree<D: Device>(owned: Owned<'_, D>, rows: Rows) -> Result<(), VolumeError> {
    let count = owned.geometry().data_chunks();
    // With a data chunk missing, parity is the only record of it, and must not be overwritten.
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

/// Writes new parity of some rows block by block. Parity of a block whose data is lost is recorded as bad.
pub(super) async fn make_blocks_agree<D: Device>(owned: Owned<'_, D>, rows: Rows) -> Result<(), VolumeError> {
    let data = owned.data();
    for rows in cut_at_blocks(rows) {
        match make_rows_agree(owned, rows).await {
            Err(error @ VolumeError::Unreadable { .. }) => {
                // With a member missing its chunk is in doubt rather than lost: the resync stops, and records nothing.
                let fails = member_fails(owned, &error).await;
                let is_missing = !owned.missing().and(data).is_empty();
                if fails || is_missing || !give_up_parity(owned, rows) {
                    return Err(error);
                }
            }
            result => result?,
        }
    }
    // The stripe counts as consistent only once the bad-block logs on disk say so.
    Ok(owned.shared().members.settled().await?)
}

/// Records the parity of some rows as bad. False if a bad-block log has no room.
pub(super) fn give_up_parity<D: Device>(owned: Owned<'_, D>, rows: Rows) -> bool {
    let missing = owned.missing();
    let start = owned.offset() + u64::from(rows.start);
    owned.forget_parity();
    owned
        .parity_chunks()
        .filter(|chunk| !missing.contains(*chunk))
        .all(|chunk| bad_place::record_bad(owned.port(), owned.slot_of(chunk), start, rows.bytes() as u64))
}

/// Whether all present parity of some rows is recorded as bad.
pub(super) fn is_parity_bad<D: Device>(owned: Owned<'_, D>, rows: Rows) -> bool {
    let (members, missing) = (&owned.shared().members, owned.missing());
    let start = owned.offset() + u64::from(rows.start);
    let range = start..start + rows.bytes() as u64;
    owned
        .parity_chunks()
        .filter(|chunk| !missing.contains(*chunk))
        .all(|chunk| members.is_all_bad(owned.slot_of(chunk), &range))
}

/// Fails a member that cannot read a block if it cannot read elsewhere either: the device is broken, not one block. Whether
/// it has failed.
pub(super) async fn member_fails<D: Device>(owned: Owned<'_, D>, error: &VolumeError) -> bool {
    let VolumeError::Unreadable { member: slot, .. } = *error else { return false };
    let end = owned.geometry().member_bytes();
    for offset in [0, end / 2, end].map(|at| at.saturating_sub(BLOCK_BYTES as u64) / BLOCK_BYTES as u64) {
        let read =
            MemberRead { slot, offset: MemberOffset::new(offset * BLOCK_BYTES as u64), bytes: BLOCK_BYTES };
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
