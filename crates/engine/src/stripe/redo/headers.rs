//! Headers record the log's state on every member that holds the log, and name the superblock that they belong to.
//!
//! One task at a time writes headers and superblocks ([`Redo::announce`]). A header is written before the superblock that
//! it names as the next one, so it names the superblock that a crash leaves on disk, the old one or the new.

use smallvec::SmallVec;
use std::rc::Rc;

use super::absence_record;
use super::log::RedoLog;
#[cfg(doc)]
use super::state::Redo;
use super::state::State;
use crate::buffer::{Gather, Slice};
use crate::device::{Device, DeviceError, DeviceErrorKind};
use crate::error::VolumeError;
use crate::events::Event;
use crate::executor::join_all;
use crate::members::attachment::Attached;
use crate::members::health::{Failing, MemberState};
use layout::redo_log::{Place, RedoHeader};
use layout::units::{DeviceOffset, Slot};

/// A header for one member.
struct HeaderWrite {
    slot: Slot,
    offset: DeviceOffset,
    data: Slice,
}

/// Flushes every working member, then waits for the metadata that an acknowledgement relies on.
pub(crate) async fn flush_volume<D: Device>(log: &RedoLog<D>) -> Result<(), VolumeError> {
    let (members, absences) = (&log.shared.members, &log.shared.absences);
    let (sent, state_changes) = (absences.sent_count(), members.state_changes());
    let begun = log.shared.consistency.begin_flush();
    log.port.flush().await?;
    log.shared.consistency.ends_durable(&begun);
    if members.state_changes() == state_changes {
        absences.flushed(sent); // every member took part
    }
    settle(log).await
}

/// Whether everything that an acknowledgement relies on is on disk: see [`settle`].
#[inline]
pub(in crate::stripe) fn is_settled<D: Device>(log: &RedoLog<D>) -> bool {
    let shared = &*log.shared;
    // The members last: no member may have failed meanwhile.
    shared.consistency.unpersisted().is_none()
        && shared.absences.is_persisted()
        && shared.members.is_settled()
}

/// Returns once everything that an acknowledgement relies on is on disk: members' failures (invariant 8), stripes that left
/// doubt (invariant 10), and what members that are away missed (invariant 11).
pub(in crate::stripe) async fn settle<D: Device>(log: &RedoLog<D>) -> Result<(), VolumeError> {
    loop {
        if !log.shared.members.is_settled() {
            log.shared.members.settled().await?;
        }
        if log.shared.consistency.unpersisted().is_some() {
            persist_doubts(log).await?;
        }
        absence_record::persist(log).await?;
        if log.shared.members.is_settled() {
            return Ok(()); // no member failed meanwhile
        }
    }
}

/// Records on the members that stripes have left doubt: a crash would otherwise put them in doubt again, and data that was
/// acknowledged there would become unreadable.
///
/// # Errors
/// No member takes a header.
async fn persist_doubts<D: Device>(log: &RedoLog<D>) -> Result<(), VolumeError> {
    let (redo, consistency) = (&log.shared.redo, &log.shared.consistency);
    let _announcing = redo.announce().await;
    let Some(removals) = consistency.unpersisted() else { return Ok(()) }; // another task wrote a header meanwhile
    if redo.is_announced() {
        // Invariant 2: new parity of the whole stripe is in no record. It is durable before a header says that the stripe is
        // sound.
        let begun = consistency.begin_flush();
        log.port.flush().await?;
        consistency.ends_durable(&begun);
        return write_headers(log, true).await;
    }
    // Without a log the members do not list the stripes in doubt: a crash puts every dirty one in doubt, recorded or not.
    consistency.set_persisted(removals);
    Ok(())
}

/// Writes a header to every member that holds the log. The caller holds [`Redo::announce`].
///
/// # Errors
/// No member took the header.
pub(crate) async fn write_headers<D: Device>(log: &RedoLog<D>, in_force: bool) -> Result<(), VolumeError> {
    let removals = log.shared.consistency.durable_removals(); // read before the headers are made, so that they include these
    let writes = headers(log, in_force);
    let start = |write: &HeaderWrite| {
        let member = log.port.devices.described(write.slot)?;
        let done = member.device.write(write.offset, Gather::from(write.data.clone()), true);
        Some((write.slot, member, done))
    };
    let (mut to, mut started) = (SmallVec::<[(Slot, Rc<Attached<D>>); 8]>::new(), Vec::new());
    for (slot, member, done) in writes.iter().filter_map(start) {
        to.push((slot, member));
        started.push(done);
    }
    let mut written = 0;
    for ((slot, member), done) in to.into_iter().zip(join_all(started).await) {
        let result = match done {
            Ok(()) => Ok(()),
            Err(error) => {
                log.shared.members.note_error(slot, &error);
                let write = writes.iter().find(|write| write.slot == slot).expect("it was started");
                member.device.write(write.offset, Gather::from(write.data.clone()), true).await
            }
        };
        match result {
            Ok(()) => written += 1,
            Err(error) => no_log_on(log, slot, &member, &error),
        }
    }
    // With no member left that holds the log there is no header to write: the other superblocks make the old ones stale.
    if written > 0 || writes.is_empty() {
        log.shared.consistency.set_persisted(removals);
        return Ok(());
    }
    Err(VolumeError::Io { reason: "the redo log cannot be written".to_string() })
}

fn headers<D: Device>(log: &RedoLog<D>, in_force: bool) -> Vec<HeaderWrite> {
    // Read before the doubts are listed, which takes long if they are many: a record that the header calls retired has left
    // its stripes' doubts in the list.
    let retired_below = log.shared.redo.state.lock().retired_below;
    let doubts = State::doubts(&log.shared.consistency);
    let state = &mut *log.shared.redo.state.lock();
    state.generation += 1;
    let plan = state.plan.expect("a log that is announced has slots");
    let in_use = |slot: &Slot| log.shared.members.state(*slot) == MemberState::InSync;
    let header = |slot: Slot| {
        let member = state.members[slot.index()]?;
        let offset = member.area.header_offset(state.generation);
        let place = Place { set_uuid: member.set_uuid, device_uuid: member.device_uuid, offset };
        let header = RedoHeader {
            generation: state.generation,
            epoch: state.epoch,
            in_force,
            retired_below,
            events: state.events,
            superblocks: [member.digest, state.next_digests[slot.index()]],
            plan,
            resync_from: state.resync_from,
            doubts: doubts.clone(),
        };
        let data = Slice::from_bytes(&header.encode(place));
        Some(HeaderWrite { slot, offset, data })
    };
    state.logs.iter().copied().filter(in_use).filter_map(header).collect()
}

/// A member cannot hold the log: it fails. If the array needs it, or it is only out of space, it goes on without the log.
pub(super) fn no_log_on<D: Device>(
    log: &RedoLog<D>,
    slot: Slot,
    device: &Rc<Attached<D>>,
    error: &DeviceError,
) {
    let members = &log.shared.members;
    if !log.port.devices.is_in_slot(slot, device) {
        return; // another device has the slot
    }
    members.report(Event::MetadataError { member: slot, reason: error.to_string() });
    let reason = format!("its redo log cannot be written: {error}");
    if error.kind == DeviceErrorKind::NoSpace || members.fail(slot, &reason) == Failing::Needed {
        log.shared.redo.state.lock().logs.retain(|other| *other != slot);
    }
}
