//! Writes the record of absences ([`Absences`](super::super::absences::Absences)) to the members.
//!
//! The record of generations that names it counts on every member in sync, so it is durable on every one of them before
//! anything builds on it. One task at a time writes it, as headers and superblocks ([`Redo::announce`]).

use std::rc::Rc;

use super::log::RedoLog;
#[cfg(doc)]
use super::state::Redo;
use crate::buffer::{Gather, Slice};
use crate::device::Device;
use crate::error::VolumeError;
use crate::events::Event;
use crate::executor::join_all;
use crate::members::attachment::Attached;
use crate::members::health::{Failing, MemberState};
use layout::absences::AbsenceRecord;
use layout::redo_log::Place;
use layout::units::{DeviceOffset, Slot};

/// What is known of members that are away is on record when it returns.
///
/// # Errors
/// A member that the array needs does not take the record, and superblocks cannot be written that name none.
pub(crate) async fn persist<D: Device>(log: &RedoLog<D>) -> Result<(), VolumeError> {
    if log.shared.absences.is_persisted() {
        return Ok(());
    }
    let announcing = log.shared.redo.announce().await;
    let is_on_record = write(log).await;
    drop(announcing);
    if !is_on_record || !log.shared.members.is_settled() {
        log.shared.members.settled().await?;
    }
    Ok(())
}

/// Writes the record. The caller holds [`Redo::announce`]. False if superblocks are wanted first: they name no record yet, or a
/// member that stays does not take it, and it is void.
pub(crate) async fn write<D: Device>(log: &RedoLog<D>) -> bool {
    let absences = &log.shared.absences;
    if absences.is_persisted() {
        return true;
    }
    if absences.lacks_id() {
        log.shared.members.want_metadata(); // superblocks name it
        return false;
    }
    let (changes, record) = absences.next_record();
    if let Some(record) = record
        && !write_to_all(log, &record).await
    {
        absences.void();
        log.shared.members.want_metadata();
        return false;
    }
    absences.set_persisted(changes);
    true
}

async fn write_to_all<D: Device>(log: &RedoLog<D>, record: &AbsenceRecord) -> bool {
    let members = &log.shared.members;
    let in_sync = log.shared.geometry.slots().filter(|slot| members.state(*slot) == MemberState::InSync);
    let mut to: Vec<(Slot, DeviceOffset, Slice, Rc<Attached<D>>)> = Vec::new();
    for slot in in_sync {
        let (Some(place), Some(member)) = (log.shared.absences.place(slot), log.port.devices.described(slot))
        else {
            return false;
        };
        let offset = place.area.copy_offset(record.sequence);
        let place = Place { set_uuid: place.set_uuid, device_uuid: place.device_uuid, offset };
        to.push((slot, offset, Slice::from_bytes(&record.encode(place)), member));
    }
    let start = |(_, offset, data, member): &(Slot, DeviceOffset, Slice, Rc<Attached<D>>)| {
        member.device.write(*offset, Gather::from(data.clone()), true)
    };
    let started: Vec<D::Done> = to.iter().map(start).collect();
    let mut everywhere = true;
    for (write, done) in to.iter().zip(join_all(started).await) {
        let Err(error) = done else { continue };
        let (slot, .., member) = write;
        members.note_error(*slot, &error);
        let Err(error) = start(write).await else { continue };
        if !log.port.devices.is_in_slot(*slot, member) {
            continue; // another device has the slot, and is not in sync
        }
        members.report(Event::MetadataError { member: *slot, reason: error.to_string() });
        let reason = format!("its record of absences cannot be written: {error}");
        everywhere &= members.fail(*slot, &reason) == Failing::Failed;
    }
    everywhere
}
