//! The first bytes of a connection: those of TLS, or those of NVMe/TCP as they are. Both come at one port.

use nvme_tcp::names::{Host, Nqn};
use nvme_tcp::status::Status;
use nvme_tcp::target::connect::Refused;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use super::server_state::Shared;
use crate::receiver::{Receiver, STAGING_BYTES};
use crate::shard::ShardContext;
use crate::tls::acceptor::HANDSHAKE_RECORD;
use crate::tls::either::EitherWire;
use crate::tls::key_owner::PskPeer;
use crate::wire::{PlainWire, Wire as _};

/// A connection whose next bytes are PDUs.
pub(super) struct Opened {
    pub wire: EitherWire,
    pub receiver: Receiver<EitherWire>,
    /// Whose key it was made with; none: it is not under TLS.
    pub peer: Option<PskPeer>,
}

/// Looks how a host begins, and makes the handshake of TLS with one that wants it and may have it.
pub(super) async fn open(shared: &Shared, shard: &ShardContext, socket: &Rc<OwnedFd>) -> io::Result<Opened> {
    let plain = PlainWire { ring: shard.ring.clone(), socket: Rc::clone(socket) };
    let Some(acceptor) = shared.subsystems.tls() else {
        let wire = EitherWire::Plain(plain);
        return Ok(Opened { receiver: Receiver::new(wire.clone(), &shard.pool), wire, peer: None });
    };
    let (first, count) = plain.recv(shard.pool.take(STAGING_BYTES), 0..STAGING_BYTES).await;
    let count = count?;
    if count > 0 && first.bytes()[0] == HANDSHAKE_RECORD {
        let (wire, peer) = acceptor.accept(plain, &shard.pool, &first.bytes()[..count]).await?;
        tracing::debug!(host = %peer.host, subsystem = %peer.subsystem, "encrypted: {}", wire.describe());
        let wire = EitherWire::Tls(wire);
        let receiver = Receiver::new(wire.clone(), &shard.pool);
        return Ok(Opened { receiver, wire, peer: Some(peer) });
    }
    let wire = EitherWire::Plain(plain);
    Ok(Opened { receiver: Receiver::after(wire.clone(), first, count), wire, peer: None })
}

/// Whether Connect names the host and the subsystem that the connection's key is of, and a host with a key uses it: else any host
/// with a key could call itself by the name of another.
pub(super) fn check_names(
    shared: &Shared,
    peer: Option<&PskPeer>,
    host: &Host,
    subsystem: &Nqn,
) -> Result<(), Refused> {
    let host = &host.nqn;
    match peer {
        Some(peer) if peer.host == *host && peer.subsystem == *subsystem => return Ok(()),
        Some(peer) => {
            tracing::warn!(%host, %subsystem, "a host was refused: its TLS key is that of {} for {}", peer.host, peer.subsystem);
        }
        None if !shared.subsystems.demands_tls(host) => return Ok(()),
        None => {
            tracing::warn!(%host, %subsystem, "a host with a key came without TLS and was refused; on Linux: nvme connect --tls");
        }
    }
    Err(Refused::with(Status::CONNECT_INVALID_HOST))
}
