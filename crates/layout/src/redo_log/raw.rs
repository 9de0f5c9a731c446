//! The bytes of the redo log's blocks.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::disk_struct::disk_struct;

/// Headers and the headers of records are one block each: the largest unit that a device writes atomically.
pub const BLOCK_BYTES: usize = 4096;

/// The most ranges of stripes in doubt in a header. The engine merges neighbouring ranges if there are more.
pub const DOUBTS_MAX: usize = (BLOCK_BYTES - size_of::<RawHeader>()) / size_of::<RawRange>();

/// The most writes in one record.
pub const PIECES_MAX: usize = (BLOCK_BYTES - size_of::<RawRecord>()) / size_of::<RawPiece>();

/// Name, offset and size of each field that every block begins with, for the check of `docs/formats.md`.
pub const START_FIELDS: &[(&str, usize, usize)] = RawStart::FIELDS;

/// Name, offset and size of each field of a header, for the check of `docs/formats.md`.
pub const HEADER_FIELDS: &[(&str, usize, usize)] = RawHeader::FIELDS;

/// Name, offset and size of each field of a record, for the check of `docs/formats.md`.
pub const RECORD_FIELDS: &[(&str, usize, usize)] = RawRecord::FIELDS;

/// Name, offset and size of each field of a piece, for the check of `docs/formats.md`.
pub const PIECE_FIELDS: &[(&str, usize, usize)] = RawPiece::FIELDS;

disk_struct! {
    /// What every block of the log begins with.
    pub(super) struct RawStart, 56 bytes {
        magic: [u8; 8] = 0,
        version: U32 = 8,
        checksum: U32 = 12,
        set_uuid: [u8; 16] = 16,
        device_uuid: [u8; 16] = 32,
        place: U64 = 48,
    }
}

disk_struct! {
    pub(super) struct RawHeader, 256 bytes {
        start: RawStart = 0,
        generation: U64 = 56,
        epoch: U64 = 64,
        retired_below: U64 = 72,
        events: U64 = 80,
        superblock_now: U32 = 88,
        superblock_next: U32 = 92,
        flags: U32 = 96,
        slot_bytes: U32 = 100,
        slots: U32 = 104,
        doubts: U32 = 108,
        reserve: [u8; 144] = 112,
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawRange {
    pub(super) first: U64,
    pub(super) end: U64,
}

disk_struct! {
    pub(super) struct RawRecord, 128 bytes {
        start: RawStart = 0,
        epoch: U64 = 56,
        sequence: U64 = 64,
        payload_bytes: U32 = 72,
        payload_checksum: U32 = 76,
        pieces: U32 = 80,
        copies: U32 = 84,
        reserve: [u8; 40] = 88,
    }
}

disk_struct! {
    pub(super) struct RawPiece, 32 bytes {
        stripe: U64 = 0,
        offset: U64 = 8,
        bytes: U64 = 16,
        member: U16 = 24,
        kind: u8 = 26,
        reserve: [u8; 5] = 27,
    }
}
