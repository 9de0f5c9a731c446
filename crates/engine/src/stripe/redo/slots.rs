//! Slots of the log: taken for a record, open while the record's writes are on their way, then used until a header
//! says that the record is done with.

use smallvec::SmallVec;
use std::ops::Range;

use super::{Phase, Redo, RedoMember, State, wake_all};
use crate::device::Device;
use crate::stripe::StripeSet;
use crate::volume::VolumeError;

#[derive(Default)]
pub(super) struct Slots {
    slots: Vec<Slot>,
}

#[derive(Clone, Default)]
struct Slot {
    /// The record's number; 0: free.
    sequence: u64,
    /// Writers whose stripe writes have not returned. A slot that was just taken counts as one.
    open: usize,
    /// The stripes it is about.
    stripes: Vec<Range<u64>>,
    /// Those of them of which not all was written: made again they are not what later writes were made from.
    unmade: Vec<Range<u64>>,
}

/// A slot and the number of its record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    pub(super) slot: u32,
    pub(super) sequence: u64,
    pub(super) epoch: u64,
}

/// What whoever wants a slot does next.
pub(super) enum Next {
    Taken(Taken),
    /// There is none: free those whose writes are made.
    Retire,
}

impl Slots {
    pub(super) fn new(count: u32) -> Self {
        Slots { slots: vec![Slot::default(); count as usize] }
    }

    fn free(&self) -> Option<usize> {
        self.slots.iter().position(|slot| slot.sequence == 0)
    }

    /// Whether a slot would be free after [`Slots::retire`].
    fn any_to_retire(&self, next_sequence: u64) -> bool {
        let below = self.written_below(next_sequence);
        self.slots.iter().any(|slot| slot.sequence != 0 && slot.sequence < below)
    }

    /// Records below this number have been written out to their stripes.
    fn written_below(&self, next_sequence: u64) -> u64 {
        let open = self.slots.iter().filter(|slot| slot.open > 0);
        open.map(|slot| slot.sequence).min().unwrap_or(next_sequence)
    }

    fn retire(&mut self, below: u64) {
        for slot in self.slots.iter_mut().filter(|slot| slot.sequence < below && slot.open == 0) {
            *slot = Slot::default();
        }
    }
}

impl Redo {
    /// `writers` share a record in this slot, about these stripes.
    pub(super) fn shared_by(&self, taken: Taken, writers: usize, stripes: Vec<Range<u64>>) {
        let slot = &mut self.state.lock().slots.slots[taken.slot as usize];
        (slot.open, slot.stripes) = (writers, stripes);
    }

    /// Nothing was or will be written for the record of this slot.
    pub(super) fn give_back(&self, taken: Taken) {
        let mut state = self.state.lock();
        state.slots.slots[taken.slot as usize] = Slot::default();
        wake_all(state);
    }

    /// Whether a record of this stripe would be redone.
    pub(super) fn has_record(&self, stripe: u64) -> bool {
        let state = self.state.lock();
        state.slots.slots.iter().any(|slot| slot.stripes.iter().any(|stripes| stripes.contains(&stripe)))
    }

    /// Not all writes of this record were made in these stripes, or none was and some member may have the record all the
    /// same.
    pub(super) fn unmade(&self, taken: Taken, stripes: Range<u64>) {
        self.state.lock().slots.slots[taken.slot as usize].unmade.push(stripes);
    }

    /// Whether a record would be redone that does not agree with what is made of this stripe now.
    fn has_unmade(&self, stripe: u64) -> bool {
        let state = self.state.lock();
        state.slots.slots.iter().any(|slot| slot.unmade.iter().any(|stripes| stripes.contains(&stripe)))
    }

    /// Array slots whose members have the log.
    pub(super) fn logs(&self) -> SmallVec<[u32; 8]> {
        SmallVec::from_slice(&self.state.lock().logs)
    }

    /// Where a slot of the log is on the device of a member.
    pub(super) fn slot_place(&self, member: u32, slot: u32) -> Option<(u64, RedoMember)> {
        let state = self.state.lock();
        let member = state.members[member as usize]?;
        Some((state.plan?.slot_offset(member.area, slot), member))
    }

    /// The stripe writes of one writer of this record have returned, or were never made.
    pub(super) fn written(&self, taken: Taken) {
        let mut state = self.state.lock();
        let slot = &mut state.slots.slots[taken.slot as usize];
        assert_eq!(slot.sequence, taken.sequence, "an open slot keeps its record");
        slot.open -= 1;
        if slot.open == 0 {
            wake_all(state);
        }
    }

    pub(super) fn take(state: &mut State) -> Option<Next> {
        if let Some(slot) = state.slots.free() {
            let sequence = state.next_sequence;
            state.next_sequence += 1;
            state.slots.slots[slot] = Slot { sequence, open: 1, ..Slot::default() };
            let slot = u32::try_from(slot).expect("few slots");
            return Some(Next::Taken(Taken { slot, sequence, epoch: state.epoch }));
        }
        if state.retiring || !state.slots.any_to_retire(state.next_sequence) {
            return None;
        }
        state.retiring = true;
        Some(Next::Retire)
    }
}

impl<D: Device> StripeSet<D> {
    /// Before anything is made of a stripe whose last write failed or was refused: the record of that write is done with. Made
    /// again it would change data under the parity of a later record. Until parity agrees the stripe is in doubt.
    pub(in crate::stripe) async fn without_unmade_records(&self, stripe: u64) -> Result<(), VolumeError> {
        match !self.shared.members.plain() && self.shared.redo.has_unmade(stripe) {
            true => Box::pin(self.outlive_redo_records()).await,
            false => Ok(()),
        }
    }

    /// Returns when all records that were begun before this call are done with, if the log is in force.
    pub(crate) async fn outlive_redo_records(&self) -> Result<(), VolumeError> {
        let redo = &self.shared.redo;
        let begun = redo.state.lock().next_sequence;
        let written = |state: &mut State| {
            let over =
                state.phase != Phase::InForce || state.slots.written_below(state.next_sequence) >= begun;
            over.then_some(())
        };
        redo.when(written).await;
        self.empty_redo_log().await
    }

    /// Frees every slot whose writes have been made, if the log is in force.
    pub(crate) async fn empty_redo_log(&self) -> Result<(), VolumeError> {
        let in_force = self.shared.redo.when(|state| {
            if state.phase != Phase::InForce {
                return Some(false);
            }
            let free = !state.retiring;
            state.retiring = true;
            free.then_some(true)
        });
        if in_force.await { self.retire_as_the_one().await } else { Ok(()) }
    }

    pub(super) async fn retire_as_the_one(&self) -> Result<(), VolumeError> {
        let result = self.retire().await;
        let mut state = self.shared.redo.state.lock();
        state.retiring = false;
        wake_all(state);
        result
    }

    /// Makes what finished records asked for durable, says so in the headers, and frees their slots.
    async fn retire(&self) -> Result<(), VolumeError> {
        let redo = &self.shared.redo;
        let below = {
            let state = redo.state.lock();
            state.slots.written_below(state.next_sequence)
        };
        // What a member missed that failed under these records, or lost when it was flushed now, is told on disk before
        // they are gone (invariant 8).
        self.flush_volume().await?;
        let _announcing = redo.announce().await;
        {
            // Superblocks that say clean may have said of more records meanwhile that they are done with.
            let retired_below = &mut redo.state.lock().retired_below;
            *retired_below = below.max(*retired_below);
        }
        self.write_headers(true).await?;
        redo.state.lock().slots.retire(below);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stripe::fake::World;
    use layout::geometry::Level;
    use std::rc::Rc;

    /// Seed 611977: records were being retired when superblocks said clean, and the next header asked for what those had
    /// said is done with.
    #[test]
    fn what_was_done_with_when_superblocks_said_clean_stays_so() {
        let world = World::logging(Level::Raid5, 3);
        let (redo, members) = (&world.set.shared.redo, &world.set.shared.members);
        members.metadata_written(members.metadata_version());
        let Some(Next::Taken(taken)) = Redo::take(&mut redo.state.lock()) else { panic!("a free slot") };
        let (set, retiring) = (Rc::clone(&world.set), Rc::clone(&world.set));
        world.run(async move {
            let redo = &set.shared.redo;
            let announcing = redo.announce().await;
            let retired = set.executor.spawn_with_result(async move { retiring.empty_redo_log().await });
            for _ in 0..20 {
                crate::executor::yield_now().await; // it waits for the headers, and knows of an open record
            }
            redo.written(taken);
            redo.all_durable();
            drop(announcing);
            retired.await.expect("headers are written");
        });
        let state = redo.state.lock();
        assert_eq!(state.retired_below, state.next_sequence);
    }
}
