//! A queue as its controller sees it: which commands are in flight, and how their data comes.
//!
//! A command has a slot from its capsule to its completion; the number of the slot names it to the caller, which keeps the
//! command's buffer under that number. Slots are made once, so a command costs no allocation. Data that does not stand in the
//! capsule is asked for when the caller has memory for it ([`Queue::grant`]), not before (F-I15), so that a host which sends
//! many commands at once makes nobody wait but itself (F-I10).
//!
//! Invariants:
//! - No two commands in flight have one id.
//! - A byte of a command's data is accepted once: pieces come in order inside an R2T, and R2Ts cover the data once.
//! - A slot is free again only when its completion has been taken from here: [`Queue::complete`].

use zerocopy::little_endian::{U16, U32};

use crate::command::{Cqe, Sqe};
use crate::pdu::{Data, Fatal, FatalStatus, Unverified};
use crate::session::{Event, Session};
use crate::status::Status;

pub use crate::command::Slot;

/// R2Ts of one command that this end has outstanding at a time, if the host takes as many.
pub const R2TS_MAX: usize = 4;
/// Most commands in flight on a queue: what is left of a tag beside the number of the R2T.
pub const COMMANDS_MAX: usize = 1 << (16 - R2T_BITS);
const R2T_BITS: u32 = 2;
const _: () = assert!(1 << R2T_BITS == R2TS_MAX);

/// What has arrived on a queue.
#[derive(Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Not enough for anything: receive more.
    More,
    /// The connection has begun.
    Begun,
    /// A command. The caller either grants its data, completes it, or carries it out.
    Command {
        /// Its name from now on.
        slot: Slot,
        /// What it asks for.
        sqe: Unverified<Sqe>,
        /// Bytes of data that stand in the capsule. [`Arrival::Place`] follows if it is not 0.
        in_capsule_bytes: u32,
        /// What it must be completed with, whatever it asks for.
        fault: Option<Status>,
    },
    /// The next `bytes` bytes of the stream are data. The caller shows them to [`Session::placed`].
    Place {
        /// Whose; none: to be passed over.
        slot: Option<Slot>,
        /// Where they belong in the command's data.
        offset: u32,
        /// How many.
        bytes: u32,
    },
    /// Some data has come to its end. The caller sends [`Queue::next_wish`] of the command.
    Partial {
        /// The command; none: the data was passed over.
        slot: Option<Slot>,
    },
    /// The data of a command is complete.
    Ready {
        /// The command.
        slot: Slot,
        /// If no digest was wrong.
        intact: bool,
    },
    /// The host ends the connection, and says why.
    Terminated {
        /// By the transport's numbers.
        status: u16,
        /// More about it.
        information: u32,
    },
}

/// A wish for data that the caller sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// The command.
    pub cid: u16,
    /// The tag.
    pub tag: u16,
    /// From where in the command's data.
    pub offset: u32,
    /// How much.
    pub bytes: u32,
}

/// A part of a command's data that was asked for.
#[derive(Clone, Copy, Debug, Default)]
struct Granted {
    offset: u32,
    bytes: u32,
    received: u32,
}

/// A command in flight.
#[derive(Clone, Copy, Debug, Default)]
struct InFlight {
    live: bool,
    cid: u16,
    /// Bytes of its data, once that is granted.
    bytes: u32,
    /// Those that were asked for, or stand in the capsule.
    asked: u32,
    received: u32,
    /// A digest was wrong.
    damaged: bool,
    granted: [Granted; R2TS_MAX],
}

/// Whose data is on the stream.
#[derive(Clone, Copy, Debug)]
struct Stream {
    slot: Option<Slot>,
    grant: Option<usize>,
    bytes: u32,
}

/// A queue.
#[derive(Debug)]
pub struct Queue {
    session: Session,
    slots: Box<[InFlight]>,
    /// Ids beside the slots, so that a duplicate is found in one pass over little memory. Not an id: a free slot.
    ids: Box<[u32]>,
    free: Vec<Slot>,
    /// Bytes that one R2T asks for.
    r2t_bytes_max: u32,
    stream: Option<Stream>,
    /// Data in a capsule that is not yet announced.
    announced: Option<(Slot, u32)>,
    entries: u16,
    head: u16,
    /// The host looks at how far this end is in the submission queue.
    has_flow_control: bool,
}

const NO_ID: u32 = u32::MAX;
/// Stands for the head of a submission queue without flow control.
const NO_HEAD: u16 = u16::MAX;

impl Queue {
    /// A queue whose connection has just been opened, for at most `commands` in flight. One R2T asks for at most
    /// `r2t_bytes_max` bytes.
    ///
    /// # Panics
    /// If `commands` is more than [`COMMANDS_MAX`].
    #[must_use]
    pub fn new(session: Session, commands: usize, r2t_bytes_max: u32) -> Self {
        assert!((1..=COMMANDS_MAX).contains(&commands), "a tag has room for the slot's number");
        Queue {
            session,
            slots: vec![InFlight::default(); commands].into(),
            ids: vec![NO_ID; commands].into(),
            free: (0..commands as u16).rev().map(Slot).collect(),
            r2t_bytes_max: r2t_bytes_max.max(4),
            stream: None,
            announced: None,
            entries: 1,
            head: 0,
            has_flow_control: true,
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

    /// The queue has this many entries: known after Connect. It counts the commands that have come.
    pub fn set_entries(&mut self, entries: u16) {
        self.entries = entries.max(1);
        self.head %= self.entries;
    }

    /// The host does without flow control of the submission queue, as it said in Connect.
    pub fn drop_flow_control(&mut self) {
        self.has_flow_control = false;
    }

    /// If the last data of a read that went well may stand for its completion, which would say nothing more.
    #[must_use]
    pub fn data_may_complete(&self) -> bool {
        !self.has_flow_control
    }

    /// Commands in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
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
        if let Some((slot, bytes)) = self.announced.take() {
            // Between the command and its data the caller may have completed it: then there is no place for the data.
            let slot = Some(slot).filter(|slot| self.slots[slot.index()].live);
            self.stream = Some(Stream { slot, grant: None, bytes });
            return Ok((0, Arrival::Place { slot, offset: 0, bytes }));
        }
        let received = self.session.receive(bytes)?;
        let arrival = match received.event {
            Event::More => Arrival::More,
            Event::Begun => Arrival::Begun,
            Event::Command(sqe) => self.begin_command(sqe)?,
            Event::Data(data) => self.begin_data(&data)?,
            Event::BodyEnd { intact } => self.end_data(intact),
            Event::Terminated { status, information } => Arrival::Terminated { status, information },
            Event::Response(_) | Event::R2t(_) => return Err(FatalStatus::InvalidHeaderField.at(0)),
        };
        Ok((received.consumed, arrival))
    }

    fn begin_command(&mut self, sqe: Unverified<Sqe>) -> Result<Arrival, Fatal> {
        let cid = sqe.as_received().cid.get();
        let Some(slot) = self.free.pop() else { return Err(FatalStatus::Sequence.at(0)) };
        let in_use = self.ids.contains(&u32::from(cid));
        if !in_use {
            self.ids[slot.index()] = u32::from(cid);
        }
        self.head = if self.head + 1 >= self.entries { 0 } else { self.head + 1 };
        let in_capsule_bytes = self.session.body_bytes();
        self.slots[slot.index()] = InFlight {
            live: true,
            cid,
            bytes: in_capsule_bytes,
            asked: in_capsule_bytes,
            ..InFlight::default()
        };
        if in_capsule_bytes > 0 {
            self.announced = Some((slot, in_capsule_bytes));
        }
        let fault = in_use.then_some(Status::COMMAND_ID_CONFLICT);
        Ok(Arrival::Command { slot, sqe, in_capsule_bytes, fault })
    }

    fn begin_data(&mut self, data: &Unverified<Data>) -> Result<Arrival, Fatal> {
        let data = data.as_received();
        let (tag, offset, bytes) = (data.tag.get(), data.offset.get(), data.bytes.get());
        let (slot, grant) = (Slot(tag >> R2T_BITS), usize::from(tag & (R2TS_MAX as u16 - 1)));
        let known = self.slots.get(slot.index()).filter(|command| {
            command.live && command.cid == data.cid.get() && command.granted[grant].bytes > 0
        });
        let Some(command) = known else {
            return Err(FatalStatus::InvalidHeaderField.at(core::mem::offset_of!(Data, tag)));
        };
        let granted = command.granted[grant];
        let left = granted.bytes - granted.received;
        if offset != granted.offset + granted.received || bytes > left {
            return Err(FatalStatus::DataOutOfRange.at(core::mem::offset_of!(Data, offset)));
        }
        self.stream = Some(Stream { slot: Some(slot), grant: Some(grant), bytes });
        Ok(Arrival::Place { slot: Some(slot), offset, bytes })
    }

    /// Notes data that has come to its end on the stream.
    fn end_data(&mut self, intact: bool) -> Arrival {
        let passed = Arrival::Partial { slot: None };
        let Some(Stream { slot: Some(slot), grant, bytes }) = self.stream.take() else { return passed };
        let command = &mut self.slots[slot.index()];
        if !command.live {
            return passed;
        }
        command.received += bytes;
        command.damaged |= !intact;
        if let Some(grant) = grant {
            let granted = &mut command.granted[grant];
            granted.received += bytes;
            if granted.received == granted.bytes {
                *granted = Granted::default();
            }
        }
        if command.received < command.bytes {
            return Arrival::Partial { slot: Some(slot) };
        }
        Arrival::Ready { slot, intact: !command.damaged }
    }

    /// The caller has memory for the command's `bytes` bytes of data, which do not stand in the capsule. It then sends what
    /// [`Queue::next_wish`] says.
    ///
    /// # Panics
    /// If the command has data already.
    pub fn grant(&mut self, slot: Slot, bytes: u32) {
        let command = &mut self.slots[slot.index()];
        assert!(command.live && command.bytes == 0, "data is granted once, and not for data in a capsule");
        command.bytes = bytes;
    }

    /// The next R2T of a command that may be sent: after a grant, and whenever some data of it has arrived.
    pub fn next_wish(&mut self, slot: Slot) -> Option<Wish> {
        let most = (self.session.r2ts_max() as usize).min(R2TS_MAX);
        let command = &mut self.slots[slot.index()];
        if !command.live || command.asked >= command.bytes {
            return None;
        }
        let free = command.granted[..most].iter().position(|granted| granted.bytes == 0)?;
        let bytes = (command.bytes - command.asked).min(self.r2t_bytes_max);
        command.granted[free] = Granted { offset: command.asked, bytes, received: 0 };
        let wish =
            Wish { cid: command.cid, tag: slot.0 << R2T_BITS | free as u16, offset: command.asked, bytes };
        command.asked += bytes;
        Some(wish)
    }

    /// If data of the command is still to come. Its completion waits for that: the host would send it anyway.
    #[must_use]
    pub fn awaits_data(&self, slot: Slot) -> bool {
        let command = &self.slots[slot.index()];
        command.live && command.received < command.asked
    }

    /// The command in flight that has this id.
    #[must_use]
    pub fn slot_of(&self, cid: u16) -> Option<Slot> {
        self.ids.iter().position(|id| *id == u32::from(cid)).map(|at| Slot(at as u16))
    }

    /// The id of a command.
    #[must_use]
    pub fn cid(&self, slot: Slot) -> u16 {
        self.slots[slot.index()].cid
    }

    /// Ends a command: its slot is free, and this is its completion. Data of it that is still on the stream is passed over.
    ///
    /// # Panics
    /// If there is no such command.
    pub fn complete(&mut self, slot: Slot, status: Status, value: u64) -> Cqe {
        let command = &mut self.slots[slot.index()];
        assert!(command.live, "a command is completed once");
        command.live = false;
        let cid = command.cid;
        self.ids[slot.index()] = NO_ID;
        self.free.push(slot);
        Cqe {
            dw0: U32::new(value as u32),
            dw1: U32::new((value >> 32) as u32),
            sqhd: U16::new(if self.has_flow_control { self.head } else { NO_HEAD }),
            sqid: U16::ZERO,
            cid: U16::new(cid),
            status: U16::new(status.to_completion()),
        }
    }
}
