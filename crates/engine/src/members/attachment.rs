//! The devices of each slot on this shard: the member, and while that is being replaced its replacement. [`Members`]
//! decides for all shards at once which of the two is the slot's current device; a shard has both attached before that can
//! change.

use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use super::health::Members;
use super::replacement::Replacing;
use layout::units::{DeviceOffset, MemberOffset, Slot};

/// A device as one shard reaches it.
pub struct Attached<D> {
    /// The shard's handle on the device.
    pub device: D,
    /// Where the data area starts.
    pub data_offset: DeviceOffset,
}

impl<D> Attached<D> {
    /// Where on the device a place of the data area is.
    #[inline]
    pub(crate) fn on_device(&self, offset: MemberOffset) -> DeviceOffset {
        offset.on_device(self.data_offset)
    }
}

/// The devices of a slot.
struct SlotDevices<D> {
    member: Option<Rc<Attached<D>>>,
    replacement: Option<Rc<Attached<D>>>,
}

impl<D> SlotDevices<D> {
    /// The slot's current device at a step of its replacement.
    fn current(&self, step: Replacing) -> Option<&Rc<Attached<D>>> {
        self.replacement.as_ref().filter(|_| step.has_slot()).or(self.member.as_ref())
    }

    /// The second device that gets every write, if there is one.
    fn second(&self, step: Replacing) -> Option<&Rc<Attached<D>>> {
        let replacement = self.replacement.as_ref()?;
        match step {
            Replacing::Copying | Replacing::Moving => Some(replacement),
            Replacing::Taken => self.member.as_ref(),
            Replacing::No | Replacing::Alone => None,
        }
    }
}

/// The role of a device in its slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Attachment {
    /// The slot's current device: its errors are the member's.
    Member,
    /// It gets every write that the member gets.
    Replacement,
    /// It is in use no more: its errors do not count.
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

    /// Puts a device into a slot, or takes it out. Every shard does this before the slot is put to use.
    pub fn attach(&self, slot: Slot, member: Option<Attached<D>>) {
        self.slots.borrow_mut()[slot.index()].member = member.map(Rc::new);
    }

    /// Puts a replacement beside the member in a slot, or takes it away. Every shard does this before the replacement
    /// begins, or after it has failed.
    pub fn attach_replacement(&self, slot: Slot, device: Option<Attached<D>>) {
        self.slots.borrow_mut()[slot.index()].replacement = device.map(Rc::new);
        self.count_replacements();
    }

    /// The replacement has become the member: this shard drops the device of the old member.
    pub fn promote_replacement(&self, slot: Slot) {
        {
            let devices = &mut self.slots.borrow_mut()[slot.index()];
            devices.member = devices.replacement.take().or(devices.member.take());
        }
        self.count_replacements();
    }

    fn count_replacements(&self) {
        let count = self.slots.borrow().iter().filter(|devices| devices.replacement.is_some()).count();
        self.replacements.set(count);
    }

    fn step(&self, slot: Slot) -> Replacing {
        // Without a replacement the step is known, and shared memory is left alone.
        if self.replacements.get() == 0 { Replacing::No } else { self.members.replacing(slot) }
    }

    /// The current device of a slot.
    pub fn attached(&self, slot: Slot) -> Option<Rc<Attached<D>>> {
        self.slots.borrow()[slot.index()].current(self.step(slot)).cloned()
    }

    /// The device that the slot's superblock describes: the offsets of bitmap and logs in that superblock hold for this
    /// device.
    pub(crate) fn described(&self, slot: Slot) -> Option<Rc<Attached<D>>> {
        let is_replacements = self.replacements.get() > 0 && self.members.is_superblock_replacements(slot);
        let step = if is_replacements { Replacing::Alone } else { Replacing::No };
        self.slots.borrow()[slot.index()].current(step).cloned()
    }

    /// The replacement in a slot, also while it has just become the member.
    pub(crate) fn replacement(&self, slot: Slot) -> Option<Rc<Attached<D>>> {
        self.slots.borrow()[slot.index()].replacement.clone()
    }

    /// The devices that a write to a slot goes to, the current one first.
    pub(crate) fn targets(&self, slot: Slot) -> SmallVec<[Rc<Attached<D>>; 2]> {
        let (slots, step) = (self.slots.borrow(), self.step(slot));
        let devices = &slots[slot.index()];
        devices.current(step).into_iter().chain(devices.second(step)).cloned().collect()
    }

    /// Whether a device is still its slot's current one: only then do its errors count against the member.
    pub(crate) fn is_in_slot(&self, slot: Slot, device: &Rc<Attached<D>>) -> bool {
        self.attached(slot).is_some_and(|now| Rc::ptr_eq(&now, device))
    }

    /// The role of a device in its slot now.
    pub(crate) fn attachment(&self, slot: Slot, device: &Rc<Attached<D>>) -> Attachment {
        let (slots, step) = (self.slots.borrow(), self.step(slot));
        let (devices, is) = (&slots[slot.index()], |other: &Rc<Attached<D>>| Rc::ptr_eq(other, device));
        if devices.current(step).is_some_and(is) {
            Attachment::Member
        } else if !step.has_slot() && devices.second(step).is_some_and(is) {
            Attachment::Replacement
        } else {
            Attachment::Detached
        }
    }

    /// The device for a read that ends at `end` of a slot's data area. None if the slot is empty, if `is_bad` says
    /// that a block of it is bad, or if the slot's current device has changed since the read was planned and does not hold
    /// the range yet (invariant 8).
    pub(super) fn source(
        &self,
        slot: Slot,
        end: MemberOffset,
        is_bad: impl FnOnce() -> bool,
    ) -> Option<Rc<Attached<D>>> {
        let step = match self.replacements.get() {
            0 => Replacing::No,
            _ => self.members.step_to_read(slot, end)?,
        };
        if is_bad() {
            return None;
        }
        let source = self.slots.borrow()[slot.index()].current(step).cloned();
        source.filter(|_| self.step(slot) == step)
    }
}
