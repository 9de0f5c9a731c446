//! The tasks of a shard's queue: one carries connections from the first to the last byte, one sends on each, one watches time
//! limits.
//!
//! Invariants:
//! - Nothing is sent on a connection whose association is lost. An operation beyond its limit with a command in flight ends the
//!   association before its future returns, so that nothing else reaches the target before the next association's barrier.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::{Duration, Instant};

use engine::buffer::{Gather, Slice};
use engine::executor::Executor;
use nvme_tcp::initiator::{Arrival, Completed, Queue, Wanted};
use nvme_tcp::pdu::{Fatal, Side};
use nvme_tcp::session::STAGED_BYTES_MAX;
use nvme_tcp::status::Status;

use super::member::End;
use super::operations::{Ended, Work, is_fence};
use super::port::Link;
use super::shard_queue::{Connection, ShardQueue};
use crate::receiver::Receiver;
use crate::ring::op::FENCED;
use crate::tls::either::EitherWire;
use crate::tls::wire::TlsWire;
use crate::wire::{PlainWire, Wire as _};

/// Bytes of data after which no further command joins a send.
const SEND_BYTES: usize = 512 << 10;
/// PDUs in one send: their pieces stay below the system's limit.
const SEND_PDUS_MAX: usize = 64;
/// How often time limits are looked at while operations are in flight.
const WATCH: Duration = Duration::from_millis(100);
/// A wait that takes so much longer than it should shows that this process was paused.
const PAUSE_MIN: Duration = Duration::from_secs(1);

/// Takes one connection after the other, as the keeper hands them over.
pub(super) async fn carry(shard: Rc<ShardQueue>) {
    while let Some(link) = poll_fn(|context| shard.port.poll(context)).await {
        let Link { socket, tls, queue, association } = link;
        let plain = PlainWire { ring: shard.ring.clone(), socket: Rc::new(socket) };
        let wire = match tls {
            None => EitherWire::Plain(plain),
            Some(tls) => EitherWire::Tls(TlsWire::new(plain, &shard.pool, tls, &[])),
        };
        let connection = Rc::new(Connection {
            association,
            wire,
            queue: RefCell::new(queue),
            wanted: RefCell::default(),
            sender: RefCell::default(),
            ended: Cell::new(false),
        });
        end_orders(&shard);
        shard.connection.replace(Some(Rc::clone(&connection)));
        let executor = Executor::current().expect("a task runs on an executor");
        executor.spawn(send(Rc::clone(&shard), Rc::clone(&connection)));
        let ended = receive(&shard, &connection).await;
        connection.end();
        shard.connection.take();
        end_orders(&shard);
        if !shard.closed.get() {
            shard.member.lose(association, &ended.words());
        }
    }
    let left = shard.operations.borrow_mut().give_up();
    shard.fail(left, -libc::ENODEV);
}

/// Between two associations: what waits is sent on the next one, and orders of the last one end.
fn end_orders(shard: &ShardQueue) {
    let ended = shard.operations.borrow_mut().restart();
    ended.into_iter().for_each(|ticket| shard.finish(ticket, None, 0));
}

/// Why a connection ends.
enum Ending {
    Io(io::Error),
    Closed,
    Fatal(Fatal),
    Terminated(u16),
}

impl Ending {
    fn words(&self) -> String {
        match self {
            Ending::Io(error) => error.to_string(),
            Ending::Closed => "the target closed the connection".into(),
            Ending::Fatal(fatal) => format!("the target broke a rule of the transport: {fatal}"),
            Ending::Terminated(status) => format!("the target ended the connection, status {status}"),
        }
    }
}

/// Takes what arrives, until the connection ends.
async fn receive(shard: &Rc<ShardQueue>, connection: &Rc<Connection>) -> Ending {
    let mut receiver = Receiver::new(connection.wire.clone(), &shard.pool);
    loop {
        let received = connection.queue.borrow_mut().receive(receiver.bytes());
        let (consumed, arrival) = match received {
            Ok(received) => received,
            Err(fatal) => return Ending::Fatal(fatal),
        };
        receiver.consume(consumed);
        shard.member.received_bytes.fetch_add(consumed as u64, Ordering::Relaxed);
        match arrival {
            Arrival::More => match receiver.receive_more().await {
                Ok(true) => {}
                Ok(false) => return Ending::Closed,
                Err(error) => return Ending::Io(error),
            },
            Arrival::Begun | Arrival::Partial => {}
            Arrival::Place { slot, offset, bytes } => {
                let bytes = bytes as usize;
                let taken = shard.operations.borrow_mut().take_buffer(slot, offset);
                let is_known = taken.is_some();
                let (buffer, at) = taken.unwrap_or_else(|| (shard.pool.take(bytes), 0));
                let buffer = match receiver.fill(buffer, at, bytes).await {
                    Ok(buffer) => buffer,
                    Err(error) => return Ending::Io(error),
                };
                shard.member.received_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
                connection.queue.borrow_mut().session_mut().placed(&buffer.bytes()[at..at + bytes]);
                if is_known {
                    shard.operations.borrow_mut().give_buffer(slot, buffer);
                }
            }
            Arrival::Wanted(wanted) => {
                connection.wanted.borrow_mut().push_back(wanted);
                connection.wake_sender();
            }
            Arrival::Completed(completed) => complete(shard, connection, &completed),
            Arrival::Terminated { status, .. } => return Ending::Terminated(status),
        }
    }
}

fn complete(shard: &ShardQueue, connection: &Connection, completed: &Completed) {
    let Completed { slot, status, .. } = *completed;
    // A peer's connection serves several namespaces and attaches: what one of them is refused does not concern the others.
    let is_member = !shard.member.options.is_peer;
    if is_member && status.is(Status::INVALID_NAMESPACE) {
        // Its target may be about to serve it again. Until then it is as one whose connection is lost: what was in flight is
        // sent again, and fails at the time limit.
        shard.member.lose(connection.association, "its target does not serve the namespace any more");
        return connection.end();
    }
    if is_member && is_fence(status) {
        shard.member.conflict(connection.association);
        return connection.end();
    }
    let ended = shard.operations.borrow_mut().complete(slot, completed);
    // The slot is free.
    connection.wake_sender();
    let Ended::Yes(operation, result) = ended else { return };
    let operation = *operation;
    let Some(ticket) = operation.ticket else { return };
    let buffer = match operation.work {
        Work::Read(buffer) => buffer,
        // Before the write is acknowledged: from here on a restart of the target may lose it (F-I17).
        Work::Write { fua: false, .. } | Work::WriteZeroes { .. } if result == 0 => {
            shard.member.note_written();
            None
        }
        // Whatever its status says: a write that it began may be in the drive's cache.
        Work::Vendor(vendor) => {
            if vendor.is_volatile {
                shard.member.note_written();
            }
            None
        }
        Work::Flush if result == 0 => {
            shard.member.note_flushed(operation.covered);
            None
        }
        Work::Write { .. } | Work::WriteZeroes { .. } | Work::Flush | Work::Discard => None,
    };
    shard.finish(ticket, buffer, result);
}

/// The task that sends on one connection.
async fn send(shard: Rc<ShardQueue>, connection: Rc<Connection>) {
    while wait_to_send(&shard, &connection).await {
        // F-I4: what was not sent before the association was lost waits for the next one.
        if !shard.member.is_up(connection.association) {
            break;
        }
        let data = gather(&shard, &connection);
        if data.is_empty() {
            continue;
        }
        shard.member.sent_bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
        if let Err(error) = connection.wire.send_all(data).await {
            tracing::debug!(%error, member = shard.member.info.name, "commands cannot be sent");
            break;
        }
    }
    connection.end();
}

/// Waits until something can be sent; false: the connection is over.
async fn wait_to_send(shard: &ShardQueue, connection: &Connection) -> bool {
    poll_fn(|context| {
        if connection.ended.get() {
            return Poll::Ready(false);
        }
        let may_submit = shard.operations.borrow().any_waiting() && connection.queue.borrow().has_room();
        if may_submit || !connection.wanted.borrow().is_empty() {
            return Poll::Ready(true);
        }
        connection.sender.replace(Some(context.waker().clone()));
        Poll::Pending
    })
    .await
}

/// Headers in one buffer, data where it lies.
fn gather(shard: &ShardQueue, connection: &Connection) -> Gather {
    let mut out = Assembled::default();
    let mut queue = connection.queue.borrow_mut();
    let mut wanted = connection.wanted.borrow_mut();
    while out.has_room()
        && let Some(one) = wanted.pop_front()
    {
        answer(shard, &mut queue, &one, &mut out);
    }
    let mut operations = shard.operations.borrow_mut();
    while out.has_room() && queue.has_room() {
        let member = &shard.member;
        let next = operations.next(&member.shape, member.address.namespace, member.epochs());
        let Some(outgoing) = next else { break };
        let Some((slot, sqe, in_capsule)) = queue.submit(outgoing.sqe, outgoing.payload) else { break };
        let agreed = *queue.session().agreement();
        let data = if in_capsule > 0 { outgoing.data.clone() } else { Gather::new() };
        out.push(
            |head| agreed.encode_command(&sqe, in_capsule, head),
            data,
            |pieces, tail| agreed.encode_data_end(pieces.iter().map(Slice::bytes), tail),
        );
        operations.sent(slot, outgoing.command, outgoing.data);
    }
    out.finish()
}

/// Sends data that the target has asked for.
fn answer(shard: &ShardQueue, queue: &mut Queue, wanted: &Wanted, out: &mut Assembled) {
    let agreed = *queue.session().agreement();
    for (part, flags) in wanted.parts(agreed.h2c_data_bytes_max) {
        let data = shard.operations.borrow().data(wanted.slot, part.offset, part.bytes);
        // A command that is over already: the target failed it before all its data had come.
        let Some(data) = data else { break };
        out.push(
            |head| agreed.encode_data(Side::Host, &part, flags, head),
            data,
            |pieces, tail| agreed.encode_data_end(pieces.iter().map(Slice::bytes), tail),
        );
    }
    queue.sent(wanted);
}

/// PDUs on their way into one send.
#[derive(Default)]
struct Assembled {
    heads: Vec<u8>,
    /// Where in the headers data stands.
    cuts: Vec<(usize, Gather)>,
    bytes: usize,
    count: usize,
}

impl Assembled {
    fn has_room(&self) -> bool {
        self.count < SEND_PDUS_MAX && self.bytes < SEND_BYTES
    }

    fn push(
        &mut self,
        head: impl FnOnce(&mut [u8]) -> usize,
        data: Gather,
        end: impl FnOnce(&[Slice], &mut [u8]) -> usize,
    ) {
        let start = self.heads.len();
        self.heads.resize(start + STAGED_BYTES_MAX, 0);
        let written = head(&mut self.heads[start..]);
        self.heads.truncate(start + written);
        self.count += 1;
        if data.is_empty() {
            return;
        }
        self.bytes += data.len();
        let cut = self.heads.len();
        self.heads.resize(cut + 8, 0);
        let written = end(data.slices(), &mut self.heads[cut..]);
        self.heads.truncate(cut + written);
        self.cuts.push((cut, data));
    }

    fn finish(self) -> Gather {
        let (mut all, mut from) = (Gather::new(), 0);
        if self.heads.is_empty() {
            return all;
        }
        let heads = Slice::from_bytes(&self.heads);
        for (cut, data) in self.cuts {
            if cut > from {
                all.push(heads.part(from, cut - from));
            }
            data.slices().iter().for_each(|slice| all.push(slice.clone()));
            from = cut;
        }
        if self.heads.len() > from {
            all.push(heads.part(from, self.heads.len() - from));
        }
        all
    }
}

/// The task that watches time limits.
pub(super) async fn watch(shard: Rc<ShardQueue>) {
    while wait_for_operations(&shard).await {
        let before = Instant::now();
        shard.ring.sleep(WATCH).await;
        // F-I7: a host that was paused has to learn whether it was fenced before it calls a member late.
        let paused = before.elapsed().saturating_sub(WATCH);
        if paused > PAUSE_MIN {
            shard.operations.borrow_mut().postpone(paused);
        }
        shard.operations.borrow_mut().wake_delayed();
        if let Some(connection) = &*shard.connection.borrow() {
            connection.wake_sender();
        }
        let result = match shard.member.end() {
            End::Not => None,
            End::Gone => Some(-libc::ENODEV),
            End::Fenced => Some(FENCED),
        };
        if let Some(result) = result {
            let left = shard.operations.borrow_mut().give_up();
            shard.fail(left, result);
            continue;
        }
        let (expired, in_flight) = shard.operations.borrow_mut().expire(Instant::now());
        if in_flight {
            lose(&shard);
        }
        let result = if shard.member.is_refused() { FENCED } else { -libc::ETIMEDOUT };
        shard.fail(expired, result);
    }
}

/// Ends the association: a command has no answer within the limit, and may still be carried out.
fn lose(shard: &ShardQueue) {
    let connection = shard.connection.borrow().clone();
    let Some(connection) = connection else { return };
    let limit = shard.member.options.time_limit.as_secs_f32();
    shard.member.lose(connection.association, &format!("the target has not answered within {limit} s"));
    connection.end();
}

/// Waits until there are operations; false: the queue is closed.
async fn wait_for_operations(shard: &ShardQueue) -> bool {
    poll_fn(|context| {
        if shard.operations.borrow().len() > 0 {
            return Poll::Ready(true);
        }
        if shard.closed.get() {
            return Poll::Ready(false);
        }
        shard.watcher.replace(Some(context.waker().clone()));
        Poll::Pending
    })
    .await
}
