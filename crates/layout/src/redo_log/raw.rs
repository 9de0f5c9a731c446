//! The bytes of the redo log's blocks.

use byte_struct::byte_struct;
use zerocopy::little_endian::{U16, U32, U64};

use crate::headroom::{BLOCK_BYTES, RawStart};

/// The most ranges of stripes in doubt in a header. The engine merges neighbouring ranges if there are more.
pub const DOUBTS_MAX: usize = (BLOCK_BYTES - size_of::<RawHeader>()) / size_of::<RawRange>();

/// The most writes in one record.
pub const PIECES_MAX: usize = (BLOCK_BYTES - size_of::<RawRecord>()) / size_of::<RawPiece>();

/// Name, offset and size of each field of a header, for the check of `docs/formats.md`.
pub const HEADER_FIELDS: &[(&str, usize, usize)] = RawHeader::FIELDS;

/// Name, offset and size of each field of a record, for the check of `docs/formats.md`.
pub const RECORD_FIELDS: &[(&str, usize, usize)] = RawRecord::FIELDS;

/// Name, offset and size of each field of a piece, for the check of `docs/formats.md`.
pub const PIECE_FIELDS: &[(&str, usize, usize)] = RawPiece::FIELDS;

byte_struct! {
    pub(super) struct RawHeader, 256 bytes {
        0    56   start: RawStart,
        56   8    generation: U64,
        64   8    epoch: U64,
        72   8    retired_below: U64,
        80   8    events: U64,
        88   4    superblock_now: U32,
        92   4    superblock_next: U32,
        96   4    flags: U32,
        100  4    slot_bytes: U32,
        104  4    slots: U32,
        108  4    doubts: U32,
        112  8    resync_from: U64,
        120  136  reserve: bytes,
    }
}

byte_struct! {
    /// Stripes in doubt.
    pub(super) struct RawRange, 16 bytes {
        0  8  first: U64,
        8  8  end: U64,
    }
}

byte_struct! {
    pub(super) struct RawRecord, 128 bytes {
        0   56  start: RawStart,
        56  8   epoch: U64,
        64  8   sequence: U64,
        72  4   payload_bytes: U32,
        76  4   payload_checksum: U32,
        80  4   pieces: U32,
        84  4   copies: U32,
        88  40  reserve: bytes,
    }
}

byte_struct! {
    pub(super) struct RawPiece, 32 bytes {
        0   8  stripe: U64,
        8   8  offset: U64,
        16  8  bytes: U64,
        24  2  member: U16,
        26  1  kind: u8,
        27  5  reserve: bytes,
    }
}
