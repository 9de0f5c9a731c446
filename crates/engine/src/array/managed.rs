//! An array as its management sees it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use super::superblock_writer::SuperblockWriter;
use super::turn::Turn;
use super::works::Works;
use crate::device::Device;
use crate::in_place::InPlace;
use crate::members::Replacing;
use layout::units::Slot;

/// An array under management. Lives on one shard, beside its superblock writer.
pub(super) struct Managed<D, P> {
    pub(super) set: Rc<InPlace<D>>,
    pub(super) writer: Rc<SuperblockWriter<D>>,
    pub(super) platform: Rc<P>,
    pub(super) works: Works,
    pub(super) slots: SlotChanges,
    /// Nothing is written.
    pub(super) read_only: bool,
    pub(super) stopping: Cell<bool>,
}

/// Slots whose devices are being changed.
#[derive(Default)]
pub(super) struct SlotChanges {
    /// Taken by the task that adds a device or gives a member its replacement: one at a time.
    pub(super) seating: Turn,
    /// Slots into which a device is being put, or from which one is being taken: that takes several steps.
    changing: RefCell<BTreeSet<Slot>>,
}

impl SlotChanges {
    /// A change of a slot begins. False if one is under way.
    pub(super) fn begin(&self, slot: Slot) -> bool {
        self.changing.borrow_mut().insert(slot)
    }

    pub(super) fn end(&self, slot: Slot) {
        self.changing.borrow_mut().remove(&slot);
    }

    pub(super) fn contains(&self, slot: Slot) -> bool {
        self.changing.borrow().contains(&slot)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.changing.borrow().is_empty()
    }
}

impl<D: Device, P> Managed<D, P> {
    /// Whether the devices of a slot are just being changed.
    pub(super) fn is_changing(&self, slot: Slot) -> bool {
        self.slots.contains(slot) || self.set.shared.members.replacing(slot) != Replacing::No
    }
}
