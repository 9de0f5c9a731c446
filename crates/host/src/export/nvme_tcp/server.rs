//! The server: where it listens, and how connections are spread over the shards.

use rustix::net::sockopt;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::net::{self, Shutdown};

use super::association::Associations;
use super::connection::serve;
use super::link::HELD_BYTES_MAX;
use super::subsystems::Subsystems;
use crate::shard::{Handle, ShardContext};

/// Pause after the system refused to accept, so that open connections can finish.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Connections that a server allows on the smallest of machines.
const CONNECTIONS_MIN: usize = 64;

/// Limits of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerOptions {
    /// Time for a connection to become a queue.
    pub handshake_limit: Duration,
    /// Most open connections. A further one is closed.
    pub connections_max: usize,
}

impl Default for ServerOptions {
    /// 10 s, and 4096 connections.
    fn default() -> Self {
        ServerOptions { handshake_limit: Duration::from_secs(10), connections_max: 4096 }
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
    listeners: Mutex<Vec<OwnedFd>>,
}

#[derive(Default)]
struct Open {
    /// Second descriptors, to shut connections down.
    sockets: BTreeMap<u64, OwnedFd>,
    by_shard: Vec<usize>,
    next_id: u64,
}

impl Shared {
    /// The address that a host has connected to.
    pub fn local_address(&self, socket: &OwnedFd) -> SocketAddr {
        let local = net::getsockname(socket).ok().and_then(|address| SocketAddr::try_from(address).ok());
        local.unwrap_or(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0))
    }

    fn enter(&self, socket: &OwnedFd) -> Option<(u64, usize)> {
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

    fn leave(&self, id: u64, shard: usize) {
        let mut open = self.open.lock();
        open.sockets.remove(&id);
        open.by_shard[shard] -= 1;
    }

    fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        for listener in self.listeners.lock().drain(..) {
            let _ = net::shutdown(&listener, Shutdown::Both);
        }
        for socket in self.open.lock().sockets.values() {
            let _ = net::shutdown(socket, Shutdown::Both);
        }
    }
}

/// Keeps a connection in the table until it is dropped, however its task ends.
struct Guard {
    shared: Arc<Shared>,
    id: u64,
    shard: usize,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.shared.leave(self.id, self.shard);
    }
}

/// The NVMe/TCP server of a process. All methods may be called from any thread.
pub struct Server {
    shared: Arc<Shared>,
    shards: Handle,
}

impl Server {
    /// A server of `subsystems` that listens nowhere yet. It stops with its shards, if not before.
    pub fn new(shards: Handle, subsystems: Arc<Subsystems>, options: ServerOptions) -> Self {
        let shared = Arc::new(Shared {
            options,
            subsystems,
            associations: Associations::default(),
            stopping: AtomicBool::new(false),
            open: Mutex::new(Open { by_shard: vec![0; shards.count()], ..Open::default() }),
            listeners: Mutex::default(),
        });
        let stopped = Arc::downgrade(&shared);
        shards.spawn_on(0, async move |context: ShardContext| {
            context.stopping().await;
            if let Some(shared) = stopped.upgrade() {
                shared.stop();
            }
        });
        Server { shared, shards }
    }

    /// Listens at `address` too. Returns the address as it is, with the port that was taken.
    ///
    /// # Errors
    /// What the system says.
    pub fn listen(&self, address: SocketAddr) -> io::Result<SocketAddr> {
        let listener = TcpListener::bind(address)?;
        let bound = listener.local_addr()?;
        let socket = OwnedFd::from(listener);
        let mut listeners = self.shared.listeners.lock();
        listeners.push(socket.try_clone()?);
        let (shared, shards) = (Arc::clone(&self.shared), self.shards.clone());
        let shard = (listeners.len() - 1) % shards.count();
        self.shards.spawn_on(shard, move |context| accept(shared, shards, context, socket));
        tracing::info!(address = %bound, "listening for NVMe/TCP hosts");
        Ok(bound)
    }

    /// Connections that are open.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.open.lock().sockets.len()
    }

    /// Stops listening, and ends every connection. What volumes are doing for them goes on to its end.
    pub fn stop(&self) {
        self.shared.stop();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Accepts until the listener is shut down.
async fn accept(shared: Arc<Shared>, shards: Handle, context: ShardContext, listener: OwnedFd) {
    let listener = Rc::new(listener);
    let is_stopping = || shared.stopping.load(Ordering::SeqCst);
    while !is_stopping() {
        match context.ring.accept(&listener).await {
            Ok(socket) => welcome(&shared, &shards, socket),
            Err(_) if is_stopping() => return,
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                tracing::warn!(%error, "a host cannot be accepted");
                context.ring.sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Sends a new connection to its shard. Answers leave without delay, and a dead host is noticed.
fn welcome(shared: &Arc<Shared>, shards: &Handle, socket: OwnedFd) {
    let _ = sockopt::set_tcp_nodelay(&socket, true);
    let _ = sockopt::set_socket_keepalive(&socket, true);
    let Some((id, shard)) = shared.enter(&socket) else { return };
    let guard = Guard { shared: Arc::clone(shared), id, shard };
    shards.spawn_on(shard, async move |context: ShardContext| {
        serve(Arc::clone(&guard.shared), context, socket).await;
        drop(guard);
    });
}
