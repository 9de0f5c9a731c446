//! Submission and completion queue entries, and the commands of fabrics: the bytes, and how much data they move.

use byte_struct::byte_struct;
use zerocopy::little_endian::{U16, U32, U64};

/// Opcodes of I/O commands.
pub mod io {
    /// Makes completed writes durable.
    pub const FLUSH: u8 = 0x00;
    /// Writes blocks.
    pub const WRITE: u8 = 0x01;
    /// Reads blocks.
    pub const READ: u8 = 0x02;
    /// Compares blocks.
    pub const COMPARE: u8 = 0x05;
    /// Makes blocks read as zeroes.
    pub const WRITE_ZEROES: u8 = 0x08;
    /// Says how ranges of blocks will be used, or that they are no longer needed.
    pub const DATASET_MANAGEMENT: u8 = 0x09;
    /// Registers, replaces or removes a reservation key.
    pub const RESERVATION_REGISTER: u8 = 0x0d;
    /// Reports registrations and the reservation.
    pub const RESERVATION_REPORT: u8 = 0x0e;
    /// Acquires or preempts a reservation.
    pub const RESERVATION_ACQUIRE: u8 = 0x11;
    /// Releases or clears a reservation.
    pub const RESERVATION_RELEASE: u8 = 0x15;
}

/// Opcodes of admin commands.
pub mod admin {
    /// A log page.
    pub const GET_LOG_PAGE: u8 = 0x02;
    /// What a controller or namespace is.
    pub const IDENTIFY: u8 = 0x06;
    /// Gives up a command.
    pub const ABORT: u8 = 0x08;
    /// Changes a feature.
    pub const SET_FEATURES: u8 = 0x09;
    /// Reads a feature.
    pub const GET_FEATURES: u8 = 0x0a;
    /// Is completed when there is an event.
    pub const ASYNC_EVENT_REQUEST: u8 = 0x0c;
    /// Shows that the host lives.
    pub const KEEP_ALIVE: u8 = 0x18;
}

/// The opcode of every fabrics command.
pub const FABRICS: u8 = 0x7f;

/// Types of fabrics commands.
pub mod fabrics {
    /// Sets a property.
    pub const PROPERTY_SET: u8 = 0x00;
    /// Makes a connection a queue of a controller.
    pub const CONNECT: u8 = 0x01;
    /// Reads a property.
    pub const PROPERTY_GET: u8 = 0x04;
    /// Carries a message of the host's authentication.
    pub const AUTHENTICATION_SEND: u8 = 0x05;
    /// Fetches a message of the controller's authentication.
    pub const AUTHENTICATION_RECEIVE: u8 = 0x06;
    /// Ends an I/O queue.
    pub const DISCONNECT: u8 = 0x08;
}

byte_struct! {
    /// Where the data of a command is.
    #[derive(Debug, PartialEq, Eq)]
    pub struct SglDescriptor, 16 bytes {
        0   8  address: U64,     /// An offset into the capsule, or 0.
        8   4  length: U32,      /// Bytes of data.
        12  3  reserved: bytes,  /// Zeroes.
        15  1  identifier: u8,   /// Type and subtype.
    }
}

/// The data stands in the capsule: a data block by its offset.
pub const SGL_IN_CAPSULE: u8 = 0x01;
/// The data travels in data PDUs: a transport data block.
pub const SGL_TRANSPORT: u8 = 0x5a;

impl SglDescriptor {
    /// Data that travels in data PDUs.
    #[must_use]
    pub fn transport(bytes: u32) -> Self {
        SglDescriptor {
            address: U64::ZERO,
            length: U32::new(bytes),
            reserved: [0; 3],
            identifier: SGL_TRANSPORT,
        }
    }

    /// Data that stands in the capsule.
    #[must_use]
    pub fn in_capsule(bytes: u32) -> Self {
        SglDescriptor { identifier: SGL_IN_CAPSULE, ..Self::transport(bytes) }
    }
}

byte_struct! {
    /// A command.
    #[derive(Debug, PartialEq, Eq)]
    pub struct Sqe, 64 bytes {
        0   1   opcode: u8,          /// What to do.
        1   1   flags: u8,           /// Fused operation, and how data is described.
        2   2   cid: U16,            /// Chosen by the host, unique among its commands in flight on this queue.
        4   4   nsid: U32,           /// The namespace; its lowest byte is the type of a fabrics command.
        8   4   cdw2: U32,           /// Of the command.
        12  4   cdw3: U32,           /// Of the command.
        16  8   metadata: U64,       /// Metadata, unused over fabrics.
        24  16  sgl: SglDescriptor,  /// Where the data is.
        40  4   cdw10: U32,          /// Of the command.
        44  4   cdw11: U32,          /// Of the command.
        48  4   cdw12: U32,          /// Of the command.
        52  4   cdw13: U32,          /// Of the command.
        56  4   cdw14: U32,          /// Of the command.
        60  4   cdw15: U32,          /// Of the command.
    }
}

/// Data is described by an SGL, as it must be over fabrics; no fused operation.
pub const FLAGS_SGL: u8 = 0x40;

impl Sqe {
    /// A command without data and without arguments.
    #[must_use]
    pub fn new(opcode: u8, nsid: u32) -> Self {
        let sgl = SglDescriptor::transport(0);
        let mut sqe: Sqe = zerocopy::FromZeros::new_zeroed();
        (sqe.opcode, sqe.flags, sqe.nsid, sqe.sgl) = (opcode, FLAGS_SGL, U32::new(nsid), sgl);
        sqe
    }

    /// A fabrics command.
    #[must_use]
    pub fn fabrics(fabrics_type: u8) -> Self {
        Sqe::new(FABRICS, u32::from(fabrics_type))
    }

    /// The type of a fabrics command.
    #[must_use]
    pub fn fabrics_type(&self) -> u8 {
        self.nsid.get() as u8
    }

    /// Command words 10 and 11 as one number: a start in blocks.
    #[must_use]
    pub fn slba(&self) -> u64 {
        u64::from(self.cdw11.get()) << 32 | u64::from(self.cdw10.get())
    }

    /// Which way the data of the command goes. It stands in two bits of the opcode, or of a fabrics command's type.
    #[must_use]
    pub fn direction(&self) -> Direction {
        let bits = if self.opcode == FABRICS { self.fabrics_type() } else { self.opcode };
        match bits & 3 {
            0 => Direction::None,
            1 => Direction::ToController,
            2 => Direction::ToHost,
            _ => Direction::Both,
        }
    }
}

/// Which way the data of a command goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// There is none.
    None,
    /// From the host to the controller.
    ToController,
    /// From the controller to the host.
    ToHost,
    /// Both ways, which no command over this transport does.
    Both,
}

/// A command in flight on a queue, as each end names it to its caller, from submission to completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot(pub(crate) u16);

impl Slot {
    /// As an index below the number of slots.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

byte_struct! {
    /// The end of a command.
    #[derive(Debug, PartialEq, Eq)]
    pub struct Cqe, 16 bytes {
        0   4  dw0: U32,     /// Of the command.
        4   4  dw1: U32,     /// Of the command.
        8   2  sqhd: U16,    /// How far the controller is in the submission queue.
        10  2  sqid: U16,    /// Unused over fabrics.
        12  2  cid: U16,     /// Of the command that ends.
        14  2  status: U16,  /// Status, above the phase bit.
    }
}

byte_struct! {
    /// The data of a Connect.
    pub struct ConnectData, 1024 bytes {
        0    16   host_id: bytes,       /// The host, by its identifier.
        16   2    controller_id: U16,   /// The controller that an I/O queue belongs to; FFFFh on the admin queue: any.
        18   238  reserved: bytes,      /// Zeroes.
        256  256  subsystem: bytes,     /// The subsystem's name.
        512  256  host: bytes,          /// The host's name.
        768  256  reserved_end: bytes,  /// Zeroes.
    }
}

byte_struct! {
    /// A range of blocks in the data of a Dataset Management command.
    pub struct DatasetRange, 16 bytes {
        0  4  attributes: U32,  /// How the range will be used.
        4  4  blocks: U32,      /// Its length in blocks.
        8  8  slba: U64,        /// Its first block.
    }
}
