//! Writers of one shard that want a record, in the order in which they came.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;
use std::task::Waker;

use super::cut::Pieces;
use super::slots::Taken;
use crate::error::VolumeError;
use layout::redo_log::PIECES_MAX;

/// What came of a record: none, if too few members took it.
pub(super) type Logged = Result<Option<Taken>, VolumeError>;

/// Writers of one shard that want a record.
#[derive(Default)]
pub(super) struct Queue {
    pub(super) waiting: RefCell<VecDeque<Rc<Ticket>>>,
    pub(super) on_their_way: Cell<u32>,
}

/// What one writer wants logged.
pub(super) struct Ticket {
    pub(super) stripes: Range<u64>,
    pub(super) pieces: Pieces,
    /// What its record came to.
    pub(super) result: RefCell<Option<Logged>>,
    /// It writes the next record, its own pieces in it or not.
    pub(super) leading: Cell<bool>,
    pub(super) waker: RefCell<Option<Waker>>,
}

impl Ticket {
    pub(super) fn lead(&self) {
        self.leading.set(true);
        self.wake();
    }

    pub(super) fn done(&self, result: Logged) {
        self.result.replace(Some(result));
        self.wake();
    }

    pub(super) fn is_done(&self) -> bool {
        self.result.borrow().is_some()
    }

    pub(super) fn wake(&self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    pub(super) fn payload_bytes(&self) -> usize {
        self.pieces.iter().map(|(_, data)| data.len()).sum()
    }
}

impl Queue {
    /// The writer that has waited longest leads next, perhaps the same one again.
    pub(super) fn hand_over(&self) {
        let next = self.waiting.borrow().iter().find(|ticket| !ticket.leading.get()).cloned();
        match next {
            Some(next) => next.lead(),
            None => self.on_their_way.set(self.on_their_way.get() - 1),
        }
    }

    /// The first writers whose pieces fit in one record.
    pub(super) fn take(&self, payload_bytes: usize) -> Vec<Rc<Ticket>> {
        let mut waiting = self.waiting.borrow_mut();
        let (mut bytes, mut pieces) = (0, 0);
        let fits = waiting.iter().take_while(|ticket| {
            bytes += ticket.payload_bytes();
            pieces += ticket.pieces.len();
            bytes <= payload_bytes && pieces <= PIECES_MAX
        });
        let count = fits.count();
        waiting.drain(..count).collect()
    }
}
