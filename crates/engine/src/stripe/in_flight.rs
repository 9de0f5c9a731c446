//! The stripe writes of one shard: what the next batch may wait for.

use std::cell::{Cell, RefCell};
use std::task::{Poll, Waker};

use super::streams::Streams;

/// The stripe writes of one shard: what the next batch may wait for.
#[derive(Default)]
pub(super) struct InFlight {
    pub(super) streams: Streams,
    owners: Cell<u32>,
    /// Owners that wait for others.
    waiting: Cell<u32>,
    pub(super) ended: Cell<u64>,
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
    pub(super) fn any_will_end(&self) -> bool {
        self.owners.get() > self.waiting.get()
    }

    /// What `ended` will be when all that are in flight now, and do not wait themselves, have ended.
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

    /// Returns when a write joins, ends, or waits for others.
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
