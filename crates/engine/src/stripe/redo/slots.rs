//! Slots of the log: taken for a record, open while the record's writes are on their way, then used until a header
//! says that the record is done with.

use std::ops::Range;

#[derive(Default)]
pub(super) struct Slots {
    pub(super) slots: Vec<Slot>,
}

#[derive(Clone, Default)]
pub(super) struct Slot {
    /// The record's number; 0: free.
    pub(super) sequence: u64,
    /// Writers whose stripe writes have not returned. A slot that was just taken counts as one.
    pub(super) open: usize,
    /// The stripes it is about.
    pub(super) stripes: Vec<Range<u64>>,
    /// Those of them of which not all was written: made again they are not what later writes were made from.
    pub(super) unmade: Vec<Range<u64>>,
}

/// A slot and the number of its record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    pub(super) slot: u32,
    pub(super) sequence: u64,
    pub(super) epoch: u64,
}

/// What a writer that wants a slot does next.
pub(super) enum Next {
    Taken(Taken),
    /// There is none: free those whose writes are made.
    Retire,
}

impl Slots {
    pub(super) fn new(count: u32) -> Self {
        Slots { slots: vec![Slot::default(); count as usize] }
    }

    pub(super) fn free(&self) -> Option<usize> {
        self.slots.iter().position(|slot| slot.sequence == 0)
    }

    /// Whether a slot would be free after [`Slots::retire`].
    pub(super) fn any_to_retire(&self, next_sequence: u64) -> bool {
        let below = self.written_below(next_sequence);
        self.slots.iter().any(|slot| slot.sequence != 0 && slot.sequence < below)
    }

    /// Records below this number have been written out to their stripes.
    pub(super) fn written_below(&self, next_sequence: u64) -> u64 {
        let open = self.slots.iter().filter(|slot| slot.open > 0);
        open.map(|slot| slot.sequence).min().unwrap_or(next_sequence)
    }

    pub(super) fn retire(&mut self, below: u64) {
        for slot in self.slots.iter_mut().filter(|slot| slot.sequence < below && slot.open == 0) {
            *slot = Slot::default();
        }
    }
}
