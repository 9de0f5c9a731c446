//! Replies on their way out, and how much a client may have in flight.
//!
//! Invariants:
//! - A request holds its share of the limits from before its payload is received until its reply has been sent. So
//!   a client that sends much and reads nothing stops itself, and holds no more than [`Limits`] allow.
//! - A request alone is always admitted, however long.
//! - One send is on its way at a time; what becomes ready meanwhile goes with the next one, in one call.

use super::connection::Connection;
use super::protocol::{self, HEAD_BYTES_MAX, Head};
use crate::ring::Ring;
use engine::buffer::{Gather, Pool};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

/// Bytes after which no further reply joins a send, so that memory comes back while a slow client reads.
const SEND_BYTES: usize = 256 << 10;

/// Replies in one send: their heads and data stay below the system's limit on pieces.
const SEND_REPLIES_MAX: usize = 256;

/// How much one connection may have in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests without a reply.
    pub requests_max: usize,
    /// Bytes of payload and data that they hold.
    pub bytes_max: usize,
}

/// A reply ready to be sent.
struct Reply {
    cookie: u64,
    head: Head,
    /// Length of the encoded head, known when it is sent.
    head_bytes: usize,
    data: Gather,
    /// What its request holds of the limits.
    held_bytes: usize,
}

/// The sending side of a connection, shared by its tasks.
pub struct Outgoing {
    structured: bool,
    limits: Limits,
    /// Shows the number of requests to other threads.
    connection: Arc<Connection>,
    requests: Cell<usize>,
    bytes: Cell<usize>,
    /// The reader, waiting for room or for the last reply.
    reader: RefCell<Option<Waker>>,
    ready: RefCell<VecDeque<Reply>>,
    /// The task of [`send_replies`], waiting for replies.
    sender: RefCell<Option<Waker>>,
    /// No reply can reach the client any more.
    broken: Cell<bool>,
    finished: Cell<bool>,
}

impl Outgoing {
    /// Nothing in flight.
    pub fn new(structured: bool, limits: Limits, connection: Arc<Connection>) -> Rc<Self> {
        Rc::new(Outgoing {
            structured,
            limits,
            connection,
            requests: Cell::new(0),
            bytes: Cell::new(0),
            reader: RefCell::default(),
            ready: RefCell::default(),
            sender: RefCell::default(),
            broken: Cell::new(false),
            finished: Cell::new(false),
        })
    }

    /// Waits until a request that holds `bytes` bytes fits, and counts it.
    pub async fn admit(&self, bytes: usize) {
        self.wait_until(|| {
            let fits = self.bytes.get() + bytes <= self.limits.bytes_max;
            self.requests.get() == 0 || (fits && self.requests.get() < self.limits.requests_max)
        })
        .await;
        self.set_requests(self.requests.get() + 1);
        self.bytes.set(self.bytes.get() + bytes);
    }

    /// Waits until every admitted request has been replied to, or its reply given up.
    pub async fn settle(&self) {
        self.wait_until(|| self.requests.get() == 0).await;
    }

    /// Only the reader waits, so one place for a waker is enough.
    async fn wait_until(&self, ready: impl Fn() -> bool) {
        poll_fn(|context| {
            if ready() {
                return Poll::Ready(());
            }
            self.reader.replace(Some(context.waker().clone()));
            Poll::Pending
        })
        .await;
    }

    /// Gives back what an admitted request holds that will have no reply.
    pub fn abandon(&self, held_bytes: usize) {
        self.release(1, held_bytes);
    }

    fn release(&self, requests: usize, bytes: usize) {
        self.set_requests(self.requests.get() - requests);
        self.bytes.set(self.bytes.get() - bytes);
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    fn set_requests(&self, requests: usize) {
        self.requests.set(requests);
        self.connection.counts.in_flight.set(requests as u64);
    }

    /// Queues the reply to an admitted request that holds `held_bytes`.
    pub fn reply(&self, cookie: u64, head: Head, data: Gather, held_bytes: usize) {
        if self.broken.get() {
            return self.release(1, held_bytes);
        }
        self.ready.borrow_mut().push_back(Reply { cookie, head, head_bytes: 0, data, held_bytes });
        if let Some(sender) = self.sender.take() {
            sender.wake();
        }
    }

    /// Ends [`send_replies`] once nothing is queued.
    pub fn finish(&self) {
        self.finished.set(true);
        if let Some(sender) = self.sender.take() {
            sender.wake();
        }
    }

    /// Waits until a reply is ready; false when there will be none.
    async fn wait_for_replies(&self) -> bool {
        poll_fn(|context| {
            if !self.ready.borrow().is_empty() {
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

    /// Takes the replies that go with the next send.
    fn take_batch(&self, batch: &mut Vec<Reply>) {
        let mut ready = self.ready.borrow_mut();
        let mut bytes = 0;
        while let Some(reply) = ready.front()
            && (batch.is_empty()
                || (batch.len() < SEND_REPLIES_MAX && bytes + reply.data.len() <= SEND_BYTES))
        {
            bytes += reply.data.len();
            batch.extend(ready.pop_front());
        }
    }

    /// Gives up every reply, now and later.
    fn give_up(&self) {
        self.broken.set(true);
        let replies = self.ready.take();
        self.release(replies.len(), replies.iter().map(|reply| reply.held_bytes).sum());
    }
}

/// Sends replies as they become ready until [`Outgoing::finish`]. After an error it is called again by nobody: what
/// is still to be replied is given up.
pub async fn send_replies(
    outgoing: Rc<Outgoing>,
    ring: Ring,
    pool: Arc<Pool>,
    socket: Rc<OwnedFd>,
) -> io::Result<()> {
    let mut batch = Vec::new();
    while outgoing.wait_for_replies().await {
        outgoing.take_batch(&mut batch);
        let sent = ring.send_all(&socket, gather(&mut batch, outgoing.structured, &pool)).await;
        let held = batch.iter().map(|reply| reply.held_bytes).sum();
        outgoing.release(batch.len(), held);
        batch.clear();
        if let Err(error) = sent {
            outgoing.give_up();
            return Err(error);
        }
    }
    Ok(())
}

/// All heads in one buffer, the data where they lie.
fn gather(batch: &mut [Reply], structured: bool, pool: &Arc<Pool>) -> Gather {
    let mut heads = pool.take(batch.len() * HEAD_BYTES_MAX);
    let mut at = 0;
    for reply in &mut *batch {
        let output = &mut heads.bytes_mut()[at..];
        reply.head_bytes = protocol::encode_head(&reply.head, reply.cookie, structured, output);
        at += reply.head_bytes;
    }
    let (heads, mut all, mut at) = (heads.freeze(), Gather::new(), 0);
    for reply in batch {
        all.push(heads.part(at, reply.head_bytes));
        reply.data.slices().iter().for_each(|slice| all.push(slice.clone()));
        at += reply.head_bytes;
    }
    all
}
