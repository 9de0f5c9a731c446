//! The redo log as one shard writes it.

use std::rc::Rc;
use std::sync::Arc;

use super::super::in_flight::InFlight;
use super::super::shared::Shared;
use super::queue::Queue;
use crate::members::port::MemberPort;

/// One shard's way to the redo log. What is done with it are functions by subject: [`write`](super::write) logs and makes the
/// writes of a stripe, [`headers`](super::headers) says what the log's state is, [`retire`](super::retire) frees its slots,
/// [`tend`](super::tend) begins and ends it.
pub struct RedoLog<D> {
    pub(super) shared: Arc<Shared>,
    pub(super) port: Rc<MemberPort<D>>,
    pub(in crate::stripe) in_flight: Rc<InFlight>,
    pub(super) queue: Queue,
}

impl<D> RedoLog<D> {
    pub(crate) fn new(shared: Arc<Shared>, port: Rc<MemberPort<D>>) -> Rc<Self> {
        Rc::new(RedoLog { shared, port, in_flight: Rc::default(), queue: Queue::default() })
    }
}
