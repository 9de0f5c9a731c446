//! Turns: work that goes over the array gets a stripe from its owner, before any write that comes later. Writes that follow
//! each other without a gap would keep a resync or recovery away from their stripe for ever otherwise, since whoever is
//! woken by a release comes too late.
//!
//! Not for clients: turns are given before a stripe is free, so those of reads that follow each other would keep its writes
//! waiting for ever.

use std::task::Waker;

/// Who waits for a turn at one place, in order.
#[derive(Default)]
pub(super) struct Turns {
    waiting: Vec<(u64, Waker)>,
    /// Whose turn it is, from the release until he takes it.
    given: Option<u64>,
    last: u64,
}

impl Turns {
    /// The owner goes: the first who waits owns the stripe now. None if nobody does.
    pub(super) fn give(&mut self) -> Option<Waker> {
        if self.waiting.is_empty() {
            return None;
        }
        let (number, waker) = self.waiting.remove(0);
        self.given = Some(number);
        Some(waker)
    }

    pub(super) fn join(&mut self, waker: &Waker) -> u64 {
        self.last += 1;
        self.waiting.push((self.last, waker.clone()));
        self.last
    }

    pub(super) fn take(&mut self, number: u64) -> bool {
        let taken = self.given == Some(number);
        if taken {
            self.given = None;
        }
        taken
    }

    /// A waiter has another waker now.
    pub(super) fn wake_by(&mut self, number: u64, waker: &Waker) {
        if let Some((_, own)) = self.waiting.iter_mut().find(|(other, _)| *other == number) {
            own.clone_from(waker);
        }
    }

    /// A waiter waits no more.
    pub(super) fn leave(&mut self, number: u64) {
        self.waiting.retain(|(other, _)| *other != number);
    }
}
