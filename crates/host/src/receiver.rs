//! The receiving side of a connection, whatever its protocol: what has arrived and is not consumed, and payloads straight into
//! their buffers.
//!
//! Small messages come many at a time into a staging buffer. A large payload is received where it belongs; after one, little is
//! asked for, because another payload probably follows the next header, and would have to be copied.

use engine::buffer::{Buffer, Pool};
use std::io;
use std::ops::Range;
use std::sync::Arc;

use crate::wire::{PlainWire, Wire};

/// Bytes asked for at once while messages are small. The longest message of a protocol, payloads apart, must fit.
pub(crate) const STAGING_BYTES: usize = 64 << 10;
/// A payload from here on is worth a receive of its own instead of a copy.
const LARGE_PAYLOAD_BYTES: usize = 16 << 10;
/// Bytes asked for after a large payload: the next header, and little of what may be its payload.
const STAGING_BYTES_BETWEEN_PAYLOADS: usize = 512;

/// The receiving side of one connection.
pub(crate) struct Receiver<W = PlainWire> {
    wire: W,
    staging: Buffer,
    /// The bytes received and not consumed lie in `staging[start..end]`.
    start: usize,
    end: usize,
    /// How many bytes to ask for next.
    ask_bytes: usize,
}

impl<W: Wire> Receiver<W> {
    /// Nothing received yet.
    pub fn new(wire: W, pool: &Arc<Pool>) -> Self {
        let staging = pool.take(STAGING_BYTES);
        Receiver { wire, staging, start: 0, end: 0, ask_bytes: STAGING_BYTES }
    }

    /// After the first `bytes` of `staging`, which were received already.
    pub fn after(wire: W, staging: Buffer, bytes: usize) -> Self {
        assert!(staging.len() == STAGING_BYTES && bytes <= STAGING_BYTES, "a buffer of this size");
        Receiver { wire, staging, start: 0, end: bytes, ask_bytes: STAGING_BYTES }
    }

    /// What was received and not consumed.
    pub fn bytes(&self) -> &[u8] {
        &self.staging.bytes()[self.start..self.end]
    }

    /// Drops the first `bytes` of [`Receiver::bytes`].
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
        assert!(self.end < STAGING_BYTES, "every message but a payload fits");
        let room = self.end..STAGING_BYTES.min(self.end + self.ask_bytes);
        let staging = std::mem::replace(&mut self.staging, Buffer::new(0));
        let (staging, received) = self.wire.recv(staging, room).await;
        self.staging = staging;
        let received = received?;
        self.end += received;
        Ok(received > 0)
    }

    /// Begins a payload that belongs into `range` of `buffer`: copies what is here of it, and returns how much that is. The
    /// rest comes by [`Receiver::receive_rest`].
    pub fn begin_payload(&mut self, buffer: &mut Buffer, range: Range<usize>) -> usize {
        let here = range.len().min(self.end - self.start);
        buffer.bytes_mut()[range.start..range.start + here].copy_from_slice(&self.bytes()[..here]);
        self.consume(here);
        self.ask_bytes =
            if range.len() >= LARGE_PAYLOAD_BYTES { STAGING_BYTES_BETWEEN_PAYLOADS } else { STAGING_BYTES };
        here
    }

    /// Receives straight into `range` of `buffer`, once nothing is here any more.
    pub async fn receive_rest(&mut self, buffer: Buffer, range: Range<usize>) -> io::Result<Buffer> {
        assert!(self.start == self.end || range.is_empty(), "what is here comes first");
        let (buffer, received) = self.wire.recv_exact(buffer, range).await;
        received?;
        Ok(buffer)
    }

    /// Brings the next `bytes` bytes to `buffer`, from `offset` on.
    pub async fn fill(&mut self, mut buffer: Buffer, offset: usize, bytes: usize) -> io::Result<Buffer> {
        let here = self.begin_payload(&mut buffer, offset..offset + bytes);
        if here == bytes {
            return Ok(buffer);
        }
        self.receive_rest(buffer, offset + here..offset + bytes).await
    }

    /// What follows is small: asks for as much as fits.
    pub fn expect_small(&mut self) {
        self.ask_bytes = STAGING_BYTES;
    }
}
