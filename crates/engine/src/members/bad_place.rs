//! Blocks of a member that cannot be read: written again with what was made from the others, or recorded as bad where nothing
//! can be made. A member stays unless it does not take the block, or has had more of them lately than md forgives.

use super::health::MemberState;
use super::port::{MemberPort, MemberRead};
use super::replacement::Replacing;
use crate::buffer::Slice;
use crate::device::Device;
use crate::error::VolumeError;
use crate::events::Event;

/// Writes again what could not be read, and reads it back. A member that does not take it fails.
pub(crate) async fn put_back<D: Device>(port: &MemberPort<D>, read: &MemberRead, contents: &Slice) {
    let (members, slot) = (&port.members, read.slot);
    if !members.may_write() {
        return;
    }
    let place = port.block_place(slot, read.offset);
    let (offset_bytes, bytes) = (place.offset_bytes, read.bytes as u64);
    let member = port.devices.attached(slot);
    match port.write_and_read_back(slot, read.offset, contents).await {
        Ok(true) => {
            members.report(Event::BlockRewritten { member: slot, offset_bytes, bytes });
            if members.one_corrected_too_many(slot, port.loads.now_ns()) {
                members.fail(slot, "it had more read errors lately than are forgiven");
            }
        }
        // It failed, and another device has the slot.
        Ok(false) if member.is_none_or(|member| !port.devices.is_in_slot(slot, &member)) => {}
        Ok(false) => {
            let reason = format!("the block at byte {offset_bytes} cannot be read back after it was written");
            members.fail(slot, &reason);
        }
        // The array needs the member, and the reader gets what was made.
        Err(error) => members.report(Event::MemberKept { member: slot, reason: error.to_string() }),
    }
}

/// The error of a place that can neither be read nor made.
pub(crate) fn unreadable<D: Device>(port: &MemberPort<D>, read: &MemberRead) -> VolumeError {
    let offset_bytes = port.block_place(read.slot, read.offset).offset_bytes;
    let error = VolumeError::Unreadable { member: read.slot, offset_bytes };
    let bytes = read.bytes as u64;
    port.members.report(Event::BlockUnreadable { member: read.slot, offset_bytes, bytes });
    error
}

/// What belongs at a place of a member cannot be made: its bad-block log says so from now on, as md has it for a member
/// that is rebuilt. False if the log has no room: a recovery cannot go on then. A member that has failed since has no log any
/// more.
pub(crate) fn record_bad<D: Device>(port: &MemberPort<D>, slot: u32, offset: u64, bytes: u64) -> bool {
    let members = &port.members;
    if matches!(members.state(slot), MemberState::Missing | MemberState::Failed) {
        return true;
    }
    // First: a device that has got what the member held may have the slot a moment later.
    if members.replacing(slot) == Replacing::Copying
        && !members.set_bad_on_replacement(slot, offset..offset + bytes)
    {
        members.fail_replacement(slot, "its bad-block log has no room");
    }
    let recorded = members.set_bad(slot, offset..offset + bytes);
    if recorded {
        let offset_bytes = port.block_place(slot, offset).offset_bytes;
        members.report(Event::BadBlockRecorded { member: slot, offset_bytes, bytes });
    }
    recorded
}
