//! The NBD server, by the protocol text: fixed newstyle, structured replies, `base:allocation`.
//!
//! The way of a request, each step calling the next:
//! [`serve_requests`] reads it ([`receive`]) → checks it ([`check`](mod@check)) → owns its payload → [`execute`] gives it to the
//! volume → its reply is queued and sent with others ([`reply`]). Before the first request stands the handshake
//! ([`negotiate`]), before that the listener ([`listen`]); [`watch`] ends what would stay open for ever.
//!
//! - One task reads the requests of a connection, one sends its replies, and each request in between is a task of its
//!   own, so replies leave in the order in which the volume is done.
//! - A refused request is answered and the connection goes on. Only bytes that leave open where the next message
//!   starts end it.
//! - Nothing that a client does ends more than its own connection.

pub mod check;
mod connection;
mod exports;
mod listen;
pub mod negotiate;
pub mod protocol;
mod receive;
mod reply;
mod watch;

pub use connection::{Connection, ConnectionStatus, Totals};
pub use exports::{AddError, Export, ExportOptions, Exports};
pub use listen::{Address, ExportStatus, Removal, Server, ServerOptions, ServerStatus};
pub use reply::Limits;

use crate::shard::ShardContext;
use check::{Command, Refusal, Rules, check};
use connection::Counts;
use engine::buffer::Gather;
use engine::limits::REQUEST_BYTES_MAX;
use engine::volume::{Volume, VolumeError};
use listen::{Seat, Shared};
use negotiate::{Agreed, Catalog, ExportInfo, Negotiation};
use protocol::{Errno, Head, Malformed, Request, command};
use receive::{Incoming, ReceiveError};
use reply::Outgoing;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use watch::{Phase, Progress};

/// Longest payload of a refused write that is read and thrown away to keep the connection.
const SKIPPED_PAYLOAD_BYTES_MAX: u32 = 4 * REQUEST_BYTES_MAX;

/// A connection that has come out of the handshake, on its way to a volume.
struct Link {
    shard: ShardContext,
    socket: Rc<OwnedFd>,
    incoming: Incoming,
    info: ExportInfo,
    agreed: Agreed,
    connection: Arc<Connection>,
    progress: Rc<Progress>,
    options: ServerOptions,
}

/// Serves one client from its first byte to its last.
async fn serve_client(seat: Seat, shard: ShardContext, socket: OwnedFd) {
    let (socket, progress) = (Rc::new(socket), Progress::new());
    let (shared, connection) = (&seat.shared, &seat.connection);
    let watched = (Rc::clone(&socket), Arc::clone(connection), Rc::clone(&progress));
    shard.executor.spawn(watch::watch(shard.ring.clone(), watched.0, watched.1, watched.2, shared.options));
    match serve_export(shared, &shard, socket, connection, &progress).await {
        Ok(()) => tracing::debug!(connection = connection.id, peer = connection.peer, "closed"),
        Err(error) => tracing::debug!(connection = connection.id, peer = connection.peer, %error, "ended"),
    }
    progress.reach(Phase::Closed);
}

async fn serve_export(
    shared: &Arc<Shared>,
    shard: &ShardContext,
    socket: Rc<OwnedFd>,
    connection: &Arc<Connection>,
    progress: &Rc<Progress>,
) -> Result<(), ReceiveError> {
    let mut incoming = Incoming::new(shard.ring.clone(), Arc::clone(&shard.pool), Rc::clone(&socket));
    let Some((export, info, agreed)) = shake_hands(shared, shard, &socket, &mut incoming).await? else {
        return Ok(());
    };
    tracing::debug!(connection = connection.id, export = info.name, ?agreed, "serving");
    shared.attach(connection, Arc::clone(&export));
    progress.reach(Phase::Serving);
    let (connection, progress, options) = (Arc::clone(connection), Rc::clone(progress), shared.options);
    let shard = shard.clone();
    export.serve(Link { shard, socket, incoming, info, agreed, connection, progress, options }).await
}

/// Negotiates. `None` means that the client said goodbye.
async fn shake_hands(
    shared: &Arc<Shared>,
    shard: &ShardContext,
    socket: &Rc<OwnedFd>,
    incoming: &mut Incoming,
) -> Result<Option<(Arc<Export>, ExportInfo, Agreed)>, ReceiveError> {
    let catalog = ShardCatalog { shared, shard };
    let mut negotiation = Negotiation::default();
    let mut output = protocol::greeting().to_vec();
    loop {
        if !output.is_empty() {
            shard.ring.send_all(socket, engine::buffer::Slice::from_bytes(&output).into()).await?;
            output.clear();
        }
        let (taken, progress) = negotiation.advance(&catalog, incoming.bytes(), &mut output)?;
        incoming.consume(taken);
        let chosen = match progress {
            negotiate::Progress::Answered => continue,
            negotiate::Progress::More if incoming.receive_more().await? => continue,
            negotiate::Progress::More => return Err(ReceiveError::LeftEarly),
            negotiate::Progress::Ended => None,
            negotiate::Progress::Transmission(export, info, agreed) => Some((export, info, agreed)),
        };
        if !output.is_empty() {
            shard.ring.send_all(socket, engine::buffer::Slice::from_bytes(&output).into()).await?;
        }
        return Ok(chosen);
    }
}

/// The exports as a client of this shard sees them.
struct ShardCatalog<'a> {
    shared: &'a Shared,
    shard: &'a ShardContext,
}

impl Catalog for ShardCatalog<'_> {
    type Export = Arc<Export>;

    fn find(&self, name: &str) -> Option<(Arc<Export>, ExportInfo)> {
        let export = self.shared.exports.find(name)?;
        let info = export.info(self.shard);
        Some((export, info))
    }

    fn list(&self) -> Vec<(String, String)> {
        let describe = |export: Arc<Export>| (export.name().to_owned(), export.options().description.clone());
        self.shared.exports.list().into_iter().map(describe).collect()
    }

    fn stopping(&self) -> bool {
        self.shared.is_stopping()
    }
}

/// What the tasks of one connection share.
struct Session<V> {
    volume: Rc<V>,
    rules: Rules,
    outgoing: Rc<Outgoing>,
    connection: Arc<Connection>,
}

/// Serves a volume to a client that has chosen it, until the client leaves or is asked to.
async fn serve_volume<V: Volume>(volume: Rc<V>, link: Link) -> Result<(), ReceiveError> {
    let Link { shard, socket, mut incoming, info, agreed, connection, progress, options } = link;
    let outgoing = Outgoing::new(agreed.structured, options.limits, Arc::clone(&connection));
    shard.executor.spawn(send_replies(Rc::clone(&outgoing), shard.clone(), socket, connection.id));
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
    progress.reach(Phase::Finishing);
    session.outgoing.settle().await;
    session.outgoing.finish();
    ended
}

async fn send_replies(outgoing: Rc<Outgoing>, shard: ShardContext, socket: Rc<OwnedFd>, connection: u64) {
    let sent = reply::send_replies(outgoing, shard.ring, shard.pool, Rc::clone(&socket)).await;
    if let Err(error) = sent {
        tracing::debug!(connection, %error, "replies cannot be sent");
        // Ends the receive that the reading task waits in.
        let _ = rustix::net::shutdown(&*socket, rustix::net::Shutdown::Both);
    }
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

/// Memory that a request keeps until its reply is sent.
fn held_bytes(request: &Request, command: Command) -> usize {
    match command {
        Command::Read | Command::Write { .. } => request.bytes as usize,
        _ => 0,
    }
}

/// Answers a request that is not done, and gets its payload out of the way.
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
            // The stream would be out of step for ever; an error is the smaller harm.
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
        // A volume does not say what it never wrote: all of it counts as allocated, which is always true enough.
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

impl<V> Session<V> {
    fn check(&self, request: &Request) -> Result<Command, Refusal> {
        if self.connection.stop.is_raised() && request.command != command::DISC {
            return Err(Refusal { errno: Errno::Shutdown, message: "the server is stopping" });
        }
        check(request, &self.rules)
    }
}
