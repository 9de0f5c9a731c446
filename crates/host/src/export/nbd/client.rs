//! A client from its first byte to its last: the handshake, in the middle of which it may begin to encrypt, then the transmission
//! phase with the export that it has chosen.

use engine::buffer::Slice;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::connection::Connection;
use super::exports::{AnyLink, Export};
use super::negotiate::{Advance, Agreed, Catalog, ExportInfo, Negotiation};
use super::protocol;
use super::server_state::{ConnectionGuard, ServerState};
use super::tls::TlsWire;
use super::transmission::{Incoming, Link, ReceiveError};
use super::watch::{ConnectionState, Lifecycle, watch};
use crate::shard::ShardContext;
use crate::wire::{PlainWire, Wire};

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
    let client = Client { server, shard, connection, lifecycle };
    let mut negotiation = Negotiation::new(server.tls_mode());
    let wire = PlainWire { ring: shard.ring.clone(), socket };
    let mut incoming = Incoming::new(wire.clone(), &shard.pool);
    let greeting = protocol::greeting();
    match client.shake_hands(&wire, &mut negotiation, &mut incoming, &greeting).await? {
        Chosen::Nothing => Ok(()),
        Chosen::Export(export, info, agreed) => client.serve(wire, incoming, export, info, agreed).await,
        Chosen::Tls => {
            let tls = server.tls.as_ref().expect("STARTTLS is refused without");
            let wire = tls.accept(wire, &shard.pool, incoming.bytes()).await?;
            drop(incoming);
            tracing::debug!(connection = connection.id, "encrypted: {}", wire.describe());
            connection.encrypted.store(true, Ordering::Relaxed);
            client.serve_encrypted(wire, negotiation).await
        }
    }
}

/// What a client came to choose.
enum Chosen {
    /// It said goodbye.
    Nothing,
    /// To encrypt. What was received and not consumed is of the handshake of TLS.
    Tls,
    Export(Arc<Export>, ExportInfo, Agreed),
}

/// A client, and where it is served.
struct Client<'a> {
    server: &'a Arc<ServerState>,
    shard: &'a ShardContext,
    connection: &'a Arc<Connection>,
    lifecycle: &'a Rc<Lifecycle>,
}

impl Client<'_> {
    async fn serve_encrypted(&self, wire: TlsWire, mut negotiation: Negotiation) -> Result<(), ReceiveError> {
        let mut incoming = Incoming::new(wire.clone(), &self.shard.pool);
        match self.shake_hands(&wire, &mut negotiation, &mut incoming, &[]).await {
            Ok(Chosen::Export(export, info, agreed)) => {
                self.serve(wire, incoming, export, info, agreed).await
            }
            Ok(Chosen::Tls) => unreachable!("a connection is encrypted once"),
            other => {
                wire.finish().await;
                other.map(|_| ())
            }
        }
    }

    /// The handshake of NBD, until the client has chosen. It begins with `greeting`.
    async fn shake_hands<W: Wire>(
        &self,
        wire: &W,
        negotiation: &mut Negotiation,
        incoming: &mut Incoming<W>,
        greeting: &[u8],
    ) -> Result<Chosen, ReceiveError> {
        let catalog = ShardCatalog { server: self.server, shard: self.shard };
        let mut output = greeting.to_vec();
        loop {
            if !output.is_empty() {
                wire.send_all(Slice::from_bytes(&output).into()).await?;
                output.clear();
            }
            let (taken, advance) = negotiation.advance(&catalog, incoming.bytes(), &mut output)?;
            incoming.consume(taken);
            let chosen = match advance {
                Advance::Answered => continue,
                Advance::More if incoming.receive_more().await? => continue,
                Advance::More => return Err(ReceiveError::LeftEarly),
                Advance::Ended => Chosen::Nothing,
                Advance::StartTls => Chosen::Tls,
                Advance::Transmission(export, info, agreed) => Chosen::Export(export, info, agreed),
            };
            if !output.is_empty() {
                wire.send_all(Slice::from_bytes(&output).into()).await?;
            }
            return Ok(chosen);
        }
    }

    async fn serve<W: Wire>(
        &self,
        wire: W,
        incoming: Incoming<W>,
        export: Arc<Export>,
        info: ExportInfo,
        agreed: Agreed,
    ) -> Result<(), ReceiveError>
    where
        AnyLink: From<Link<W>>,
    {
        let Client { server, shard, connection, lifecycle } = self;
        tracing::debug!(connection = connection.id, export = info.name, ?agreed, "serving");
        server.attach(connection, Arc::clone(&export));
        lifecycle.reach(ConnectionState::Serving);
        let link = Link {
            shard: (*shard).clone(),
            wire,
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
