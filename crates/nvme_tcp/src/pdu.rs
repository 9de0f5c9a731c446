//! The PDUs of the TCP transport: their bytes, and what may stand in their headers.
//!
//! A header is checked before anything is made of it (F-I15): [`PduHeader::check`] takes the eight bytes that all PDUs begin
//! with and says how many more belong to the header and how much data follows, or why the connection must end. All limits on
//! lengths are kept there, so nobody takes memory for a length that was not checked.

use std::fmt;

use byte_struct::byte_struct;
use zerocopy::little_endian::{U16, U32};

use crate::command::{Cqe, Sqe};

/// PDU types.
pub mod kind {
    /// Host to controller: begins a connection.
    pub const IC_REQ: u8 = 0x00;
    /// Controller to host: answers it.
    pub const IC_RESP: u8 = 0x01;
    /// Host to controller: ends a connection.
    pub const H2C_TERM: u8 = 0x02;
    /// Controller to host: ends a connection.
    pub const C2H_TERM: u8 = 0x03;
    /// Host to controller: a command, perhaps with data.
    pub const COMMAND: u8 = 0x04;
    /// Controller to host: the end of a command.
    pub const RESPONSE: u8 = 0x05;
    /// Host to controller: data.
    pub const H2C_DATA: u8 = 0x06;
    /// Controller to host: data.
    pub const C2H_DATA: u8 = 0x07;
    /// Controller to host: it wants data.
    pub const R2T: u8 = 0x09;
}

/// Flags of a header.
pub mod flag {
    /// A digest of the header follows it.
    pub const HEADER_DIGEST: u8 = 0x01;
    /// A digest of the data follows it.
    pub const DATA_DIGEST: u8 = 0x02;
    /// The last data PDU of an R2T, or of a command.
    pub const LAST: u8 = 0x04;
    /// The command has succeeded, no completion follows.
    pub const SUCCESS: u8 = 0x08;
}

/// Bytes of a digest: CRC-32C of a header or of data.
pub const DIGEST_BYTES: usize = 4;
/// Bytes that every PDU begins with.
pub const COMMON_BYTES: usize = 8;
/// The longest header without digest and padding.
pub const HEADER_BYTES_MAX: usize = 128;
/// The longest termination request: its header, and the header of the PDU that was wrong.
pub const TERM_BYTES_MAX: usize = size_of::<Term>() + HEADER_BYTES_MAX;
/// The offset of data is one byte, so this many bytes are enough to hold any header with digest and padding.
pub const BEFORE_DATA_BYTES_MAX: usize = 256;
/// The unit of data alignments.
const DWORD: usize = 4;
/// The largest data alignment, in dwords from 0.
pub const ALIGNMENT_MAX: u8 = 31;
/// A controller must take at least this much in one data PDU.
pub const H2C_DATA_BYTES_MIN: u32 = 4096;

byte_struct! {
    /// What every PDU begins with.
    #[derive(Debug, PartialEq, Eq)]
    pub struct PduHeader, 8 bytes {
        0  1  kind: u8,          /// One of [`kind`].
        1  1  flags: u8,         /// Of [`flag`].
        2  1  header_bytes: u8,  /// Bytes of the header, without its digest.
        3  1  data_offset: u8,   /// Where the data begins.
        4  4  pdu_bytes: U32,    /// Bytes of the whole PDU.
    }
}

byte_struct! {
    /// The first PDU of a host.
    #[derive(Debug, PartialEq, Eq)]
    pub struct IcReq, 128 bytes {
        0   8    header: PduHeader,   /// Common header.
        8   2    version: U16,        /// Format: 0.
        10  1    alignment: u8,       /// Alignment of data that the host wants, in dwords from 0.
        11  1    digests: u8,         /// Digests: bit 0 headers, bit 1 data.
        12  4    r2ts_less_one: U32,  /// R2Ts for one command that the host takes at a time, less one.
        16  112  reserved: bytes,     /// Zeroes.
    }
}

byte_struct! {
    /// The first PDU of a controller.
    #[derive(Debug, PartialEq, Eq)]
    pub struct IcResp, 128 bytes {
        0   8    header: PduHeader,        /// Common header.
        8   2    version: U16,             /// Format: 0.
        10  1    alignment: u8,            /// Alignment of data that the controller wants, in dwords from 0.
        11  1    digests: u8,              /// Digests: bit 0 headers, bit 1 data.
        12  4    h2c_data_bytes_max: U32,  /// Bytes of data that one H2CData may have.
        16  112  reserved: bytes,          /// Zeroes.
    }
}

/// Bits of the digests in [`IcReq`] and [`IcResp`].
pub mod digests {
    /// Headers have digests.
    pub const HEADER: u8 = 0x01;
    /// Data has digests.
    pub const DATA: u8 = 0x02;
}

byte_struct! {
    /// Ends a connection. The header of the PDU that was wrong follows.
    #[derive(Debug, PartialEq, Eq)]
    pub struct Term, 24 bytes {
        0   8   header: PduHeader,  /// Common header.
        8   2   status: U16,        /// Why: a [`FatalStatus`].
        10  4   information: U32,   /// More about it: an offset into the header, or the digest.
        14  10  reserved: bytes,    /// Zeroes.
    }
}

byte_struct! {
    /// A command.
    #[derive(Debug, PartialEq, Eq)]
    pub struct CommandCapsule, 72 bytes {
        0  8   header: PduHeader,  /// Common header.
        8  64  sqe: Sqe,           /// The command.
    }
}

byte_struct! {
    /// The end of a command.
    #[derive(Debug, PartialEq, Eq)]
    pub struct ResponseCapsule, 24 bytes {
        0  8   header: PduHeader,  /// Common header.
        8  16  cqe: Cqe,           /// The completion.
    }
}

byte_struct! {
    /// Data, either way.
    #[derive(Debug, PartialEq, Eq)]
    pub struct Data, 24 bytes {
        0   8  header: PduHeader,  /// Common header.
        8   2  cid: U16,           /// The command.
        10  2  tag: U16,           /// The tag of the R2T that it answers; 0 from a controller.
        12  4  offset: U32,        /// Where it belongs in the command's data.
        16  4  bytes: U32,         /// How much it is.
        20  4  reserved: bytes,    /// Zeroes.
    }
}

byte_struct! {
    /// The controller wants data of a command.
    #[derive(Debug, PartialEq, Eq)]
    pub struct R2t, 24 bytes {
        0   8  header: PduHeader,  /// Common header.
        8   2  cid: U16,           /// The command.
        10  2  tag: U16,           /// What the data must carry.
        12  4  offset: U32,        /// From where in the command's data.
        16  4  bytes: U32,         /// How much.
        20  4  reserved: bytes,    /// Zeroes.
    }
}

/// Why a connection ends, by the transport's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum FatalStatus {
    /// A field of a header has a value that it may not have.
    InvalidHeaderField = 1,
    /// A PDU that may not come now.
    Sequence = 2,
    /// The digest of a header is wrong.
    HeaderDigest = 3,
    /// Data beyond what was asked for.
    DataOutOfRange = 4,
    /// More data in one PDU, or more R2Ts at a time, than was agreed.
    LimitExceeded = 5,
    /// A parameter that is not supported.
    UnsupportedParameter = 6,
}

/// Why a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}, information {information:#x}", status.words())]
pub struct Fatal {
    /// What is wrong.
    pub status: FatalStatus,
    /// Where: an offset into the header, or the digest that was received.
    pub information: u32,
}

impl FatalStatus {
    /// With the offset of the field that is wrong, or what else there is to say.
    #[must_use]
    pub const fn at(self, information: usize) -> Fatal {
        Fatal { status: self, information: information as u32 }
    }

    /// The status of a number.
    #[must_use]
    pub fn from_number(number: u16) -> Option<FatalStatus> {
        use FatalStatus as S;
        let all = [
            S::InvalidHeaderField,
            S::Sequence,
            S::HeaderDigest,
            S::DataOutOfRange,
            S::LimitExceeded,
            S::UnsupportedParameter,
        ];
        all.into_iter().find(|status| *status as u16 == number)
    }

    /// In words.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            FatalStatus::InvalidHeaderField => "a field of a PDU header is wrong",
            FatalStatus::Sequence => "a PDU came out of sequence",
            FatalStatus::HeaderDigest => "the digest of a PDU header is wrong",
            FatalStatus::DataOutOfRange => "data lies outside of what was asked for",
            FatalStatus::LimitExceeded => "more data or R2Ts than the limit",
            FatalStatus::UnsupportedParameter => "a parameter is not supported",
        }
    }
}

/// Which end of a connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// It sends commands.
    Host,
    /// It carries commands out.
    Controller,
}

/// What the two ends agreed on, as far as headers are concerned, and what this end takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// Headers have digests.
    pub header_digest: bool,
    /// Data has digests.
    pub data_digest: bool,
    /// Alignment of data that this end receives, in dwords from 0.
    pub receive_alignment: u8,
    /// Alignment of data that this end sends, in dwords from 0.
    pub send_alignment: u8,
    /// Bytes of data in a capsule that this end takes.
    pub in_capsule_bytes_max: u32,
    /// Bytes of data that one H2CData may have.
    pub h2c_data_bytes_max: u32,
}

/// A header whose lengths have been checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// One of [`kind`].
    pub kind: u8,
    /// Bytes of the header without digest.
    pub header_bytes: usize,
    /// The header has a digest.
    pub header_digest: bool,
    /// Bytes from the first of the PDU to the first of its data: header, digest, padding.
    pub before_data_bytes: usize,
    /// Bytes of data.
    pub data_bytes: u32,
    /// The data has a digest.
    pub data_digest: bool,
}

/// Offsets into the common header, for [`Fatal::information`].
const AT_KIND: usize = 0;
const AT_FLAGS: usize = 1;
const AT_HEADER_BYTES: usize = 2;
const AT_DATA_OFFSET: usize = 3;
const AT_PDU_BYTES: usize = 4;

const fn invalid<T>(at: usize) -> Result<T, Fatal> {
    Err(FatalStatus::InvalidHeaderField.at(at))
}

/// What is fixed for a type of PDU: its header's length, the flags it may have beside those of digests, and whether it has
/// data.
struct Shape {
    header_bytes: usize,
    flags: u8,
    data: Carries,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Carries {
    Nothing,
    /// Data from the data offset on, and digests as agreed.
    MayHaveData,
    MustHaveData,
    /// Another PDU's header, right behind its own, never digests.
    Term,
    /// Nothing, and never digests.
    First,
}

/// The shape of a PDU that `side` may receive.
const fn shape(kind: u8, side: Side) -> Option<Shape> {
    use Carries as C;
    let (from, header_bytes, flags, data) = match kind {
        kind::IC_REQ => (Side::Host, size_of::<IcReq>(), 0, C::First),
        kind::IC_RESP => (Side::Controller, size_of::<IcResp>(), 0, C::First),
        kind::H2C_TERM => (Side::Host, size_of::<Term>(), 0, C::Term),
        kind::C2H_TERM => (Side::Controller, size_of::<Term>(), 0, C::Term),
        kind::COMMAND => (Side::Host, size_of::<CommandCapsule>(), 0, C::MayHaveData),
        kind::RESPONSE => (Side::Controller, size_of::<ResponseCapsule>(), 0, C::Nothing),
        kind::H2C_DATA => (Side::Host, size_of::<Data>(), flag::LAST, C::MustHaveData),
        kind::C2H_DATA => (Side::Controller, size_of::<Data>(), flag::LAST | flag::SUCCESS, C::MustHaveData),
        kind::R2T => (Side::Controller, size_of::<R2t>(), 0, C::Nothing),
        _ => return None,
    };
    if matches!((from, side), (Side::Host, Side::Host) | (Side::Controller, Side::Controller)) {
        return None;
    }
    Some(Shape { header_bytes, flags, data })
}

impl PduHeader {
    /// Checks a header that `side` has received, by what was agreed.
    ///
    /// # Errors
    /// Why the connection must end.
    pub fn check(&self, side: Side, agreed: &Agreement) -> Result<Extent, Fatal> {
        let Some(shape) = shape(self.kind, side) else { return invalid(AT_KIND) };
        if usize::from(self.header_bytes) != shape.header_bytes {
            return invalid(AT_HEADER_BYTES);
        }
        let digests = match shape.data {
            Carries::First | Carries::Term => (false, false),
            Carries::Nothing => (agreed.header_digest, false),
            Carries::MayHaveData | Carries::MustHaveData => (agreed.header_digest, agreed.data_digest),
        };
        let pdu_bytes = self.pdu_bytes.get() as usize;
        let header_end = shape.header_bytes + if digests.0 { DIGEST_BYTES } else { 0 };
        if pdu_bytes < header_end {
            return invalid(AT_PDU_BYTES);
        }
        let has_data = pdu_bytes > header_end;
        self.check_flags(&shape, digests, has_data)?;
        let mut extent = Extent {
            kind: self.kind,
            header_bytes: shape.header_bytes,
            header_digest: digests.0,
            before_data_bytes: header_end,
            data_bytes: 0,
            data_digest: false,
        };
        match shape.data {
            Carries::First | Carries::Nothing if has_data => return invalid(AT_PDU_BYTES),
            Carries::MustHaveData if !has_data => return invalid(AT_PDU_BYTES),
            Carries::Term => {
                if pdu_bytes > TERM_BYTES_MAX {
                    return invalid(AT_PDU_BYTES);
                }
                extent.data_bytes = (pdu_bytes - header_end) as u32;
            }
            Carries::MayHaveData | Carries::MustHaveData if has_data => {
                extent.data_digest = digests.1;
                extent.before_data_bytes = self.data_start(header_end, agreed)?;
                extent.data_bytes = self.data_bytes(&extent, agreed)?;
            }
            _ => {}
        }
        Ok(extent)
    }

    /// Digests stand exactly where they were agreed, and no flag means nothing.
    fn check_flags(&self, shape: &Shape, (header, data): (bool, bool), has_data: bool) -> Result<(), Fatal> {
        let mut wanted = if header { flag::HEADER_DIGEST } else { 0 };
        // A command without data may say that data has digests: there is nothing that one would follow.
        let mut optional = shape.flags;
        if data {
            if has_data {
                wanted |= flag::DATA_DIGEST;
            } else {
                optional |= flag::DATA_DIGEST;
            }
        }
        if self.flags & wanted != wanted || self.flags & !(wanted | optional) != 0 {
            return invalid(AT_FLAGS);
        }
        Ok(())
    }

    fn data_start(&self, header_end: usize, agreed: &Agreement) -> Result<usize, Fatal> {
        let start = usize::from(self.data_offset);
        let alignment = (usize::from(agreed.receive_alignment) + 1) * DWORD;
        let fits = start >= header_end && start.is_multiple_of(alignment);
        if fits { Ok(start) } else { invalid(AT_DATA_OFFSET) }
    }

    fn data_bytes(&self, extent: &Extent, agreed: &Agreement) -> Result<u32, Fatal> {
        let around = extent.before_data_bytes + if extent.data_digest { DIGEST_BYTES } else { 0 };
        let bytes = self.pdu_bytes.get().checked_sub(around as u32).filter(|bytes| *bytes > 0);
        let Some(bytes) = bytes else { return invalid(AT_PDU_BYTES) };
        match self.kind {
            kind::COMMAND if bytes > agreed.in_capsule_bytes_max => invalid(AT_PDU_BYTES),
            kind::H2C_DATA if bytes > agreed.h2c_data_bytes_max => {
                Err(FatalStatus::LimitExceeded.at(AT_PDU_BYTES))
            }
            _ => Ok(bytes),
        }
    }
}

impl Agreement {
    /// The common header of a PDU that this end sends.
    #[must_use]
    pub fn header(&self, kind: u8, flags: u8, header_bytes: usize, data_bytes: u32) -> PduHeader {
        let (mut flags, mut end, mut offset) = (flags, header_bytes as u32, 0);
        if self.header_digest {
            flags |= flag::HEADER_DIGEST;
            end += DIGEST_BYTES as u32;
        }
        if data_bytes > 0 {
            offset = self.data_offset(header_bytes);
            end = offset as u32 + data_bytes;
            if self.data_digest {
                flags |= flag::DATA_DIGEST;
                end += DIGEST_BYTES as u32;
            }
        }
        PduHeader {
            kind,
            flags,
            header_bytes: header_bytes as u8,
            data_offset: offset as u8,
            pdu_bytes: U32::new(end),
        }
    }

    /// Where data begins that this end sends.
    #[must_use]
    pub fn data_offset(&self, header_bytes: usize) -> usize {
        let end = header_bytes + if self.header_digest { DIGEST_BYTES } else { 0 };
        end.next_multiple_of((usize::from(self.send_alignment) + 1) * DWORD)
    }
}

/// Bytes from the network that have the form of a `T`, and nothing more: what they ask for has not been checked (F-I15).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Unverified<T>(T);

impl<T> Unverified<T> {
    /// As it was received.
    #[must_use]
    pub fn new(received: T) -> Self {
        Unverified(received)
    }

    /// For those who check it.
    #[must_use]
    pub fn as_received(&self) -> &T {
        &self.0
    }
}

impl<T: fmt::Debug> fmt::Debug for Unverified<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unverified {:?}", self.0)
    }
}

// The largest alignment puts data at 128 bytes or 256 less a little: it fits the byte that says where.
const _: () = assert!((ALIGNMENT_MAX as usize + 1) * DWORD == HEADER_BYTES_MAX);
