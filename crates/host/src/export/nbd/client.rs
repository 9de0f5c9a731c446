//! A client from its first byte to its last: the handshake, then the transmission phase with the export that it has chosen.

use engine::buffer::Slice;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use super::connection::Connection;
use super::exports::Export;
use super::negotiate::{Advance, Agreed, Catalog, ExportInfo, Negotiation};
use super::protocol;
use super::server_state::{ConnectionGuard, ServerState};
use super::transmission::{Incoming, Link, ReceiveError};
use super::watch::{ConnectionState, Lifecycle, watch};
use crate::shard::ShardContext;

/// Serves one client from its first byte to its last.
pub(super) async fn serve_client(guard: ConnectionGuard, shard: ShardContext, socket: OwnedFd) {
    let (socket, lifecycle) = (Rc::new(socket), Lifecycle::new());
    let (server, connection) = (&guard.server, &guard.connection);
    let watched = (Rc::clone(&socket), Arc::clone(connection), Rc::clone(&lifecycle));
    let limits = server.options.time_limits();
    shard.executor.spawn(watch(shard.ring.clone(), watched.0, watched.1, watched.2, limits));
    match serve_export(server, &shard, socket, connection, &lifecycle).await {
        Ok(()) => tracing::debug!(connection = connection.id, peer = connection.peer, "closed"),
        Err(error) => tracing::debug!(connection = connection.id, peer = connection.peer, %error, "ended"),
    }
    lifecycle.reach(ConnectionState::Closed);
}

async fn serve_export(
    server: &Arc<ServerState>,
    shard: &ShardContext,
    socket: Rc<OwnedFd>,
    connection: &Arc<Connection>,
    lifecycle: &Rc<Lifecycle>,
) -> Result<(), ReceiveError> {
    let mut incoming = Incoming::new(shard.ring.clone(), &shard.pool, Rc::clone(&socket));
    let Some((export, info, agreed)) = shake_hands(server, shard, &socket, &mut incoming).await? else {
        return Ok(());
    };
    tracing::debug!(connection = connection.id, export = info.name, ?agreed, "serving");
    server.attach(connection, Arc::clone(&export));
    lifecycle.reach(ConnectionState::Serving);
    let link = Link {
        shard: shard.clone(),
        socket,
        incoming,
        info,
        agreed,
        connection: Arc::clone(connection),
        lifecycle: Rc::clone(lifecycle),
        limits: server.options.limits,
        memory: Arc::clone(&server.memory),
        memory_limit: server.options.memory_limit,
    };
    export.serve(link).await
}

/// The handshake. `None` means that the client said goodbye.
async fn shake_hands(
    server: &Arc<ServerState>,
    shard: &ShardContext,
    socket: &Rc<OwnedFd>,
    incoming: &mut Incoming,
) -> Result<Option<(Arc<Export>, ExportInfo, Agreed)>, ReceiveError> {
    let catalog = ShardCatalog { server, shard };
    let mut negotiation = Negotiation::default();
    let mut output = protocol::greeting().to_vec();
    loop {
        if !output.is_empty() {
            shard.ring.send_all(socket, Slice::from_bytes(&output).into()).await?;
            output.clear();
        }
        let (taken, advance) = negotiation.advance(&catalog, incoming.bytes(), &mut output)?;
        incoming.consume(taken);
        let chosen = match advance {
            Advance::Answered => continue,
            Advance::More if incoming.receive_more().await? => continue,
            Advance::More => return Err(ReceiveError::LeftEarly),
            Advance::Ended => None,
            Advance::Transmission(export, info, agreed) => Some((export, info, agreed)),
        };
        if !output.is_empty() {
            shard.ring.send_all(socket, Slice::from_bytes(&output).into()).await?;
        }
        return Ok(chosen);
    }
}

/// The exports as a client of this shard sees them.
struct ShardCatalog<'a> {
    server: &'a ServerState,
    shard: &'a ShardContext,
}

impl Catalog for ShardCatalog<'_> {
    type Export = Arc<Export>;

    fn find(&self, name: &str) -> Option<(Arc<Export>, ExportInfo)> {
        let export = self.server.exports.find(name)?;
        let info = export.info(self.shard);
        Some((export, info))
    }

    fn list(&self) -> Vec<(String, String)> {
        let describe = |export: Arc<Export>| (export.name().to_owned(), export.options().description.clone());
        self.server.exports.list().into_iter().map(describe).collect()
    }

    fn stopping(&self) -> bool {
        self.server.is_stopping()
    }
}
