//! The result of work on another shard.

use parking_lot::Mutex;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// The shard has ended, so the work is not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("shard {0} has ended")]
pub struct ShardGone(pub usize);

struct Slot<T> {
    value: Option<T>,
    waker: Option<Waker>,
    /// The reply was dropped: no value comes any more.
    is_over: bool,
}

/// The end that gives the result. Where it is dropped without one, the call fails with [`ShardGone`].
pub(crate) struct Reply<T> {
    slot: Arc<Mutex<Slot<T>>>,
}

impl<T> Reply<T> {
    pub fn new(shard: usize) -> (Self, Call<T>) {
        let slot = Arc::new(Mutex::new(Slot { value: None, waker: None, is_over: false }));
        (Reply { slot: Arc::clone(&slot) }, Call { slot, shard })
    }

    pub fn send(self, value: T) {
        self.slot.lock().value = Some(value); // the drop wakes the caller
    }
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        let waker = {
            let mut slot = self.slot.lock();
            slot.is_over = true;
            slot.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The result to come. Dropping it leaves the work running.
pub struct Call<T> {
    slot: Arc<Mutex<Slot<T>>>,
    shard: usize,
}

impl<T> Future for Call<T> {
    type Output = Result<T, ShardGone>;
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut slot = self.slot.lock();
        match slot.value.take() {
            Some(value) => Poll::Ready(Ok(value)),
            None if slot.is_over => Poll::Ready(Err(ShardGone(self.shard))),
            None => {
                slot.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}
