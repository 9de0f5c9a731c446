//! Copies a member's contents to its replacement: the parts that do not depend on the level. The engine reconstructs a
//! block that the member cannot read, and does not write it back, since the member is about to go. A block that cannot be
//! reconstructed either is recorded as bad on the replacement.

use super::bad_place;
use super::port::{MemberError, MemberPort, MemberRead, replacement_ended};
use super::replacement::Replacing;
use crate::buffer::{Buffer, Gather, Slice};
use crate::device::Device;
use crate::error::VolumeError;
use crate::events::Event;
use layout::units::Slot;

/// Reads from a member that is being replaced. None: not all of the range can be read. An error if the member fails.
pub(crate) async fn read_to_copy<D: Device>(
    port: &MemberPort<D>,
    read: &MemberRead,
) -> Result<Option<Buffer>, VolumeError> {
    if port.members.replacing(read.slot) != Replacing::Copying {
        return Err(replacement_ended(read.slot));
    }
    match port.read(&[*read]).await.remove(0) {
        Ok(contents) => Ok(Some(contents)),
        Err(MemberError::Unreadable) => Ok(None),
        Err(error) => Err(failed(read.slot, error)),
    }
}

/// Writes a block to the replacement. Without `contents`, which could be neither read nor reconstructed, records it as bad.
pub(crate) async fn copy_block<D: Device>(
    port: &MemberPort<D>,
    read: &MemberRead,
    contents: Option<Slice>,
) -> Result<(), VolumeError> {
    let (members, bytes) = (&port.members, read.bytes as u64);
    if let Some(contents) = contents {
        return port.write_replacement(read.slot, read.offset, Gather::from(contents)).await;
    }
    if !members.set_bad_on_replacement(read.slot, read.offset..read.offset + bytes) {
        return Err(bad_place::unreadable(port, read));
    }
    let offset_bytes = port.block_place(read.slot, read.offset).offset_bytes;
    members.report(Event::BadBlockRecorded { member: read.slot, offset_bytes, bytes });
    Ok(())
}

/// The error of a copy whose member failed to read.
pub(crate) fn failed(slot: Slot, error: MemberError) -> VolumeError {
    match error {
        MemberError::Request(error) => error,
        MemberError::Gone | MemberError::Unreadable => replacement_ended(slot),
    }
}
