//! The queue of one shard to a member on another machine: its operations, and its connection while there is one.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;

use engine::buffer::{Buffer, Pool};
use nvme_tcp::initiator::{Queue, Wanted};

use super::member::{End, RemoteMember};
use super::open::Attached;
use super::operations::{Operation, Operations, Work};
use super::port::Port;
use crate::ring::in_flight::InFlight;
use crate::ring::op::{FENCED, MISPLACED, Op};
use crate::ring::{Ring, Ticket};
use crate::tls::either::EitherWire;
use crate::wire::Wire as _;
use layout::units::DeviceOffset;

/// Memory that a queue keeps for what it receives.
const POOL_BYTES: usize = 1 << 20;

/// The queue of one shard, as its tasks share it.
pub(super) struct ShardQueue {
    pub member: Arc<RemoteMember>,
    pub ring: Ring,
    pub pool: Arc<Pool>,
    pub port: Arc<Port>,
    pub operations: RefCell<Operations>,
    /// The connection, while there is one.
    pub connection: RefCell<Option<Rc<Connection>>>,
    /// Of the task that watches time limits, while there is nothing to watch.
    pub watcher: RefCell<Option<Waker>>,
    pub closed: Cell<bool>,
    _attached: Arc<Attached>,
}

/// One connection.
pub(super) struct Connection {
    pub association: u64,
    pub wire: EitherWire,
    pub queue: RefCell<Queue>,
    /// What the target has asked for.
    pub wanted: RefCell<VecDeque<Wanted>>,
    pub sender: RefCell<Option<Waker>>,
    pub ended: Cell<bool>,
}

impl Connection {
    /// Something is to be sent.
    pub fn wake_sender(&self) {
        if let Some(sender) = self.sender.take() {
            sender.wake();
        }
    }

    /// Ends both directions.
    pub fn end(&self) {
        self.ended.set(true);
        self.wire.shut_down();
        self.wake_sender();
    }
}

impl ShardQueue {
    /// A queue of the shard that has `ring`, without a connection yet.
    pub fn new(attached: &Arc<Attached>, ring: &Ring) -> Rc<Self> {
        Rc::new(ShardQueue {
            member: Arc::clone(attached),
            ring: ring.clone(),
            pool: Pool::new(POOL_BYTES),
            port: Arc::default(),
            operations: RefCell::default(),
            connection: RefCell::new(None),
            watcher: RefCell::new(None),
            closed: Cell::new(false),
            _attached: Arc::clone(attached),
        })
    }

    /// Starts an operation, or refuses it.
    pub fn start(&self, name: &'static str, work: Work, offset: DeviceOffset, bytes: u64) -> InFlight {
        let allowed = matches!(work, Work::Flush | Work::Vendor(_)) || self.member.info.allows(offset, bytes);
        let offset = offset.get();
        let shape = &self.member.shape;
        let refused = match (&work, self.member.end()) {
            _ if !allowed => Some(MISPLACED),
            (_, End::Fenced) => Some(FENCED),
            (_, End::Gone) => Some(-libc::ENODEV),
            (Work::Discard, _) if !shape.dataset_management => Some(-libc::EOPNOTSUPP),
            (Work::WriteZeroes { .. }, _) if !shape.write_zeroes => Some(-libc::EOPNOTSUPP),
            _ => None,
        };
        if let Some(result) = refused {
            let buffer = if let Work::Read(buffer) = work { buffer } else { None };
            return self.ring.refuse(Op::Remote { name, offset, bytes, buffer }, result);
        }
        let (in_flight, ticket) = self.ring.start_remote(name, offset, bytes);
        let deadline = self.member.deadline();
        let mut operation = Operation::new(ticket, work, (offset, bytes), deadline);
        operation.covered = self.member.before_flush();
        self.operations.borrow_mut().add(operation);
        self.member.in_flight.fetch_add(1, Ordering::Relaxed);
        if let Some(connection) = &*self.connection.borrow() {
            connection.wake_sender();
        }
        if let Some(watcher) = self.watcher.take() {
            watcher.wake();
        }
        in_flight
    }

    /// Gives an operation its result.
    pub fn finish(&self, ticket: Ticket, buffer: Option<Buffer>, result: i32) {
        self.member.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.ring.finish(ticket, buffer, result);
    }

    /// Gives operations whose memory stays here an error. A read gets other memory back.
    pub fn fail(&self, tickets: Vec<(Ticket, Option<usize>)>, result: i32) {
        for (ticket, bytes) in tickets {
            self.finish(ticket, bytes.map(Buffer::new), result);
        }
    }

    /// The shard uses the member no longer.
    pub fn close(&self) {
        self.closed.set(true);
        self.port.close();
        if let Some(connection) = &*self.connection.borrow() {
            connection.end();
        }
        if let Some(watcher) = self.watcher.take() {
            watcher.wake();
        }
    }
}
