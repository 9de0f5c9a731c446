//! An association: a host's controller, from the Connect of its admin queue to that queue's end, or until a queue fails.
//!
//! Its queues are on different shards; this is what they share. The end of the admin queue, and a queue that fails, shut the
//! others' sockets down, so that no command of a lost association comes later. An I/O queue that its host closes in order ends
//! by itself: Linux closes these first, and shuts the controller down by the admin queue then.

use nvme_tcp::controller::Controller;
use nvme_tcp::events::AsyncEvent;
use nvme_tcp::names::{Host, Nqn};
use nvme_tcp::reservation::Notice;
use nvme_tcp::target::properties::Properties;
use parking_lot::Mutex;
use rustix::net::{Shutdown, shutdown};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Waker;

use super::connection_limits::COMMANDS;
use super::hearers::Hearer;
use super::subsystems::Entry;

/// A host that is connected to namespaces: one controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectedHost {
    /// The host.
    pub host: Nqn,
    /// What it is connected to.
    pub subsystem: Nqn,
    /// Its I/O queues.
    pub queues: usize,
}

static NEXT_SERIAL: AtomicU64 = AtomicU64::new(0);

pub(super) struct Association {
    /// The subsystem; none: discovery.
    pub entry: Option<Arc<Entry>>,
    pub subsystem: Nqn,
    pub host: Host,
    pub id: u16,
    /// No other association of this process has the same, also later.
    pub serial: u64,
    state: Mutex<State>,
    /// Its host may use it: it has authenticated, or need not.
    proven: AtomicBool,
    /// A command has come since the watch looked last.
    seen: AtomicBool,
    ended: AtomicBool,
    /// Wakes the admin queue's task that sends events.
    listener: Mutex<Option<Waker>>,
}

struct State {
    controller: Controller,
    properties: Properties,
    queues: BTreeMap<u16, Joined>,
}

/// A queue of it.
struct Joined {
    /// A second descriptor, to shut it down.
    socket: OwnedFd,
    /// The shard that the queue is on.
    shard: usize,
}

impl Association {
    pub fn new(
        entry: Option<Arc<Entry>>,
        subsystem: Nqn,
        host: &Host,
        id: u16,
        keep_alive_ms: u32,
    ) -> Arc<Self> {
        Arc::new(Association {
            entry,
            subsystem,
            host: host.clone(),
            id,
            serial: NEXT_SERIAL.fetch_add(1, Ordering::Relaxed),
            state: Mutex::new(State {
                controller: Controller::new(id, host.clone(), keep_alive_ms),
                properties: Properties::new(COMMANDS as u16),
                queues: BTreeMap::new(),
            }),
            proven: AtomicBool::new(false),
            seen: AtomicBool::new(true),
            ended: AtomicBool::new(false),
            listener: Mutex::new(None),
        })
    }

    /// Uses controller and properties for a moment.
    pub fn with<T>(&self, work: impl FnOnce(&mut Controller, &mut Properties) -> T) -> T {
        let State { controller, properties, .. } = &mut *self.state.lock();
        work(controller, properties)
    }

    /// The host has authenticated, or need not. False: its identifier belongs to another name.
    pub fn prove(&self) -> bool {
        let Association { entry, host, subsystem, id, .. } = self;
        if entry.as_ref().is_some_and(|entry| entry.with(|one| one.prove(*id)).is_err()) {
            return false;
        }
        if !self.proven.swap(true, Ordering::AcqRel) {
            tracing::info!(host = %host.nqn, %subsystem, controller = id, "a host has connected");
        }
        true
    }

    /// A queue of a shard joins. False: it is there already, the controller is not ready, or the association has ended.
    pub fn join(&self, queue: u16, socket: OwnedFd, shard: usize) -> bool {
        let mut state = self.state.lock();
        let is_open = !self.ended.load(Ordering::Acquire) && (queue == 0 || state.properties.is_ready());
        if !is_open || state.queues.contains_key(&queue) {
            return false;
        }
        state.queues.insert(queue, Joined { socket, shard });
        true
    }

    /// A host has deleted a queue, or closed its connection.
    pub fn leave(&self, queue: u16) {
        self.state.lock().queues.remove(&queue);
    }

    /// The shard that a queue is on.
    pub fn shard_of(&self, queue: u16) -> Option<usize> {
        self.state.lock().queues.get(&queue).map(|queue| queue.shard)
    }

    /// I/O queues that are connected.
    pub fn io_queues(&self) -> usize {
        self.state.lock().queues.keys().filter(|queue| **queue != 0).count()
    }

    /// A command has come. Written only if the watch has looked since, so that queues do not fight for the line.
    pub fn see(&self) {
        if !self.seen.load(Ordering::Relaxed) {
            self.seen.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a command has come since this was asked last.
    pub fn was_seen(&self) -> bool {
        self.seen.swap(false, Ordering::Relaxed)
    }

    /// The task of `waker` looks for events when one happens, and when the association ends.
    pub fn listen(&self, waker: &Waker) {
        *self.listener.lock() = Some(waker.clone());
    }

    fn wake_listener(&self) {
        let listener = self.listener.lock().take();
        if let Some(listener) = listener {
            listener.wake();
        }
    }

    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Ends every queue.
    pub fn end(&self) {
        let mut state = self.state.lock();
        self.ended.store(true, Ordering::Release);
        for queue in std::mem::take(&mut state.queues).into_values() {
            let _ = shutdown(&queue.socket, Shutdown::Both);
        }
        drop(state);
        self.wake_listener();
    }
}

impl Hearer for Association {
    fn namespace_changed(&self, id: u32) {
        self.with(|controller, _| controller.namespace_changed(id));
        self.wake_listener();
    }

    fn discovery_changed(&self) {
        self.with(|controller, _| controller.happened(AsyncEvent::DiscoveryChanged));
        self.wake_listener();
    }
}

/// The associations of a server, for queues that join.
#[derive(Default)]
pub(super) struct Associations {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    open: BTreeMap<(Nqn, u16), Arc<Association>>,
    last_discovery_id: u16,
}

impl Associations {
    pub fn enter(&self, association: &Arc<Association>) {
        let key = (association.subsystem.clone(), association.id);
        self.table.lock().open.insert(key, Arc::clone(association));
    }

    pub fn find(&self, subsystem: &Nqn, id: u16) -> Option<Arc<Association>> {
        self.table.lock().open.get(&(subsystem.clone(), id)).cloned()
    }

    /// Every controller of a host hears of a reservation.
    pub fn notify(&self, subsystem: &Nqn, notice: &Notice, namespace: u32) {
        let table = self.table.lock();
        for one in table.open.values() {
            if one.subsystem == *subsystem && one.host.id == notice.host {
                one.with(|controller, _| controller.notify(notice.kind, namespace));
                one.wake_listener();
            }
        }
    }

    /// Hosts that are connected to namespaces.
    pub fn hosts(&self) -> Vec<ConnectedHost> {
        let table = self.table.lock();
        let proven = table.open.values().filter(|one| one.proven.load(Ordering::Acquire));
        let of_namespaces = proven.filter(|one| one.entry.is_some());
        let connected = of_namespaces.map(|one| ConnectedHost {
            host: one.host.nqn.clone(),
            subsystem: one.subsystem.clone(),
            queues: one.io_queues(),
        });
        connected.collect()
    }

    /// A number for a discovery controller. Their queues join nothing, so that it only tells them apart.
    pub fn discovery_id(&self) -> u16 {
        let mut table = self.table.lock();
        table.last_discovery_id = table.last_discovery_id % 0xffee + 1;
        table.last_discovery_id
    }

    /// Ends an association, and forgets it.
    pub fn remove(&self, association: &Association) {
        association.end();
        self.table.lock().open.remove(&(association.subsystem.clone(), association.id));
        if let Some(entry) = &association.entry {
            entry.with(|subsystem| subsystem.disconnect(association.id));
        }
    }
}
