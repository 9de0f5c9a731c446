//! Group commit: writers of one shard that wait for a record, in the order in which they came. The first to come leads, and
//! writes one record for all whose pieces fit.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;
use std::task::Waker;

use super::cut::Pieces;
use super::slots::Taken;
use crate::error::VolumeError;
use layout::redo_log::PIECES_MAX;
use layout::units::Stripe;

/// The outcome of a record. None: too few members took it.
pub(super) type Logged = Result<Option<Taken>, VolumeError>;

/// Writers of one shard that wait for a record.
#[derive(Default)]
pub(super) struct Queue {
    pub(super) waiting: RefCell<VecDeque<Rc<Ticket>>>,
    /// Records being written.
    pub(super) in_flight: Cell<u32>,
}

/// One writer's request for a record.
pub(super) struct Ticket {
    pub(super) stripes: Range<Stripe>,
    pub(super) pieces: Pieces,
    /// The outcome of its record.
    pub(super) result: RefCell<Option<Logged>>,
    /// This writer leads: it writes the next record, which may or may not hold its own pieces.
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
    /// Makes the writer that has waited longest the leader; it may be the same writer again.
    pub(super) fn hand_over(&self) {
        let next = self.waiting.borrow().iter().find(|ticket| !ticket.leading.get()).cloned();
        match next {
            Some(next) => next.lead(),
            None => self.in_flight.set(self.in_flight.get() - 1),
        }
    }

    /// Takes the first writers whose pieces together fit in one record.
    pub(super) fn take(&self, payload_bytes: usize) -> Vec<Rc<Ticket>> {
        let mut waiting = self.waiting.borrow_mut();
        let (mut bytes, mut pieces) = (0, 0);
        let batch = waiting.iter().take_while(|ticket| {
            bytes += ticket.payload_bytes();
            pieces += ticket.pieces.len();
            bytes <= payload_bytes && pieces <= PIECES_MAX
        });
        let count = batch.count();
        waiting.drain(..count).collect()
    }
}
