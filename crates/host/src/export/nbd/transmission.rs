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
//! - A request alone is always admitted by its connection, however long. Memory that is not there is `ENOMEM`, for this
//!   request only.
//! - One send is in flight at a time; the replies that become ready meanwhile go with the next one, in one call.

use engine::buffer::{Buffer, Gather, Pool};
use engine::error::VolumeError;
use engine::limits::REQUEST_BYTES_MAX;
use engine::volume::{Volume, ZeroFlags};
use std::cell::{Cell, RefCell};
use std::future::{Future as _, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use super::super::outbox::Outbox;
use super::check::{Command, REQUEST_BYTES, Refusal, Request, Rules, check, parse_request};
use super::connection::{Connection, Counts, Signal};
use super::long_work::LongWork;
use super::memory::Memory;
use super::negotiate::{self, Agreed, ExportInfo};
use super::protocol::{self, Errno, HEAD_BYTES_MAX, Head, Malformed, command};
use super::watch::{ConnectionState, Lifecycle, within};
use crate::receiver::{Receiver, STAGING_BYTES};
use crate::ring::Ring;
use crate::shard::ShardContext;
use crate::wire::Wire;

/// Longest payload of a refused write that is read and thrown away to keep the connection.
const SKIPPED_PAYLOAD_BYTES_MAX: u32 = 4 * REQUEST_BYTES_MAX;

/// Bytes of a payload that must come within its time limit: at the slowest 1 MiB in 30 s.
const PAYLOAD_PIECE_BYTES: usize = 1 << 20;

/// How often a request that waits for memory looks again.
const MEMORY_PAUSE: Duration = Duration::from_millis(5);

/// How long the goodbye of TLS may take after the last reply.
const GOODBYE_LIMIT: Duration = Duration::from_secs(5);

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
pub(super) struct Link<W> {
    pub shard: ShardContext,
    pub wire: W,
    pub incoming: Incoming<W>,
    pub info: ExportInfo,
    pub agreed: Agreed,
    pub connection: Arc<Connection>,
    pub lifecycle: Rc<Lifecycle>,
    pub limits: Limits,
    pub memory: Arc<Memory>,
    pub memory_limit: Duration,
}

/// What the tasks of one connection share.
struct Session<V> {
    volume: Rc<V>,
    rules: Rules,
    outgoing: Rc<Outgoing>,
    connection: Arc<Connection>,
    long_work: LongWork,
    stripe_bytes: u64,
}

/// Serves a volume to a client that has chosen it, until the client leaves or is asked to.
pub(super) async fn serve_volume<V: Volume, W: Wire>(
    volume: Rc<V>,
    link: Link<W>,
) -> Result<(), ReceiveError> {
    let Link { shard, wire, mut incoming, info, agreed, connection, lifecycle, limits, .. } = link;
    let holds = Holds {
        memory: link.memory,
        bytes: Cell::default(),
        short_since: Cell::default(),
        limit: link.memory_limit,
    };
    let outgoing = Outgoing::new(agreed.structured, limits, holds, Arc::clone(&connection));
    shard.executor.spawn(send(Rc::clone(&outgoing), shard.clone(), wire, connection.id));
    let rules = Rules {
        size_bytes: info.size_bytes,
        block_bytes: info.block_bytes,
        read_only: info.read_only,
        fast_zero: info.fast_zero,
        structured: agreed.structured,
        allocation: agreed.allocation,
    };
    let stripe_bytes = volume.info().io_opt_bytes;
    let long_work = LongWork::new();
    let session = Rc::new(Session { volume, rules, outgoing, connection, long_work, stripe_bytes });
    let ended = serve_requests(&session, &shard, &mut incoming, &lifecycle).await;
    session.long_work.end();
    lifecycle.reach(ConnectionState::Finishing);
    session.outgoing.settle().await;
    session.outgoing.ready.finish();
    ended
}

/// Reads requests and starts them, until the client leaves.
async fn serve_requests<V: Volume, W: Wire>(
    session: &Rc<Session<V>>,
    shard: &ShardContext,
    incoming: &mut Incoming<W>,
    lifecycle: &Lifecycle,
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
        if !session.outgoing.admit(held_bytes, &shard.ring).await {
            refuse(session, &request, NO_MEMORY, incoming).await?;
            continue;
        }
        let payload = match command {
            Command::Write { .. } if request.bytes > 0 => {
                let Some(buffer) = shard.pool.try_take(held_bytes) else {
                    session.outgoing.abandon(held_bytes);
                    refuse(session, &request, NO_MEMORY, incoming).await?;
                    continue;
                };
                let received = incoming.payload(buffer, lifecycle).await;
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

    async fn in_pieces(
        &self,
        request: &Request,
        work: impl AsyncFnMut(u64, u64) -> Result<(), VolumeError>,
    ) -> Result<(), VolumeError> {
        let range = request.offset_bytes..request.offset_bytes + u64::from(request.bytes);
        let is_stopping = || self.connection.stop.is_raised();
        self.long_work.in_pieces(range, self.stripe_bytes, is_stopping, work).await
    }
}

/// For a request that needs more memory than there is.
const NO_MEMORY: Refusal = Refusal { errno: Errno::NoMemory, message: "not enough memory for this request" };

/// Memory that a request keeps until its reply is sent.
fn held_bytes(request: &Request, command: Command) -> usize {
    match command {
        Command::Read | Command::Write { .. } => request.bytes as usize,
        _ => 0,
    }
}

/// Answers a request that failed its check, after its payload was passed over.
async fn refuse<V, W: Wire>(
    session: &Rc<Session<V>>,
    request: &Request,
    refusal: Refusal,
    incoming: &mut Incoming<W>,
) -> Result<(), ReceiveError> {
    let payload_bytes = request.payload_bytes();
    if payload_bytes > SKIPPED_PAYLOAD_BYTES_MAX {
        return Err(Malformed::PayloadLength(payload_bytes).into());
    }
    incoming.skip(payload_bytes as usize).await?;
    session.outgoing.admit_empty().await;
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
    let done = apply(&session, &request, command, payload).await;
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
    session: &Session<V>,
    request: &Request,
    command: Command,
    payload: Gather,
) -> Result<Gather, VolumeError> {
    let volume = &*session.volume;
    let (offset, bytes) = (request.offset_bytes, u64::from(request.bytes));
    let empty = bytes == 0 && command != Command::Flush;
    match command {
        _ if empty => {}
        Command::Read => return volume.read(offset, bytes).await,
        Command::Write { fua } => volume.write(offset, payload, fua).await?,
        Command::Flush => volume.flush().await?,
        Command::WriteZeroes { may_unmap, fua } => {
            // Durable once, after all pieces.
            let flags = ZeroFlags { may_unmap, fua: false };
            let zero = async |at, piece| volume.write_zeroes(at, piece, flags).await;
            session.in_pieces(request, zero).await?;
            if fua {
                volume.flush().await?;
            }
        }
        Command::Trim { fua } => {
            session.in_pieces(request, async |at, piece| volume.discard(at, piece).await).await?;
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
        VolumeError::Stopping | VolumeError::Fenced => Errno::Shutdown,
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

/// The requests of a connection, as they come.
pub(super) struct Incoming<W> {
    receiver: Receiver<W>,
}

impl<W: Wire> Incoming<W> {
    /// Nothing received yet.
    pub fn new(wire: W, pool: &Arc<Pool>) -> Self {
        Incoming { receiver: Receiver::new(wire, pool) }
    }

    /// What was received and not consumed.
    pub fn bytes(&self) -> &[u8] {
        self.receiver.bytes()
    }

    /// Drops the first `bytes` of [`Incoming::bytes`].
    pub fn consume(&mut self, bytes: usize) {
        self.receiver.consume(bytes);
    }

    /// Receives more. Returns false when the client has ended its side.
    pub async fn receive_more(&mut self) -> io::Result<bool> {
        self.receiver.receive_more().await
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

    /// Fills the buffer with the bytes that come next.
    pub async fn payload(
        &mut self,
        mut buffer: Buffer,
        lifecycle: &Lifecycle,
    ) -> Result<Buffer, ReceiveError> {
        let bytes = buffer.len();
        let mut at = self.receiver.begin_payload(&mut buffer, 0..bytes);
        while at < bytes {
            // Piece by piece, so that the watcher sees whether more comes.
            let end = bytes.min(at + PAYLOAD_PIECE_BYTES);
            lifecycle.payload_comes();
            buffer = self.receiver.receive_rest(buffer, at..end).await?;
            at = end;
        }
        lifecycle.payload_is_there();
        Ok(buffer)
    }

    /// Passes over the next `bytes` bytes.
    pub async fn skip(&mut self, mut bytes: usize) -> Result<(), ReceiveError> {
        self.receiver.expect_small();
        loop {
            let here = bytes.min(self.bytes().len());
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

/// The memory that a connection's requests hold.
struct Holds {
    memory: Arc<Memory>,
    bytes: Cell<usize>,
    /// Since when a request has not got what it needs. Those behind it do not wait once more.
    short_since: Cell<Option<Instant>>,
    limit: Duration,
}

impl Holds {
    /// Waits for memory that others hold, at most for the limit and until a stop.
    async fn take(&self, bytes: usize, ring: &Ring, stop: &Signal) -> bool {
        while !self.memory.take(self.bytes.get(), bytes) {
            let since = self.short_since.get().unwrap_or_else(Instant::now);
            if since.elapsed() >= self.limit || !self.memory.can_hold(bytes) || stop.is_raised() {
                return false;
            }
            self.short_since.set(Some(since));
            ring.sleep(MEMORY_PAUSE).await;
        }
        self.short_since.set(None);
        self.bytes.set(self.bytes.get() + bytes);
        true
    }

    fn give_back(&self, bytes: usize) {
        let held = self.bytes.get();
        assert!(bytes <= held, "only what was admitted is released");
        self.memory.give_back(held, bytes);
        self.bytes.set(held - bytes);
    }
}

impl Drop for Holds {
    /// A shard that is stopped drops tasks with what they hold.
    fn drop(&mut self) {
        self.give_back(self.bytes.get());
    }
}

/// The sending side of a connection, shared by its tasks.
struct Outgoing {
    structured: bool,
    limits: Limits,
    holds: Holds,
    /// Its counts show the number of requests to other threads.
    connection: Arc<Connection>,
    requests: Cell<usize>,
    /// The task that receives requests, while it waits for room or for the last reply.
    reader: RefCell<Option<Waker>>,
    ready: Outbox<Reply>,
    /// No reply can reach the client any more.
    broken: Cell<bool>,
}

impl Outgoing {
    /// Nothing in flight.
    fn new(structured: bool, limits: Limits, holds: Holds, connection: Arc<Connection>) -> Rc<Self> {
        Rc::new(Outgoing {
            structured,
            limits,
            holds,
            connection,
            requests: Cell::new(0),
            reader: RefCell::default(),
            ready: Outbox::new(),
            broken: Cell::new(false),
        })
    }

    /// Waits until a request that holds `bytes` bytes fits, and counts it. False: there is no memory for it.
    async fn admit(&self, bytes: usize, ring: &Ring) -> bool {
        self.wait_until(|| {
            let fits = self.holds.bytes.get() + bytes <= self.limits.bytes_max;
            self.requests.get() == 0 || (fits && self.requests.get() < self.limits.requests_max)
        })
        .await;
        let is_there = self.holds.take(bytes, ring, &self.connection.stop).await;
        if is_there {
            self.set_requests(self.requests.get() + 1);
        }
        is_there
    }

    /// Waits until a request that holds nothing fits, and counts it.
    async fn admit_empty(&self) {
        self.wait_until(|| self.requests.get() < self.limits.requests_max).await;
        self.set_requests(self.requests.get() + 1);
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
        let held_requests = self.requests.get();
        assert!(requests <= held_requests, "only what was admitted is released");
        self.set_requests(held_requests - requests);
        self.holds.give_back(bytes);
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
        self.ready.push(Reply { cookie, head, head_bytes: 0, data, held_bytes });
    }

    /// Gives up every reply, now and later.
    fn give_up(&self) {
        self.broken.set(true);
        let replies = self.ready.take_all();
        self.release(replies.len(), replies.iter().map(|reply| reply.held_bytes).sum());
    }
}

/// The task that sends replies.
async fn send<W: Wire>(outgoing: Rc<Outgoing>, shard: ShardContext, wire: W, connection: u64) {
    let sent = send_replies(outgoing, Arc::clone(&shard.pool), &wire).await;
    if let Err(error) = sent {
        tracing::debug!(connection, %error, "replies cannot be sent");
        // Ends the receive that the reading task waits in.
        return wire.shut_down();
    }
    // The watcher does not see this any more: the client has had its last reply.
    let mut goodbye = pin!(wire.finish());
    if !within(&shard.ring, GOODBYE_LIMIT, |context| goodbye.as_mut().poll(context)).await {
        tracing::debug!(connection, "the client has not taken the goodbye of TLS within the time limit");
        wire.shut_down();
    }
}

/// Sends replies as they become ready until [`Outbox::finish`], or until an error: then it gives up the replies that are
/// left and those to come.
async fn send_replies(outgoing: Rc<Outgoing>, pool: Arc<Pool>, wire: &impl Wire) -> io::Result<()> {
    let mut batch = Vec::new();
    while outgoing.ready.wait().await {
        let most = (SEND_REPLIES_MAX, SEND_BYTES);
        outgoing.ready.take_batch(&mut batch, most, |reply| reply.data.len());
        let sent = wire.send_all(gather(&mut batch, outgoing.structured, &pool)).await;
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
