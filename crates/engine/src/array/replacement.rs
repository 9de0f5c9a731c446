//! Superblocks of devices that are to replace members, kept by the [keeper](super::keeper) beside those of the members.
//!
//! A device that is to replace the member in a slot has that slot's role, too, and md's `REPLACEMENT` feature bit; its
//! recovery offset says how far it is. When it has the slot it gets the bitmap, says that it is in sync, and only then the
//! others say that the old member is faulty: a crash in between leaves one of the two that may be started from.

use layout::md_superblock::Superblock;
use layout::units::Sectors;

use super::bad_block_log;
use super::keeper::{Keeper, SuperblockWrite};
use crate::device::Device;
use crate::events::Event;
use crate::members::attachment::Attachment;
use crate::members::{Failing, Replacing};

/// What is to replace the member in a slot.
pub struct Coming {
    superblock: Superblock,
    /// What was copied **and is durable**: what its superblock may say.
    copied_bytes: u64,
}

impl Coming {
    pub(super) fn superblock_mut(&mut self) -> &mut Superblock {
        &mut self.superblock
    }
}

impl<D: Device> Keeper<D> {
    /// From here on superblocks say that the device with this one is to replace the member in `slot`. Every shard has it
    /// beside the member. False if the member is not in sync, or is being replaced already.
    pub(super) fn begin_replacement(&self, slot: u32, superblock: Superblock, from_bytes: u64) -> bool {
        self.forget_failed_replacement(slot);
        let begun =
            self.set.shared.members.begin_replacement(slot, from_bytes, bad_block_log::room(&superblock));
        if begun {
            let coming = Coming { superblock, copied_bytes: from_bytes };
            self.coming.borrow_mut()[slot as usize] = Some(coming);
        }
        begun
    }

    /// The replacement in `slot` has so much, durably.
    pub(super) fn set_copied(&self, slot: u32, bytes: u64) {
        if let Some(coming) = &mut self.coming.borrow_mut()[slot as usize] {
            coming.copied_bytes = bytes;
        }
    }

    /// The superblock of what is to replace the member in a slot, as last written.
    pub fn coming(&self, slot: u32) -> Option<Superblock> {
        self.coming.borrow()[slot as usize].as_ref().map(|coming| coming.superblock.clone())
    }

    /// What was to replace the member in a slot and failed is faulty from now on.
    fn forget_failed_replacement(&self, slot: u32) {
        if self.set.shared.members.replacing(slot) == Replacing::No
            && let Some(coming) = self.coming.borrow_mut()[slot as usize].take()
        {
            self.failed.borrow_mut().push(coming.superblock.dev_number());
        }
    }

    /// Replacements that have their slots by now are the members that superblocks are kept for; those that failed are
    /// faulty. Only before a round of superblocks: the new members get the bitmap before a superblock says that they are
    /// in sync (invariant 2).
    pub(super) fn follow_replacements(&self) {
        let members = &self.set.shared.members;
        for slot in 0..self.set.shared.geometry.members() {
            let step = members.replacing(slot);
            if matches!(step, Replacing::Copying | Replacing::Moving) {
                continue;
            }
            self.forget_failed_replacement(slot);
            let Some(coming) = self.coming.borrow_mut()[slot as usize].take() else { continue };
            let mut superblock = coming.superblock;
            superblock.set_replacement(false);
            // In this order: whoever finds a place for a record of the redo log finds the device that it is on.
            self.set.shared.redo.set_member(slot, None);
            members.superblock_is_replacements(slot);
            self.set_superblock(slot, Some(superblock));
            self.set_recovered(slot, coming.copied_bytes.min(members.recovered_bytes(slot)));
            self.logs_written.borrow_mut()[slot as usize] = u64::MAX; // of another device
        }
    }

    /// Whether the member in a slot has failed since this round began, and what was to replace it has the slot: the
    /// superblock that is kept is not about that yet, and the failed member gets none any more.
    pub(super) fn has_just_fallen(&self, slot: u32) -> bool {
        self.coming.borrow()[slot as usize].is_some()
            && matches!(self.set.shared.members.replacing(slot), Replacing::Moving | Replacing::Alone)
    }

    /// Device numbers of what is to replace members, and the slots.
    pub(super) fn coming_numbers(&self) -> Vec<(u32, u32)> {
        let coming = self.coming.borrow();
        let number =
            |(slot, coming): (u32, &Option<Coming>)| Some((coming.as_ref()?.superblock.dev_number(), slot));
        (0..).zip(coming.iter()).filter_map(number).collect()
    }

    /// Their superblocks; `fill` says what is the same in all.
    pub(super) fn coming_writes(&self, fill: impl Fn(&mut Superblock)) -> Vec<SuperblockWrite<D>> {
        let mut writes = Vec::new();
        for (slot, coming) in (0..).zip(self.coming.borrow_mut().iter_mut()) {
            let (Some(coming), Some(device)) = (coming, self.set.devices().replacement(slot)) else {
                continue;
            };
            fill(&mut coming.superblock);
            coming.superblock.set_replacement(true);
            coming.superblock.set_recovery_offset(Some(Sectors::from_bytes_floor(coming.copied_bytes)));
            let mut write = SuperblockWrite::new(slot, &coming.superblock, device);
            write.is_replacement = true;
            writes.push(write);
        }
        writes
    }

    /// A second try, then the replacement fails; the member does if it is that by now. A device that is neither has nothing
    /// to do with the slot any more.
    pub(super) async fn retry_replacement(&self, write: &SuperblockWrite<D>) -> Option<Failing> {
        let Err(error) = write.start().await else { return None };
        let members = &self.set.shared.members;
        let reason = format!("its superblock cannot be written: {error}");
        match self.set.devices().attachment(write.slot, &write.member) {
            Attachment::Detached => return None,
            Attachment::Replacement if members.fail_replacement(write.slot, &reason) => return None,
            Attachment::Replacement | Attachment::Member => {}
        }
        members.report(Event::MetadataError { member: write.slot, reason: error.to_string() });
        Some(members.fail(write.slot, &reason))
    }
}
