//! What a server knows: its options, its exports, its listeners and its open connections, and the orderly end.
//!
//! Invariant: a connection is in the table from before its first byte until after its last, so a stop finds every one. A
//! client that comes later sees that the server, or the export, is stopping.

use super::admission::{self, Held, Peer, Verdict};
use super::connection::{Connection, ConnectionStatus, Counts, Signal, Totals};
use super::exports::{Export, ExportOptions, Exports};
use super::memory::{Memory, SHARE_BYTES};
use super::negotiate::TlsMode;
use super::tls::Tls;
use super::transmission::Limits;
use super::watch::TimeLimits;
use crate::machine::MemoryLimit;
use crate::socket::{SocketAccess, SocketName};
use parking_lot::{Condvar, Mutex};
use rustix::net::{self, Shutdown};
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Connections that a server allows on the smallest of machines.
const CONNECTIONS_MIN: usize = 16;

/// How often the log says that clients are turned away.
const TURNED_AWAY_SAID_EVERY: Duration = Duration::from_secs(10);

/// Limits of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerOptions {
    /// Time for a client to choose an export.
    pub handshake_limit: Duration,
    /// Time for a client to take its last replies after a goodbye or a stop.
    pub finish_limit: Duration,
    /// Time within which more of a payload that has begun must come.
    pub payload_limit: Duration,
    /// Most open connections.
    pub connections_max: usize,
    /// Bytes that requests of all connections may hold together, beside a share of each connection's own.
    pub memory_bytes_max: usize,
    /// Allocations can fail: each request tries first what it may need.
    pub tries_memory: bool,
    /// Time that a request waits for memory that others hold. Then the client gets `ENOMEM`.
    pub memory_limit: Duration,
    /// Requests and bytes that one connection may have in flight.
    pub limits: Limits,
    /// Who may connect to a unix socket.
    pub unix: SocketAccess,
}

impl Default for ServerOptions {
    /// 10 s for the handshake (QEMU's limit), 10 s to finish, 30 s for more of a payload, 1024 connections, each with 512 requests
    /// and 64 MiB (two of the longest requests), 10 s for memory (well below the 30 s of most clients), sockets for their owner
    /// only.
    fn default() -> Self {
        ServerOptions {
            handshake_limit: Duration::from_secs(10),
            finish_limit: Duration::from_secs(10),
            payload_limit: Duration::from_secs(30),
            connections_max: 1024,
            memory_bytes_max: usize::MAX,
            tries_memory: false,
            memory_limit: Duration::from_secs(10),
            limits: Limits { requests_max: 512, bytes_max: 64 << 20 },
            unix: SocketAccess::OWNER,
        }
    }
}

impl ServerOptions {
    /// With requests that hold no more than a quarter of this memory together, and no more connections than have shares in an
    /// eighth of it, but at least 16.
    #[must_use]
    pub fn within(self, memory: MemoryLimit) -> Self {
        let bytes = usize::try_from(memory.bytes).unwrap_or(usize::MAX);
        let most = bytes / 8 / SHARE_BYTES;
        ServerOptions {
            connections_max: self.connections_max.min(most.max(CONNECTIONS_MIN)),
            memory_bytes_max: self.memory_bytes_max.min(bytes / 4),
            tries_memory: memory.refuses_allocations(),
            ..self
        }
    }

    /// The memory that these options grant, for one server or for several together.
    #[must_use]
    pub fn memory(&self) -> Arc<Memory> {
        Arc::new(Memory::new(self.memory_bytes_max, self.tries_memory))
    }

    pub(super) fn time_limits(&self) -> TimeLimits {
        TimeLimits { handshake: self.handshake_limit, finish: self.finish_limit, payload: self.payload_limit }
    }
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Address {
    /// A unix socket. A dead one at this path is replaced, a live one is not.
    Unix(PathBuf),
    /// TCP; port 0 takes a free one.
    Tcp(SocketAddr),
}

impl Address {
    /// As an NBD URI, without an export's name; of a server that requires TLS, `encrypted`.
    pub fn uri(&self, encrypted: bool) -> String {
        let scheme = if encrypted { "nbds" } else { "nbd" };
        match self {
            Address::Unix(path) => format!("{scheme}+unix:///?socket={}", path.display()),
            Address::Tcp(address) => format!("{scheme}://{address}"),
        }
    }
}

impl std::fmt::Display for Address {
    /// As an NBD URI, without an export's name.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.uri(false))
    }
}

/// An export for a status report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExportStatus {
    /// Canonical name.
    pub name: String,
    /// How it differs from its volume.
    #[serde(flatten)]
    pub options: ExportOptions,
    /// Open connections.
    pub connections: usize,
    /// Connections ever.
    pub connections_total: u64,
    /// What was served, to connections open and gone.
    #[serde(flatten)]
    pub totals: Totals,
}

/// What became of the connections of a removed export, or of a stopped server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// There is no such export.
    Unknown,
    /// No connection is left.
    Done,
    /// Some are still finishing; they take no new requests.
    Finishing {
        /// How many.
        connections: usize,
    },
}

/// A socket that clients connect to.
pub(super) struct Listener {
    pub address: Address,
    /// Of a unix socket.
    pub name: Option<SocketName>,
    /// A second descriptor of the socket, to shut it down.
    pub socket: OwnedFd,
}

/// The state of a server, as its listeners, connections and owner share it.
pub(super) struct ServerState {
    pub options: ServerOptions,
    /// With what clients may encrypt.
    pub tls: Option<Arc<Tls>>,
    pub exports: Exports,
    /// What the requests of all connections hold.
    pub memory: Arc<Memory>,
    stopping: AtomicBool,
    pub listeners: Mutex<Vec<Listener>>,
    open: Mutex<Open>,
    /// Notified when a connection has ended.
    ended: Condvar,
}

/// Open connections.
#[derive(Default)]
struct Open {
    connections: BTreeMap<u64, OpenConnection>,
    by_shard: Vec<usize>,
    next_id: u64,
    turned_away: TurnedAway,
}

/// Clients that got no connection. The log has a line in a while, not one for each.
#[derive(Default)]
struct TurnedAway {
    since_said: u64,
    said: Option<Instant>,
}

struct OpenConnection {
    connection: Arc<Connection>,
    peer: Peer,
    /// The export that the client has chosen.
    export: Option<Arc<Export>>,
    /// It makes room for another, and ends soon.
    makes_room: bool,
}

impl Open {
    fn admit(&self, most: usize, peer: Peer) -> Verdict {
        let staying = self.connections.iter().filter(|(_, open)| !open.makes_room);
        let held =
            staying.map(|(id, open)| Held { id: *id, peer: open.peer, in_handshake: open.export.is_none() });
        admission::decide(most, &held, peer)
    }

    fn make_room(&mut self, oldest: u64) {
        let Some(open) = self.connections.get_mut(&oldest) else { return };
        open.makes_room = true;
        let Connection { peer, stop, .. } = &*open.connection;
        tracing::info!(peer, "a connection that has chosen no export makes room for a new one");
        stop.raise();
    }
}

impl TurnedAway {
    fn say(&mut self, peer: &str, connections: usize) {
        self.since_said += 1;
        if self.said.is_some_and(|said| said.elapsed() < TURNED_AWAY_SAID_EVERY) {
            return;
        }
        let clients = std::mem::take(&mut self.since_said);
        self.said = Some(Instant::now());
        tracing::warn!(
            peer,
            connections,
            clients,
            "a client is turned away: it, or all clients together, have as many connections as the server allows"
        );
    }
}

impl OpenConnection {
    fn uses(&self, export: &Arc<Export>) -> bool {
        self.export.as_ref().is_some_and(|used| Arc::ptr_eq(used, export))
    }
}

/// Keeps a connection in the table until it is dropped. However the connection's task ends, a stop does not wait for it
/// any longer.
pub(super) struct ConnectionGuard {
    pub server: Arc<ServerState>,
    pub connection: Arc<Connection>,
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.server.forget(&self.connection);
    }
}

impl ServerState {
    /// A server without exports and listeners.
    pub fn new(options: ServerOptions, memory: Arc<Memory>, tls: Option<Arc<Tls>>, shards: usize) -> Self {
        ServerState {
            options,
            tls,
            exports: Exports::default(),
            memory,
            stopping: AtomicBool::new(false),
            listeners: Mutex::default(),
            open: Mutex::new(Open { by_shard: vec![0; shards], ..Open::default() }),
            ended: Condvar::new(),
        }
    }

    pub fn tls_mode(&self) -> TlsMode {
        self.tls.as_ref().map_or(TlsMode::Off, |tls| tls.mode())
    }

    /// Stops listening and asks every connection to stop.
    pub fn begin_stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        for listener in self.listeners.lock().drain(..) {
            drop(listener.name);
            // Ends the accept that waits on it, which closes the other descriptor.
            let _ = net::shutdown(&listener.socket, Shutdown::Both);
        }
        self.open.lock().connections.values().for_each(|open| open.connection.stop.raise());
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Takes a new connection into the table and chooses its shard, if the client may have one.
    pub fn enter(self: &Arc<Self>, name: String, peer: Peer) -> Option<ConnectionGuard> {
        let mut open = self.open.lock();
        if self.is_stopping() {
            return None;
        }
        match open.admit(self.options.connections_max, peer) {
            Verdict::Welcome => {}
            Verdict::InsteadOf(oldest) => open.make_room(oldest),
            Verdict::TurnedAway => {
                let connections = open.connections.len();
                open.turned_away.say(&name, connections);
                return None;
            }
        }
        let fewest = open.by_shard.iter().enumerate().min_by_key(|(_, connections)| **connections);
        let shard = fewest.map(|(shard, _)| shard).expect("a process has shards");
        let id = open.next_id;
        let connection = Arc::new(Connection {
            id,
            peer: name,
            shard,
            opened: Instant::now(),
            encrypted: AtomicBool::new(false),
            counts: Counts::default(),
            stop: Signal::default(),
        });
        open.next_id += 1;
        open.by_shard[shard] += 1;
        let entry =
            OpenConnection { connection: Arc::clone(&connection), peer, export: None, makes_room: false };
        open.connections.insert(id, entry);
        Some(ConnectionGuard { server: Arc::clone(self), connection })
    }

    /// Notes what a connection has chosen. If the export is removed already, the connection is asked to stop.
    pub fn attach(&self, connection: &Connection, export: Arc<Export>) {
        let mut open = self.open.lock();
        if export.is_removed() {
            connection.stop.raise();
        }
        let entry = open.connections.get_mut(&connection.id).expect("its guard keeps it in the table");
        assert!(entry.export.replace(export).is_none(), "a client chooses once");
    }

    /// Takes a connection out of the table.
    fn forget(&self, connection: &Connection) {
        let mut open = self.open.lock();
        let entry = open.connections.remove(&connection.id).expect("a connection leaves once");
        open.by_shard[connection.shard] -= 1;
        if let Some(export) = entry.export {
            let mut ended = export.ended.lock();
            ended.connections += 1;
            ended.totals += connection.counts.totals();
        }
        self.ended.notify_all();
    }

    /// Asks the connections of an export to stop, and waits at most for `limit` until they have ended.
    pub fn stop_export(&self, export: &Arc<Export>, limit: Duration) -> Removal {
        self.stop_and_wait(|open| open.uses(export), limit)
    }

    /// Asks all connections to stop, and waits at most for `limit` until they have ended.
    pub fn stop_all(&self, limit: Duration) -> Removal {
        self.begin_stop();
        self.stop_and_wait(|_| true, limit)
    }

    fn stop_and_wait(&self, concerned: impl Fn(&OpenConnection) -> bool, limit: Duration) -> Removal {
        let end = Instant::now() + limit;
        let mut open = self.open.lock();
        loop {
            let concerned = open.connections.values().filter(|open| concerned(open));
            let connections = concerned.inspect(|open| open.connection.stop.raise()).count();
            if connections == 0 {
                return Removal::Done;
            }
            if self.ended.wait_until(&mut open, end).timed_out() {
                return Removal::Finishing { connections };
            }
        }
    }

    /// The exports and the connections for a status report.
    pub fn status(&self) -> (Vec<ExportStatus>, Vec<ConnectionStatus>) {
        let open = self.open.lock();
        let describe = |export: Arc<Export>| {
            let ended = *export.ended.lock();
            let (mut totals, mut connections) = (ended.totals, 0);
            for open in open.connections.values().filter(|open| open.uses(&export)) {
                totals += open.connection.counts.totals();
                connections += 1;
            }
            ExportStatus {
                name: export.name().to_owned(),
                options: export.options().clone(),
                connections,
                connections_total: ended.connections + connections as u64,
                totals,
            }
        };
        let exports = self.exports.list().into_iter().map(describe).collect();
        let name = |open: &OpenConnection| open.connection.status(open.export.as_deref().map(Export::name));
        (exports, open.connections.values().map(name).collect())
    }
}
