//! Copying what a member holds to the device that is to replace it: the parts that do not depend on the level. A member is read
//! as it is; what it cannot read the engine makes from the others, and does not write back: the member is about to go. What
//! cannot be made either is recorded as bad.

use super::bad_place;
use super::port::{MemberError, MemberPort, MemberRead, over};
use super::replacement::Replacing;
use crate::buffer::{Buffer, Gather, Slice};
use crate::device::Device;
use crate::error::VolumeError;
use crate::events::Event;

/// None: not all of it can be read. It fails if the member does.
pub(crate) async fn read_to_copy<D: Device>(
    port: &MemberPort<D>,
    read: &MemberRead,
) -> Result<Option<Buffer>, VolumeError> {
    if port.members.replacing(read.slot) != Replacing::Copying {
        return Err(over(read.slot));
    }
    match port.read(&[*read]).await.remove(0) {
        Ok(contents) => Ok(Some(contents)),
        Err(MemberError::Unreadable) => Ok(None),
        Err(error) => Err(failed(read.slot, error)),
    }
}

/// A block as it was read or made. None: neither could be done.
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

/// The error of a copy whose member could not be read.
pub(crate) fn failed(slot: u32, error: MemberError) -> VolumeError {
    match error {
        MemberError::Request(error) => error,
        MemberError::Gone | MemberError::Unreadable => over(slot),
    }
}
