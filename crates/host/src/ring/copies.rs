//! Copies of memory devices that wait for the reap step.

use std::collections::VecDeque;

/// Bytes that one round copies of each kind, at least one operation. What was read is then used while it is in the
/// processor's own cache: 32 random 64 KiB writes have 4 MiB of old contents in flight, twice the second cache.
///
/// As many waiting of both kinds end a turn of the shard's tasks, so that what a task has just used is copied before the next
/// one pushes it out: whole stripes of 320 KiB, 32 in flight, take a fifth less time for it, and wait less.
pub const ROUND_BYTES: usize = 128 << 10;

/// Slots of one kind of copies, in the order of their submission.
#[derive(Default)]
pub struct Copies {
    slots: VecDeque<(u32, usize)>,
    /// Of all that wait.
    bytes: usize,
}

impl Copies {
    #[inline]
    pub fn push(&mut self, slot: u32, bytes: usize) {
        self.slots.push_back((slot, bytes));
        self.bytes += bytes;
    }

    /// The next one and its bytes.
    #[inline]
    pub fn pop(&mut self) -> Option<(u32, usize)> {
        let next = self.slots.pop_front()?;
        self.bytes -= next.1;
        Some(next)
    }

    /// The one that is `ahead` places behind the next.
    #[inline]
    pub fn later(&self, ahead: usize) -> Option<u32> {
        self.slots.get(ahead).map(|&(slot, _)| slot)
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }
}
