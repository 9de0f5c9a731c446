//! Connect: a connection becomes a queue of a controller.

use crate::command::{ConnectData, Sqe};
use crate::names::Nqn;
use crate::pdu::Unverified;
use crate::status::Status;
use zerocopy::FromBytes;

/// The fewest entries of a queue, less one.
const ENTRIES_LESS_ONE_MIN: u16 = 1;
/// The controller id of a host that takes any.
pub const ANY_CONTROLLER: u16 = 0xffff;
/// The bit of Connect's attributes that turns flow control of the submission queue off.
const NO_FLOW_CONTROL: u8 = 1 << 2;

/// A Connect that makes sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connect {
    /// 0: the admin queue.
    pub queue_id: u16,
    /// Entries of the queue.
    pub entries: u16,
    /// The host does not look at how far the controller is in the submission queue.
    pub no_flow_control: bool,
    /// Time without a sign of the host after which its association ends; 0: none.
    pub keep_alive_ms: u32,
    /// The host's identifier.
    pub host_id: [u8; 16],
    /// The controller, or [`ANY_CONTROLLER`].
    pub controller_id: u16,
    /// The subsystem.
    pub subsystem: Nqn,
    /// The host.
    pub host: Nqn,
}

/// A refused Connect: its status, and which parameter is wrong, as it stands in the completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The status.
    pub status: Status,
    /// The first word of the completion.
    pub value: u64,
}

/// Where a wrong parameter stands.
#[derive(Clone, Copy)]
enum At {
    Command(usize),
    Data(usize),
}

fn wrong(at: At) -> Refused {
    let (offset, attribute) = match at {
        At::Command(offset) => (offset, 0),
        At::Data(offset) => (offset, 1u64),
    };
    Refused { status: Status::CONNECT_INVALID_PARAMETERS, value: offset as u64 | attribute << 16 }
}

impl Refused {
    /// A status without a parameter.
    #[must_use]
    pub fn with(status: Status) -> Self {
        Refused { status, value: 0 }
    }

    /// The subsystem's name is not one of ours.
    #[must_use]
    pub fn unknown_subsystem() -> Self {
        wrong(At::Data(core::mem::offset_of!(ConnectData, subsystem)))
    }

    /// The controller's id is not one of this host's.
    #[must_use]
    pub fn unknown_controller() -> Self {
        wrong(At::Data(core::mem::offset_of!(ConnectData, controller_id)))
    }

    /// The queue's number is not one that may be connected now.
    #[must_use]
    pub fn wrong_queue() -> Self {
        wrong(At::Command(QUEUE_ID_AT))
    }
}

const QUEUE_ID_AT: usize = 42;
const ENTRIES_AT: usize = 44;

impl Connect {
    /// Checks a Connect and its data. `entries_max` is what this end takes.
    ///
    /// # Errors
    /// What the command is completed with.
    pub fn check(sqe: &Unverified<Sqe>, data: &[u8], entries_max: u16) -> Result<Connect, Refused> {
        let sqe = sqe.as_received();
        let data =
            ConnectData::ref_from_bytes(data).map_err(|_| Refused::with(Status::INVALID_SGL_LENGTH))?;
        let (format, queue_id) = (sqe.cdw10.get() as u16, (sqe.cdw10.get() >> 16) as u16);
        let (entries_less_one, attributes) = (sqe.cdw11.get() as u16, (sqe.cdw11.get() >> 16) as u8);
        if format != 0 {
            return Err(Refused::with(Status::CONNECT_FORMAT));
        }
        if entries_less_one < ENTRIES_LESS_ONE_MIN || entries_less_one >= entries_max {
            return Err(wrong(At::Command(ENTRIES_AT)));
        }
        let controller_id = data.controller_id.get();
        if (queue_id == 0) != (controller_id == ANY_CONTROLLER) {
            return Err(Refused::unknown_controller());
        }
        let subsystem = Nqn::from_field(&data.subsystem).map_err(|_| Refused::unknown_subsystem())?;
        let host = Nqn::from_field(&data.host)
            .map_err(|_| wrong(At::Data(core::mem::offset_of!(ConnectData, host))))?;
        if data.host_id == [0; 16] {
            return Err(wrong(At::Data(core::mem::offset_of!(ConnectData, host_id))));
        }
        Ok(Connect {
            queue_id,
            entries: entries_less_one + 1,
            no_flow_control: attributes & NO_FLOW_CONTROL != 0,
            keep_alive_ms: sqe.cdw12.get(),
            host_id: data.host_id,
            controller_id,
            subsystem,
            host,
        })
    }
}
