//! What the commands of an I/O queue pass: namespaces that the host may use now, and the place where commands at work are seen.

use nvme_tcp::names::Host;
use nvme_tcp::reservation::CommandClass;
use nvme_tcp::status::Status;
use nvme_tcp::target::io::Shape;
use nvme_tcp::target::queue::Slot;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use super::connection_limits::COMMANDS;
use super::namespace::{Namespace, shape};
use super::running::{Running, Ticket};
use super::subsystems::Entry;
use crate::shard::ShardContext;

/// The gate of one I/O queue.
pub(super) struct Gate {
    pub entry: Arc<Entry>,
    pub host: Host,
    pub shard: ShardContext,
    /// The host is another target, and no more: it sends contributions.
    pub is_peer_only: bool,
    running: Arc<Running>,
    seen: RefCell<Seen>,
}

/// Namespaces that this queue has used, as they were at an epoch.
struct Seen {
    epoch: u64,
    opened: Vec<Open>,
}

struct Open {
    id: u32,
    namespace: Rc<dyn Namespace>,
    shape: Shape,
    read: Result<(), Status>,
    write: Result<(), Status>,
}

impl Gate {
    pub fn new(entry: &Arc<Entry>, host: &Host, shard: &ShardContext) -> Rc<Self> {
        let running = Running::new(COMMANDS);
        entry.queues.enter(&running);
        let seen = RefCell::new(Seen { epoch: entry.epoch(), opened: Vec::new() });
        let is_peer_only = entry.is_peer_only(&host.nqn);
        let (entry, host, shard) = (Arc::clone(entry), host.clone(), shard.clone());
        Rc::new(Gate { entry, host, shard, is_peer_only, running, seen })
    }

    /// A command has come: the namespace, if the host may do to it now what the opcode does.
    ///
    /// # Errors
    /// The status to answer with.
    pub fn open(&self, id: u32, opcode: u8) -> Result<(Rc<dyn Namespace>, Shape), Status> {
        self.with_open(id, |open| {
            match CommandClass::of_io(opcode) {
                CommandClass::Read => open.read?,
                CommandClass::Write => open.write?,
                CommandClass::Other => {}
            }
            Ok((Rc::clone(&open.namespace), open.shape))
        })
    }

    /// What commands to a namespace are checked against, whether the host may do anything to it or not.
    ///
    /// # Errors
    /// There is no such namespace.
    pub fn shape(&self, id: u32) -> Result<Shape, Status> {
        self.with_open(id, |open| Ok(open.shape))
    }

    fn with_open<T>(&self, id: u32, use_it: impl FnOnce(&Open) -> Result<T, Status>) -> Result<T, Status> {
        let seen = &mut *self.seen.borrow_mut();
        let epoch = self.entry.epoch();
        if epoch != seen.epoch {
            seen.opened.clear();
            seen.epoch = epoch;
        }
        let at = match seen.opened.iter().position(|open| open.id == id) {
            Some(at) => at,
            None => {
                let admitted = self.entry.admit(&self.host, id)?;
                let namespace = admitted.source.open(&self.shard);
                let shape = shape(&namespace.info());
                let (read, write) = (admitted.read, admitted.write);
                seen.opened.push(Open { id, namespace, shape, read, write });
                seen.opened.len() - 1
            }
        };
        use_it(&seen.opened[at])
    }

    /// Whether no command of the queue is at work.
    pub fn is_idle(&self) -> bool {
        self.running.is_idle()
    }

    /// A command begins its work. F-I6: it is entered first and looks then, because its data may have come long after itself,
    /// from a host that has lost its right in between.
    ///
    /// # Errors
    /// The status to answer with.
    pub fn begin(&self, slot: Slot, id: u32, opcode: u8) -> Result<Ticket, Status> {
        let ticket = self.running.enter(slot.index(), self.entry.epoch(), id);
        self.open(id, opcode)?;
        Ok(ticket)
    }
}
