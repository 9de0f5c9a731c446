//! The transmission phase of a connection: a request's way from the socket to the volume, and its reply's way back.
//!
//! [`serve_requests`] receives a request ([`Incoming`]), checks it ([`check`]), waits until it fits into the connection's
//! [`Limits`], receives its payload and starts a task for it; the task gives it to the volume ([`execute`]) and queues its
//! reply ([`Outgoing`]), which [`send_replies`] sends with others.
//!
//! Invariants:
//! - One task receives the requests of a connection, one sends its replies, and each request in between is a task of its
//!   own. So replies leave in the order in which the volume is done.
//! - A refused request is answered and the connection goes on. Only bytes that leave open where the next message starts
//!   end it, and nothing that a client does ends more than its own connection.
//! - A request holds its share of the limits from before its payload is received until its reply has been sent. So a
//!   client that sends much and reads nothing stops itself, and holds no more than [`Limits`] allow.
//! - A request alone is always admitted, however long.
//! - One send is in flight at a time; the replies that become ready meanwhile go with the next one, in one call.

use engine::buffer::{Buffer, Gather, Pool};
use engine::error::VolumeError;
use engine::limits::REQUEST_BYTES_MAX;
use engine::volume::Volume;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

use super::check::{Command, REQUEST_BYTES, Refusal, Request, Rules, check, parse_request};
use super::connection::{Connection, Counts};
use super::negotiate::{self, Agreed, ExportInfo};
use super::protocol::{self, Errno, HEAD_BYTES_MAX, Head, Malformed, command};
use super::watch::{ConnectionState, Lifecycle};
use crate::ring::Ring;
use crate::shard::ShardContext;

/// Longest payload of a refused write that is read and thrown away to keep the connection.
const SKIPPED_PAYLOAD_BYTES_MAX: u32 = 4 * REQUEST_BYTES_MAX;

/// Bytes asked for at once while requests are small. Also holds the longest option of the handshake.
const STAGING_BYTES: usize = 64 << 10;

/// A payload from here on is worth a receive of its own instead of a copy.
const LARGE_PAYLOAD_BYTES: usize = 16 << 10;

/// Bytes asked for after a large payload: the next request, and little of what may be its payload.
const STAGING_BYTES_BETWEEN_PAYLOADS: usize = 512;

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

/// A connection whose handshake is done, and what it agreed on.
pub(super) struct Link {
    pub shard: ShardContext,
    pub socket: Rc<OwnedFd>,
    pub incoming: Incoming,
    pub info: ExportInfo,
    pub agreed: Agreed,
    pub connection: Arc<Connection>,
    pub lifecycle: Rc<Lifecycle>,
    pub limits: Limits,
}

/// What the tasks of one connection share.
struct Session<V> {
    volume: Rc<V>,
    rules: Rules,
    outgoing: Rc<Outgoing>,
    connection: Arc<Connection>,
}

/// Serves a volume to a client that has chosen it, until the client leaves or is asked to.
pub(super) async fn serve_volume<V: Volume>(volume: Rc<V>, link: Link) -> Result<(), ReceiveError> {
    let Link { shard, socket, mut incoming, info, agreed, connection, lifecycle, limits } = link;
    let outgoing = Outgoing::new(agreed.structured, limits, Arc::clone(&connection));
    shard.executor.spawn(send(Rc::clone(&outgoing), shard.clone(), socket, connection.id));
    let rules = Rules {
        size_bytes: info.size_bytes,
        block_bytes: info.block_bytes,
        read_only: info.read_only,
        fast_zero: info.fast_zero,
        structured: agreed.structured,
        allocation: agreed.allocation,
    };
    let session = Rc::new(Session { volume, rules, outgoing, connection });
    let ended = serve_requests(&session, &shard, &mut incoming).await;
    lifecycle.reach(ConnectionState::Finishing);
    session.outgoing.settle().await;
    session.outgoing.finish();
    ended
}

/// Reads requests and starts them, until the client leaves.
async fn serve_requests<V: Volume>(
    session: &Rc<Session<V>>,
    shard: &ShardContext,
    incoming: &mut Incoming,
) -> Result<(), ReceiveError> {
    while let Some(request) = incoming.next_request().await? {
        let command = match session.check(&request) {
            Ok(Command::Disconnect) => return Ok(()),
            Ok(command) => command,
            Err(refusal) => {
                refuse(session, &request, refusal, incoming).await?;
                continue;
            }
        };
        let held_bytes = held_bytes(&request, command);
        session.outgoing.admit(held_bytes).await;
        let payload = match command {
            Command::Write { .. } if request.bytes > 0 => {
                let received = incoming.payload(held_bytes).await;
                let payload = received.inspect_err(|_| session.outgoing.abandon(held_bytes))?;
                payload.freeze().into()
            }
            _ => Gather::new(),
        };
        shard.executor.spawn(execute(Rc::clone(session), request, command, payload));
    }
    Ok(())
}

impl<V> Session<V> {
    fn check(&self, request: &Request) -> Result<Command, Refusal> {
        if self.connection.stop.is_raised() && request.command != command::DISC {
            return Err(Refusal { errno: Errno::Shutdown, message: "the server is stopping" });
        }
        check(request, &self.rules)
    }
}

/// Memory that a request keeps until its reply is sent.
fn held_bytes(request: &Request, command: Command) -> usize {
    match command {
        Command::Read | Command::Write { .. } => request.bytes as usize,
        _ => 0,
    }
}

/// Answers a request that failed its check, after its payload was passed over.
async fn refuse<V>(
    session: &Rc<Session<V>>,
    request: &Request,
    refusal: Refusal,
    incoming: &mut Incoming,
) -> Result<(), ReceiveError> {
    let payload_bytes = request.payload_bytes();
    if payload_bytes > SKIPPED_PAYLOAD_BYTES_MAX {
        return Err(Malformed::PayloadLength(payload_bytes).into());
    }
    incoming.skip(payload_bytes as usize).await?;
    session.outgoing.admit(0).await;
    let counts = &session.connection.counts;
    counts.others.add(1);
    counts.errors.add(1);
    let Refusal { errno, message } = refusal;
    tracing::debug!(connection = session.connection.id, ?request, ?errno, message, "refused");
    let head = Head::Error { errno, message: message.into() };
    session.outgoing.reply(request.cookie, head, Gather::new(), 0);
    Ok(())
}

/// Gives one request to the volume and replies.
async fn execute<V: Volume>(session: Rc<Session<V>>, request: Request, command: Command, payload: Gather) {
    let held_bytes = held_bytes(&request, command);
    let done = apply(&*session.volume, &request, command, payload).await;
    let counts = &session.connection.counts;
    count(counts, &request, command, done.is_ok());
    let (head, data) = match done {
        Ok(data) if command == Command::Read && data.len() != request.bytes as usize => {
            // Data of another length would shift the stream for ever; an error is the smaller harm.
            tracing::error!(
                ?request,
                answered_bytes = data.len(),
                "the volume read another length than asked"
            );
            (Head::Error { errno: Errno::Io, message: "short read".into() }, Gather::new())
        }
        Ok(data) => (success(&request, command), data),
        Err(error) => {
            tracing::debug!(connection = session.connection.id, ?request, %error, "failed");
            (Head::Error { errno: errno(&error, command), message: error.to_string().into() }, Gather::new())
        }
    };
    if matches!(head, Head::Error { .. }) {
        counts.errors.add(1);
    }
    session.outgoing.reply(request.cookie, head, data, held_bytes);
}

/// The request as the volume knows it. Only a read has data.
async fn apply<V: Volume>(
    volume: &V,
    request: &Request,
    command: Command,
    payload: Gather,
) -> Result<Gather, VolumeError> {
    let (offset, bytes) = (request.offset_bytes, u64::from(request.bytes));
    let empty = bytes == 0 && command != Command::Flush;
    match command {
        _ if empty => {}
        Command::Read => return volume.read(offset, bytes).await,
        Command::Write { fua } => volume.write(offset, payload, fua).await?,
        Command::Flush => volume.flush().await?,
        Command::WriteZeroes { may_unmap, fua } => volume.write_zeroes(offset, bytes, may_unmap, fua).await?,
        Command::Trim { fua } => {
            volume.discard(offset, bytes).await?;
            if fua {
                volume.flush().await?;
            }
        }
        Command::Cache | Command::BlockStatus | Command::Disconnect => {}
    }
    Ok(Gather::new())
}

fn success(request: &Request, command: Command) -> Head {
    match command {
        Command::Read => Head::Data { offset_bytes: request.offset_bytes, bytes: request.bytes },
        // A volume does not know which blocks were never written, and "allocated" is always a correct answer.
        Command::BlockStatus => Head::Allocated { bytes: request.bytes },
        _ => Head::Done,
    }
}

fn errno(error: &VolumeError, command: Command) -> Errno {
    match error {
        VolumeError::OutOfRange { .. } => match command {
            Command::Write { .. } | Command::WriteZeroes { .. } => Errno::NoSpace,
            _ => Errno::Invalid,
        },
        VolumeError::Misaligned { .. } => Errno::Invalid,
        VolumeError::ReadOnly => Errno::Perm,
        VolumeError::NoSpace { .. } => Errno::NoSpace,
        VolumeError::Io { .. } | VolumeError::Unreadable { .. } => Errno::Io,
        VolumeError::Stopping => Errno::Shutdown,
    }
}

fn count(counts: &Counts, request: &Request, command: Command, done: bool) {
    let bytes = if done { u64::from(request.bytes) } else { 0 };
    match command {
        Command::Read => {
            counts.reads.add(1);
            counts.read_bytes.add(bytes);
        }
        Command::Write { .. } => {
            counts.writes.add(1);
            counts.written_bytes.add(bytes);
        }
        Command::Flush => counts.flushes.add(1),
        Command::Trim { .. } => counts.trims.add(1),
        Command::WriteZeroes { .. } => counts.zeroes.add(1),
        Command::Cache | Command::BlockStatus | Command::Disconnect => counts.others.add(1),
    }
}

/// Why no further request comes.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// The socket failed, or the client left in the middle of a message.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The client does not speak the protocol.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The client did not choose an export.
    #[error("the client left during the handshake")]
    LeftEarly,
}

/// The receiving side of a connection.
pub(super) struct Incoming {
    ring: Ring,
    pool: Arc<Pool>,
    socket: Rc<OwnedFd>,
    staging: Buffer,
    /// The bytes received and not yet consumed lie in `staging[start..end]`.
    start: usize,
    end: usize,
    /// How many bytes to ask for next.
    ask_bytes: usize,
}

impl Incoming {
    /// Nothing received yet.
    pub fn new(ring: Ring, pool: Arc<Pool>, socket: Rc<OwnedFd>) -> Self {
        let staging = pool.take(STAGING_BYTES);
        Incoming { ring, pool, socket, staging, start: 0, end: 0, ask_bytes: STAGING_BYTES }
    }

    /// What was received and not consumed.
    pub fn bytes(&self) -> &[u8] {
        &self.staging.bytes()[self.start..self.end]
    }

    /// Drops the first `bytes` of [`Incoming::bytes`].
    pub fn consume(&mut self, bytes: usize) {
        assert!(bytes <= self.end - self.start, "only what was received is consumed");
        self.start += bytes;
    }

    /// Receives more. Returns false when the client has ended its side.
    pub async fn receive_more(&mut self) -> io::Result<bool> {
        if self.start > 0 {
            self.staging.bytes_mut().copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        assert!(self.end < STAGING_BYTES, "every message but a payload fits");
        let room = self.end..STAGING_BYTES.min(self.end + self.ask_bytes);
        let staging = std::mem::replace(&mut self.staging, Buffer::new(0));
        let (staging, received) = self.ring.recv(&self.socket, staging, room).await;
        self.staging = staging;
        let received = received?;
        self.end += received;
        Ok(received > 0)
    }

    /// The next request, or `None` when the client has ended its side between requests.
    pub async fn next_request(&mut self) -> Result<Option<Request>, ReceiveError> {
        loop {
            if let Some(request) = parse_request(self.bytes())? {
                self.consume(REQUEST_BYTES);
                return Ok(Some(request));
            }
            if !self.receive_more().await? {
                return if self.bytes().is_empty() { Ok(None) } else { Err(cut_short()) };
            }
        }
    }

    /// The next `bytes` bytes in a buffer of their own.
    pub async fn payload(&mut self, bytes: usize) -> Result<Buffer, ReceiveError> {
        let mut buffer = self.pool.take(bytes);
        let here = bytes.min(self.end - self.start);
        buffer.bytes_mut()[..here].copy_from_slice(&self.bytes()[..here]);
        self.consume(here);
        self.ask_bytes =
            if bytes >= LARGE_PAYLOAD_BYTES { STAGING_BYTES_BETWEEN_PAYLOADS } else { STAGING_BYTES };
        if here == bytes {
            return Ok(buffer);
        }
        let (buffer, received) = self.ring.recv_exact(&self.socket, buffer, here..bytes).await;
        received?;
        Ok(buffer)
    }

    /// Passes over the next `bytes` bytes.
    pub async fn skip(&mut self, mut bytes: usize) -> Result<(), ReceiveError> {
        self.ask_bytes = STAGING_BYTES;
        loop {
            let here = bytes.min(self.end - self.start);
            self.consume(here);
            bytes -= here;
            if bytes == 0 {
                return Ok(());
            }
            if !self.receive_more().await? {
                return Err(cut_short());
            }
        }
    }
}

fn cut_short() -> ReceiveError {
    ReceiveError::Io(io::ErrorKind::UnexpectedEof.into())
}

/// A reply ready to be sent.
struct Reply {
    cookie: u64,
    head: Head,
    /// Length of the encoded head, known when it is sent.
    head_bytes: usize,
    data: Gather,
    /// Bytes of the limits that its request holds.
    held_bytes: usize,
}

/// The sending side of a connection, shared by its tasks.
struct Outgoing {
    structured: bool,
    limits: Limits,
    /// Its counts show the number of requests to other threads.
    connection: Arc<Connection>,
    requests: Cell<usize>,
    bytes: Cell<usize>,
    /// The task that receives requests, while it waits for room or for the last reply.
    reader: RefCell<Option<Waker>>,
    ready: RefCell<VecDeque<Reply>>,
    /// The task that sends, while it waits for replies.
    sender: RefCell<Option<Waker>>,
    /// No reply can reach the client any more.
    broken: Cell<bool>,
    finished: Cell<bool>,
}

impl Outgoing {
    /// Nothing in flight.
    fn new(structured: bool, limits: Limits, connection: Arc<Connection>) -> Rc<Self> {
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
    async fn admit(&self, bytes: usize) {
        self.wait_until(|| {
            let fits = self.bytes.get() + bytes <= self.limits.bytes_max;
            self.requests.get() == 0 || (fits && self.requests.get() < self.limits.requests_max)
        })
        .await;
        self.set_requests(self.requests.get() + 1);
        self.bytes.set(self.bytes.get() + bytes);
    }

    /// Waits until every admitted request has been replied to, or its reply given up.
    async fn settle(&self) {
        self.wait_until(|| self.requests.get() == 0).await;
    }

    /// Only the reader waits, so one waker is enough.
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

    /// Gives back the share of an admitted request that will have no reply.
    fn abandon(&self, held_bytes: usize) {
        self.release(1, held_bytes);
    }

    fn release(&self, requests: usize, bytes: usize) {
        let (held_requests, held_bytes) = (self.requests.get(), self.bytes.get());
        assert!(requests <= held_requests && bytes <= held_bytes, "only what was admitted is released");
        self.set_requests(held_requests - requests);
        self.bytes.set(held_bytes - bytes);
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    fn set_requests(&self, requests: usize) {
        self.requests.set(requests);
        self.connection.counts.in_flight.set(requests as u64);
    }

    /// Queues the reply to an admitted request that holds `held_bytes`.
    fn reply(&self, cookie: u64, head: Head, data: Gather, held_bytes: usize) {
        if self.broken.get() {
            return self.release(1, held_bytes);
        }
        self.ready.borrow_mut().push_back(Reply { cookie, head, head_bytes: 0, data, held_bytes });
        if let Some(sender) = self.sender.take() {
            sender.wake();
        }
    }

    /// Ends [`send_replies`] once nothing is queued.
    fn finish(&self) {
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

/// The task that sends replies.
async fn send(outgoing: Rc<Outgoing>, shard: ShardContext, socket: Rc<OwnedFd>, connection: u64) {
    let sent = send_replies(outgoing, shard.ring, shard.pool, Rc::clone(&socket)).await;
    if let Err(error) = sent {
        tracing::debug!(connection, %error, "replies cannot be sent");
        // Ends the receive that the reading task waits in.
        let _ = rustix::net::shutdown(&*socket, rustix::net::Shutdown::Both);
    }
}

/// Sends replies as they become ready until [`Outgoing::finish`], or until an error: then it gives up the replies that are
/// left and those to come.
async fn send_replies(
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

const _: () = assert!(negotiate::OPTION_BYTES_MAX + protocol::OPTION_HEADER_BYTES < STAGING_BYTES);
