//! The table of operations in flight.
//!
//! Invariants:
//! - A slot is vacant or owns one operation with all its memory and descriptors.
//! - A slot is freed after its operation has completed *and* its future is done with it, whichever comes second.
//! - The generation counts the uses of a slot, so that a late cancel or timer never meets the slot's next operation.

use engine::buffer::Buffer;
use std::task::Waker;
use std::time::Instant;

use super::late::LateWrite;
use super::op::Op;
use super::system_call::Vectors;

/// Where an operation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotState {
    /// The slot is free.
    Vacant,
    /// In flight; its future waits.
    Running,
    /// In flight; its future was dropped or has returned the time limit's error.
    Orphaned,
    /// In flight beyond its time limit; the future has not been polled since.
    Expired,
    /// Completed; the future has not been polled since.
    Finished,
}

/// Where an operation stands in the [lane](super::lane) of its file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum LaneState {
    /// In no lane: it has no file, it waits for late writes, or it has ended.
    #[default]
    Outside,
    /// It waits in the lane and was not sent.
    Waiting,
    /// It was sent, or is about to be.
    Sent,
}

pub(super) struct Slot {
    pub state: SlotState,
    pub generation: u32,
    /// Result of a finished operation: a count, a negated error number, or [`super::op::PAST_END`].
    pub result: i32,
    /// Of the task that polled last. It stays when the slot is reused, mostly by the same task.
    pub waker: Option<Waker>,
    /// Whether that task waits for this use of the slot.
    pub is_awaited: bool,
    pub op: Op,
    pub deadline: Option<Instant>,
    pub lane: LaneState,
    /// Present while the operation is beyond its time limit and may still change the device.
    pub late: Option<LateWrite>,
    /// Memory for vectored calls.
    pub vectors: Option<Box<Vectors>>,
}

impl Slot {
    /// Keeps this waker, to be called when the operation completes.
    #[inline]
    pub fn await_with(&mut self, waker: &Waker) {
        self.is_awaited = true;
        if !self.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            self.waker = Some(waker.clone());
        }
    }

    /// Wakes the task that waits for this operation.
    #[inline]
    pub fn wake(&mut self) {
        if std::mem::take(&mut self.is_awaited)
            && let Some(waker) = &self.waker
        {
            waker.wake_by_ref();
        }
    }
}

/// Names an operation of a member on another machine until its device ends it.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub(super) slot: u32,
    generation: u32,
}

/// Slots, reused last in first out.
#[derive(Default)]
pub(super) struct Slots {
    entries: Vec<Slot>,
    free: Vec<u32>,
}

impl Slots {
    #[inline]
    pub fn insert(&mut self, op: Op) -> u32 {
        if let Some(index) = self.free.pop() {
            let slot = &mut self.entries[index as usize];
            assert!(matches!(slot.op, Op::Vacant), "a slot on the free list is vacant");
            slot.state = SlotState::Running;
            std::mem::forget(std::mem::replace(&mut slot.op, op)); // vacant: nothing to drop
            return index;
        }
        self.insert_new(op)
    }

    #[cold]
    fn insert_new(&mut self, op: Op) -> u32 {
        let index = u32::try_from(self.entries.len()).expect("fewer than 2^32 operations in flight");
        self.entries.push(Slot {
            state: SlotState::Running,
            generation: 0,
            result: 0,
            waker: None,
            is_awaited: false,
            op,
            deadline: None,
            lane: LaneState::Outside,
            late: None,
            vectors: None,
        });
        index
    }

    /// What its device ends an operation by.
    pub fn ticket(&self, slot: u32) -> Ticket {
        Ticket { slot, generation: self.generation(slot) }
    }

    /// Takes over what a read on another machine has read.
    pub fn fill(&mut self, ticket: &Ticket, read: Option<Buffer>) {
        assert_eq!(self.generation(ticket.slot), ticket.generation, "an operation ends once");
        let Op::Remote { buffer, .. } = &mut self.get(ticket.slot).op else {
            unreachable!("the slot of a remote operation")
        };
        *buffer = read;
    }

    /// Adds an operation that has its result already.
    pub fn insert_finished(&mut self, op: Op, result: i32) -> u32 {
        let index = self.insert(op);
        let slot = self.get(index);
        (slot.state, slot.result) = (SlotState::Finished, result);
        index
    }

    /// Frees a slot and returns what it owned.
    #[inline]
    pub fn remove(&mut self, index: u32) -> Op {
        let slot = &mut self.entries[index as usize];
        assert_ne!(slot.state, SlotState::Vacant, "a slot is freed once");
        assert!(slot.lane == LaneState::Outside, "an operation leaves its lane before its slot");
        slot.state = SlotState::Vacant;
        slot.generation = slot.generation.wrapping_add(1);
        slot.is_awaited = false;
        (slot.deadline, slot.late) = (None, None);
        self.free.push(index);
        std::mem::replace(&mut slot.op, Op::Vacant)
    }

    #[inline]
    pub fn get(&mut self, index: u32) -> &mut Slot {
        &mut self.entries[index as usize]
    }

    /// How many times a slot was freed.
    pub fn generation(&self, index: u32) -> u32 {
        self.entries[index as usize].generation
    }

    /// Slots in use.
    pub fn occupied(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut Slot)> {
        (0u32..).zip(&mut self.entries).filter(|(_, slot)| slot.state != SlotState::Vacant)
    }
}
