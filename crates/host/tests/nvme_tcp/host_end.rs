//! A host: one queue of it over a socket, one command at a time.

use nvme_tcp::auth::{Failure, HostExchange, HostSettings, Randomness, TRANSFER_BYTES_MAX, transfer};
use nvme_tcp::command::{ConnectData, Sqe, fabrics};
use nvme_tcp::initiator::{Arrival, Completed, Payload, Queue};
use nvme_tcp::names::{Host, Nqn};
use nvme_tcp::pdu::Side;
use nvme_tcp::reservation::{Report, ReservationCommand};
use nvme_tcp::session::{Offer, Session};
use nvme_tcp::status::Status;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromZeros, IntoBytes};

/// What a controller takes in the capsule of a command here.
const IN_CAPSULE_BYTES: u32 = 8192;
/// Commands in flight, one fewer than the queue has entries.
pub const COMMANDS: usize = 31;
const REPORT_BYTES: usize = 4096;
const PROPERTY_CONFIGURATION: u32 = 0x14;
pub const ENABLED: u32 = 0x0046_0001;

/// One queue.
pub struct HostQueue {
    queue: Queue,
    socket: Box<dyn Stream>,
    received: Vec<u8>,
    /// Data of the command in flight: what it sends, or what came.
    data: Vec<u8>,
}

/// A connection, whatever lies on it.
pub trait Stream: Read + Write + Send {
    /// What it is at the bottom.
    fn tcp(&self) -> &TcpStream;
}

impl Stream for TcpStream {
    fn tcp(&self) -> &TcpStream {
        self
    }
}

/// A connection to a server, which answers within 20 s.
pub fn connect(address: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect(address).expect("a listener");
    socket.set_nodelay(true).expect("a socket of TCP");
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
    socket
}

/// A host's association: an admin queue and an I/O queue.
pub struct Connected {
    pub admin: HostQueue,
    pub io: HostQueue,
}

impl Connected {
    pub fn new(address: SocketAddr, subsystem: &Nqn, host: &Host) -> Connected {
        let mut admin = HostQueue::open(address);
        let controller = admin.connect(subsystem, host, 0, 0xffff).expect("it is allowed");
        assert_eq!(admin.configure(ENABLED), Status::SUCCESS);
        let mut io = HostQueue::open(address);
        io.connect(subsystem, host, 1, controller).expect("it has a controller");
        Connected { admin, io }
    }
}

impl HostQueue {
    pub fn open(address: SocketAddr) -> HostQueue {
        HostQueue::over(Box::new(connect(address)))
    }

    /// Over a connection that is there.
    pub fn over(socket: Box<dyn Stream>) -> HostQueue {
        let offer = Offer {
            header_digest: false,
            data_digest: false,
            alignment: 0,
            in_capsule_bytes_max: 0,
            h2c_data_bytes_max: 0,
            r2ts_max: 1,
        };
        let queue = Queue::new(Session::new(Side::Host, offer), COMMANDS, IN_CAPSULE_BYTES);
        let mut one = HostQueue { queue, socket, received: Vec::new(), data: Vec::new() };
        one.send(|queue, out| queue.session().encode_ic_req(out));
        assert!(matches!(one.next(), Arrival::Begun));
        one
    }

    pub fn connect(&mut self, subsystem: &Nqn, host: &Host, id: u16, controller: u16) -> Result<u16, Status> {
        self.connect_as(subsystem, host, (id, controller), 0)
    }

    /// With attributes of the command.
    pub fn connect_as(
        &mut self,
        subsystem: &Nqn,
        host: &Host,
        (id, controller): (u16, u16),
        attributes: u32,
    ) -> Result<u16, Status> {
        let mut data = ConnectData::new_zeroed();
        (data.host_id, data.controller_id) = (host.id.0, U16::new(controller));
        (data.subsystem, data.host) = (subsystem.to_field(), host.nqn.to_field());
        let mut sqe = Sqe::fabrics(fabrics::CONNECT);
        (sqe.cdw10, sqe.cdw11) = (U32::new(u32::from(id) << 16), U32::new(31 | attributes << 16));
        let bytes = data.as_bytes().to_vec();
        let (status, value, _) = self.call(sqe, Payload::Out { bytes: 1024 }, bytes);
        if status.is_success() { Ok(value as u16) } else { Err(status) }
    }

    /// Proves by DH-HMAC-CHAP what `settings` has. Returns how it ends at the host.
    pub fn authenticate(&mut self, settings: HostSettings) -> Result<(), Failure> {
        let drawn = Randomness::draw(|bytes| {
            bytes.fill(7);
            Ok::<_, std::convert::Infallible>(())
        });
        let Ok(randomness) = drawn;
        let (mut exchange, first) = HostExchange::begin(settings, randomness, 5);
        let (mut send, mut end) = (Some(first), None);
        loop {
            if let Some(message) = send.take() {
                let bytes = message.len() as u32;
                let sent = self.call(transfer(true, bytes), Payload::Out { bytes }, message);
                assert_eq!(sent.0, Status::SUCCESS);
            }
            if let Some(end) = end {
                return end;
            }
            let bytes = TRANSFER_BYTES_MAX;
            let (status, _, message) = self.call(transfer(false, bytes), Payload::In { bytes }, Vec::new());
            assert_eq!(status, Status::SUCCESS);
            let step = exchange.receive(&message);
            (send, end) = (step.send, step.end);
        }
    }

    /// Sets the controller's configuration.
    pub fn configure(&mut self, value: u32) -> Status {
        let mut sqe = Sqe::fabrics(fabrics::PROPERTY_SET);
        (sqe.cdw11, sqe.cdw12) = (U32::new(PROPERTY_CONFIGURATION), U32::new(value));
        self.call(sqe, Payload::None, Vec::new()).0
    }

    /// Sends bytes that are no command.
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).expect("sent");
    }

    /// Whether the other end has closed the connection.
    pub fn is_closed(&mut self) -> bool {
        !matches!(self.socket.read(&mut [0]), Ok(bytes) if bytes > 0)
    }

    /// Sends a command and waits for its end: status, value, data.
    pub fn call(&mut self, sqe: Sqe, payload: Payload, data: Vec<u8>) -> (Status, u64, Vec<u8>) {
        self.begin(sqe, payload, data);
        let completed = self.end();
        (completed.status, completed.value, std::mem::take(&mut self.data))
    }

    /// Sends a read whose data will be passed over, and returns its command id.
    pub fn begin_read(&mut self, bytes: u32) -> u16 {
        let mut sqe = Sqe::new(nvme_tcp::command::io::READ, 1);
        sqe.cdw12 = U32::new(bytes / 4096 - 1);
        let (_, sqe, _) = self.queue.submit(sqe, Payload::In { bytes }).expect("there is room");
        self.send(|queue, out| queue.session().agreement().encode_command(&sqe, 0, out));
        sqe.cid.get()
    }

    /// How the next command ends, whichever; its data is passed over.
    pub fn end_passing_over(&mut self) -> Status {
        loop {
            match self.next() {
                Arrival::Completed(completed) => return completed.status,
                Arrival::Place { bytes, .. } => {
                    while self.received.len() < bytes as usize {
                        self.receive();
                    }
                    let data: Vec<u8> = self.received.drain(..bytes as usize).collect();
                    self.queue.session_mut().placed(&data);
                }
                Arrival::Partial => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// Sends a command.
    pub fn begin(&mut self, sqe: Sqe, payload: Payload, data: Vec<u8>) {
        let (_, sqe, in_capsule) = self.queue.submit(sqe, payload).expect("one at a time");
        self.data = data;
        self.send(|queue, out| queue.session().agreement().encode_command(&sqe, in_capsule, out));
        let bytes = self.data[..in_capsule as usize].to_vec();
        self.socket.write_all(&bytes).expect("sent");
        if let Payload::In { bytes } = payload {
            self.data = vec![0; bytes as usize];
        }
    }

    /// Waits for the end of the command that was begun.
    pub fn end(&mut self) -> Completed {
        loop {
            match self.next() {
                Arrival::Completed(completed) => return completed,
                Arrival::Place { offset, bytes, .. } => {
                    let (offset, bytes) = (offset as usize, bytes as usize);
                    while self.received.len() < bytes {
                        self.receive();
                    }
                    let data: Vec<u8> = self.received.drain(..bytes).collect();
                    self.data[offset..offset + bytes].copy_from_slice(&data);
                    self.queue.session_mut().placed(&data);
                }
                Arrival::Wanted(wanted) => self.send_wanted(&wanted),
                Arrival::Partial | Arrival::Begun | Arrival::More => {}
                Arrival::Terminated { status, .. } => panic!("the controller ended the connection: {status}"),
            }
        }
    }

    /// Waits until the controller wants the data of the command that was begun.
    pub fn wanted(&mut self) -> nvme_tcp::initiator::Wanted {
        match self.next() {
            Arrival::Wanted(wanted) => wanted,
            other => panic!("{other:?}"),
        }
    }

    pub fn send_wanted(&mut self, wanted: &nvme_tcp::initiator::Wanted) {
        for (part, flags) in wanted.parts(self.queue.session().agreement().h2c_data_bytes_max) {
            self.send(|queue, out| queue.session().agreement().encode_data(Side::Host, &part, flags, out));
            let start = part.offset as usize;
            self.socket.write_all(&self.data[start..start + part.bytes as usize]).expect("sent");
        }
        self.queue.sent(wanted);
    }

    pub fn reserve(&mut self, command: &ReservationCommand) -> Status {
        self.begin_reserve(command);
        self.end().status
    }

    pub fn begin_reserve(&mut self, command: &ReservationCommand) {
        let (opcode, dword10, data) = command.encode();
        let mut sqe = Sqe::new(opcode, 1);
        sqe.cdw10 = U32::new(dword10);
        self.begin(sqe, Payload::Out { bytes: data.len() as u32 }, data);
    }

    pub fn report(&mut self) -> Report {
        let mut sqe = Sqe::new(nvme_tcp::command::io::RESERVATION_REPORT, 1);
        let (dword10, dword11) = Report::request(REPORT_BYTES);
        (sqe.cdw10, sqe.cdw11) = (U32::new(dword10), U32::new(dword11));
        let (status, _, data) = self.call(sqe, Payload::In { bytes: REPORT_BYTES as u32 }, Vec::new());
        assert_eq!(status, Status::SUCCESS);
        Report::parse(&data).expect("a report")
    }

    /// Whether the controller has said nothing for a while.
    pub fn is_silent_for(&mut self, time: Duration) -> bool {
        let socket = self.socket.tcp();
        socket.set_nonblocking(false).expect("as it is");
        socket.set_read_timeout(Some(time)).expect("a limit");
        let silent = socket.peek(&mut [0]).is_err();
        socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
        silent
    }

    fn next(&mut self) -> Arrival {
        loop {
            let (consumed, arrival) = self.queue.receive(&self.received).expect("by the rules");
            self.received.drain(..consumed);
            if arrival != Arrival::More {
                return arrival;
            }
            self.receive();
        }
    }

    fn receive(&mut self) {
        let mut bytes = [0; 4096];
        let count = self.socket.read(&mut bytes).expect("an answer within the limit");
        assert!(count > 0, "the controller has ended the connection");
        self.received.extend_from_slice(&bytes[..count]);
    }

    fn send(&mut self, encode: impl FnOnce(&Queue, &mut [u8]) -> usize) {
        let mut head = [0; 256];
        let bytes = encode(&self.queue, &mut head);
        self.socket.write_all(&head[..bytes]).expect("sent");
    }
}
