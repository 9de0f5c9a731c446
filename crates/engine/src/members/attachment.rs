//! Which devices a slot has on this shard: its member, and while that is being replaced the device that is to take its
//! place. [`Members`] knows which of the two the slot means now, for all shards at once; a shard only has to have both before
//! that matters.

use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use super::health::Members;
use super::replacement::Replacing;

/// A member as one shard reaches it.
pub struct Attached<D> {
    /// The way to the device.
    pub device: D,
    /// Where the data area starts, in bytes.
    pub data_offset_bytes: u64,
}

/// The devices of a slot.
struct SlotDevices<D> {
    member: Option<Rc<Attached<D>>>,
    replacement: Option<Rc<Attached<D>>>,
}

impl<D> SlotDevices<D> {
    /// What the slot means at a step of its replacement.
    fn meant(&self, step: Replacing) -> Option<&Rc<Attached<D>>> {
        self.replacement.as_ref().filter(|_| step.has_slot()).or(self.member.as_ref())
    }

    /// The other device that gets what is written.
    fn other(&self, step: Replacing) -> Option<&Rc<Attached<D>>> {
        let replacement = self.replacement.as_ref()?;
        match step {
            Replacing::Copying | Replacing::Moving => Some(replacement),
            Replacing::Taken => self.member.as_ref(),
            Replacing::No | Replacing::Alone => None,
        }
    }
}

/// What a device is to its slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Attachment {
    Member,
    /// It gets what the member gets.
    Replacement,
    /// It is used no more.
    Detached,
}

/// The devices of all slots on one shard.
pub struct Attachments<D> {
    members: Arc<Members>,
    slots: RefCell<Vec<SlotDevices<D>>>,
    /// Slots with a replacement.
    replacements: Cell<usize>,
}

impl<D> Attachments<D> {
    /// `devices` in slot order.
    pub(super) fn new(members: Arc<Members>, devices: Vec<Option<Attached<D>>>) -> Self {
        assert_eq!(devices.len(), members.geometry().members() as usize, "a place for every slot");
        let slot =
            |member: Option<Attached<D>>| SlotDevices { member: member.map(Rc::new), replacement: None };
        let slots = RefCell::new(devices.into_iter().map(slot).collect());
        Attachments { members, slots, replacements: Cell::new(0) }
    }

    /// Puts a device into a slot, or takes it out. Every shard has to do this before the slot is put to use.
    pub fn attach(&self, slot: u32, member: Option<Attached<D>>) {
        self.slots.borrow_mut()[slot as usize].member = member.map(Rc::new);
    }

    /// Puts a device beside the member in a slot, or takes it away. Every shard has to do this before the replacement
    /// begins, or after it has failed.
    pub fn attach_replacement(&self, slot: u32, device: Option<Attached<D>>) {
        self.slots.borrow_mut()[slot as usize].replacement = device.map(Rc::new);
        self.count_replacements();
    }

    /// The replacement in a slot has it alone: this shard forgets the member before it.
    pub fn promote_replacement(&self, slot: u32) {
        {
            let devices = &mut self.slots.borrow_mut()[slot as usize];
            devices.member = devices.replacement.take().or(devices.member.take());
        }
        self.count_replacements();
    }

    fn count_replacements(&self) {
        let count = self.slots.borrow().iter().filter(|devices| devices.replacement.is_some()).count();
        self.replacements.set(count);
    }

    fn step(&self, slot: u32) -> Replacing {
        // A shard without a replacement does not look at what all shards share.
        if self.replacements.get() == 0 { Replacing::No } else { self.members.replacing(slot) }
    }

    /// The device in a slot.
    pub fn attached(&self, slot: u32) -> Option<Rc<Attached<D>>> {
        self.slots.borrow()[slot as usize].meant(self.step(slot)).cloned()
    }

    /// The device that the superblock kept for a slot is about: it says where that has bitmap and log.
    pub(crate) fn described(&self, slot: u32) -> Option<Rc<Attached<D>>> {
        let is_replacements = self.replacements.get() > 0 && self.members.is_superblock_replacements(slot);
        let step = if is_replacements { Replacing::Alone } else { Replacing::No };
        self.slots.borrow()[slot as usize].meant(step).cloned()
    }

    /// The device that is to replace the member in a slot, or has just done so.
    pub(crate) fn replacement(&self, slot: u32) -> Option<Rc<Attached<D>>> {
        self.slots.borrow()[slot as usize].replacement.clone()
    }

    /// Where a write to a slot goes: to its member first.
    pub(crate) fn targets(&self, slot: u32) -> SmallVec<[Rc<Attached<D>>; 2]> {
        let (slots, step) = (self.slots.borrow(), self.step(slot));
        let devices = &slots[slot as usize];
        devices.meant(step).into_iter().chain(devices.other(step)).cloned().collect()
    }

    /// Whether a device is still what its slot means: only then is what is wrong with it wrong with the member.
    pub(crate) fn is_in_slot(&self, slot: u32, device: &Rc<Attached<D>>) -> bool {
        self.attached(slot).is_some_and(|now| Rc::ptr_eq(&now, device))
    }

    /// What a device is to its slot now.
    pub(crate) fn attachment(&self, slot: u32, device: &Rc<Attached<D>>) -> Attachment {
        let (slots, step) = (self.slots.borrow(), self.step(slot));
        let (devices, is) = (&slots[slot as usize], |other: &Rc<Attached<D>>| Rc::ptr_eq(other, device));
        if devices.meant(step).is_some_and(is) {
            Attachment::Member
        } else if !step.has_slot() && devices.other(step).is_some_and(is) {
            Attachment::Replacement
        } else {
            Attachment::Detached
        }
    }

    /// The device to read from up to `end_bytes` of a slot's data area. None if the slot is empty, `is_bad` says that the
    /// place is, or the slot has got another device since the read was planned that does not hold it yet (invariant 8).
    pub(super) fn source(
        &self,
        slot: u32,
        end_bytes: u64,
        is_bad: impl FnOnce() -> bool,
    ) -> Option<Rc<Attached<D>>> {
        let step = match self.replacements.get() {
            0 => Replacing::No,
            _ => self.members.step_to_read(slot, end_bytes)?,
        };
        if is_bad() {
            return None;
        }
        let source = self.slots.borrow()[slot as usize].meant(step).cloned();
        source.filter(|_| self.step(slot) == step)
    }
}
