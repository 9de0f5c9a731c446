//! Slots of the log. A slot is taken for a record, is open while the record's writes are in flight, and stays in use until
//! a header says that the record is retired.

use layout::units::Stripe;
use std::ops::Range;

#[derive(Default)]
pub(super) struct LogSlots {
    pub(super) slots: Vec<LogSlot>,
}

#[derive(Clone, Default)]
pub(super) struct LogSlot {
    /// The record's sequence number; 0: the slot is free.
    pub(super) sequence: u64,
    /// Writers whose stripe writes have not returned. A slot that was just taken counts as one.
    pub(super) open: usize,
    /// The stripes that the record writes.
    pub(super) stripes: Vec<Range<Stripe>>,
    /// Those of them whose writes were not all made: a replay would not leave what later writes built on.
    pub(super) incomplete: Vec<Range<Stripe>>,
}

/// A slot that was taken, and the sequence number of its record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    pub(super) slot: u32,
    pub(super) sequence: u64,
    pub(super) epoch: u64,
}

/// What a writer that wants a slot does next.
pub(super) enum Next {
    Taken(Taken),
    /// No slot is free: the writer retires records whose writes have been made.
    Retire,
}

impl LogSlots {
    pub(super) fn new(count: u32) -> Self {
        LogSlots { slots: vec![LogSlot::default(); count as usize] }
    }

    pub(super) fn free(&self) -> Option<usize> {
        self.slots.iter().position(|slot| slot.sequence == 0)
    }

    /// Whether retiring would free a slot.
    pub(super) fn any_to_retire(&self, next_sequence: u64) -> bool {
        let below = self.written_below(next_sequence);
        self.slots.iter().any(|slot| slot.sequence != 0 && slot.sequence < below)
    }

    /// Every record below this sequence number has had its stripe writes made.
    pub(super) fn written_below(&self, next_sequence: u64) -> u64 {
        let open = self.slots.iter().filter(|slot| slot.open > 0);
        open.map(|slot| slot.sequence).min().unwrap_or(next_sequence)
    }

    pub(super) fn retire(&mut self, below: u64) {
        for slot in self.slots.iter_mut().filter(|slot| slot.sequence < below && slot.open == 0) {
            *slot = LogSlot::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_whose_writer_has_not_returned_is_not_retired() {
        let mut slots = LogSlots::new(3);
        for (slot, (sequence, open)) in slots.slots.iter_mut().zip([(1, 0), (2, 1), (3, 0)]) {
            (slot.sequence, slot.open) = (sequence, open);
        }
        let sequences = |slots: &LogSlots| slots.slots.iter().map(|slot| slot.sequence).collect::<Vec<_>>();
        assert!(slots.any_to_retire(4));
        slots.retire(slots.written_below(4));
        assert_eq!(sequences(&slots), [0, 2, 3], "3 is newer than a record whose writes are in flight");
        assert!(!slots.any_to_retire(4));
        slots.slots[1].open = 0;
        slots.retire(slots.written_below(4));
        assert_eq!(sequences(&slots), [0, 0, 0]);
    }
}
