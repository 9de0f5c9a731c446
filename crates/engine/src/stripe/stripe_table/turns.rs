//! Turns: work that goes over the array gets a stripe from its owner, before any write that comes later. Writes that follow
//! each other without a gap would keep a resync or recovery away from their stripe for ever otherwise, since whoever is
//! woken by a release comes too late.
//!
//! Not for clients: turns are given before a stripe is free, so those of reads that follow each other would keep its writes
//! waiting for ever.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::{Claim, StripeTable};
use crate::sync::sequential::spin_loop;

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

    fn join(&mut self, waker: &Waker) -> u64 {
        self.last += 1;
        self.waiting.push((self.last, waker.clone()));
        self.last
    }

    fn take(&mut self, number: u64) -> bool {
        let taken = self.given == Some(number);
        if taken {
            self.given = None;
        }
        taken
    }
}

/// Waits until the owner at a place hands its stripe on. None if it has gone: claim again.
pub(super) struct Turn<'a> {
    table: &'a Arc<StripeTable>,
    place: usize,
    stripe: u64,
    number: Option<u64>,
}

impl<'a> Turn<'a> {
    pub(super) fn new(table: &'a Arc<StripeTable>, place: usize, stripe: u64) -> Self {
        Turn { table, place, stripe, number: None }
    }

    fn claim(&self) -> Claim {
        Claim {
            table: Arc::clone(self.table),
            place: self.place,
            stripe: self.stripe,
            joined: Vec::new(),
            open: false,
        }
    }
}

impl Future for Turn<'_> {
    type Output = Option<Claim>;
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let mut batch = this.table.batches[this.place].lock();
        let Some(number) = this.number else {
            if batch.stripe != this.stripe {
                drop(batch);
                spin_loop(); // an owner between its claim and `begin` needs a moment
                return Poll::Ready(None);
            }
            this.number = Some(batch.turns.join(context.waker()));
            return Poll::Pending;
        };
        if batch.turns.take(number) {
            this.number = None;
            return Poll::Ready(Some(this.claim()));
        }
        if let Some((_, waker)) = batch.turns.waiting.iter_mut().find(|(other, _)| *other == number) {
            waker.clone_from(context.waker());
        }
        Poll::Pending
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let mut batch = self.table.batches[self.place].lock();
        if batch.turns.take(number) {
            drop(batch);
            drop(self.claim()); // the next one's
        } else {
            batch.turns.waiting.retain(|(other, _)| *other != number);
        }
    }
}
