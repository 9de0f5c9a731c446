//! Where a shard's queue of a member gets its connections: one after the other, each from the member's keeper.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use nvme_tcp::initiator::Queue;
use parking_lot::Mutex;

use crate::tls::psk::PskConnection;

/// A connected I/O queue.
pub(super) struct Link {
    pub socket: OwnedFd,
    /// It is under TLS.
    pub tls: Option<PskConnection>,
    pub queue: Queue,
    /// Which association of the member it belongs to.
    pub association: u64,
}

/// Between a member's keeper and the task of one shard.
#[derive(Default)]
pub(super) struct Port {
    waiting: Mutex<Waiting>,
    closed: AtomicBool,
}

#[derive(Default)]
struct Waiting {
    link: Option<Link>,
    /// The association whose queue this port has, or had.
    association: u64,
    waker: Option<Waker>,
}

impl Port {
    /// Hands a connection to the shard.
    pub fn give(&self, link: Link) {
        let mut waiting = self.waiting.lock();
        waiting.association = link.association;
        waiting.link = Some(link);
        if let Some(waker) = waiting.waker.take() {
            waker.wake();
        }
    }

    /// Whether the port has no queue of this association yet.
    pub fn lacks(&self, association: u64) -> bool {
        !self.is_closed() && self.waiting.lock().association != association
    }

    /// The next connection; none: the port is closed.
    pub fn poll(&self, context: &mut Context<'_>) -> Poll<Option<Link>> {
        let mut waiting = self.waiting.lock();
        if self.is_closed() {
            return Poll::Ready(None);
        }
        match waiting.link.take() {
            Some(link) => Poll::Ready(Some(link)),
            None => {
                waiting.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// The shard uses the member no longer.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        let mut waiting = self.waiting.lock();
        waiting.link = None;
        if let Some(waker) = waiting.waker.take() {
            waker.wake();
        }
    }

    /// Whether it is closed.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }
}
