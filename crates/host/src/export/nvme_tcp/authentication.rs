//! The proof that a host gives on a queue after Connect, where it has a key: DH-HMAC-CHAP.
//!
//! Before it nothing else is answered, and the connection has only the time of the handshake. One thread of the server computes
//! for all connections, each with one message at a time.

use engine::buffer::{Gather, Slice};
use nvme_tcp::auth::ControllerExchange;
use nvme_tcp::names::Host;
use nvme_tcp::status::Status;
use nvme_tcp::target::queue::Slot;
use parking_lot::Mutex;
use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use super::association::Association;
use super::authenticator::Authenticator;
use super::link::Link;
use crate::shard::ShardContext;

/// How far a host is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Asked,
    Proven,
    Failed,
    /// It failed, and has been given the reason.
    Ended,
}

/// The authentication of one queue.
pub(super) struct Authentication {
    authenticator: Arc<Authenticator>,
    association: Arc<Association>,
    host: Host,
    exchange: Arc<Mutex<ControllerExchange>>,
    progress: Cell<Progress>,
    /// A message is being worked on.
    is_busy: Cell<bool>,
}

impl Authentication {
    /// # Errors
    /// The system gives no random bytes.
    pub fn new(
        authenticator: &Arc<Authenticator>,
        association: &Arc<Association>,
        host: &Host,
    ) -> io::Result<Rc<Self>> {
        let exchange = authenticator.exchange(&host.nqn, &association.subsystem)?;
        Ok(Rc::new(Authentication {
            authenticator: Arc::clone(authenticator),
            association: Arc::clone(association),
            host: host.clone(),
            exchange: Arc::new(Mutex::new(exchange)),
            progress: Cell::new(Progress::Asked),
            is_busy: Cell::new(false),
        }))
    }

    /// Whether the queue may be used.
    pub fn is_proven(&self) -> bool {
        self.progress.get() == Progress::Proven
    }

    /// Whether the connection is to end: the host was refused, and knows why.
    pub fn has_ended(&self) -> bool {
        self.progress.get() == Progress::Ended
    }

    /// Takes the host's next message, and answers the command that carried it.
    pub fn receive(self: &Rc<Self>, shard: &ShardContext, link: Rc<Link>, slot: Slot, message: &[u8]) {
        if self.is_busy.replace(true) {
            return link.answer(slot, Status::COMMAND_SEQUENCE_ERROR, 0, Gather::new());
        }
        let is_over = self.exchange.lock().outcome() == Some(Ok(()));
        if is_over && let Ok(again) = self.authenticator.exchange(&self.host.nqn, &self.association.subsystem)
        {
            // A host may prove itself again at any time. Until it has failed, it stays proven.
            *self.exchange.lock() = again;
        }
        let (exchange, message) = (Arc::clone(&self.exchange), message.to_vec());
        let taken = self.authenticator.thread.call(move || exchange.lock().receive(&message));
        let authentication = Rc::clone(self);
        shard.executor.spawn(async move {
            let status = if taken.await.is_ok() { Status::SUCCESS } else { Status::INTERNAL_ERROR };
            authentication.is_busy.set(false);
            authentication.settle(&link);
            link.answer(slot, status, 0, Gather::new());
        });
    }

    /// The next message for the host, which has room for `room` bytes.
    ///
    /// # Errors
    /// The status to answer with.
    pub fn answer(&self, link: &Link, room: u32) -> Result<Gather, Status> {
        if self.is_busy.get() {
            return Err(Status::COMMAND_SEQUENCE_ERROR);
        }
        let mut message = self.exchange.lock().answer().ok_or(Status::COMMAND_SEQUENCE_ERROR)?;
        self.settle(link);
        if self.progress.get() == Progress::Failed {
            self.progress.set(Progress::Ended);
        }
        if message.len() > room as usize {
            return Err(Status::INVALID_SGL_LENGTH);
        }
        message.resize(room as usize, 0);
        Ok(Slice::from_bytes(&message).into())
    }

    /// Enters what the exchange has come to.
    fn settle(&self, link: &Link) {
        let outcome = self.exchange.lock().outcome();
        let (host, subsystem) = (&self.host.nqn, &self.association.subsystem);
        match outcome {
            Some(Ok(())) if self.progress.get() == Progress::Asked => {
                if self.association.prove() {
                    self.progress.set(Progress::Proven);
                    link.set_connected();
                } else {
                    tracing::warn!(%host, %subsystem, "a host was refused: its identifier belongs to another name");
                    self.progress.set(Progress::Failed);
                }
            }
            Some(Err(failure)) if !matches!(self.progress.get(), Progress::Failed | Progress::Ended) => {
                tracing::warn!(%host, %subsystem, %failure, "a host did not authenticate; compare its secret with that of --dhchap-key, and the controller's with that of --dhchap-ctrl-key");
                self.progress.set(Progress::Failed);
            }
            _ => {}
        }
    }
}
