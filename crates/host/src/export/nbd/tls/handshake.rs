//! The handshake of TLS. Its arithmetic takes milliseconds, which a shard has not: a thread does it, and reads certificates that
//! have changed. The shard receives and sends.
//!
//! A client that does not go on is ended by the watcher of its connection, as in the rest of the handshake. What it may have sent
//! until then is bounded by rustls: a message of 64 KiB.

use engine::buffer::{Pool, Slice};
use parking_lot::Mutex;
use rustls::ServerConnection;
use std::io;
use std::sync::Arc;

use super::super::negotiate::TlsMode;
use super::TlsWire;
use super::files::{Credentials, TlsError, TlsFiles};
use crate::call::ShardGone;
use crate::keeper::Keeper;
use crate::tls::failures::Failures;
use crate::tls::wire::{RECEIVE_BYTES, Records as _, SEND_BYTES};
use crate::wire::{PlainWire, Wire as _};

/// With what clients may or must encrypt.
pub struct Tls {
    mode: TlsMode,
    credentials: Arc<Mutex<Credentials>>,
    thread: Keeper,
    failures: Failures,
}

impl Tls {
    /// Reads the certificates.
    ///
    /// # Errors
    /// A file that is no use, or there is no thread left.
    pub fn start(mode: TlsMode, files: &TlsFiles) -> Result<Self, TlsError> {
        let credentials = Arc::new(Mutex::new(Credentials::read(files)?));
        let thread = Keeper::start("twill-tls").map_err(|error| TlsError {
            path: files.folder.clone(),
            reason: error.to_string(),
            kind: error.kind(),
        })?;
        Ok(Tls { mode, credentials, thread, failures: Failures::default() })
    }

    /// Whether clients may or must.
    pub fn mode(&self) -> TlsMode {
        self.mode
    }

    /// Makes the handshake. `first` was received already.
    ///
    /// # Errors
    /// The client has left, or what it says proves nothing. It has been told.
    pub(in super::super) async fn accept(
        &self,
        wire: PlainWire,
        pool: &Arc<Pool>,
        first: &[u8],
    ) -> io::Result<TlsWire> {
        let accepted = self.shake_hands(wire, pool, first.to_vec()).await;
        accepted.inspect_err(|error| self.failures.say("a client", error))
    }

    async fn shake_hands(&self, wire: PlainWire, pool: &Arc<Pool>, first: Vec<u8>) -> io::Result<TlsWire> {
        let credentials = Arc::clone(&self.credentials);
        let begin = move || ServerConnection::new(credentials.lock().current()).map_err(io::Error::other);
        let mut connection = self.thread.call(begin).await.map_err(thread_ended)??;
        let mut received = first;
        loop {
            let advance = move || {
                let taken = connection.take_sealed(&received);
                (connection, received, taken)
            };
            let taken;
            (connection, received, taken) = self.thread.call(advance).await.map_err(thread_ended)?;
            send_queued(&wire, &mut connection).await?; // an alert, too
            received.drain(..taken?);
            if !connection.is_handshaking() {
                connection.set_buffer_limit(Some(SEND_BYTES));
                return Ok(TlsWire::new(wire, pool, connection, &received));
            }
            if received.is_empty() {
                receive(&wire, pool, &mut received).await?;
            }
        }
    }
}

impl std::fmt::Debug for Tls {
    /// Nothing of a key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("mode", &self.mode).finish_non_exhaustive()
    }
}

fn thread_ended(_: ShardGone) -> io::Error {
    io::Error::other("the thread that makes handshakes of TLS has ended by a panic: serve the array again")
}

async fn send_queued(wire: &PlainWire, connection: &mut ServerConnection) -> io::Result<()> {
    let mut output = Vec::new();
    while connection.wants_write() {
        connection.write_tls(&mut output)?;
    }
    if output.is_empty() { Ok(()) } else { wire.send_all(Slice::from_bytes(&output).into()).await }
}

async fn receive(wire: &PlainWire, pool: &Arc<Pool>, received: &mut Vec<u8>) -> io::Result<()> {
    let (buffer, count) = wire.recv(pool.take(RECEIVE_BYTES), 0..RECEIVE_BYTES).await;
    match count? {
        0 => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the client left during the handshake of TLS")),
        count => {
            received.extend_from_slice(&buffer.bytes()[..count]);
            Ok(())
        }
    }
}
