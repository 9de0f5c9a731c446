//! Blocks that a member cannot read: written again with reconstructed contents, or recorded as bad where reconstruction
//! fails. The member stays, unless the rewrite fails or it has had more of these lately than md tolerates.

use super::health::MemberState;
use super::port::{MemberPort, MemberRead};
use super::replacement::Replacing;
use crate::buffer::Slice;
use crate::device::Device;
use crate::error::VolumeError;
use crate::events::Event;
use layout::units::{MemberOffset, Slot};

/// Rewrites a block that could not be read, and reads it back. A member that fails either fails.
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
            if members.note_corrected_read(slot, port.loads.now_ns()) {
                members.fail(slot, "it had more read errors lately than are forgiven");
            }
        }
        // The device failed meanwhile, and another one has the slot.
        Ok(false) if member.is_none_or(|member| !port.devices.is_in_slot(slot, &member)) => {}
        Ok(false) => {
            let reason = format!("the block at byte {offset_bytes} cannot be read back after it was written");
            members.fail(slot, &reason);
        }
        // The array needs the member, so it stays; the reader gets the reconstructed contents.
        Err(error) => members.report(Event::MemberKept { member: slot, reason: error.to_string() }),
    }
}

/// The error of a block that can neither be read nor reconstructed. Reports it.
pub(crate) fn unreadable<D: Device>(port: &MemberPort<D>, read: &MemberRead) -> VolumeError {
    let offset_bytes = port.block_place(read.slot, read.offset).offset_bytes;
    let error = VolumeError::Unreadable { member: read.slot, offset_bytes };
    let bytes = read.bytes as u64;
    port.members.report(Event::BlockUnreadable { member: read.slot, offset_bytes, bytes });
    error
}

/// Records blocks of a member that cannot be reconstructed in its bad-block log, as md does for a member that it rebuilds.
/// False if the log has no room: a recovery cannot go on then. Nothing is recorded of a member that has failed since.
pub(crate) fn record_bad<D: Device>(
    port: &MemberPort<D>,
    slot: Slot,
    offset: MemberOffset,
    bytes: u64,
) -> bool {
    let members = &port.members;
    if matches!(members.state(slot), MemberState::Missing | MemberState::Failed) {
        return true;
    }
    // The replacement first: it may become the member at any moment, with contents copied from here.
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
