//! The server: where clients knock, how they are spread over the shards, what is known of them, and the orderly end.
//!
//! - A connection lives on one shard, the one with the fewest at the time; nothing of it is shared but its counts.
//! - Every connection is in the table from before its first byte until after its last, so a stop finds them all:
//!   who enters later sees that the server, or the export, is stopping.

use super::connection::{Connection, ConnectionStatus, Counts, Signal, Totals};
use super::exports::{Export, ExportOptions, Exports};
use super::reply::Limits;
use super::serve_client;
use crate::shard::{Handle, ShardContext};
use crate::socket::{self, SocketName};
use parking_lot::{Condvar, Mutex};
use rustix::net::{self, Shutdown, sockopt};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Clients that may wait to be accepted.
const BACKLOG: i32 = 128;

/// Send buffer of a unix socket, if the system allows as much (`net.core.wmem_max`).
const UNIX_SEND_BUFFER_BYTES: usize = 256 << 10;

/// Connections that a server allows on the smallest of machines.
const CONNECTIONS_MIN: usize = 16;

/// Pause after the system refused to accept (no descriptors, no memory): it helps others to finish.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Limits of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerOptions {
    /// Time for a client to choose an export.
    pub handshake_limit: Duration,
    /// Time for a client to take its last replies after a goodbye or a stop.
    pub finish_limit: Duration,
    /// Connections at once; further ones are closed at once.
    pub connections_max: usize,
    /// Requests and bytes that one connection may have in flight.
    pub limits: Limits,
    /// Permission bits of a unix socket.
    pub unix_mode: u32,
}

impl Default for ServerOptions {
    /// 10 s for the handshake (QEMU's limit), 10 s to finish, 1024 connections, each with 512 requests and 64 MiB
    /// (two of the longest requests), sockets for their owner only.
    fn default() -> Self {
        ServerOptions {
            handshake_limit: Duration::from_secs(10),
            finish_limit: Duration::from_secs(10),
            connections_max: 1024,
            limits: Limits { requests_max: 512, bytes_max: 64 << 20 },
            unix_mode: 0o600,
        }
    }
}

impl ServerOptions {
    /// With no more connections than may hold so much memory together, but at least 16.
    #[must_use]
    pub fn within(self, memory_bytes: u64) -> Self {
        let most = usize::try_from(memory_bytes / self.limits.bytes_max as u64).unwrap_or(usize::MAX);
        ServerOptions { connections_max: self.connections_max.min(most.max(CONNECTIONS_MIN)), ..self }
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

impl std::fmt::Display for Address {
    /// As an NBD URI, without an export's name.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "nbd+unix:///?socket={}", path.display()),
            Address::Tcp(address) => write!(f, "nbd://{address}"),
        }
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

/// A server for a status report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ServerStatus {
    /// Where it listens, as URIs.
    pub addresses: Vec<String>,
    /// By name.
    pub exports: Vec<ExportStatus>,
    /// In the order in which they came.
    pub connections: Vec<ConnectionStatus>,
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

/// The NBD server of a process. All methods may be called from any thread; those that wait are not for a shard.
pub struct Server {
    shared: Arc<Shared>,
    shards: Handle,
}

struct Listener {
    address: Address,
    /// Of a unix socket.
    name: Option<SocketName>,
    /// A second descriptor of the socket, to shut it down.
    socket: OwnedFd,
}

impl Server {
    /// A server without exports that listens nowhere yet. It stops with its shards, if not before.
    pub fn new(shards: Handle, options: ServerOptions) -> Self {
        let open = Open { by_shard: vec![0; shards.count()], ..Open::default() };
        let shared = Arc::new(Shared {
            options,
            exports: Exports::default(),
            stopping: AtomicBool::new(false),
            listeners: Mutex::default(),
            open: Mutex::new(open),
            left: Condvar::new(),
        });
        for shard in 0..shards.count() {
            let server = Arc::downgrade(&shared);
            shards.spawn_on(shard, async move |context: ShardContext| {
                context.stopping().await;
                if let Some(shared) = server.upgrade() {
                    shared.begin_stop();
                }
            });
        }
        Server { shared, shards }
    }

    /// What clients may choose from.
    pub fn exports(&self) -> &Exports {
        &self.shared.exports
    }

    /// Listens at `address` too. Returns the address as it is, with the port that was taken.
    pub fn listen(&self, address: &Address) -> io::Result<Address> {
        let (name, socket, bound) = match address {
            Address::Unix(path) => {
                let (name, socket) = socket::listen(path, self.shared.options.unix_mode, BACKLOG)?;
                (Some(name), socket, address.clone())
            }
            Address::Tcp(wanted) => {
                let listener = TcpListener::bind(wanted)?;
                let bound = Address::Tcp(listener.local_addr()?);
                (None, OwnedFd::from(listener), bound)
            }
        };
        let second = socket.try_clone()?;
        let mut listeners = self.shared.listeners.lock();
        let (shared, shards) = (Arc::clone(&self.shared), self.shards.clone());
        let shard = listeners.len() % shards.count();
        self.shards.spawn_on(shard, move |context| accept_clients(shared, shards, context, socket));
        tracing::info!(address = %bound, "listening for NBD clients");
        listeners.push(Listener { address: bound.clone(), name, socket: second });
        Ok(bound)
    }

    /// Takes an export out: no new client finds it, those that use it finish what is in flight and are closed.
    /// Waits for that at most for `limit`.
    pub fn remove_export(&self, name: &str, limit: Duration) -> Removal {
        let Some(export) = self.shared.exports.remove(name) else { return Removal::Unknown };
        let uses =
            |connection: &Connection| connection.export.get().is_some_and(|used| Arc::ptr_eq(used, &export));
        self.shared.stop_and_wait(uses, limit)
    }

    /// Stops listening, finishes what is in flight, answers later requests with `ESHUTDOWN`, and closes every
    /// connection. Waits for that at most for `limit`; a second call waits again.
    pub fn stop(&self, limit: Duration) -> Removal {
        self.shared.begin_stop();
        self.shared.stop_and_wait(|_| true, limit)
    }

    /// What is served, where, and to whom.
    pub fn status(&self) -> ServerStatus {
        let addresses =
            self.shared.listeners.lock().iter().map(|listener| listener.address.to_string()).collect();
        let (exports, connections) = self.shared.status();
        ServerStatus { addresses, exports, connections }
    }
}

impl Drop for Server {
    /// Stops without waiting.
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
    }
}

/// Accepts until the listener is shut down.
async fn accept_clients(shared: Arc<Shared>, shards: Handle, shard: ShardContext, listener: OwnedFd) {
    let listener = Rc::new(listener);
    while !shared.is_stopping() {
        match shard.ring.accept(&listener).await {
            Ok(socket) => welcome(&shared, &shards, socket),
            Err(_) if shared.is_stopping() => return,
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                tracing::warn!(%error, "a client cannot be accepted");
                shard.ring.sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Sends a new connection to its shard.
fn welcome(shared: &Arc<Shared>, shards: &Handle, socket: OwnedFd) {
    let Some(seat) = shared.enter(describe_peer(&socket)) else { return };
    let shard = seat.connection.shard;
    shards.spawn_on(shard, move |context| serve_client(seat, context, socket));
}

/// Names the client, and sets what its kind of socket needs. TCP: replies leave at once, a dead peer is noticed.
/// Unix: room for several replies, since a sender is woken only when three quarters of it are free.
fn describe_peer(socket: &impl AsFd) -> String {
    let address = net::getpeername(socket).ok().flatten().and_then(|peer| SocketAddr::try_from(peer).ok());
    if let Some(address) = address {
        let _ = sockopt::set_tcp_nodelay(socket, true);
        let _ = sockopt::set_socket_keepalive(socket, true);
        return address.to_string();
    }
    let _ = sockopt::set_socket_send_buffer_size(socket, UNIX_SEND_BUFFER_BYTES);
    match sockopt::socket_peercred(socket) {
        Ok(peer) => format!("process {} of user {}", peer.pid, peer.uid.as_raw()),
        Err(_) => "unknown".to_owned(),
    }
}

/// What listeners, connections and the server's owner share.
pub(super) struct Shared {
    pub options: ServerOptions,
    pub exports: Exports,
    stopping: AtomicBool,
    listeners: Mutex<Vec<Listener>>,
    open: Mutex<Open>,
    /// Told when a connection has left.
    left: Condvar,
}

/// Open connections.
#[derive(Default)]
struct Open {
    connections: BTreeMap<u64, Arc<Connection>>,
    by_shard: Vec<usize>,
    next_id: u64,
}

/// A connection's place in the table, given up when it is dropped: whatever becomes of its task, nobody waits for it
/// in vain.
pub(super) struct Seat {
    pub shared: Arc<Shared>,
    pub connection: Arc<Connection>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.shared.forget(&self.connection);
    }
}

impl Shared {
    /// Stops listening and asks every connection to stop.
    fn begin_stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        for listener in self.listeners.lock().drain(..) {
            drop(listener.name);
            // Ends the accept that waits on it, which closes the other descriptor.
            let _ = net::shutdown(&listener.socket, Shutdown::Both);
        }
        self.open.lock().connections.values().for_each(|connection| connection.stop.raise());
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Takes a new connection into the table and chooses its shard.
    fn enter(self: &Arc<Self>, peer: String) -> Option<Seat> {
        let mut open = self.open.lock();
        if self.is_stopping() {
            return None;
        }
        if open.connections.len() >= self.options.connections_max {
            tracing::warn!(
                peer,
                connections = open.connections.len(),
                "too many connections: one is turned away"
            );
            return None;
        }
        let fewest = open.by_shard.iter().enumerate().min_by_key(|(_, connections)| **connections);
        let shard = fewest.map(|(shard, _)| shard).expect("a process has shards");
        let id = open.next_id;
        let connection = Arc::new(Connection {
            id,
            peer,
            shard,
            opened: Instant::now(),
            export: OnceLock::new(),
            counts: Counts::default(),
            stop: Signal::default(),
        });
        open.next_id += 1;
        open.by_shard[shard] += 1;
        open.connections.insert(id, Arc::clone(&connection));
        Some(Seat { shared: Arc::clone(self), connection })
    }

    /// Notes what a connection has chosen. If that is going away, so is the connection.
    pub fn attach(&self, connection: &Connection, export: Arc<Export>) {
        let _open = self.open.lock();
        let removed = export.is_removed();
        connection.export.set(export).ok().expect("a client chooses once");
        if removed {
            connection.stop.raise();
        }
    }

    /// Takes a connection out of the table.
    fn forget(&self, connection: &Connection) {
        let mut open = self.open.lock();
        open.connections.remove(&connection.id).expect("a connection leaves once");
        open.by_shard[connection.shard] -= 1;
        if let Some(export) = connection.export.get() {
            let mut closed = export.closed.lock();
            closed.connections += 1;
            closed.totals += connection.counts.totals();
        }
        self.left.notify_all();
    }

    /// Asks connections to stop and waits until they have left.
    fn stop_and_wait(&self, concerned: impl Fn(&Connection) -> bool, limit: Duration) -> Removal {
        let end = Instant::now() + limit;
        let mut open = self.open.lock();
        loop {
            let concerned = open.connections.values().filter(|connection| concerned(connection));
            let connections = concerned.inspect(|connection| connection.stop.raise()).count();
            if connections == 0 {
                return Removal::Done;
            }
            if self.left.wait_until(&mut open, end).timed_out() {
                return Removal::Finishing { connections };
            }
        }
    }

    fn status(&self) -> (Vec<ExportStatus>, Vec<ConnectionStatus>) {
        let open = self.open.lock();
        let describe = |export: Arc<Export>| {
            let closed = *export.closed.lock();
            let uses = |connection: &&Arc<Connection>| {
                connection.export.get().is_some_and(|used| Arc::ptr_eq(used, &export))
            };
            let (mut totals, mut connections) = (closed.totals, 0);
            for connection in open.connections.values().filter(uses) {
                totals += connection.counts.totals();
                connections += 1;
            }
            ExportStatus {
                name: export.name().to_owned(),
                options: export.options().clone(),
                connections,
                connections_total: closed.connections + connections as u64,
                totals,
            }
        };
        let exports = self.exports.list().into_iter().map(describe).collect();
        (exports, open.connections.values().map(|connection| connection.status()).collect())
    }
}
