//! The server: where it listens, and how connections are spread over the shards.

use rustix::net::sockopt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::association::ConnectedHost;
use super::connection::serve;
use super::server_state::{ServerOptions, Shared};
use super::subsystems::Subsystems;
use crate::shard::{Handle, ShardContext};
use crate::socket::listen_tcp;

/// Pause after the system refused to accept, so that open connections can finish.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Between two looks at whether commands of connections that are gone have ended.
const LOOK: Duration = Duration::from_millis(1);

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

/// A server at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerStatus {
    /// Where it listens.
    pub addresses: Vec<SocketAddr>,
    /// Every controller of a subsystem with namespaces.
    pub hosts: Vec<ConnectedHost>,
}

/// A server of subsystems to NVMe/TCP hosts. All methods may be called from any thread.
pub struct Server {
    shared: Arc<Shared>,
    shards: Handle,
}

impl Server {
    /// A server of `subsystems` that listens nowhere yet. It stops with its shards, if not before.
    pub fn new(shards: Handle, subsystems: Arc<Subsystems>, options: ServerOptions) -> Self {
        let shared = Shared::new(options, subsystems, shards.count());
        let stopped = Arc::downgrade(&shared);
        shards.spawn_on(0, async move |context: ShardContext| context.at_stop(stopped, Shared::begin_stop));
        Server { shared, shards }
    }

    /// Listens at `address` too. Returns the address as it is, with the port that was taken.
    ///
    /// # Errors
    /// What the system says.
    pub fn listen(&self, address: SocketAddr) -> io::Result<SocketAddr> {
        let listener = listen_tcp(address)?;
        let bound = listener.local_addr()?;
        let socket = OwnedFd::from(listener);
        let before = self.shared.add_listener(bound, socket.try_clone()?);
        let (shared, shards) = (Arc::clone(&self.shared), self.shards.clone());
        let shard = before % shards.count();
        self.shards.spawn_on(shard, move |context| accept(shared, shards, context, socket));
        tracing::info!(address = %bound, "listening for NVMe/TCP hosts");
        Ok(bound)
    }

    /// Connections that are open.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.connections()
    }

    /// Where it listens, and which hosts are connected.
    #[must_use]
    pub fn status(&self) -> ServerStatus {
        ServerStatus { addresses: self.shared.addresses(), hosts: self.shared.associations.hosts() }
    }

    /// Stops listening, and ends every connection after it has answered what is at work. Waits for that at most for `limit`,
    /// then cuts off what is left; returns how many connections that were. Hosts get no answer to what came later, so that
    /// they send it again when the namespaces are back. Waits, so it is not for a shard.
    pub fn stop(&self, limit: Duration) -> usize {
        let end = Instant::now() + limit;
        self.shared.begin_stop();
        let left = self.shared.finish_stop(end);
        while !self.shared.subsystems.is_idle() && Instant::now() < end {
            std::thread::sleep(LOOK);
        }
        left
    }
}

impl Drop for Server {
    /// Stops without waiting.
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
    }
}

/// Accepts until the listener is shut down.
async fn accept(shared: Arc<Shared>, shards: Handle, context: ShardContext, listener: OwnedFd) {
    let listener = Rc::new(listener);
    let is_stopping = || shared.is_stopping();
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
