//! What one task hands to the task that sends it, both on one shard.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Items in the order in which they are sent. Only the sending task waits, so one waker is enough.
pub(super) struct Outbox<T> {
    items: RefCell<VecDeque<T>>,
    /// The task that sends, while it waits for items.
    sender: RefCell<Option<Waker>>,
    finished: Cell<bool>,
}

impl<T> Outbox<T> {
    /// Nothing is in it.
    pub(super) fn new() -> Self {
        Outbox { items: RefCell::default(), sender: RefCell::default(), finished: Cell::new(false) }
    }

    /// Queues an item.
    pub(super) fn push(&self, item: T) {
        self.items.borrow_mut().push_back(item);
        self.wake_sender();
    }

    /// Ends the sending task once nothing is queued.
    pub(super) fn finish(&self) {
        self.finished.set(true);
        self.wake_sender();
    }

    fn wake_sender(&self) {
        if let Some(sender) = self.sender.take() {
            sender.wake();
        }
    }

    /// Waits until there is an item; false when there will be none.
    pub(super) async fn wait(&self) -> bool {
        poll_fn(|context| {
            if !self.items.borrow().is_empty() {
                return Poll::Ready(true);
            }
            if self.finished.get() {
                return Poll::Ready(false);
            }
            self.sender.replace(Some(context.waker().clone()));
            Poll::Pending
        })
        .await
    }

    /// Takes what goes with the next send: as many items, and as many bytes of their data, or one item that has more.
    pub(super) fn take_batch(
        &self,
        batch: &mut Vec<T>,
        (items_max, bytes_max): (usize, usize),
        data_bytes: impl Fn(&T) -> usize,
    ) {
        let (mut items, mut bytes) = (self.items.borrow_mut(), 0);
        while let Some(item) = items.front()
            && (batch.is_empty() || batch.len() < items_max && bytes + data_bytes(item) <= bytes_max)
        {
            bytes += data_bytes(item);
            batch.extend(items.pop_front());
        }
    }

    /// Takes all that is queued.
    pub(super) fn take_all(&self) -> VecDeque<T> {
        self.items.take()
    }
}
