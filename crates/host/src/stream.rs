//! The receiving side of a connection: what has arrived and is not consumed, and payloads straight into their buffers.

use engine::buffer::{Buffer, Pool};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use crate::ring::Ring;

/// Bytes asked for at once while commands are small.
const STAGING_BYTES: usize = 64 << 10;
/// A payload from here on is worth a receive of its own instead of a copy.
const LARGE_PAYLOAD_BYTES: usize = 16 << 10;
/// Bytes asked for after a large payload: the next headers, and little of what may be their payload.
const STAGING_BYTES_BETWEEN_PAYLOADS: usize = 512;

pub(crate) struct Stream {
    ring: Ring,
    socket: Rc<OwnedFd>,
    staging: Buffer,
    /// The bytes received and not consumed lie in `staging[start..end]`.
    start: usize,
    end: usize,
    ask_bytes: usize,
}

impl Stream {
    pub fn new(ring: Ring, pool: &Arc<Pool>, socket: Rc<OwnedFd>) -> Self {
        let staging = pool.take(STAGING_BYTES);
        Stream { ring, socket, staging, start: 0, end: 0, ask_bytes: STAGING_BYTES }
    }

    /// What was received and not consumed.
    pub fn bytes(&self) -> &[u8] {
        &self.staging.bytes()[self.start..self.end]
    }

    /// Drops the first bytes of [`Stream::bytes`].
    pub fn consume(&mut self, bytes: usize) {
        assert!(bytes <= self.end - self.start, "only what was received is consumed");
        self.start += bytes;
    }

    /// Receives more. Returns false when the other end has ended its side.
    pub async fn receive_more(&mut self) -> io::Result<bool> {
        if self.start > 0 {
            self.staging.bytes_mut().copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        assert!(self.end < STAGING_BYTES, "every header fits");
        let room = self.end..STAGING_BYTES.min(self.end + self.ask_bytes);
        let staging = std::mem::replace(&mut self.staging, Buffer::new(0));
        let (staging, received) = self.ring.recv(&self.socket, staging, room).await;
        self.staging = staging;
        let received = received?;
        self.end += received;
        Ok(received > 0)
    }

    /// Brings the next `bytes` bytes into `buffer` at `offset`: what is here is copied, the rest received there.
    pub async fn fill(&mut self, mut buffer: Buffer, offset: usize, bytes: usize) -> io::Result<Buffer> {
        let here = bytes.min(self.end - self.start);
        buffer.bytes_mut()[offset..offset + here].copy_from_slice(&self.bytes()[..here]);
        self.consume(here);
        self.ask_bytes =
            if bytes >= LARGE_PAYLOAD_BYTES { STAGING_BYTES_BETWEEN_PAYLOADS } else { STAGING_BYTES };
        if here == bytes {
            return Ok(buffer);
        }
        let rest = offset + here..offset + bytes;
        let (buffer, received) = self.ring.recv_exact(&self.socket, buffer, rest).await;
        received?;
        Ok(buffer)
    }
}
