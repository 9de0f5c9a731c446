//! A wire under TLS: what is sent is sealed into records, what is received is opened. The handshake is over.
//!
//! One task receives and one sends, and both need the connection's keys, which they borrow for as long as they compute. A record
//! that the receiving side owes the client (an update of keys) goes with the next send, as TLS asks.

use engine::buffer::{Buffer, Gather, Pool, Slice};
use rustls::ServerConnection;
use std::cell::RefCell;
use std::io::{self, ErrorKind, IoSlice, Read as _, Write as _};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use crate::wire::{PlainWire, Wire};

/// Sealed bytes asked for at once: several of the longest records.
pub(super) const RECEIVE_BYTES: usize = 64 << 10;

/// Plain bytes sealed for one send.
const SEND_BYTES: usize = 128 << 10;

/// Plain bytes of the longest record.
const RECORD_BYTES: usize = 16 << 10;

/// More than a record adds to its plain bytes.
const RECORD_OVERHEAD_BYTES: usize = 64;

/// Slices handed over at once.
const SLICES: usize = 64;

/// A connection under TLS.
#[derive(Clone)]
pub(in super::super) struct TlsWire {
    below: PlainWire,
    pool: Arc<Pool>,
    state: Rc<RefCell<State>>,
}

struct State {
    connection: ServerConnection,
    /// What was received: `sealed[range]` is not opened yet.
    sealed: Buffer,
    range: Range<usize>,
}

/// What a receive finds without waiting.
enum Opened {
    /// Plain bytes; 0 is the end of the stream.
    Bytes(usize),
    /// More must be received.
    Nothing,
}

/// Opens what `sealed` begins with, until there are plain bytes or nothing is left of it. Returns how much was taken.
///
/// # Errors
/// What came is no record of this connection. What the client is told about it is queued.
pub(super) fn feed(connection: &mut ServerConnection, mut sealed: &[u8]) -> io::Result<usize> {
    let bytes = sealed.len();
    while !sealed.is_empty() {
        if connection.read_tls(&mut sealed)? == 0 {
            return Ok(bytes); // after the client's goodbye nothing counts
        }
        let state = connection.process_new_packets();
        let state = state.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
        if state.plaintext_bytes_to_read() > 0 {
            break;
        }
    }
    Ok(bytes - sealed.len())
}

impl TlsWire {
    /// Goes on after the handshake; `received` came behind it.
    pub fn new(
        below: PlainWire,
        pool: &Arc<Pool>,
        mut connection: ServerConnection,
        received: &[u8],
    ) -> Self {
        connection.set_buffer_limit(Some(SEND_BYTES));
        let mut sealed = pool.take(RECEIVE_BYTES);
        sealed.bytes_mut()[..received.len()].copy_from_slice(received);
        let state = State { connection, sealed, range: 0..received.len() };
        TlsWire { below, pool: Arc::clone(pool), state: Rc::new(RefCell::new(state)) }
    }

    /// Version and cipher, for the log.
    pub fn describe(&self) -> String {
        let connection = &self.state.borrow().connection;
        let suite = connection.negotiated_cipher_suite().map(|suite| suite.suite());
        format!("{:?} {suite:?}", connection.protocol_version())
    }

    async fn receive_more(&self) -> io::Result<()> {
        let sealed = std::mem::replace(&mut self.state.borrow_mut().sealed, Buffer::new(0));
        let (sealed, received) = self.below.recv(sealed, 0..RECEIVE_BYTES).await;
        let state = &mut *self.state.borrow_mut();
        state.sealed = sealed;
        state.range = 0..received?;
        if state.range.is_empty() {
            state.connection.read_tls(&mut io::empty())?; // the end
        }
        Ok(())
    }

    /// Seals what comes next of `data`, as much as goes into one send; without, what the connection owes the client.
    fn seal(&self, data: &Gather, next: &mut Place) -> io::Result<Gather> {
        let State { connection, .. } = &mut *self.state.borrow_mut();
        let plain = SEND_BYTES.min(data.len() - next.done);
        let records = plain.div_ceil(RECORD_BYTES) + 2;
        let mut output = self.pool.take(plain + records * RECORD_OVERHEAD_BYTES);
        if plain > 0 {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = next.fill(data.slices(), &mut slices);
            next.advance(data.slices(), connection.writer().write_vectored(&slices[..count])?);
        } // else there may be an alert: after an error there is no writer
        let mut room = output.bytes_mut();
        let all = room.len();
        while connection.wants_write() && !room.is_empty() {
            connection.write_tls(&mut room)?;
        }
        let sealed = all - room.len();
        Ok(output.freeze().part(0, sealed).into())
    }
}

impl State {
    /// Fills `plain` from what is here.
    fn open(&mut self, plain: &mut [u8]) -> io::Result<Opened> {
        let mut done = 0;
        while done < plain.len() {
            match self.connection.reader().read(&mut plain[done..]) {
                Ok(0) => return Ok(Opened::Bytes(done)),
                Ok(count) => done += count,
                // Without a goodbye, as of a client that was killed: the stream ends where requests may end, or in the middle of one.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(Opened::Bytes(done)),
                Err(error) if error.kind() == ErrorKind::WouldBlock && !self.range.is_empty() => {
                    self.range.start += feed(&mut self.connection, &self.sealed.bytes()[self.range.clone()])?;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock && done == 0 => {
                    return Ok(Opened::Nothing);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(Opened::Bytes(done))
    }
}

impl Wire for TlsWire {
    async fn recv(&self, mut buffer: Buffer, range: Range<usize>) -> (Buffer, io::Result<usize>) {
        loop {
            let opened = self.state.borrow_mut().open(&mut buffer.bytes_mut()[range.clone()]);
            match opened {
                Ok(Opened::Bytes(count)) => return (buffer, Ok(count)),
                Ok(Opened::Nothing) => {}
                Err(error) => return (buffer, Err(error)),
            }
            if let Err(error) = self.receive_more().await {
                return (buffer, Err(error));
            }
        }
    }

    async fn recv_exact(&self, mut buffer: Buffer, range: Range<usize>) -> (Buffer, io::Result<usize>) {
        let mut at = range.start;
        while at < range.end {
            let received;
            (buffer, received) = self.recv(buffer, at..range.end).await;
            match received {
                Ok(0) => return (buffer, Err(ErrorKind::UnexpectedEof.into())),
                Ok(count) => at += count,
                Err(error) => return (buffer, Err(error)),
            }
        }
        (buffer, Ok(range.len()))
    }

    async fn send_all(&self, data: Gather) -> io::Result<()> {
        let mut next = Place::default();
        loop {
            let sealed = self.seal(&data, &mut next)?;
            if sealed.is_empty() {
                return Ok(());
            }
            self.below.send_all(sealed).await?;
        }
    }

    async fn finish(&self) {
        self.state.borrow_mut().connection.send_close_notify();
        // A client that is gone needs no goodbye.
        let _ = self.send_all(Gather::new()).await;
    }

    fn shut_down(&self) {
        self.below.shut_down();
    }
}

/// How far the slices of a gather have been taken.
#[derive(Default)]
struct Place {
    slice: usize,
    offset: usize,
    /// Bytes in all.
    done: usize,
}

impl Place {
    /// Points at what comes next, and returns how many slices that are.
    fn fill<'a>(&self, from: &'a [Slice], to: &mut [IoSlice<'a>]) -> usize {
        let mut offset = self.offset;
        let rest = from[self.slice..].iter().zip(to);
        rest.map(|(slice, to)| *to = IoSlice::new(&slice.bytes()[std::mem::take(&mut offset)..])).count()
    }

    fn advance(&mut self, slices: &[Slice], bytes: usize) {
        self.done += bytes;
        self.offset += bytes;
        while let Some(slice) = slices.get(self.slice)
            && self.offset >= slice.len()
        {
            self.offset -= slice.len();
            self.slice += 1;
        }
    }
}
