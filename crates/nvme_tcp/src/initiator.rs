//! A queue as its host sees it: which commands are in flight, where their data goes, and what the controller asks for.
//!
//! A command has a slot from [`Queue::submit`] to its completion. Its id is the number of the slot and a few bits that change
//! each time, so that a completion of a former command of the slot is noticed.
//!
//! Invariants:
//! - Data from a controller is accepted in order, once, and no more than the command asked for (F-I15).
//! - Data is sent only as far as R2Ts reach; they cover the data in order, and no more of them are open than were offered.

use zerocopy::little_endian::U16;

use crate::command::{Cqe, SglDescriptor, Sqe};
use crate::pdu::{Data, Fatal, FatalStatus, R2t, Unverified, flag};
use crate::session::{DataPart, Event, Session};
use crate::status::Status;

pub use crate::command::Slot;

/// Most commands in flight on a queue: what is left of an id beside the bits that change.
pub const COMMANDS_MAX: usize = 1 << GENERATION_SHIFT;
const GENERATION_SHIFT: u32 = 12;
const GENERATIONS: u16 = 1 << (16 - GENERATION_SHIFT);

/// The data of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// There is none.
    None,
    /// To the controller.
    Out {
        /// Bytes.
        bytes: u32,
    },
    /// To the host.
    In {
        /// Bytes.
        bytes: u32,
    },
}

/// What has arrived on a queue.
#[derive(Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Not enough for anything: receive more.
    More,
    /// The connection has begun: commands may be sent.
    Begun,
    /// The next `bytes` bytes of the stream are data. The caller shows them to [`Session::placed`].
    Place {
        /// Whose.
        slot: Slot,
        /// Where they belong in the command's data.
        offset: u32,
        /// How many.
        bytes: u32,
    },
    /// Some data has come to its end.
    Partial,
    /// The controller wants data: the caller sends [`Wanted::parts`].
    Wanted(Wanted),
    /// A command is over; its slot is free.
    Completed(Completed),
    /// The controller ends the connection, and says why.
    Terminated {
        /// By the transport's numbers.
        status: u16,
        /// More about it.
        information: u32,
    },
}

/// The end of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completed {
    /// Which.
    pub slot: Slot,
    /// How it ended.
    pub status: Status,
    /// The first two words of the completion.
    pub value: u64,
    /// Bytes of data that came.
    pub received_bytes: u32,
}

/// Data that the controller wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Of which command.
    pub slot: Slot,
    part: DataPart,
}

impl Wanted {
    /// The pieces to send, each at most as long as the controller takes, and the flags of each.
    pub fn parts(&self, bytes_max: u32) -> impl Iterator<Item = (DataPart, u8)> + use<> {
        let whole = self.part;
        let pieces = whole.bytes.div_ceil(bytes_max);
        (0..pieces).map(move |piece| {
            let start = piece * bytes_max;
            let bytes = bytes_max.min(whole.bytes - start);
            let flags = if piece + 1 == pieces { flag::LAST } else { 0 };
            (DataPart { offset: whole.offset + start, bytes, ..whole }, flags)
        })
    }
}

/// A command in flight.
#[derive(Clone, Copy, Debug, Default)]
struct InFlight {
    live: bool,
    generation: u16,
    out_bytes: u32,
    in_bytes: u32,
    /// Of the data to the controller, what R2Ts have asked for.
    asked: u32,
    received: u32,
    damaged: bool,
    open_r2ts: u32,
}

/// Whose data is on the stream.
#[derive(Clone, Copy, Debug)]
struct Stream {
    slot: Slot,
    bytes: u32,
    /// The command has succeeded with it.
    success: bool,
}

/// A queue.
#[derive(Debug)]
pub struct Queue {
    session: Session,
    commands: Box<[InFlight]>,
    free: Vec<Slot>,
    stream: Option<Stream>,
    /// Bytes of data that the controller takes in a capsule.
    in_capsule_bytes_max: u32,
}

impl Queue {
    /// A queue whose connection has just been opened, for at most `commands` in flight.
    ///
    /// # Panics
    /// If `commands` is more than [`COMMANDS_MAX`].
    #[must_use]
    pub fn new(session: Session, commands: usize, in_capsule_bytes_max: u32) -> Self {
        assert!((1..=COMMANDS_MAX).contains(&commands), "an id has room for the slot's number");
        Queue {
            session,
            commands: vec![InFlight::default(); commands].into(),
            free: (0..commands as u16).rev().map(Slot).collect(),
            stream: None,
            in_capsule_bytes_max,
        }
    }

    /// The connection.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The connection, to place data.
    pub fn session_mut(&mut self) -> &mut Session {
        &mut self.session
    }

    /// Changes how much data goes in a capsule: commands of fabrics have room for 8 KiB, those of an I/O queue for as much as
    /// the controller says.
    pub fn set_in_capsule_bytes_max(&mut self, bytes: u32) {
        self.in_capsule_bytes_max = bytes;
    }

    /// Whether there is room for another command.
    #[must_use]
    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Commands in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.commands.len() - self.free.len()
    }

    /// Takes a slot for a command and fills in its id and the description of its data. Returns the slot, the command, and how
    /// many bytes of data the caller sends behind it. None: as many are in flight as the queue has room for.
    pub fn submit(&mut self, mut sqe: Sqe, payload: Payload) -> Option<(Slot, Sqe, u32)> {
        let slot = self.free.pop()?;
        let command = &mut self.commands[slot.index()];
        let generation = (command.generation + 1) % GENERATIONS;
        *command = InFlight { live: true, generation, ..InFlight::default() };
        let mut in_capsule_bytes = 0;
        sqe.sgl = match payload {
            Payload::None => SglDescriptor::transport(0),
            Payload::In { bytes } => {
                command.in_bytes = bytes;
                SglDescriptor::transport(bytes)
            }
            Payload::Out { bytes } => {
                command.out_bytes = bytes;
                if bytes <= self.in_capsule_bytes_max {
                    command.asked = bytes;
                    in_capsule_bytes = bytes;
                    SglDescriptor::in_capsule(bytes)
                } else {
                    SglDescriptor::transport(bytes)
                }
            }
        };
        sqe.cid = U16::new(slot.0 | generation << GENERATION_SHIFT);
        Some((slot, sqe, in_capsule_bytes))
    }

    /// The data of a [`Wanted`] has been sent.
    ///
    /// # Panics
    /// If nothing was wanted.
    pub fn sent(&mut self, wanted: &Wanted) {
        let command = &mut self.commands[wanted.slot.index()];
        // The command may be over already: a controller may fail it before all data has come.
        if command.live && command.generation == wanted.part.cid >> GENERATION_SHIFT {
            command.open_r2ts =
                command.open_r2ts.checked_sub(1).expect("as much is sent as was wanted, and no more");
        }
    }

    /// Takes the next arrival from what was received, and says how many bytes are consumed. Must not be called while data is
    /// to be placed.
    ///
    /// # Errors
    /// Why the connection must end.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(usize, Arrival), Fatal> {
        self.receive_next(bytes).inspect_err(|_| self.session.end())
    }

    fn receive_next(&mut self, bytes: &[u8]) -> Result<(usize, Arrival), Fatal> {
        let received = self.session.receive(bytes)?;
        let arrival = match received.event {
            Event::More => Arrival::More,
            Event::Begun => Arrival::Begun,
            Event::Response(cqe) => Arrival::Completed(self.complete(cqe.as_received())?),
            Event::R2t(r2t) => Arrival::Wanted(self.want(&r2t)?),
            Event::Data(data) => self.begin_data(&data)?,
            Event::BodyEnd { intact } => self.end_data(intact),
            Event::Terminated { status, information } => Arrival::Terminated { status, information },
            Event::Command(_) => return Err(FatalStatus::InvalidHeaderField.at(0)),
        };
        Ok((received.consumed, arrival))
    }

    fn slot(&self, cid: u16, at: usize) -> Result<Slot, Fatal> {
        let slot = Slot(cid & (COMMANDS_MAX as u16 - 1));
        let command = self.commands.get(slot.index());
        let known = command.is_some_and(|one| one.live && one.generation == cid >> GENERATION_SHIFT);
        if known { Ok(slot) } else { Err(FatalStatus::InvalidHeaderField.at(at)) }
    }

    fn complete(&mut self, cqe: &Cqe) -> Result<Completed, Fatal> {
        let at = core::mem::offset_of!(crate::pdu::ResponseCapsule, cqe) + core::mem::offset_of!(Cqe, cid);
        let slot = self.slot(cqe.cid.get(), at)?;
        let value = u64::from(cqe.dw1.get()) << 32 | u64::from(cqe.dw0.get());
        Ok(self.end(slot, Status::from_completion(cqe.status.get()), value))
    }

    fn end(&mut self, slot: Slot, status: Status, value: u64) -> Completed {
        let command = &mut self.commands[slot.index()];
        command.live = false;
        self.free.push(slot);
        // Data whose digest was wrong is as good as data that did not come; another attempt may succeed.
        let damaged = status.is_success() && command.damaged;
        let status = if damaged { Status::TRANSIENT_TRANSPORT_ERROR } else { status };
        Completed { slot, status, value, received_bytes: command.received }
    }

    fn want(&mut self, r2t: &Unverified<R2t>) -> Result<Wanted, Fatal> {
        let r2t = r2t.as_received();
        let (cid, offset, bytes) = (r2t.cid.get(), r2t.offset.get(), r2t.bytes.get());
        let slot = self.slot(cid, core::mem::offset_of!(R2t, cid))?;
        let most = self.session.r2ts_max();
        let command = &mut self.commands[slot.index()];
        if bytes == 0 {
            return Err(FatalStatus::InvalidHeaderField.at(core::mem::offset_of!(R2t, bytes)));
        }
        if offset != command.asked || bytes > command.out_bytes - command.asked {
            return Err(FatalStatus::DataOutOfRange.at(core::mem::offset_of!(R2t, offset)));
        }
        if command.open_r2ts >= most {
            return Err(FatalStatus::LimitExceeded.at(0));
        }
        command.open_r2ts += 1;
        command.asked += bytes;
        Ok(Wanted { slot, part: DataPart { cid, tag: r2t.tag.get(), offset, bytes } })
    }

    fn begin_data(&mut self, data: &Unverified<Data>) -> Result<Arrival, Fatal> {
        let data = data.as_received();
        let (offset, bytes) = (data.offset.get(), data.bytes.get());
        let slot = self.slot(data.cid.get(), core::mem::offset_of!(Data, cid))?;
        let command = &self.commands[slot.index()];
        if offset != command.received || bytes > command.in_bytes - command.received {
            return Err(FatalStatus::DataOutOfRange.at(core::mem::offset_of!(Data, offset)));
        }
        let success = data.header.flags & flag::SUCCESS != 0;
        if success && data.header.flags & flag::LAST == 0 {
            return Err(FatalStatus::InvalidHeaderField.at(1));
        }
        self.stream = Some(Stream { slot, bytes, success });
        Ok(Arrival::Place { slot, offset, bytes })
    }

    fn end_data(&mut self, intact: bool) -> Arrival {
        let Some(Stream { slot, bytes, success }) = self.stream.take() else { return Arrival::Partial };
        let command = &mut self.commands[slot.index()];
        command.received += bytes;
        command.damaged |= !intact;
        if success { Arrival::Completed(self.end(slot, Status::SUCCESS, 0)) } else { Arrival::Partial }
    }
}
