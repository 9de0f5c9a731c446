//! A wire under TLS: what is sent is sealed into records, what is received is opened. The handshake is over.
//!
//! One task receives and one sends, and both need the connection's keys, which they borrow for as long as they compute. A record
//! that the receiving side owes the other end (an update of keys) goes with the next send, as TLS asks.

use engine::buffer::{Buffer, Gather, Pool, Slice};
use std::cell::RefCell;
use std::io::{self, ErrorKind, IoSlice};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use crate::wire::{PlainWire, Wire};

/// Sealed bytes asked for at once: several of the longest records.
pub(crate) const RECEIVE_BYTES: usize = 64 << 10;

/// Plain bytes sealed for one send.
pub(crate) const SEND_BYTES: usize = 128 << 10;

/// Plain bytes of the longest record.
const RECORD_BYTES: usize = 16 << 10;

/// More than a record adds to its plain bytes.
const RECORD_OVERHEAD_BYTES: usize = 64;

/// Slices handed over at once.
const SLICES: usize = 64;

/// What a receive finds without waiting.
enum Opened {
    /// Plain bytes; 0 is the end of the stream.
    Bytes(usize),
    /// More must be received.
    Nothing,
}

/// A connection of a library that does no I/O: sealed bytes go in and out, and so do plain ones.
pub(crate) trait Records: 'static {
    /// Takes of the sealed bytes that were received, until there are plain ones to read or all is taken. Returns how much was.
    ///
    /// # Errors
    /// They are no records of this connection. The alert that tells the other end is among what is to be sent.
    fn take_sealed(&mut self, sealed: &[u8]) -> io::Result<usize>;

    /// No more sealed bytes come.
    fn end_sealed(&mut self) -> io::Result<()>;

    /// Gives plain bytes; 0 is the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock`: sealed bytes have to come first. `UnexpectedEof`: the stream ended without a goodbye.
    fn read_plain(&mut self, plain: &mut [u8]) -> io::Result<usize>;

    /// Takes of the plain bytes, at most `limit`. Returns how many.
    fn write_plain(&mut self, plain: &[IoSlice<'_>], limit: usize) -> io::Result<usize>;

    /// Gives sealed bytes that are to be sent, as many as there are and fit. Returns how many.
    fn give_sealed(&mut self, sealed: &mut [u8]) -> io::Result<usize>;

    /// Nothing more will be sent.
    fn say_goodbye(&mut self);

    /// Version and cipher, for the log.
    fn describe(&self) -> String;
}

/// A connection under TLS.
pub(crate) struct TlsWire<C> {
    below: PlainWire,
    pool: Arc<Pool>,
    state: Rc<RefCell<State<C>>>,
}

impl<C> Clone for TlsWire<C> {
    fn clone(&self) -> Self {
        TlsWire { below: self.below.clone(), pool: Arc::clone(&self.pool), state: Rc::clone(&self.state) }
    }
}

struct State<C> {
    connection: C,
    /// What was received: `sealed[range]` is not opened yet.
    sealed: Buffer,
    range: Range<usize>,
}

impl<C: Records> TlsWire<C> {
    /// Goes on after the handshake; `received` came behind it.
    pub fn new(below: PlainWire, pool: &Arc<Pool>, connection: C, received: &[u8]) -> Self {
        let mut sealed = pool.take(RECEIVE_BYTES);
        sealed.bytes_mut()[..received.len()].copy_from_slice(received);
        let state = State { connection, sealed, range: 0..received.len() };
        TlsWire { below, pool: Arc::clone(pool), state: Rc::new(RefCell::new(state)) }
    }

    /// Version and cipher, for the log.
    pub fn describe(&self) -> String {
        self.state.borrow().connection.describe()
    }

    async fn receive_more(&self) -> io::Result<()> {
        let sealed = std::mem::replace(&mut self.state.borrow_mut().sealed, Buffer::new(0));
        let (sealed, received) = self.below.recv(sealed, 0..RECEIVE_BYTES).await;
        let state = &mut *self.state.borrow_mut();
        state.sealed = sealed;
        state.range = 0..received?;
        if state.range.is_empty() {
            state.connection.end_sealed()?;
        }
        Ok(())
    }

    /// Seals what comes next of `data`, as much as goes into one send; without, what the connection owes the other end.
    fn seal(&self, data: &Gather, next: &mut Place) -> io::Result<Gather> {
        let State { connection, .. } = &mut *self.state.borrow_mut();
        let plain = SEND_BYTES.min(data.len() - next.done);
        let records = plain.div_ceil(RECORD_BYTES) + 2;
        let mut output = self.pool.take(plain + records * RECORD_OVERHEAD_BYTES);
        if plain > 0 {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = next.fill(data.slices(), &mut slices);
            next.advance(data.slices(), connection.write_plain(&slices[..count], plain)?);
        } // else there may be an alert: after an error nothing can be written
        let sealed = connection.give_sealed(output.bytes_mut())?;
        Ok(output.freeze().part(0, sealed).into())
    }
}

impl<C: Records> State<C> {
    /// Fills `plain` from what is here.
    fn open(&mut self, plain: &mut [u8]) -> io::Result<Opened> {
        let mut done = 0;
        while done < plain.len() {
            match self.connection.read_plain(&mut plain[done..]) {
                Ok(0) => return Ok(Opened::Bytes(done)),
                Ok(count) => done += count,
                // Without a goodbye, as of a process that was killed: the stream ends where requests may end, or in the middle of one.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(Opened::Bytes(done)),
                Err(error) if error.kind() == ErrorKind::WouldBlock && !self.range.is_empty() => {
                    self.range.start +=
                        self.connection.take_sealed(&self.sealed.bytes()[self.range.clone()])?;
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

impl<C: Records> Wire for TlsWire<C> {
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
        self.state.borrow_mut().connection.say_goodbye();
        // One that is gone needs no goodbye.
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
