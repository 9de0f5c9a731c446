//! The server's side of handshakes with keys. Their arithmetic takes a good part of a millisecond, which a shard has not: a thread
//! does it. The shard receives and sends.
//!
//! A host that does not go on is ended by the watch of its connection, as in the rest of the handshake. What it may have sent until
//! then is bounded by OpenSSL: a ClientHello of 128 KiB.

use engine::buffer::{Pool, Slice};
use nvme_tcp::names::Nqn;
use nvme_tcp::psk::{ConfiguredPsk, PskIdentity, TlsPsk};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use super::failures::Failures;
use super::key_owner::{FindKey, PskPeer};
use super::psk::PskConnection;
use super::wire::{RECEIVE_BYTES, Records as _, TlsWire};
use crate::keeper::Keeper;
use crate::wire::{PlainWire, Wire as _};

/// The type of a record that begins a handshake: no PDU of NVMe/TCP that a host may begin with has it.
pub(crate) const HANDSHAKE_RECORD: u8 = 0x16;

/// The keys of hosts, and a thread that computes.
pub(crate) struct PskAcceptor {
    keys: BTreeMap<Nqn, ConfiguredPsk>,
    find: Arc<FindKey>,
    thread: Keeper,
    failures: Failures,
}

impl PskAcceptor {
    /// # Errors
    /// No thread is left.
    pub fn start(keys: BTreeMap<Nqn, ConfiguredPsk>) -> io::Result<Self> {
        let known = keys.clone();
        let find = Arc::new(move |identity: &[u8]| find_key(&known, identity));
        Ok(PskAcceptor { keys, find, thread: Keeper::start("twill-tls")?, failures: Failures::default() })
    }

    /// Whether a host has to use TLS.
    pub fn demands_tls(&self, host: &Nqn) -> bool {
        self.keys.contains_key(host)
    }

    /// Makes the handshake. `first` was received already.
    ///
    /// # Errors
    /// The host has left, or has offered no key that is known here; it has been sent the alert that says so.
    pub async fn accept(
        &self,
        wire: PlainWire,
        pool: &Arc<Pool>,
        first: &[u8],
    ) -> io::Result<(TlsWire<PskConnection>, PskPeer)> {
        let accepted = self.shake_hands(wire, pool, first.to_vec()).await;
        accepted.inspect_err(|error| self.failures.say("an NVMe/TCP host", error))
    }

    async fn shake_hands(
        &self,
        wire: PlainWire,
        pool: &Arc<Pool>,
        mut received: Vec<u8>,
    ) -> io::Result<(TlsWire<PskConnection>, PskPeer)> {
        let mut connection = PskConnection::server(Arc::clone(&self.find))?;
        loop {
            let advance = move || {
                let advanced = connection.take_sealed(&received).and_then(|_| connection.advance());
                (connection, advanced)
            };
            let advanced;
            (connection, advanced) = self.thread.call(advance).await.map_err(|_| thread_ended())?;
            let answer = connection.take_to_send(); // an alert, too
            if !answer.is_empty() {
                wire.send_all(Slice::from_bytes(&answer).into()).await?;
            }
            if advanced? {
                let peer = connection.peer().cloned().ok_or_else(|| io::Error::other("no key was used"))?;
                return Ok((TlsWire::new(wire, pool, connection, &[]), peer));
            }
            received = receive(&wire, pool).await?;
        }
    }
}

fn thread_ended() -> io::Error {
    io::Error::other("the thread that makes handshakes of TLS has ended by a panic: start the server again")
}

async fn receive(wire: &PlainWire, pool: &Arc<Pool>) -> io::Result<Vec<u8>> {
    let (buffer, count) = wire.recv(pool.take(RECEIVE_BYTES), 0..RECEIVE_BYTES).await;
    match count? {
        0 => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the host left during the handshake of TLS")),
        count => Ok(buffer.bytes()[..count].to_vec()),
    }
}

/// The key that an identity names, if it is of a host that has one. Whether the host may connect to what it names is decided at
/// Connect.
fn find_key(keys: &BTreeMap<Nqn, ConfiguredPsk>, identity: &[u8]) -> Option<(TlsPsk, PskPeer)> {
    let identity = std::str::from_utf8(identity).ok()?;
    let names = PskIdentity::parse(identity)?;
    let key = keys.get(&names.host)?.with_identity(identity, &names)?;
    Some((key, PskPeer { host: names.host, subsystem: names.subsystem }))
}
