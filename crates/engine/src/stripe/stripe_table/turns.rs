//! Turns: an owner hands its stripe over to work that passes over the array, before any write that comes later. Without
//! turns back-to-back writes would starve a resync or recovery, since a task that a release wakes finds the stripe taken
//! again.
//!
//! Clients get no turns: a turn is given before the stripe becomes free, so back-to-back reads with turns would starve the
//! stripe's writes.

use std::task::Waker;

/// The waiters for a turn at one place, in order.
#[derive(Default)]
pub(super) struct Turns {
    waiting: Vec<(u64, Waker)>,
    /// The waiter whose turn it is, from the owner's release until the waiter takes the stripe.
    given: Option<u64>,
    last: u64,
}

impl Turns {
    /// The owner releases: the first waiter owns the stripe from now on. None if there is no waiter.
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

    /// Replaces the waker of a waiter.
    pub(super) fn wake_by(&mut self, number: u64, waker: &Waker) {
        if let Some((_, own)) = self.waiting.iter_mut().find(|(other, _)| *other == number) {
            own.clone_from(waker);
        }
    }

    /// Removes a waiter.
    pub(super) fn leave(&mut self, number: u64) {
        self.waiting.retain(|(other, _)| *other != number);
    }
}
