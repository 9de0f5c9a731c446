//! Both ends of a connection without a socket: a target over a drive in memory, and a host that sends it commands.

use std::collections::BTreeMap;

use nvme_tcp::command::{FLAGS_SGL, Sqe, io};
use nvme_tcp::initiator::{self, Completed, Payload};
use nvme_tcp::pdu::{Fatal, Side, flag};
use nvme_tcp::session::{DataPart, Offer, Session};
use nvme_tcp::status::Status;
use nvme_tcp::target::io::{Request, Shape, check, check_data, dataset_ranges};
use nvme_tcp::target::queue::{self, Slot};

pub const BLOCK: usize = 512;

/// Everything in which connections differ.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub header_digest: bool,
    pub data_digest: bool,
    pub host_alignment: u8,
    pub target_alignment: u8,
    pub in_capsule_bytes: u32,
    pub h2c_data_bytes_max: u32,
    pub r2ts_max: u32,
    pub r2t_bytes_max: u32,
    /// Bytes of one C2HData.
    pub c2h_data_bytes_max: u32,
    /// Reads end with their last data.
    pub success_in_data: bool,
}

pub const PLAIN: Setting = Setting {
    header_digest: false,
    data_digest: false,
    host_alignment: 0,
    target_alignment: 0,
    in_capsule_bytes: 1024,
    h2c_data_bytes_max: 4096,
    r2ts_max: 1,
    r2t_bytes_max: u32::MAX,
    c2h_data_bytes_max: u32::MAX,
    success_in_data: false,
};

/// What was received and is not consumed.
#[derive(Default)]
struct Staged(Vec<u8>);

impl Staged {
    /// Takes off its front what is data, as far as that has come, and shows it to the session.
    fn data(&mut self, session: &mut Session) -> Vec<u8> {
        let here = (session.body_bytes() as usize).min(self.0.len());
        let data: Vec<u8> = self.0.drain(..here).collect();
        session.placed(&data);
        data
    }
}

/// The target's end.
pub struct Target {
    pub queue: queue::Queue,
    setting: Setting,
    staged: Staged,
    pub drive: Vec<u8>,
    buffers: BTreeMap<usize, (Request, Vec<u8>)>,
    /// Commands that are ready and wait to be carried out, in an order that the test draws.
    pub ready: Vec<(Slot, Status)>,
    /// They do not wait.
    pub at_once: bool,
    pub out: Vec<u8>,
    place: Option<(Option<Slot>, u32)>,
    pub terminated: Option<u16>,
}

impl Target {
    pub fn new(setting: Setting, drive_bytes: usize, commands: usize) -> Self {
        let offer = Offer {
            header_digest: true,
            data_digest: true,
            alignment: setting.target_alignment,
            in_capsule_bytes_max: setting.in_capsule_bytes,
            h2c_data_bytes_max: setting.h2c_data_bytes_max,
            r2ts_max: 0,
        };
        let session = Session::new(Side::Controller, offer);
        Target {
            queue: queue::Queue::new(session, commands, setting.r2t_bytes_max),
            setting,
            staged: Staged::default(),
            drive: vec![0; drive_bytes],
            buffers: BTreeMap::new(),
            ready: Vec::new(),
            at_once: false,
            out: Vec::new(),
            place: None,
            terminated: None,
        }
    }

    fn shape(&self) -> Shape {
        let blocks = (self.drive.len() / BLOCK) as u64;
        Shape { blocks, block_shift: 9, read_only: false, transfer_bytes_max: 1 << 16 }
    }

    /// Takes bytes from the host.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), Fatal> {
        self.staged.0.extend_from_slice(bytes);
        loop {
            if let Some((slot, at)) = self.place {
                let data = self.staged.data(self.queue.session_mut());
                if let Some((_, buffer)) = slot.and_then(|slot| self.buffers.get_mut(&slot.index())) {
                    buffer[at as usize..at as usize + data.len()].copy_from_slice(&data);
                }
                self.place = Some((slot, at + data.len() as u32));
                if self.queue.session().body_bytes() > 0 {
                    return Ok(());
                }
                self.place = None;
            }
            let (consumed, arrival) = match self.queue.receive(&self.staged.0) {
                Ok(received) => received,
                Err(fatal) => {
                    let mut term = [0; 256];
                    let bytes = self.queue.session().encode_term(fatal, &mut term);
                    self.out.extend_from_slice(&term[..bytes]);
                    return Err(fatal);
                }
            };
            self.staged.0.drain(..consumed);
            match arrival {
                queue::Arrival::More => return Ok(()),
                queue::Arrival::Begun => self.send(|queue, out| queue.session().encode_ic_resp(out)),
                queue::Arrival::Command { slot, sqe, in_capsule_bytes, fault } => {
                    let request = fault.map_or_else(
                        || {
                            check_data(&sqe, in_capsule_bytes)
                                .and_then(|bytes| check(&sqe, &self.shape(), bytes))
                        },
                        Err,
                    );
                    self.begin(slot, request, in_capsule_bytes);
                }
                queue::Arrival::Place { slot, offset, .. } => self.place = Some((slot, offset)),
                queue::Arrival::Partial { slot } => slot.into_iter().for_each(|slot| self.wish(slot)),
                queue::Arrival::Ready { slot, intact } => {
                    let status = if intact { Status::SUCCESS } else { Status::TRANSIENT_TRANSPORT_ERROR };
                    self.ready.push((slot, status));
                }
                queue::Arrival::Terminated { status, .. } => self.terminated = Some(status),
            }
            while self.at_once && !self.ready.is_empty() {
                self.execute(0);
            }
        }
    }

    fn begin(&mut self, slot: Slot, request: Result<Request, Status>, in_capsule_bytes: u32) {
        match request {
            Err(status) => self.complete(slot, status),
            Ok(request) => {
                let bytes = request.data_out_bytes();
                self.buffers.insert(slot.index(), (request, vec![0; bytes as usize]));
                if bytes == 0 {
                    self.ready.push((slot, Status::SUCCESS));
                } else if in_capsule_bytes == 0 {
                    self.queue.grant(slot, bytes);
                    self.wish(slot);
                }
            }
        }
    }

    fn wish(&mut self, slot: Slot) {
        while let Some(wish) = self.queue.next_wish(slot) {
            self.send(|queue, out| {
                let queue::Wish { cid, tag, offset, bytes } = wish;
                queue.session().agreement().encode_r2t(cid, tag, offset, bytes, out)
            });
        }
    }

    /// Carries a command out that is ready.
    pub fn execute(&mut self, at: usize) {
        let (slot, status) = self.ready.swap_remove(at);
        let (request, data) = self.buffers.remove(&slot.index()).expect("a command has its buffer");
        if !status.is_success() {
            return self.complete(slot, status);
        }
        let at = |offset: u64, bytes: usize| offset as usize..offset as usize + bytes;
        let status = match request {
            Request::Read { offset, bytes } => {
                let data = self.drive[at(offset, bytes as usize)].to_vec();
                return self.send_data(slot, &data);
            }
            Request::Write { offset, .. } => {
                self.drive[at(offset, data.len())].copy_from_slice(&data);
                Status::SUCCESS
            }
            Request::WriteZeroes { offset, bytes, .. } => {
                self.drive[at(offset, bytes as usize)].fill(0);
                Status::SUCCESS
            }
            Request::Flush | Request::Dataset { discard: false, .. } => Status::SUCCESS,
            Request::Dataset { ranges, .. } => match dataset_ranges(&data, ranges, &self.shape()) {
                Ok(ranges) => {
                    ranges.iter().for_each(|(offset, bytes)| {
                        self.drive[at(*offset, *bytes as usize)].fill(0);
                    });
                    Status::SUCCESS
                }
                Err(status) => status,
            },
        };
        self.complete(slot, status);
    }

    fn send_data(&mut self, slot: Slot, data: &[u8]) {
        let (cid, most) = (self.queue.cid(slot), self.setting.c2h_data_bytes_max.min(data.len() as u32));
        for (piece, bytes) in data.chunks(most as usize).enumerate() {
            let offset = piece as u32 * most;
            let part = DataPart { cid, tag: 0, offset, bytes: bytes.len() as u32 };
            let last = offset as usize + bytes.len() == data.len();
            let success = if self.setting.success_in_data { flag::SUCCESS } else { 0 };
            let flags = if last { flag::LAST | success } else { 0 };
            self.send(|queue, out| {
                queue.session().agreement().encode_data(Side::Controller, &part, flags, out)
            });
            self.out.extend_from_slice(bytes);
            self.send(|queue, out| queue.session().agreement().encode_data_end([bytes].into_iter(), out));
        }
        if self.setting.success_in_data {
            let _ = self.queue.complete(slot, Status::SUCCESS, 0);
        } else {
            self.complete(slot, Status::SUCCESS);
        }
    }

    fn complete(&mut self, slot: Slot, status: Status) {
        let cqe = self.queue.complete(slot, status, 0);
        self.send(|queue, out| queue.session().agreement().encode_response(&cqe, out));
    }

    fn send(&mut self, encode: impl FnOnce(&queue::Queue, &mut [u8]) -> usize) {
        let mut head = [0; 256];
        let bytes = encode(&self.queue, &mut head);
        self.out.extend_from_slice(&head[..bytes]);
    }
}

/// The host's end.
pub struct Host {
    pub queue: initiator::Queue,
    staged: Staged,
    pub begun: bool,
    buffers: BTreeMap<usize, Vec<u8>>,
    /// Commands that are over, with the data that came.
    pub completed: Vec<(Completed, Vec<u8>)>,
    pub out: Vec<u8>,
    place: Option<(initiator::Slot, u32)>,
    pub terminated: Option<u16>,
}

impl Host {
    pub fn new(setting: Setting, commands: usize) -> Self {
        let offer = Offer {
            header_digest: setting.header_digest,
            data_digest: setting.data_digest,
            alignment: setting.host_alignment,
            in_capsule_bytes_max: 0,
            h2c_data_bytes_max: 0,
            r2ts_max: setting.r2ts_max,
        };
        let session = Session::new(Side::Host, offer);
        let mut host = Host {
            queue: initiator::Queue::new(session, commands, setting.in_capsule_bytes),
            staged: Staged::default(),
            begun: false,
            buffers: BTreeMap::new(),
            completed: Vec::new(),
            out: Vec::new(),
            place: None,
            terminated: None,
        };
        host.send(|queue, out| queue.session().encode_ic_req(out));
        host
    }

    /// Sends a command.
    pub fn submit(&mut self, sqe: Sqe, payload: Payload, data: Vec<u8>) -> initiator::Slot {
        let (slot, sqe, in_capsule) = self.queue.submit(sqe, payload).expect("room for a command");
        self.send(|queue, out| queue.session().agreement().encode_command(&sqe, in_capsule, out));
        if in_capsule > 0 {
            self.out.extend_from_slice(&data);
            self.send(|queue, out| queue.session().agreement().encode_data_end([&data[..]].into_iter(), out));
        }
        let buffer = if let Payload::In { bytes } = payload { vec![0; bytes as usize] } else { data };
        self.buffers.insert(slot.index(), buffer);
        slot
    }

    pub fn write(&mut self, block: u64, data: Vec<u8>) -> initiator::Slot {
        let sqe = transfer(io::WRITE, block, data.len() / BLOCK);
        let bytes = data.len() as u32;
        self.submit(sqe, Payload::Out { bytes }, data)
    }

    pub fn read(&mut self, block: u64, blocks: usize) -> initiator::Slot {
        let bytes = (blocks * BLOCK) as u32;
        self.submit(transfer(io::READ, block, blocks), Payload::In { bytes }, Vec::new())
    }

    /// Takes bytes from the target.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), Fatal> {
        self.staged.0.extend_from_slice(bytes);
        loop {
            if let Some((slot, at)) = self.place {
                let data = self.staged.data(self.queue.session_mut());
                let buffer = self.buffers.get_mut(&slot.index()).expect("a command has its buffer");
                buffer[at as usize..at as usize + data.len()].copy_from_slice(&data);
                self.place = Some((slot, at + data.len() as u32));
                if self.queue.session().body_bytes() > 0 {
                    return Ok(());
                }
                self.place = None;
            }
            let (consumed, arrival) = self.queue.receive(&self.staged.0)?;
            self.staged.0.drain(..consumed);
            match arrival {
                initiator::Arrival::More => return Ok(()),
                initiator::Arrival::Begun => self.begun = true,
                initiator::Arrival::Place { slot, offset, .. } => self.place = Some((slot, offset)),
                initiator::Arrival::Partial => {}
                initiator::Arrival::Wanted(wanted) => self.send_wanted(&wanted),
                initiator::Arrival::Completed(completed) => {
                    let data = self.buffers.remove(&completed.slot.index()).expect("it has a buffer");
                    self.completed.push((completed, data));
                }
                initiator::Arrival::Terminated { status, .. } => self.terminated = Some(status),
            }
        }
    }

    fn send_wanted(&mut self, wanted: &initiator::Wanted) {
        let most = self.queue.session().agreement().h2c_data_bytes_max;
        for (part, flags) in wanted.parts(most) {
            self.send(|queue, out| queue.session().agreement().encode_data(Side::Host, &part, flags, out));
            let start = part.offset as usize;
            let bytes = self.buffers[&wanted.slot.index()][start..start + part.bytes as usize].to_vec();
            self.out.extend_from_slice(&bytes);
            self.send(|queue, out| {
                queue.session().agreement().encode_data_end([&bytes[..]].into_iter(), out)
            });
        }
        self.queue.sent(wanted);
    }

    pub fn send(&mut self, encode: impl FnOnce(&initiator::Queue, &mut [u8]) -> usize) {
        let mut head = [0; 256];
        let bytes = encode(&self.queue, &mut head);
        self.out.extend_from_slice(&head[..bytes]);
    }
}

/// A read or write of blocks.
pub fn transfer(opcode: u8, block: u64, blocks: usize) -> Sqe {
    let mut sqe = Sqe::new(opcode, 1);
    assert_eq!(sqe.flags, FLAGS_SGL);
    sqe.cdw10.set(block as u32);
    sqe.cdw11.set((block >> 32) as u32);
    sqe.cdw12.set(blocks as u32 - 1);
    sqe
}

/// Lets both ends talk until neither has anything to say and no command is ready.
pub fn settle(host: &mut Host, target: &mut Target) {
    loop {
        let (to_target, to_host) = (std::mem::take(&mut host.out), std::mem::take(&mut target.out));
        if to_target.is_empty() && to_host.is_empty() && target.ready.is_empty() {
            return;
        }
        target.feed(&to_target).expect("a host that keeps to the rules");
        host.feed(&to_host).expect("a target that keeps to the rules");
        while !target.ready.is_empty() {
            target.execute(0);
        }
    }
}
