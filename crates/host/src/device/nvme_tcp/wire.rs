//! One queue of a controller in the hands of a thread that waits: Connect, admin commands, reservations, and the reads and
//! writes of one-off commands. Once it is a queue, a shard may take it over.

use std::io::{self, IoSlice, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use nvme_tcp::command::Sqe;
use nvme_tcp::initiator::{Arrival, COMMANDS_MAX, Completed, Payload, Queue, Slot, Wanted};
use nvme_tcp::pdu::{Fatal, FatalStatus, Side};
use nvme_tcp::psk::TlsPsk;
use nvme_tcp::session::{Offer, STAGED_BYTES_MAX, Session};
use nvme_tcp::status::Status;

use super::address::Portal;
use crate::tls::psk::PskConnection;
use crate::tls::wire::Records as _;

/// Bytes of data that stand in the capsule of a fabrics or admin command.
const FABRICS_IN_CAPSULE_BYTES: u32 = 8192;
/// Bytes received at once.
const RECEIVE_BYTES: usize = 64 << 10;
/// R2Ts of one command that this host takes at a time.
const R2TS_MAX: u32 = 16;

/// Why a queue cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// No connection, or it has ended.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The target broke a rule of the transport.
    #[error("the target broke a rule of the transport: {0}")]
    Fatal(Fatal),
    /// The target ended the connection.
    #[error("the target ended the connection: {}", term_words(*status))]
    Terminated {
        /// By the transport's numbers.
        status: u16,
    },
    /// No answer in time.
    #[error("no answer within {} s", .0.as_secs_f32())]
    Late(Duration),
    /// The target and this host have no key in common, or the target has no TLS.
    #[error("no TLS with the target: {0}")]
    Tls(String),
}

fn term_words(status: u16) -> String {
    FatalStatus::from_number(status).map_or_else(|| format!("status {status}"), |known| known.words().into())
}

/// The data of a command.
pub(super) enum Transfer<'a> {
    None,
    Out(&'a [u8]),
    In(&'a mut [u8]),
}

/// A queue.
pub(super) struct Wire {
    stream: TcpStream,
    tls: Option<PskConnection>,
    queue: Queue,
    staged: Vec<u8>,
    limit: Duration,
    event: EventRequest,
}

/// A request for an asynchronous event.
#[derive(Clone, Copy, Debug, Default)]
enum EventRequest {
    #[default]
    None,
    Waits(Slot),
    /// The controller has told of an event, or refused the request.
    Ended(Result<u32, Status>),
}

/// Whether headers and data have digests.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Digests {
    pub header: bool,
    pub data: bool,
}

impl Wire {
    /// Opens a connection to the first address that takes one.
    pub fn open(
        portal: &Portal,
        digests: Digests,
        commands: usize,
        limit: Duration,
    ) -> Result<Wire, WireError> {
        Wire::begin(connect(portal, limit)?, None, digests, commands, limit)
    }

    /// Opens a connection under TLS by the first of `keys` that the target knows: they are one key, as hosts and targets have come
    /// to derive it.
    pub fn open_tls(
        portal: &Portal,
        keys: &[TlsPsk],
        digests: Digests,
        commands: usize,
        limit: Duration,
    ) -> Result<Wire, WireError> {
        let (mut refused, mut closed) = (None, None);
        for key in keys {
            let mut stream = connect(portal, limit)?;
            match shake_hands(&mut stream, key.clone(), limit) {
                Err(WireError::Tls(reason)) => refused = refused.or(Some(reason)),
                // Some targets close without a word where they do not know a key.
                Err(WireError::Io(error)) if is_end(&error) => closed = Some(error),
                tls => return Wire::begin(stream, Some(tls?), digests, commands, limit),
            }
        }
        match (refused, closed) {
            (None, Some(error)) => Err(error.into()),
            (refused, _) => {
                Err(WireError::Tls(refused.unwrap_or_else(|| "the names are too long for a key".into())))
            }
        }
    }

    fn begin(
        stream: TcpStream,
        tls: Option<PskConnection>,
        digests: Digests,
        commands: usize,
        limit: Duration,
    ) -> Result<Wire, WireError> {
        stream.set_nodelay(true)?;
        let offer = Offer {
            header_digest: digests.header,
            data_digest: digests.data,
            alignment: 0,
            in_capsule_bytes_max: 0,
            h2c_data_bytes_max: 0,
            r2ts_max: R2TS_MAX,
        };
        let session = Session::new(Side::Host, offer);
        let queue = Queue::new(session, commands.clamp(1, COMMANDS_MAX), FABRICS_IN_CAPSULE_BYTES);
        let mut wire = Wire { stream, tls, queue, staged: Vec::new(), limit, event: EventRequest::None };
        let mut head = [0; STAGED_BYTES_MAX];
        let bytes = wire.queue.session().encode_ic_req(&mut head);
        let end = Instant::now() + limit;
        wire.send(&[&head[..bytes]], end)?;
        loop {
            match wire.next(end, None, &mut Transfer::None)? {
                Next::Begun => return Ok(wire),
                Next::Completed(_) | Next::Other => {}
            }
        }
    }

    /// Sends a command and waits for its end.
    pub fn run(&mut self, sqe: Sqe, mut data: Transfer<'_>) -> Result<Completed, WireError> {
        let end = Instant::now() + self.limit;
        let payload = match &data {
            Transfer::None => Payload::None,
            Transfer::Out(bytes) => Payload::Out { bytes: length(bytes) },
            Transfer::In(bytes) => Payload::In { bytes: length(bytes) },
        };
        let Some((slot, sqe, in_capsule)) = self.queue.submit(sqe, payload) else {
            return Err(io::Error::other("the queue is full of commands that were not answered").into());
        };
        let mut head = [0; STAGED_BYTES_MAX];
        let agreed = *self.queue.session().agreement();
        let bytes = agreed.encode_command(&sqe, in_capsule, &mut head);
        match &data {
            Transfer::Out(out) if in_capsule > 0 => {
                let mut tail = [0; 8];
                let digest = agreed.encode_data_end([*out].into_iter(), &mut tail);
                self.send(&[&head[..bytes], out, &tail[..digest]], end)?;
            }
            _ => self.send(&[&head[..bytes]], end)?,
        }
        loop {
            if let Next::Completed(completed) = self.next(end, Some(slot), &mut data)? {
                if completed.slot == slot {
                    return Ok(completed);
                }
                self.note_event(&completed);
            }
        }
    }

    /// Sends a request that stays with the controller until something happens. What it tells then comes to light with the
    /// answers to later commands: see [`Wire::take_event`].
    pub fn request_event(&mut self, sqe: Sqe) -> Result<(), WireError> {
        let Some((slot, sqe, _)) = self.queue.submit(sqe, Payload::None) else { return Ok(()) };
        let mut head = [0; STAGED_BYTES_MAX];
        let bytes = self.queue.session().agreement().encode_command(&sqe, 0, &mut head);
        self.event = EventRequest::Waits(slot);
        self.send(&[&head[..bytes]], Instant::now() + self.limit)
    }

    /// What the request for an event was answered with, once.
    pub fn take_event(&mut self) -> Option<Result<u32, Status>> {
        let EventRequest::Ended(told) = self.event else { return None };
        self.event = EventRequest::None;
        Some(told)
    }

    fn note_event(&mut self, completed: &Completed) {
        if matches!(self.event, EventRequest::Waits(slot) if slot == completed.slot) {
            let told = if completed.status.is_success() {
                Ok(completed.value as u32)
            } else {
                Err(completed.status)
            };
            self.event = EventRequest::Ended(told);
        }
    }

    /// As [`Wire::run`], for a command that must succeed.
    pub fn succeed(&mut self, sqe: Sqe, data: Transfer<'_>) -> Result<Result<u64, Status>, WireError> {
        let completed = self.run(sqe, data)?;
        Ok(if completed.status.is_success() { Ok(completed.value) } else { Err(completed.status) })
    }

    /// Changes how long a command may take. Returns how long it might before.
    pub fn set_limit(&mut self, limit: Duration) -> Duration {
        std::mem::replace(&mut self.limit, limit)
    }

    /// Changes how much data goes in a capsule.
    pub fn set_in_capsule_bytes_max(&mut self, bytes: u32) {
        self.queue.set_in_capsule_bytes_max(bytes);
    }

    /// Another descriptor of the connection, to end it from elsewhere.
    pub fn handle(&self) -> io::Result<OwnedFd> {
        self.stream.as_fd().try_clone_to_owned()
    }

    /// Hands the connection over. Nothing is in flight on it.
    pub fn into_parts(self) -> Result<(OwnedFd, Option<PskConnection>, Queue), WireError> {
        if !self.staged.is_empty() || self.queue.in_flight() > 0 {
            return Err(io::Error::other("the target sent more than was asked for").into());
        }
        self.stream.set_read_timeout(None)?;
        self.stream.set_write_timeout(None)?;
        Ok((self.stream.into(), self.tls, self.queue))
    }

    fn send(&mut self, pieces: &[&[u8]], end: Instant) -> Result<(), WireError> {
        self.stream.set_write_timeout(Some(self.left(end)?))?;
        let mut whole = pieces.concat();
        if let Some(tls) = &mut self.tls {
            tls.write_plain(&[IoSlice::new(&whole)], whole.len())?;
            whole = tls.take_to_send();
        }
        self.stream.write_all(&whole).map_err(|error| self.as_late(error))
    }

    fn left(&self, end: Instant) -> Result<Duration, WireError> {
        left(end, self.limit)
    }

    fn as_late(&self, error: io::Error) -> WireError {
        as_late(error, self.limit)
    }

    /// Takes the next thing that arrives. Data of the command that waits goes to its place, all other is passed over.
    fn next(
        &mut self,
        end: Instant,
        waiting: Option<Slot>,
        data: &mut Transfer<'_>,
    ) -> Result<Next, WireError> {
        loop {
            let received = self.queue.receive(&self.staged);
            let (consumed, arrival) = match received {
                Ok(received) => received,
                Err(fatal) => return Err(self.terminate(fatal, end)),
            };
            self.staged.drain(..consumed);
            match arrival {
                Arrival::More => self.receive(end)?,
                Arrival::Begun => return Ok(Next::Begun),
                Arrival::Place { slot, offset, bytes } => {
                    let mut passed_over = Vec::new();
                    let target = match &mut *data {
                        Transfer::In(data) if waiting == Some(slot) => {
                            &mut data[offset as usize..(offset + bytes) as usize]
                        }
                        _ => {
                            passed_over.resize(bytes as usize, 0);
                            &mut passed_over[..]
                        }
                    };
                    self.fill(target, end)?;
                    return Ok(Next::Other);
                }
                Arrival::Partial => {}
                Arrival::Wanted(wanted) => {
                    if let (Transfer::Out(data), true) = (&*data, waiting == Some(wanted.slot)) {
                        self.send_wanted(&wanted, data, end)?;
                    }
                    return Ok(Next::Other);
                }
                Arrival::Completed(completed) => return Ok(Next::Completed(completed)),
                Arrival::Terminated { status, .. } => return Err(WireError::Terminated { status }),
            }
        }
    }

    fn terminate(&mut self, fatal: Fatal, end: Instant) -> WireError {
        let mut term = [0; STAGED_BYTES_MAX];
        let bytes = self.queue.session().encode_term(fatal, &mut term);
        let _best_effort = self.send(&[&term[..bytes]], end);
        WireError::Fatal(fatal)
    }

    fn send_wanted(&mut self, wanted: &Wanted, data: &[u8], end: Instant) -> Result<(), WireError> {
        let agreed = *self.queue.session().agreement();
        for (part, flags) in wanted.parts(agreed.h2c_data_bytes_max) {
            let piece = &data[part.offset as usize..(part.offset + part.bytes) as usize];
            let (mut head, mut tail) = ([0; STAGED_BYTES_MAX], [0; 8]);
            let bytes = agreed.encode_data(Side::Host, &part, flags, &mut head);
            let digest = agreed.encode_data_end([piece].into_iter(), &mut tail);
            self.send(&[&head[..bytes], piece, &tail[..digest]], end)?;
        }
        self.queue.sent(wanted);
        Ok(())
    }

    fn receive(&mut self, end: Instant) -> Result<(), WireError> {
        while !self.open_sealed()? {
            self.stream.set_read_timeout(Some(self.left(end)?))?;
            let before = self.staged.len();
            self.staged.resize(before + RECEIVE_BYTES, 0);
            let received = read(&mut self.stream, &mut self.staged[before..]);
            self.staged.truncate(before + *received.as_ref().unwrap_or(&0));
            let Some(tls) = &mut self.tls else {
                return received.map(drop).map_err(|error| self.as_late(error));
            };
            received.map_err(|error| as_late(error, self.limit))?;
            tls.take_sealed(&self.staged[before..])?;
            self.staged.truncate(before);
        }
        Ok(())
    }

    /// Opens what was received under TLS. Whether there was something.
    fn open_sealed(&mut self) -> Result<bool, WireError> {
        let Some(tls) = &mut self.tls else { return Ok(false) };
        let before = self.staged.len();
        self.staged.resize(before + RECEIVE_BYTES, 0);
        let opened = tls.read_plain(&mut self.staged[before..]);
        self.staged.truncate(before + *opened.as_ref().unwrap_or(&0));
        match opened {
            Ok(0) => Err(closed().into()),
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn fill(&mut self, target: &mut [u8], end: Instant) -> Result<(), WireError> {
        let mut done = 0;
        while done < target.len() {
            if self.staged.is_empty() {
                self.receive(end)?;
            }
            let here = self.staged.len().min(target.len() - done);
            target[done..done + here].copy_from_slice(&self.staged[..here]);
            self.staged.drain(..here);
            done += here;
        }
        self.queue.session_mut().placed(target);
        Ok(())
    }
}

fn connect(portal: &Portal, limit: Duration) -> Result<TcpStream, WireError> {
    let mut last = None;
    for address in portal.resolve()? {
        match TcpStream::connect_timeout(&address, limit) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| io::ErrorKind::NotFound.into()).into())
}

/// Makes a connection one under TLS, within `limit`.
fn shake_hands(stream: &mut TcpStream, key: TlsPsk, limit: Duration) -> Result<PskConnection, WireError> {
    let end = Instant::now() + limit;
    let mut tls = PskConnection::client(key)?;
    let mut received = vec![0; RECEIVE_BYTES];
    loop {
        let advanced = tls.advance();
        stream.set_write_timeout(Some(left(end, limit)?))?;
        stream.write_all(&tls.take_to_send()).map_err(|error| as_late(error, limit))?;
        match advanced {
            Ok(true) => return Ok(tls),
            Ok(false) => {}
            Err(error) => return Err(WireError::Tls(error.to_string())),
        }
        stream.set_read_timeout(Some(left(end, limit)?))?;
        let count = read(stream, &mut received).map_err(|error| as_late(error, limit))?;
        tls.take_sealed(&received[..count])?;
    }
}

/// Reads what there is; the end of the stream is an error.
fn read(stream: &mut TcpStream, bytes: &mut [u8]) -> io::Result<usize> {
    loop {
        match stream.read(bytes) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(0) => return Err(closed()),
            received => return received,
        }
    }
}

fn is_end(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the target closed the connection")
}

fn left(end: Instant, limit: Duration) -> Result<Duration, WireError> {
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(WireError::Late(limit)) } else { Ok(left) }
}

fn as_late(error: io::Error, limit: Duration) -> WireError {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => WireError::Late(limit),
        _ => WireError::Io(error),
    }
}

enum Next {
    Begun,
    Completed(Completed),
    Other,
}

fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).expect("a command moves less than 4 GiB")
}
