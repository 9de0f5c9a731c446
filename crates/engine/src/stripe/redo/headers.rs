//! Headers: what the log's state is, on every member that has the log, beside the superblock that it goes with.
//!
//! Headers and superblocks are written by one task at a time ([`Redo::announce`]). A header comes before the superblock
//! that it names as the next one, so whichever of the two is on disk after a crash is one of the header's.

use smallvec::SmallVec;
use std::rc::Rc;

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

/// A header for one member.
struct HeaderWrite {
    slot: u32,
    offset_bytes: u64,
    data: Slice,
}

/// Stripes that are in doubt no more are so after a crash, too: else what was acknowledged there could not be read then.
///
/// # Errors
/// No member takes a header.
async fn persist_doubts<D: Device>(log: &RedoLog<D>) -> Result<(), VolumeError> {
    let (redo, consistency) = (&log.shared.redo, &log.shared.consistency);
    let _announcing = redo.announce().await;
    let Some(removals) = consistency.unpersisted() else { return Ok(()) }; // another header said it meanwhile
    if redo.is_announced() {
        return write_headers(log, true).await;
    }
    // Without a log nothing on the members says what is in doubt, but that there was no orderly stop.
    consistency.set_persisted(removals);
    Ok(())
}

/// Writes a header to every member that has the log. The caller holds [`Redo::announce`].
///
/// # Errors
/// No member that should have it takes it.
pub(crate) async fn write_headers<D: Device>(log: &RedoLog<D>, in_force: bool) -> Result<(), VolumeError> {
    let removals = log.shared.consistency.unpersisted(); // before the headers are made: they know of these
    let writes = headers(log, in_force);
    let start = |write: &HeaderWrite| {
        let member = log.port.devices.described(write.slot)?;
        let done = member.device.write(write.offset_bytes, Gather::from(write.data.clone()), true);
        Some((write.slot, member, done))
    };
    let (mut to, mut started) = (SmallVec::<[(u32, Rc<Attached<D>>); 8]>::new(), Vec::new());
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
                member.device.write(write.offset_bytes, Gather::from(write.data.clone()), true).await
            }
        };
        match result {
            Ok(()) => written += 1,
            Err(error) => no_log_on(log, slot, &member, &error),
        }
    }
    // Where all of them are gone their headers are old: the superblocks of the others say so.
    if written > 0 || writes.is_empty() {
        removals.into_iter().for_each(|removals| log.shared.consistency.set_persisted(removals));
        return Ok(());
    }
    Err(VolumeError::Io { reason: "the redo log cannot be written".to_string() })
}

fn headers<D: Device>(log: &RedoLog<D>, in_force: bool) -> Vec<HeaderWrite> {
    // Before the doubts are listed, which takes long if they are many: what is said to be retired left its doubts before.
    let retired_below = log.shared.redo.state.lock().retired_below;
    let doubts = State::doubts(&log.shared.consistency);
    let state = &mut *log.shared.redo.state.lock();
    state.generation += 1;
    let plan = state.plan.expect("a log that is announced has slots");
    let in_use = |slot: &u32| log.shared.members.state(*slot) == MemberState::InSync;
    let header = |slot: u32| {
        let member = state.members[slot as usize]?;
        let offset_bytes = member.area.header_offset(state.generation);
        let place = Place { set_uuid: member.set_uuid, device_uuid: member.device_uuid, offset_bytes };
        let header = RedoHeader {
            generation: state.generation,
            epoch: state.epoch,
            in_force,
            retired_below,
            events: state.events,
            superblocks: [member.digest, state.next_digests[slot as usize]],
            plan,
            doubts: doubts.clone(),
        };
        let data = Slice::from_bytes(&header.encode(place));
        Some(HeaderWrite { slot, offset_bytes, data })
    };
    state.logs.iter().copied().filter(in_use).filter_map(header).collect()
}

/// A member takes no log: it fails, or does without if the array needs it or only room is lacking.
pub(super) fn no_log_on<D: Device>(
    log: &RedoLog<D>,
    slot: u32,
    device: &Rc<Attached<D>>,
    error: &DeviceError,
) {
    let members = &log.shared.members;
    if !log.port.devices.is_in_slot(slot, device) {
        return; // another one has the slot
    }
    members.report(Event::MetadataError { member: slot, reason: error.to_string() });
    let reason = format!("its redo log cannot be written: {error}");
    if error.kind == DeviceErrorKind::NoSpace || members.fail(slot, &reason) == Failing::Needed {
        log.shared.redo.state.lock().logs.retain(|other| *other != slot);
    }
}

/// Whether a write may be acknowledged: what it relies on is on disk (invariants 8 and 10).
pub(in crate::stripe) async fn settle<D: Device>(log: &RedoLog<D>) -> Result<(), VolumeError> {
    if !log.shared.members.is_settled() {
        log.shared.members.settled().await?;
    }
    if log.shared.consistency.unpersisted().is_some() { persist_doubts(log).await } else { Ok(()) }
}

/// Makes everything durable on every working member, and what is known of the others.
pub(crate) async fn flush_volume<D: Device>(log: &RedoLog<D>) -> Result<(), VolumeError> {
    log.port.flush().await?;
    settle(log).await
}
