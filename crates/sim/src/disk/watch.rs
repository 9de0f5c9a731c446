//! What the devices of a machine report of their changes, and the check that each write passes first.

use std::cell::{Cell, OnceCell};
use std::ops::Range;

/// A write or zeroing of a device's data area, before any of it is applied.
pub(crate) struct Change<'a> {
    pub(crate) device: u32,
    pub(crate) operation: &'static str,
    /// Bytes of the data area.
    pub(crate) range: Range<u64>,
    /// Whether it changes what a read of a part of the data area finds.
    pub(crate) changes: &'a dyn Fn(Range<u64>) -> bool,
}

type Check = Box<dyn Fn(&Change<'_>)>;

/// One for all devices of a machine.
#[derive(Default)]
pub(crate) struct Watch {
    generation: Cell<u64>,
    boundaries: Cell<u64>,
    check: OnceCell<Check>,
}

impl Watch {
    /// From now on every change of a data area passes `check` first.
    pub(crate) fn set_check(&self, check: impl Fn(&Change<'_>) + 'static) {
        assert!(self.check.set(Box::new(check)).is_ok(), "one check for the devices of a machine");
    }

    pub(super) fn check(&self, change: &Change<'_>) {
        if let Some(check) = self.check.get() {
            check(change);
        }
    }

    /// Superblocks, or what a power cut would leave of them, changed; or devices came or went.
    pub(crate) fn metadata_changed(&self) {
        self.generation.set(self.generation.get() + 1);
    }

    /// Counts changes of superblocks: while it stays, the superblocks say the same.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.get()
    }

    /// A write was applied, or what was applied became durable.
    pub(super) fn boundary(&self) {
        self.boundaries.set(self.boundaries.get() + 1);
    }

    /// Counts what may change what a power cut leaves.
    pub(crate) fn boundaries(&self) -> u64 {
        self.boundaries.get()
    }
}
