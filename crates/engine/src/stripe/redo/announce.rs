//! Headers: what the log's state is, on every member that has the log, beside the superblock that it goes with.
//!
//! Headers and superblocks are written by one at a time ([`Redo::announce`]). A header comes before the superblock
//! that it names as the next one, so whichever of the two is on disk after a crash is one of the header's.

use smallvec::SmallVec;
use std::rc::Rc;

use super::{Redo, State};
use crate::buffer::{Gather, Slice};
use crate::device::{Device, DeviceError, DeviceErrorKind};
use crate::events::Event;
use crate::executor::join_all;
use crate::members::{Failing, MemberState};
use crate::stripe::{Attached, StripeSet};
use crate::volume::VolumeError;
use layout::redo_log::{Place, RedoHeader};

/// While it lives nobody else writes headers or superblocks.
pub(crate) struct Announcing<'a>(&'a Redo);

impl Drop for Announcing<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.announcing = false;
        super::wake_all(state);
    }
}

/// A header for one member.
struct HeaderWrite {
    slot: u32,
    offset_bytes: u64,
    data: Slice,
}

impl Redo {
    /// Waits for the right to write headers and superblocks.
    pub(crate) async fn announce(&self) -> Announcing<'_> {
        self.when(|state| {
            let free = !state.announcing;
            state.announcing = true;
            free.then_some(())
        })
        .await;
        Announcing(self)
    }

    /// Superblocks with these digests are about to be written, by slot; `events` is theirs.
    pub(crate) fn superblocks_to_come(&self, digests: &[(u32, u32)], events: u64) {
        let mut state = self.state.lock();
        state.events = events;
        for slot in 0..state.members.len() {
            state.next_digests[slot] = state.members[slot].map_or(0, |member| member.digest);
        }
        for &(slot, digest) in digests {
            state.next_digests[slot as usize] = digest;
        }
    }

    /// The superblock of this slot is on disk.
    pub(crate) fn superblock_written(&self, slot: u32) {
        let state = &mut *self.state.lock();
        if let Some(member) = &mut state.members[slot as usize] {
            member.digest = state.next_digests[slot as usize];
        }
    }

    /// Nothing is on its way and everything is durable: no record is needed any more.
    pub(crate) fn all_durable(&self) {
        let mut state = self.state.lock();
        if state.active == 0 {
            state.retired_below = state.next_sequence;
        }
    }
}

impl<D: Device> StripeSet<D> {
    /// Stripes that are in doubt no more are so after a crash, too: else what was acknowledged there could not be read then.
    ///
    /// # Errors
    /// No member takes a header.
    pub(crate) async fn tell_doubts(&self) -> Result<(), VolumeError> {
        let (redo, doubts) = (&self.shared.redo, &self.shared.doubts);
        let _announcing = redo.announce().await;
        let Some(removals) = doubts.untold() else { return Ok(()) }; // another header said it meanwhile
        if redo.is_announced() {
            return self.write_headers(true).await;
        }
        // Without a log nothing on the members says what is in doubt, but that there was no orderly stop.
        doubts.told(removals);
        Ok(())
    }

    /// Writes a header to every member that has the log. The caller holds [`Redo::announce`].
    ///
    /// # Errors
    /// No member that should have it takes it.
    pub(crate) async fn write_headers(&self, in_force: bool) -> Result<(), VolumeError> {
        let removals = self.shared.doubts.untold(); // before the headers are made: they know of these
        let writes = self.headers(in_force);
        let start = |write: &HeaderWrite| {
            let member = self.described(write.slot)?;
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
                    self.shared.members.note_error(slot, &error);
                    let write = writes.iter().find(|write| write.slot == slot).expect("it was started");
                    member.device.write(write.offset_bytes, Gather::from(write.data.clone()), true).await
                }
            };
            match result {
                Ok(()) => written += 1,
                Err(error) => self.no_log_on(slot, &member, &error),
            }
        }
        // Where all of them are gone their headers are old: the superblocks of the others say so.
        if written > 0 || writes.is_empty() {
            removals.into_iter().for_each(|removals| self.shared.doubts.told(removals));
            return Ok(());
        }
        Err(VolumeError::Io { reason: "the redo log cannot be written".to_string() })
    }

    fn headers(&self, in_force: bool) -> Vec<HeaderWrite> {
        // Before the doubts are listed, which takes long if they are many: what is said to be retired left its doubts before.
        let retired_below = self.shared.redo.state.lock().retired_below;
        let doubts = State::doubts(&self.shared.doubts);
        let state = &mut *self.shared.redo.state.lock();
        state.generation += 1;
        let plan = state.plan.expect("a log that is announced has slots");
        let in_use = |slot: &u32| self.shared.members.state(*slot) == MemberState::InSync;
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
    pub(super) fn no_log_on(&self, slot: u32, device: &Rc<Attached<D>>, error: &DeviceError) {
        let members = &self.shared.members;
        if !self.is_in_slot(slot, device) {
            return; // another one has the slot
        }
        members.report(Event::MetadataError { member: slot, reason: error.to_string() });
        let reason = format!("its redo log cannot be written: {error}");
        if error.kind == DeviceErrorKind::NoSpace || members.fail(slot, &reason) == Failing::Needed {
            self.shared.redo.state.lock().logs.retain(|other| *other != slot);
        }
    }
}
