//! Writes that share a stripe: the open batch of each class of a shard, and how its writers learn of the end.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Poll, Waker};

use super::dispatch::{Dispatch, FillWait};
use super::encode::StripeBlock;
use crate::error::VolumeError;

/// The end of a batch, for the writes that wait for it.
#[derive(Default)]
pub struct Outcome {
    result: RefCell<Option<Result<(), VolumeError>>>,
    waiting: RefCell<Vec<Waker>>,
}

impl Outcome {
    /// The batch has ended.
    pub fn set(&self, result: Result<(), VolumeError>) {
        let before = self.result.replace(Some(result));
        assert!(before.is_none(), "a batch ends once");
        self.waiting.take().into_iter().for_each(Waker::wake);
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// As the batch ended.
    pub async fn ended(&self) -> Result<(), VolumeError> {
        std::future::poll_fn(|context| match &*self.result.borrow() {
            Some(result) => Poll::Ready(result.clone()),
            None => {
                self.waiting.borrow_mut().push(context.waker().clone());
                Poll::Pending
            }
        })
        .await
    }
}

/// Blocks on their way into one stripe.
pub struct Batch {
    /// The blocks.
    pub blocks: Vec<StripeBlock>,
    /// A writer wants them durable.
    pub fua: bool,
    /// When the first arrived.
    pub since_ns: u64,
    /// A task sends it when its time has come.
    pub is_watched: bool,
    /// How it ends.
    pub outcome: Rc<Outcome>,
}

impl Batch {
    /// An empty batch that begins now, with memory for as many blocks as a stripe has.
    pub fn new(since_ns: u64, room: usize) -> Self {
        let blocks = Vec::with_capacity(room);
        Batch { blocks, fua: false, since_ns, is_watched: false, outcome: Rc::default() }
    }
}

/// The batches of one class of a shard.
pub struct Batches {
    /// The open one, which takes more blocks.
    pub open: RefCell<Option<Batch>>,
    /// Batches that were sent and have not ended.
    pub in_flight: Cell<usize>,
    /// When the open one is due.
    pub dispatch: RefCell<Dispatch>,
}

impl Batches {
    /// None open.
    pub fn new(wait: FillWait) -> Self {
        let dispatch = RefCell::new(Dispatch::new(wait));
        Batches { open: RefCell::new(None), in_flight: Cell::new(0), dispatch }
    }
}
