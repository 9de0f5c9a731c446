//! The operations of one shard on a member on another machine: what waits to be sent, and which commands each has in flight.
//!
//! Invariants:
//! - An operation owns its memory until its last command has ended, or their association has: also when its future has got the
//!   time limit's error long before (the contract in [`engine::device`]).
//! - After a lost association an operation begins anew, whole. What its commands had done is done again.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use engine::buffer::{Buffer, Gather};
use engine::fabric::epochs::Epochs;
use nvme_tcp::command::Sqe;
use nvme_tcp::host_command;
use nvme_tcp::initiator::{Completed, Payload, Slot};
use nvme_tcp::status::{Status, StatusType};
use nvme_tcp::vendor::opcode;
use slab::Slab;

use super::member::Shape;
use super::vendor::{Sent, VendorReply};
use crate::fabric_wire::epoch_to_wire;
use crate::ring::Ticket;

/// Bytes that one command discards.
const DISCARD_BYTES_MAX: u64 = 1 << 30;

/// What an operation does.
pub(super) enum Work {
    /// Absent while its data is being received.
    Read(Option<Buffer>),
    Write {
        data: Gather,
        fua: bool,
    },
    Flush,
    Discard,
    WriteZeroes {
        may_unmap: bool,
    },
    /// A command of the vendor's range.
    Vendor(Box<VendorWork>),
}

/// A command of the vendor's range, which only Twill's targets know.
pub(super) struct VendorWork {
    pub sqe: Sqe,
    /// What it brings.
    pub data: Gather,
    /// For what it returns; absent while that is being received.
    pub buffer: Option<Buffer>,
    pub bytes_in: u32,
    pub sent: Sent,
    /// Where its caller finds what became of it, if its result is 0.
    pub reply: Rc<Cell<Option<VendorReply>>>,
    /// It writes without FUA.
    pub is_volatile: bool,
}

pub(super) struct Operation {
    /// Gone once the future has its result.
    pub ticket: Option<Ticket>,
    pub work: Work,
    pub offset: u64,
    pub bytes: u64,
    pub deadline: Instant,
    /// Of a flush: the writes that it covers.
    pub covered: u64,
    /// In the order in which they came.
    number: u64,
    /// Bytes for which commands were sent.
    sent: u64,
    started: bool,
    in_flight: u32,
    result: i32,
    again: bool,
}

impl Operation {
    pub fn new(ticket: Ticket, work: Work, (offset, bytes): (u64, u64), deadline: Instant) -> Self {
        Operation {
            ticket: Some(ticket),
            work,
            offset,
            bytes,
            deadline,
            covered: 0,
            number: 0,
            sent: 0,
            started: false,
            in_flight: 0,
            result: 0,
            again: false,
        }
    }

    /// Whether it may change what is on the member.
    fn changes(&self) -> bool {
        match &self.work {
            Work::Read(_) | Work::Flush => false,
            Work::Write { .. } | Work::Discard | Work::WriteZeroes { .. } => true,
            Work::Vendor(vendor) => !matches!(vendor.sqe.opcode, opcode::SETTLE | opcode::PEER),
        }
    }

    fn is_sent(&self) -> bool {
        self.started && self.sent == self.bytes
    }

    /// A command of the vendor's range goes out as it is.
    fn vendor(&mut self, id: usize) -> Option<Outgoing> {
        let Work::Vendor(vendor) = &self.work else { return None };
        (self.started, self.sent) = (true, self.bytes);
        let payload = match (vendor.data.len() as u32, vendor.bytes_in) {
            (0, 0) => Payload::None,
            (0, bytes) => Payload::In { bytes },
            (bytes, _) => Payload::Out { bytes },
        };
        let command = Command { operation: id, at: 0, bytes: vendor.bytes_in };
        Some(Outgoing { sqe: vendor.sqe, payload, command, data: vendor.data.clone() })
    }

    fn begin_anew(&mut self) {
        if let Work::Read(buffer @ None) = &mut self.work {
            // The connection ended while data was being received, and took the memory with it.
            *buffer = Some(Buffer::new(usize::try_from(self.bytes).expect("a buffer's length")));
        }
        if let Work::Vendor(vendor) = &mut self.work
            && vendor.bytes_in > 0
            && vendor.buffer.is_none()
        {
            vendor.buffer = Some(Buffer::new(vendor.bytes_in as usize));
        }
        (self.sent, self.started, self.in_flight, self.result, self.again) = (0, false, 0, 0, false);
    }
}

/// A command in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Command {
    pub operation: usize,
    /// Where its data is in the operation's.
    pub at: u64,
    pub bytes: u32,
}

/// A command to be sent.
pub(super) struct Outgoing {
    pub sqe: Sqe,
    pub payload: Payload,
    pub command: Command,
    /// Its data, to send in the capsule or when the target asks.
    pub data: Gather,
}

/// What the end of a command led to.
pub(super) enum Ended {
    /// The operation goes on.
    No,
    /// It waits a moment, and begins anew.
    Again,
    /// The operation is over, with this result; its future is gone if there is no ticket.
    Yes(Box<Operation>, i32),
}

#[derive(Default)]
pub(super) struct Operations {
    all: Slab<Operation>,
    waiting: VecDeque<usize>,
    delayed: Vec<usize>,
    commands: Vec<Option<(Command, Gather)>>,
    count: u64,
}

impl Operations {
    /// Enters an operation, to be sent.
    pub fn add(&mut self, operation: Operation) {
        self.count += 1;
        let id = self.all.insert(Operation { number: self.count, ..operation });
        self.waiting.push_back(id);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether something waits to be sent.
    pub fn any_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The next command, if anything waits. One that changes the member says in which of `epochs`.
    pub fn next(&mut self, shape: &Shape, namespace: u32, epochs: Option<&Epochs>) -> Option<Outgoing> {
        loop {
            let id = *self.waiting.front()?;
            let operation = &mut self.all[id];
            if operation.ticket.is_none() || operation.result != 0 || operation.is_sent() {
                self.waiting.pop_front();
                if operation.in_flight == 0 && operation.ticket.is_none() {
                    self.all.remove(id);
                }
                continue;
            }
            let vendor = operation.vendor(id);
            let mut outgoing = vendor.unwrap_or_else(|| next_of(operation, id, shape, namespace));
            if let Some(epochs) = epochs.filter(|_| operation.changes()) {
                epoch_to_wire(epochs.stamp()).stamp(&mut outgoing.sqe);
            }
            if operation.is_sent() {
                self.waiting.pop_front();
            }
            return Some(outgoing);
        }
    }

    /// The command was sent with this slot.
    pub fn sent(&mut self, slot: Slot, command: Command, data: Gather) {
        if self.commands.len() <= slot.index() {
            self.commands.resize(slot.index() + 1, None);
        }
        self.all[command.operation].in_flight += 1;
        self.commands[slot.index()] = Some((command, data));
    }

    /// A part of the data of a command, which the target asks for.
    pub fn data(&self, slot: Slot, offset: u32, bytes: u32) -> Option<Gather> {
        let (_, data) = self.commands.get(slot.index())?.as_ref()?;
        Some(data.part(offset as usize, bytes as usize))
    }

    /// Where data of a command belongs: the operation's buffer, to be given back, and the place in it.
    pub fn take_buffer(&mut self, slot: Slot, offset: u32) -> Option<(Buffer, usize)> {
        let (command, _) = self.commands.get(slot.index())?.as_ref()?;
        let buffer = buffer_of(&mut self.all[command.operation].work)?;
        let at = usize::try_from(command.at).ok()? + offset as usize;
        Some((buffer.take()?, at))
    }

    /// Gives a buffer back that data was received into.
    pub fn give_buffer(&mut self, slot: Slot, received: Buffer) {
        let Some(Some((command, _))) = self.commands.get(slot.index()) else { return };
        if let Some(buffer) = buffer_of(&mut self.all[command.operation].work) {
            *buffer = Some(received);
        }
    }

    /// A command has ended.
    pub fn complete(&mut self, slot: Slot, completed: &Completed) -> Ended {
        let Completed { status, received_bytes, value, .. } = *completed;
        let Some((command, _)) = self.commands.get_mut(slot.index()).and_then(Option::take) else {
            return Ended::No;
        };
        let operation = &mut self.all[command.operation];
        operation.in_flight -= 1;
        let is_short = matches!(operation.work, Work::Read(_)) && received_bytes != command.bytes;
        if let Work::Vendor(vendor) = &mut operation.work {
            // Its caller knows what a status means.
            vendor.reply.set(Some(VendorReply::Completed(status, value, vendor.buffer.take())));
            let operation = self.all.remove(command.operation);
            return Ended::Yes(Box::new(operation), 0);
        }
        match meaning(status) {
            Meaning::Success if is_short => operation.result = -libc::EIO,
            Meaning::Success => {}
            // Until the time limit: a path or a namespace may be away for as long as a connection.
            Meaning::Again => operation.again = true,
            Meaning::Error(result) if operation.result == 0 => operation.result = result,
            Meaning::Error(_) => {}
        }
        if operation.in_flight > 0 {
            return Ended::No;
        }
        if operation.again && operation.result == 0 && operation.ticket.is_some() {
            self.waiting.retain(|id| *id != command.operation);
            operation.begin_anew();
            self.delayed.push(command.operation);
            return Ended::Again;
        }
        if operation.is_sent() || operation.result != 0 || operation.ticket.is_none() {
            self.waiting.retain(|id| *id != command.operation);
            let operation = self.all.remove(command.operation);
            let result = operation.result;
            return Ended::Yes(Box::new(operation), result);
        }
        Ended::No
    }

    /// Operations that have waited a moment are sent again.
    pub fn wake_delayed(&mut self) {
        self.waiting.extend(std::mem::take(&mut self.delayed));
    }

    /// The association of all commands is over: what was in flight begins anew, but for what must not be sent twice, or on another
    /// association (F-I4). Returns the tickets of those.
    pub fn restart(&mut self) -> Vec<Ticket> {
        self.commands.clear();
        self.delayed.clear();
        let mut away = Vec::new();
        for (_, operation) in &mut self.all {
            if let Work::Vendor(vendor) = &operation.work
                && let Some(reply) = ended_by_loss(vendor.sent, operation.in_flight > 0)
            {
                vendor.reply.set(Some(reply));
                away.extend(operation.ticket.take());
            }
        }
        self.all.retain(|_, operation| {
            operation.begin_anew();
            operation.ticket.is_some()
        });
        let mut order: Vec<(u64, usize)> = self.all.iter().map(|(id, one)| (one.number, id)).collect();
        order.sort_unstable();
        self.waiting = order.into_iter().map(|(_, id)| id).collect();
        away
    }

    /// Time in which this process was paused counts for no operation.
    pub fn postpone(&mut self, paused: Duration) {
        self.all.iter_mut().for_each(|(_, operation)| operation.deadline += paused);
    }

    /// The tickets of operations beyond their time limit, each with the bytes of its read; and whether commands of them are in
    /// flight.
    pub fn expire(&mut self, now: Instant) -> (Vec<(Ticket, Option<usize>)>, bool) {
        let (mut expired, mut in_flight) = (Vec::new(), false);
        for (_, operation) in self.all.iter_mut().filter(|(_, one)| one.deadline <= now) {
            if let Some(ticket) = operation.ticket.take() {
                in_flight |= operation.in_flight > 0;
                expired.push((ticket, read_bytes(operation)));
            }
        }
        self.drop_ended();
        (expired, in_flight)
    }

    /// The tickets of all operations: the member has ended.
    pub fn give_up(&mut self) -> Vec<(Ticket, Option<usize>)> {
        let tickets = self.all.iter_mut().filter_map(|(_, operation)| {
            let bytes = read_bytes(operation);
            operation.ticket.take().map(|ticket| (ticket, bytes))
        });
        let tickets = tickets.collect();
        self.drop_ended();
        tickets
    }

    fn drop_ended(&mut self) {
        self.all.retain(|_, operation| operation.ticket.is_some() || operation.in_flight > 0);
        let all = &self.all;
        self.waiting.retain(|id| all.contains(*id));
        self.delayed.retain(|id| all.contains(*id));
    }
}

/// What a command of the vendor's range comes to with its association. None: it goes on with the next one.
fn ended_by_loss(sent: Sent, is_in_flight: bool) -> Option<VendorReply> {
    match sent {
        Sent::Again => None,
        Sent::Once | Sent::OnThisOne if is_in_flight => Some(VendorReply::Away),
        Sent::Once => None,
        Sent::OnThisOne => Some(VendorReply::NotSent),
    }
}

fn buffer_of(work: &mut Work) -> Option<&mut Option<Buffer>> {
    match work {
        Work::Read(buffer) => Some(buffer),
        Work::Vendor(vendor) => Some(&mut vendor.buffer),
        _ => None,
    }
}

fn read_bytes(operation: &Operation) -> Option<usize> {
    matches!(operation.work, Work::Read(_))
        .then(|| usize::try_from(operation.bytes).expect("a buffer's length"))
}

/// The next command of an operation of which something is left to send.
fn next_of(operation: &mut Operation, id: usize, shape: &Shape, namespace: u32) -> Outgoing {
    let most = match operation.work {
        Work::Discard => DISCARD_BYTES_MAX,
        _ => shape.transfer_bytes_max,
    };
    let bytes = (operation.bytes - operation.sent).min(most);
    let (at, log2) = (operation.sent, shape.block_log2);
    let (start, blocks) = ((operation.offset + at) >> log2, (bytes >> log2) as u32);
    operation.started = true;
    operation.sent += bytes;
    let length = bytes as u32;
    let command = Command { operation: id, at, bytes: length };
    let none = Gather::new();
    let (sqe, payload, data) = match &operation.work {
        Work::Read(_) => (host_command::read(namespace, start, blocks), Payload::In { bytes: length }, none),
        Work::Write { data, fua } => {
            let part = data.part(at as usize, bytes as usize);
            (host_command::write(namespace, start, blocks, *fua), Payload::Out { bytes: length }, part)
        }
        Work::Flush => (host_command::flush(namespace), Payload::None, none),
        Work::Discard => {
            let (sqe, range) = host_command::deallocate(namespace, start, blocks);
            let data = engine::buffer::Slice::from_bytes(&range);
            (sqe, Payload::Out { bytes: range.len() as u32 }, Gather::from(data.part(0, range.len())))
        }
        Work::WriteZeroes { may_unmap } => {
            (host_command::write_zeroes(namespace, start, blocks, *may_unmap), Payload::None, none)
        }
        Work::Vendor(_) => unreachable!("it is no transfer of blocks"),
    };
    Outgoing { sqe, payload, command, data }
}

/// Whether a status says that another host has the member.
pub(super) fn is_fence(status: Status) -> bool {
    status.is(Status::RESERVATION_CONFLICT) || status.is(Status::ABORTED_PREEMPTED)
}

/// What a status means for an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    Success,
    /// Another attempt may succeed.
    Again,
    Error(i32),
}

fn meaning(status: Status) -> Meaning {
    const CODES: &[(Status, i32)] = &[
        (Status::CAPACITY_EXCEEDED, -libc::ENOSPC),
        (Status::LBA_OUT_OF_RANGE, -libc::ENXIO),
        (Status::INVALID_OPCODE, -libc::EOPNOTSUPP),
    ];
    let is = |known: &Status| known.status_type() == status.status_type() && known.code() == status.code();
    if status.is_success() {
        return Meaning::Success;
    }
    if let Some((_, result)) = CODES.iter().find(|(known, _)| is(known)) {
        return Meaning::Error(*result);
    }
    let is_way = matches!(status.status_type(), StatusType::Path);
    let passes = [Status::TRANSIENT_TRANSPORT_ERROR, Status::INTERRUPTED, Status::NAMESPACE_NOT_READY];
    if status.may_retry() && (is_way || passes.iter().any(is)) {
        return Meaning::Again;
    }
    Meaning::Error(-libc::EIO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_means_the_same_with_every_hint() {
        for (status, wanted) in [
            (Status::SUCCESS, Meaning::Success),
            (Status::CAPACITY_EXCEEDED, Meaning::Error(-libc::ENOSPC)),
            (Status::LBA_OUT_OF_RANGE, Meaning::Error(-libc::ENXIO)),
            (Status::INVALID_OPCODE, Meaning::Error(-libc::EOPNOTSUPP)),
            (Status::INTERNAL_ERROR, Meaning::Error(-libc::EIO)),
        ] {
            assert_eq!(meaning(status), wanted, "{status}");
            if !status.is_success() {
                assert_eq!(meaning(status.without_retry()), wanted, "{status}, again");
            }
        }
        assert_eq!(meaning(Status::NAMESPACE_NOT_READY), Meaning::Again);
        assert_eq!(meaning(Status::NAMESPACE_NOT_READY.without_retry()), Meaning::Error(-libc::EIO));
    }

    #[test]
    fn a_contribution_waits_for_an_association_and_an_order_does_not() {
        let ended = |sent, is_in_flight| ended_by_loss(sent, is_in_flight).map(|reply| format!("{reply:?}"));
        let [away, not_sent] = ["Away", "NotSent"].map(|words| Some(words.to_owned()));
        assert_eq!([ended(Sent::Again, true), ended(Sent::Again, false)], [None, None]);
        assert_eq!([ended(Sent::Once, true), ended(Sent::Once, false)], [away.clone(), None]);
        assert_eq!([ended(Sent::OnThisOne, true), ended(Sent::OnThisOne, false)], [away, not_sent]);
    }

    #[test]
    fn a_conflict_fences_whether_a_retry_helps_or_not() {
        // nvmet says of each conflict that a retry does not help; Twill's target says nothing.
        for status in [Status::RESERVATION_CONFLICT, Status::ABORTED_PREEMPTED] {
            assert!(is_fence(status) && is_fence(status.without_retry()));
        }
        assert!(!is_fence(Status::INVALID_NAMESPACE) && !is_fence(Status::SUCCESS));
    }
}
