//! The stripe writes of one shard that are in flight, for the owners that gather: which of them will end without waiting
//! for another.

use std::cell::{Cell, RefCell};
use std::task::{Poll, Waker};

use super::streams::Streams;

/// The stripe writes of one shard that are in flight.
#[derive(Default)]
pub(super) struct InFlight {
    pub(super) streams: Streams,
    owners: Cell<u32>,
    /// Owners that wait for other owners.
    waiting: Cell<u32>,
    /// Stripe writes that have ended since the start.
    pub(super) ended: Cell<u64>,
    /// Wakers of the owners that gather.
    gathering: RefCell<Vec<Waker>>,
}

/// One stripe write in flight. Dropping it counts the write as ended.
pub(super) struct StripeWriteInFlight<'a>(&'a InFlight);

impl InFlight {
    /// A stripe write begins.
    pub(super) fn begin(&self) -> StripeWriteInFlight<'_> {
        self.owners.set(self.owners.get() + 1);
        StripeWriteInFlight(self)
    }

    /// An owner waits for other owners from now on: no gathering owner may wait for it.
    pub(super) fn wait(&self) -> Waiting<'_> {
        self.waiting.set(self.waiting.get() + 1);
        self.wake(); // a gathering owner may have no one left to wait for
        Waiting(self)
    }

    /// Whether some owner in flight is not waiting, so that it will end.
    pub(super) fn any_will_end(&self) -> bool {
        self.owners.get() > self.waiting.get()
    }

    /// The value of `ended` once every owner that is in flight now and not waiting has ended.
    pub(super) fn all_ended(&self) -> u64 {
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

    /// Returns when a write joins, ends, or begins to wait for others.
    pub(super) async fn change(&self) {
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

impl Drop for StripeWriteInFlight<'_> {
    fn drop(&mut self) {
        let writes = self.0;
        writes.owners.set(writes.owners.get() - 1);
        writes.ended.set(writes.ended.get() + 1);
        writes.wake();
    }
}

/// An owner that waits for other owners: it gathers, or stands at the gate of the redo log. Dropping it ends the wait.
pub(super) struct Waiting<'a>(&'a InFlight);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.set(self.0.waiting.get() - 1);
    }
}
