//! The bytes of one client in their order: many small requests out of one receive, large payloads straight into
//! their own buffer.

use super::protocol::{self, Malformed, REQUEST_BYTES, Request};
use crate::ring::Ring;
use engine::buffer::{Buffer, Pool};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

/// Bytes asked for at once while requests are small. Also holds the longest option of the handshake.
const STAGING_BYTES: usize = 64 << 10;

/// A payload from here on is worth a receive of its own instead of a copy.
const LARGE_PAYLOAD_BYTES: usize = 16 << 10;

/// Bytes asked for after a large payload: the next request, and little of what may be its payload.
const STAGING_BYTES_BETWEEN_PAYLOADS: usize = 512;

/// Why no further request comes.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// The socket failed, or the client left in the middle of a message.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The client does not speak the protocol.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The client did not choose an export.
    #[error("the client left during the handshake")]
    LeftEarly,
}

/// The receiving side of a connection.
pub struct Incoming {
    ring: Ring,
    pool: Arc<Pool>,
    socket: Rc<OwnedFd>,
    staging: Buffer,
    /// The bytes received and not yet consumed lie in `staging[start..end]`.
    start: usize,
    end: usize,
    /// How many bytes to ask for next.
    ask_bytes: usize,
}

impl Incoming {
    /// Nothing received yet.
    pub fn new(ring: Ring, pool: Arc<Pool>, socket: Rc<OwnedFd>) -> Self {
        let staging = pool.take(STAGING_BYTES);
        Incoming { ring, pool, socket, staging, start: 0, end: 0, ask_bytes: STAGING_BYTES }
    }

    /// What was received and not consumed.
    pub fn bytes(&self) -> &[u8] {
        &self.staging.bytes()[self.start..self.end]
    }

    /// Drops the first `bytes` of [`Incoming::bytes`].
    pub fn consume(&mut self, bytes: usize) {
        assert!(bytes <= self.end - self.start, "only what was received is consumed");
        self.start += bytes;
    }

    /// Receives more. Returns false when the client has ended its side.
    pub async fn receive_more(&mut self) -> io::Result<bool> {
        if self.start > 0 {
            self.staging.bytes_mut().copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        assert!(self.end < STAGING_BYTES, "every message but a payload fits");
        let room = self.end..STAGING_BYTES.min(self.end + self.ask_bytes);
        let staging = std::mem::replace(&mut self.staging, Buffer::new(0));
        let (staging, received) = self.ring.recv(&self.socket, staging, room).await;
        self.staging = staging;
        let received = received?;
        self.end += received;
        Ok(received > 0)
    }

    /// The next request, or `None` when the client has ended its side between requests.
    pub async fn next_request(&mut self) -> Result<Option<Request>, ReceiveError> {
        loop {
            if let Some(request) = protocol::parse_request(self.bytes())? {
                self.consume(REQUEST_BYTES);
                return Ok(Some(request));
            }
            if !self.receive_more().await? {
                return if self.bytes().is_empty() { Ok(None) } else { Err(cut_short()) };
            }
        }
    }

    /// The next `bytes` bytes in a buffer of their own.
    pub async fn payload(&mut self, bytes: usize) -> Result<Buffer, ReceiveError> {
        let mut buffer = self.pool.take(bytes);
        let here = bytes.min(self.end - self.start);
        buffer.bytes_mut()[..here].copy_from_slice(&self.bytes()[..here]);
        self.consume(here);
        self.ask_bytes =
            if bytes >= LARGE_PAYLOAD_BYTES { STAGING_BYTES_BETWEEN_PAYLOADS } else { STAGING_BYTES };
        if here == bytes {
            return Ok(buffer);
        }
        let (buffer, received) = self.ring.recv_exact(&self.socket, buffer, here..bytes).await;
        received?;
        Ok(buffer)
    }

    /// Passes over the next `bytes` bytes.
    pub async fn skip(&mut self, mut bytes: usize) -> Result<(), ReceiveError> {
        self.ask_bytes = STAGING_BYTES;
        loop {
            let here = bytes.min(self.end - self.start);
            self.consume(here);
            bytes -= here;
            if bytes == 0 {
                return Ok(());
            }
            if !self.receive_more().await? {
                return Err(cut_short());
            }
        }
    }
}

fn cut_short() -> ReceiveError {
    ReceiveError::Io(io::ErrorKind::UnexpectedEof.into())
}

const _: () = assert!(super::negotiate::OPTION_BYTES_MAX + protocol::OPTION_HEADER_BYTES < STAGING_BYTES);
