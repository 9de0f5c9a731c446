//! What a server knows: its options, its subsystems, its listeners and its open connections.

use parking_lot::{Condvar, Mutex};
use rustix::net::{self, Shutdown};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::association::Associations;
use super::connection_limits::HELD_BYTES_MAX;
use super::subsystems::Subsystems;

/// Connections that a server allows on the smallest of machines.
const CONNECTIONS_MIN: usize = 64;

/// Limits of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerOptions {
    /// Time for a connection to become a queue.
    pub handshake_limit: Duration,
    /// Most open connections. A further one is closed.
    pub connections_max: usize,
    /// A connection without digests of headers and of data becomes no queue.
    pub digests_required: bool,
}

impl Default for ServerOptions {
    /// 10 s, 4096 connections, digests as the host wishes.
    fn default() -> Self {
        ServerOptions {
            handshake_limit: Duration::from_secs(10),
            connections_max: 4096,
            digests_required: false,
        }
    }
}

impl ServerOptions {
    /// With no more connections than may hold `memory_bytes` together, but at least 64.
    #[must_use]
    pub fn within(self, memory_bytes: u64) -> Self {
        let most = usize::try_from(memory_bytes / HELD_BYTES_MAX as u64).unwrap_or(usize::MAX);
        ServerOptions { connections_max: self.connections_max.min(most.max(CONNECTIONS_MIN)), ..self }
    }
}

/// What the connections of a server share.
pub(super) struct Shared {
    pub options: ServerOptions,
    pub subsystems: Arc<Subsystems>,
    pub associations: Associations,
    stopping: AtomicBool,
    open: Mutex<Open>,
    /// Notified when a connection has ended.
    ended: Condvar,
    listeners: Mutex<Vec<Listener>>,
}

struct Listener {
    address: SocketAddr,
    /// A second descriptor, to shut it down.
    socket: OwnedFd,
}

#[derive(Default)]
struct Open {
    /// Second descriptors, to shut connections down.
    sockets: BTreeMap<u64, OwnedFd>,
    by_shard: Vec<usize>,
    next_id: u64,
}

impl Shared {
    pub fn new(options: ServerOptions, subsystems: Arc<Subsystems>, shards: usize) -> Arc<Self> {
        Arc::new(Shared {
            options,
            subsystems,
            associations: Associations::default(),
            stopping: AtomicBool::new(false),
            open: Mutex::new(Open { by_shard: vec![0; shards], ..Open::default() }),
            ended: Condvar::new(),
            listeners: Mutex::default(),
        })
    }

    /// Takes a listener's second descriptor, to shut it down. Returns how many there were.
    pub fn add_listener(&self, address: SocketAddr, socket: OwnedFd) -> usize {
        let mut listeners = self.listeners.lock();
        listeners.push(Listener { address, socket });
        listeners.len() - 1
    }

    /// Where it listens.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.lock().iter().map(|listener| listener.address).collect()
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Connections that are open.
    pub fn connections(&self) -> usize {
        self.open.lock().sockets.len()
    }

    /// The address that a host has connected to.
    pub fn local_address(&self, socket: &OwnedFd) -> SocketAddr {
        let local = net::getsockname(socket).ok().and_then(|address| SocketAddr::try_from(address).ok());
        local.unwrap_or(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0))
    }

    /// Takes a connection into the table, and chooses its shard.
    pub fn enter(&self, socket: &OwnedFd) -> Option<(u64, usize)> {
        let second = socket.try_clone().ok()?;
        let mut open = self.open.lock();
        if self.stopping.load(Ordering::SeqCst) {
            return None;
        }
        if open.sockets.len() >= self.options.connections_max {
            let connections = open.sockets.len();
            tracing::warn!(connections, "a host is turned away: there are as many connections as allowed");
            return None;
        }
        let shard = (0..open.by_shard.len()).min_by_key(|shard| open.by_shard[*shard])?;
        let id = open.next_id;
        open.next_id += 1;
        open.by_shard[shard] += 1;
        open.sockets.insert(id, second);
        Some((id, shard))
    }

    /// A connection is gone.
    pub fn leave(&self, id: u64, shard: usize) {
        let mut open = self.open.lock();
        open.sockets.remove(&id);
        open.by_shard[shard] -= 1;
        drop(open);
        self.ended.notify_all();
    }

    /// Takes no further connection, and asks every open one to end: it takes no further command, answers those that are at
    /// work, and closes.
    pub fn begin_stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        for listener in self.listeners.lock().drain(..) {
            // Ends the accept that waits on it, which closes the other descriptor.
            let _ = net::shutdown(&listener.socket, Shutdown::Both);
        }
        // What gathers for ops would hold the end up until its time is over.
        self.subsystems.end_attaches();
        self.shut_down(Shutdown::Read);
    }

    /// Waits until every connection has ended, or until `end`; then cuts off what is left, and returns how many that were.
    pub fn finish_stop(&self, end: Instant) -> usize {
        let mut open = self.open.lock();
        while !open.sockets.is_empty() {
            if self.ended.wait_until(&mut open, end).timed_out() {
                break;
            }
        }
        let left = open.sockets.len();
        drop(open);
        self.shut_down(Shutdown::Both);
        left
    }

    fn shut_down(&self, how: Shutdown) {
        for socket in self.open.lock().sockets.values() {
            let _ = net::shutdown(socket, how);
        }
    }
}
