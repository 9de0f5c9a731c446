//! FLUSH: everything that was acknowledged before it is durable on return, the segments' headers included, which were
//! written durably (Z-I7).

use smallvec::SmallVec;

use super::port::{Blame, LogPort, member_needed};
use crate::error::VolumeError;
use crate::executor::join_all;
use crate::zone_device::ZoneDevice;

/// Flushes every member that serves, and returns after the health of one that failed in it is settled.
///
/// # Errors
/// A member that the array needs failed.
pub async fn flush_members<D: ZoneDevice>(port: &LogPort<D>) -> Result<(), VolumeError> {
    // Before the flushes are sent: they cover what returned before.
    let unsealed: Vec<_> = port.shared.table.unsealed();
    let covered: Vec<_> = unsealed.iter().map(|segment| segment.returned_to()).collect();
    let mut slots: SmallVec<[(usize, u64); 8]> = SmallVec::new();
    let mut flushes = Vec::new();
    for slot in port.shared.members.in_sync() {
        match port.device(slot) {
            Some(device) => {
                slots.push((slot, port.shared.members.exchanges(slot)));
                flushes.push(device.flush());
            }
            None if port.fail(slot, "it has no device") == Blame::Array => {
                return Err(member_needed(slot, "it has no device"));
            }
            None => {}
        }
    }
    let mut outcome = Ok(());
    let mut all_flushed = true;
    for ((slot, exchanges), result) in slots.into_iter().zip(join_all(flushes).await) {
        let Err(error) = result else { continue };
        all_flushed = false;
        if port.shared.members.exchanges(slot) != exchanges {
            continue; // it failed before, and is none of the array's any more
        }
        port.shared.members.note_error(slot, &error);
        // No second try: after a failed flush the system may have dropped what was dirty.
        if port.fail(slot, &error.to_string()) == Blame::Array {
            port.shared.members.set_read_only();
            outcome = Err(member_needed(slot, &error.to_string()));
        }
    }
    if all_flushed {
        unsealed.iter().zip(covered).for_each(|(segment, covered)| segment.flushed_to(covered));
    }
    outcome?;
    Ok(port.shared.members.settled().await?)
}
