//! How long a batch gathers before its first read (StRAID 4.3: what has joined by then needs no read of its own).
//!
//! The tail of a sequential stream is a stripe in parts: its next writes come when the client hears that earlier ones
//! are done. An owner that reads at once reads what is about to be overwritten. So a batch that is the beginning of a
//! stripe and belongs to a stream waits until the stripe is whole, or as many stripe writes of its shard have ended as
//! were in flight when it last grew: the time of one write at the most. Others wait for nobody.
//!
//! It cannot wait for ever: who gathers waits only for owners who wait for nobody, and those end within the members'
//! time limit.

use std::cell::{Cell, RefCell};
use std::task::{Poll, Waker};

use super::StripeSet;
use super::streams::Streams;
use super::stripe_table::Claim;
use super::union::StripeWrite;
use crate::device::Device;
use crate::executor::yield_now;

/// The stripe writes of one shard: what the next batch may wait for.
#[derive(Default)]
pub(super) struct InFlight {
    pub(super) streams: Streams,
    owners: Cell<u32>,
    /// Owners that wait for others.
    waiting: Cell<u32>,
    ended: Cell<u64>,
    /// Those of them that gather.
    gathering: RefCell<Vec<Waker>>,
}

/// One owner in flight. Dropping it ends it.
pub(super) struct Owner<'a>(&'a InFlight);

impl InFlight {
    /// A stripe write begins.
    pub(super) fn begin(&self) -> Owner<'_> {
        self.owners.set(self.owners.get() + 1);
        Owner(self)
    }

    /// An owner waits for others from now on: nobody may wait for it.
    pub(super) fn wait(&self) -> Waiting<'_> {
        self.waiting.set(self.waiting.get() + 1);
        self.wake(); // who gathers may wait for nobody now
        Waiting(self)
    }

    /// Whether an owner in flight will end by itself.
    fn any_will_end(&self) -> bool {
        self.owners.get() > self.waiting.get()
    }

    /// What `ended` will be when all that are in flight now, and do not wait themselves, have ended.
    fn all_ended(&self) -> u64 {
        self.ended.get() + u64::from(self.owners.get() - self.waiting.get())
    }

    /// A write has joined a batch of this shard or of another.
    pub(super) fn joined(&self) {
        self.wake();
    }

    fn wake(&self) {
        if self.waiting.get() > 0 {
            self.gathering.take().into_iter().for_each(Waker::wake);
        }
    }

    /// Returns when a write joins, ends, or waits for others.
    async fn change(&self) {
        let mut waited = false;
        std::future::poll_fn(|context| {
            if std::mem::replace(&mut waited, true) {
                return Poll::Ready(());
            }
            self.gathering.borrow_mut().push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

impl Drop for Owner<'_> {
    fn drop(&mut self) {
        let writes = self.0;
        writes.owners.set(writes.owners.get() - 1);
        writes.ended.set(writes.ended.get() + 1);
        writes.wake();
    }
}

/// An owner that waits for others: it gathers, or is at the gate of the redo log. Dropping it ends that.
pub(super) struct Waiting<'a>(&'a InFlight);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get() - 1);
    }
}

impl<D: Device> StripeSet<D> {
    /// Lets the rest of a stripe join the beginning of it.
    pub(super) async fn gather_stream(&self, own: &StripeWrite, claim: &mut Claim) {
        let writes = &self.in_flight;
        if !own.begins_stripe() && !claim.joined().any(StripeWrite::begins_stripe) {
            return; // what is missing was written already: it will not come
        }
        let waiting = writes.wait();
        let stripe_bytes = self.shared.geometry.stripe_bytes();
        let gathered = |claim: &Claim| own.bytes() + claim.joined().map(StripeWrite::bytes).sum::<u64>();
        let (mut bytes, mut until) = (gathered(claim), writes.all_ended());
        while bytes < stripe_bytes && writes.any_will_end() && writes.ended.get() < until {
            writes.change().await;
            yield_now().await; // those whose requests have just ended come with new ones
            claim.gather();
            let grown = gathered(claim);
            if grown > bytes {
                (bytes, until) = (grown, writes.all_ended());
            }
        }
        drop(waiting);
    }
}
