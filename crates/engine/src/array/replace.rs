//! Replacing a member that still works (mdadm's `--replace`): a device gets all it holds and every write, then its slot.
//!
//! The steps, and what a crash after each leaves:
//! 1. Every shard has the device beside the member; it gets every write. Its superblock says so, and how far it is: a later
//!    run goes on there, or begins again if the array was not stopped cleanly.
//! 2. All is copied and durable, and it has the slot: reads go to it. Its superblock says so, then those of the others that
//!    the old member is faulty. Until that is on disk the old one gets every write, too: either can be started from.
//! 3. The shards forget the old member.
//!
//! When the member fails on the way, the replacement has the slot at once and is rebuilt from where it was.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use layout::md_superblock::Superblock;
use layout::units::Slot;

use super::managed::Managed;
use super::platform::Platform;
use super::progress::{Ended, Pace, Progress};
use super::rebuild::{regions, run_of, stripes};
use super::superblocks::Spare;
use super::turn::Turn;
use super::window::{Piece, Sweep, slide};
use super::works::Work;
use crate::device::Device;
use crate::error::VolumeError;
use crate::events::Event;
use crate::in_place::InPlace;
use crate::members::{MemberState, Replacing};

/// Why a member is not replaced.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotReplaced {
    /// Without redundancy no other member tells what belongs there if it cannot be read.
    #[error("the array has no redundancy")]
    NoRedundancy,
    /// Nothing may be written.
    #[error("the array is read-only")]
    ReadOnly,
    /// Only what is in sync can be copied.
    #[error("it is not in sync, and what a member lacks is rebuilt, not copied")]
    NotInSync(Slot),
    /// It is being replaced.
    #[error("it is being replaced already")]
    Already(Slot),
    /// The slot is just being given to another device.
    #[error("slot {0} is just being changed")]
    Changing(Slot),
    /// There is no spare with this device number.
    #[error("there is no such spare")]
    NoSpare,
}

/// A replacement that an earlier run did not finish.
pub(super) struct Resuming<D> {
    slot: Slot,
    device: Rc<D>,
    superblock: Superblock,
}

/// Copies the member in `slot` to its replacement from where that is.
pub(super) async fn copy<D: Device>(
    set: &Rc<InPlace<D>>,
    slot: Slot,
    progress: &Progress,
    pace: &impl Pace,
) -> Ended {
    let (shared, work) = (&set.shared, Copying { set, slot });
    match shared.geometry.parity_chunks() {
        0 => slide(shared, &work, regions(set), 0, progress, pace).await,
        _ => {
            let first = shared.members.copied_bytes(slot) / u64::from(shared.geometry.chunk_bytes());
            slide(shared, &work, stripes(set), first, progress, pace).await
        }
    }
}

/// The replacement in a slot gets what the member holds. Each stripe, or region of a mirror, is owned by itself while that
/// is done.
struct Copying<'a, D> {
    set: &'a Rc<InPlace<D>>,
    slot: Slot,
}

impl<D: Device> Sweep for Copying<'_, D> {
    fn next(&self, from: u64) -> Option<u64> {
        Some(from)
    }

    async fn begin(&self, range: Range<u64>, _: bool) -> Option<Piece> {
        let (set, slot, numbers) = (Rc::clone(self.set), self.slot, range.clone());
        let mirror = set.shared.geometry.parity_chunks() == 0;
        let job = self.set.executor.spawn_with_result(async move {
            match mirror {
                true => set.replace_region(numbers.start, slot).await,
                false => set.copy_run(run_of(&numbers), slot).await,
            }
        });
        let range = if mirror { range.start..range.start + 1 } else { range };
        Some(Piece { worked: range.end - range.start, range, claims: Rc::default(), job: Some(job) })
    }

    fn passed(&self, range: Range<u64>) {
        let geometry = &self.set.shared.geometry;
        // Copies are not made in the order of the members' bytes: no cursor can say how far they are.
        if geometry.parity_chunks() > 0 {
            self.set.shared.members.copied_to(self.slot, geometry.member_offset(run_of(&range).end));
        }
    }
}

/// Members of an array that are being replaced, or are to be.
pub struct Replacements<D, P> {
    managed: Rc<Managed<D, P>>,
    /// Replacements that an earlier run began, for [`Replacements::resume`].
    resuming: RefCell<VecDeque<Resuming<D>>>,
    /// One replacement at a time gets its slot.
    handing: Turn,
}

impl<D: Device, P: Platform<D>> Replacements<D, P> {
    pub(super) fn new(managed: &Rc<Managed<D, P>>) -> Self {
        Replacements { managed: Rc::clone(managed), resuming: RefCell::default(), handing: Turn::default() }
    }

    /// Whether the member in a slot may be replaced now.
    ///
    /// # Errors
    /// Why not.
    pub fn may_replace(&self, slot: Slot) -> Result<(), NotReplaced> {
        let members = &self.managed.set.shared.members;
        match () {
            () if self.managed.read_only => Err(NotReplaced::ReadOnly),
            () if self.managed.set.shared.geometry.losses_survived() == 0 => Err(NotReplaced::NoRedundancy),
            () if members.replacing(slot) != Replacing::No => Err(NotReplaced::Already(slot)),
            () if members.state(slot) != MemberState::InSync => Err(NotReplaced::NotInSync(slot)),
            () if self.managed.slots.contains(slot) => Err(NotReplaced::Changing(slot)),
            // An earlier one that has failed would hand over what the new one has yet to copy.
            () if self.managed.works.is_running(Work::Replacement(slot)) => Err(NotReplaced::Changing(slot)),
            () => Ok(()),
        }
    }

    /// Replaces the member in a slot by the spare with this device number.
    ///
    /// # Errors
    /// Why not; nothing has changed then.
    pub async fn replace(&self, slot: Slot, number: u32) -> Result<(), NotReplaced> {
        let _turn = self.managed.slots.seating.take().await;
        self.may_replace(slot)?;
        let spare = {
            let mut spares = self.managed.writer.superblocks().spares().borrow_mut();
            let at = spares.iter().position(|spare| spare.superblock.dev_number() == number);
            spares.remove(at.ok_or(NotReplaced::NoSpare)?)
        };
        self.begin_replacement(slot, spare.device, spare.superblock, 0).await;
        Ok(())
    }

    /// An earlier run did not finish a replacement: the manager goes on with it. Until then the device's number is taken.
    pub fn resume_later(&self, slot: Slot, device: Rc<D>, superblock: Superblock) {
        self.resuming.borrow_mut().push_back(Resuming { slot, device, superblock });
    }

    /// Goes on with replacements that an earlier run did not finish.
    pub(super) async fn resume(&self) {
        let next = || {
            self.resuming
                .borrow()
                .front()
                .map(|next| (next.slot, Rc::clone(&next.device), next.superblock.clone()))
        };
        while let Some((slot, device, superblock)) = next() {
            if let Err(refused) = self.resume_one(slot, device, superblock).await {
                let reason = format!("it does not go on: {refused}");
                self.managed.set.shared.members.report(Event::ReplacementFailed { member: slot, reason });
            }
            self.resuming.borrow_mut().pop_front();
        }
    }

    /// Device numbers of replacements that were begun or are to go on.
    pub(super) fn numbers(&self) -> Vec<u32> {
        let numbers =
            self.managed.writer.superblocks().incoming_numbers().into_iter().map(|(number, _)| number);
        numbers.chain(self.resuming.borrow().iter().map(|next| next.superblock.dev_number())).collect()
    }

    async fn resume_one(&self, slot: Slot, device: Rc<D>, superblock: Superblock) -> Result<(), NotReplaced> {
        let _turn = self.managed.slots.seating.take().await;
        self.may_replace(slot)?;
        let shared = &self.managed.set.shared;
        // After a crash the two may differ wherever a write was on its way; without intents no record says whether there was one.
        let clean = superblock.resync_offset().is_none()
            && self.managed.writer.resync_from_bytes().is_none()
            && shared.intent.is_used();
        let whole = shared.geometry.member_bytes();
        let from_bytes = superblock.recovery_offset().map_or(whole, |offset| offset.bytes().min(whole));
        self.begin_replacement(slot, device, superblock, if clean { from_bytes } else { 0 }).await;
        Ok(())
    }

    async fn begin_replacement(&self, slot: Slot, device: Rc<D>, superblock: Superblock, from_bytes: u64) {
        self.managed.slots.begin(slot);
        let data_offset = superblock.data_start();
        let seated = Some((Rc::clone(&device), data_offset));
        self.managed.platform.attach_replacement(slot, seated).await;
        // What was written since the start went past the device until now.
        let from_bytes = if self.managed.set.shared.intent.was_open() { 0 } else { from_bytes };
        if !self.managed.writer.superblocks().begin_replacement(slot, superblock.clone(), from_bytes) {
            // The member failed meanwhile: what was to replace it is as good a spare.
            self.managed.platform.attach_replacement(slot, None).await;
            self.managed.writer.superblocks().spares().borrow_mut().push(Spare { superblock, device });
            self.managed.set.shared.members.want_metadata();
        }
        self.managed.slots.end(slot);
    }

    /// The device that is to replace the member in a slot is let go. False if nothing is to replace it, or it has the slot
    /// already.
    pub fn cancel_replacement(&self, slot: Slot) -> bool {
        let members = &self.managed.set.shared.members;
        members.replacing(slot) == Replacing::Copying && members.fail_replacement(slot, "by hand")
    }

    /// What replacements that ended leave behind goes: devices that failed, and members whose replacements have their slots.
    pub(super) async fn clear_up(&self) {
        for slot in self.managed.set.shared.geometry.slots() {
            if !self.managed.slots.contains(slot) && self.managed.set.devices().replacement(slot).is_some() {
                match self.managed.set.shared.members.replacing(slot) {
                    Replacing::No => self.managed.platform.attach_replacement(slot, None).await,
                    Replacing::Alone => self.forget_replaced(slot).await,
                    Replacing::Copying | Replacing::Moving | Replacing::Taken => {}
                }
            }
        }
    }

    /// The replacement in a slot has it alone: the shards forget the member before it.
    async fn forget_replaced(&self, slot: Slot) {
        let members = &self.managed.set.shared.members;
        self.managed.slots.begin(slot);
        // The superblock first: from then on no start looks for the old member.
        if members.settled().await.is_ok() && self.managed.writer.superblocks().incoming(slot).is_none() {
            self.managed.platform.promote_replacement(slot).await;
            members.end_replacement(slot);
        }
        self.managed.slots.end(slot);
    }

    /// Everything is copied: the replacement gets the slot.
    pub(super) async fn hand_over(&self, slot: Slot) -> Result<(), VolumeError> {
        let (members, redo) = (&self.managed.set.shared.members, &self.managed.set.shared.redo);
        // One at a time: the log is on the other members meanwhile, and then on this replacement, too.
        let _turn = self.handing.take().await;
        redo.ready_without(slot, members).await;
        self.managed.set.flush().await?;
        // Records that the old member has a copy of would have one less.
        let log = redo.member(slot);
        redo.set_member(slot, None);
        self.managed.set.outlive_redo_records().await?;
        if !members.hand_over(slot) {
            if members.replacing(slot) == Replacing::No {
                redo.set_member(slot, log); // it stays
            }
            return Ok(());
        }
        let settled = members.settled().await;
        members.let_go(slot);
        settled?;
        self.forget_replaced(slot).await;
        members.report(Event::ReplacementFinished { member: slot });
        Ok(())
    }
}
