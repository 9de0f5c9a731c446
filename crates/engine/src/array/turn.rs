//! One at a time among tasks of one shard, in the order in which they came.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// A turn that one task has at a time.
#[derive(Default)]
pub(super) struct Turn {
    taken: Cell<bool>,
    waiting: RefCell<VecDeque<Waker>>,
}

/// The turn is given on when this is dropped.
pub(super) struct Taken<'a>(&'a Turn);

impl Turn {
    /// Waits for the turn.
    pub(super) async fn take(&self) -> Taken<'_> {
        poll_fn(|context| {
            if !self.taken.replace(true) {
                return Poll::Ready(());
            }
            self.waiting.borrow_mut().push_back(context.waker().clone());
            Poll::Pending
        })
        .await;
        Taken(self)
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.0.taken.set(false);
        // All of them look again: one that was woken for another reason may not need it any more.
        let waiting = std::mem::take(&mut *self.0.waiting.borrow_mut());
        waiting.into_iter().for_each(Waker::wake);
    }
}
