//! The server: where it listens, and how its clients are spread over the shards.
//!
//! A connection lives on one shard, the one with the fewest connections at the time. Other threads see its counts, and
//! nothing else of it.

use super::admission::Peer;
use super::client::serve_client;
use super::connection::ConnectionStatus;
use super::exports::Exports;
use super::memory::Memory;
use super::negotiate::TlsMode;
use super::server_state::{Address, ExportStatus, Listener, Removal, ServerOptions, ServerState};
use super::tls::Tls;
use crate::shard::{Handle, ShardContext};
use crate::socket;
use rustix::net::{self, sockopt};
use serde::Serialize;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Clients that may wait to be accepted.
const BACKLOG: i32 = 128;

/// Send buffer of a unix socket, if the system allows as much (`net.core.wmem_max`).
const UNIX_SEND_BUFFER_BYTES: usize = 256 << 10;

/// An idle TCP client is asked after this time whether it is there, then every [`KEEP_ALIVE_EVERY`]; after
/// [`KEEP_ALIVE_PROBES`] without an answer its connection ends. The system's own 2 hours would keep those of dead hosts.
const KEEP_ALIVE_AFTER: Duration = Duration::from_secs(60);
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(10);
const KEEP_ALIVE_PROBES: u32 = 6;

/// Pause after the system refused to accept (no descriptors, no memory), so that open connections can finish.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

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

/// An NBD server. All methods may be called from any thread; those that wait are not for a shard.
pub struct Server {
    state: Arc<ServerState>,
    shards: Handle,
}

impl Server {
    /// A server without exports that listens nowhere yet. It stops with its shards, if not before.
    pub fn new(shards: Handle, options: ServerOptions) -> Self {
        Server::sharing(shards, options, options.memory(), None)
    }

    /// The same with requests whose memory counts together with that of other servers, and for clients that may or must encrypt.
    pub fn sharing(
        shards: Handle,
        options: ServerOptions,
        memory: Arc<Memory>,
        tls: Option<Arc<Tls>>,
    ) -> Self {
        let state = Arc::new(ServerState::new(options, memory, tls, shards.count()));
        for shard in 0..shards.count() {
            let server = Arc::downgrade(&state);
            let end = async move |context: ShardContext| context.at_stop(server, ServerState::begin_stop);
            shards.spawn_on(shard, end);
        }
        Server { state, shards }
    }

    /// What clients may choose from.
    pub fn exports(&self) -> &Exports {
        &self.state.exports
    }

    /// Listens at `address` too. Returns the address as it is, with the port that was taken.
    pub fn listen(&self, address: &Address) -> io::Result<Address> {
        let (name, socket, bound) = match address {
            Address::Unix(path) => {
                let (name, socket) = socket::listen(path, self.state.options.unix, BACKLOG)?;
                (Some(name), socket, address.clone())
            }
            Address::Tcp(wanted) => {
                let listener = socket::listen_tcp(*wanted)?;
                let bound = Address::Tcp(listener.local_addr()?);
                (None, OwnedFd::from(listener), bound)
            }
        };
        let second = socket.try_clone()?;
        let mut listeners = self.state.listeners.lock();
        let (state, shards) = (Arc::clone(&self.state), self.shards.clone());
        let shard = listeners.len() % shards.count();
        self.shards.spawn_on(shard, move |context| accept_clients(state, shards, context, socket));
        tracing::info!(address = %bound, "listening for NBD clients");
        listeners.push(Listener { address: bound.clone(), name, socket: second });
        Ok(bound)
    }

    /// Takes an export out: no new client finds it, those that use it finish what is in flight and are closed.
    /// Waits for that at most for `limit`.
    pub fn remove_export(&self, name: &str, limit: Duration) -> Removal {
        let Some(export) = self.state.exports.remove(name) else { return Removal::Unknown };
        self.state.stop_export(&export, limit)
    }

    /// Stops listening, finishes what is in flight, answers later requests with `ESHUTDOWN`, and closes every
    /// connection. Waits for that at most for `limit`; a second call waits again.
    pub fn stop(&self, limit: Duration) -> Removal {
        self.state.stop_all(limit)
    }

    /// What is served, where, and to whom.
    pub fn status(&self) -> ServerStatus {
        let encrypted = self.state.tls_mode() == TlsMode::Require;
        let listeners = self.state.listeners.lock();
        let addresses = listeners.iter().map(|listener| listener.address.uri(encrypted)).collect();
        drop(listeners);
        let (exports, connections) = self.state.status();
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
async fn accept_clients(state: Arc<ServerState>, shards: Handle, shard: ShardContext, listener: OwnedFd) {
    let listener = Rc::new(listener);
    while !state.is_stopping() {
        match shard.ring.accept(&listener).await {
            Ok(socket) => welcome(&state, &shards, socket),
            Err(_) if state.is_stopping() => return,
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                tracing::warn!(%error, "a client cannot be accepted");
                shard.ring.sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Sends a new connection to its shard.
fn welcome(state: &Arc<ServerState>, shards: &Handle, socket: OwnedFd) {
    let (name, peer) = describe_peer(&socket);
    let Some(guard) = state.enter(name, peer) else { return };
    let shard = guard.connection.shard;
    shards.spawn_on(shard, move |context| serve_client(guard, context, socket));
}

/// Names the client, and sets what its kind of socket needs. TCP: replies leave without delay, a dead peer is noticed. Unix:
/// room for several replies, since a sender is woken only when three quarters of the buffer are free.
fn describe_peer(socket: &impl AsFd) -> (String, Peer) {
    let address = net::getpeername(socket).ok().flatten().and_then(|peer| SocketAddr::try_from(peer).ok());
    if let Some(address) = address {
        let _ = sockopt::set_tcp_nodelay(socket, true);
        let _ = sockopt::set_socket_keepalive(socket, true);
        let _ = sockopt::set_tcp_keepidle(socket, KEEP_ALIVE_AFTER);
        let _ = sockopt::set_tcp_keepintvl(socket, KEEP_ALIVE_EVERY);
        let _ = sockopt::set_tcp_keepcnt(socket, KEEP_ALIVE_PROBES);
        return (address.to_string(), Peer::host(address.ip()));
    }
    let _ = sockopt::set_socket_send_buffer_size(socket, UNIX_SEND_BUFFER_BYTES);
    match sockopt::socket_peercred(socket) {
        Ok(peer) => {
            let process = peer.pid.as_raw_nonzero().get();
            (format!("process {process} of user {}", peer.uid.as_raw()), Peer::Process(process))
        }
        Err(_) => ("unknown".to_owned(), Peer::Unknown),
    }
}
