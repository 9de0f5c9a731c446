//! The bytes of the redo log's blocks.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::disk_struct::disk_struct;

/// Header and record headers fill one block, the largest unit that a device writes whole or not at all.
pub const BLOCK_BYTES: usize = 4096;

/// Most ranges of stripes in doubt in a header; a log with more joins neighbours.
pub const DOUBTS_MAX: usize = (BLOCK_BYTES - size_of::<RawHeader>()) / size_of::<RawRange>();

/// Most writes in one record.
pub const PIECES_MAX: usize = (BLOCK_BYTES - size_of::<RawRecord>()) / size_of::<RawPiece>();

/// Name, offset and size of each field of a header, for the check of `docs/formats.md`.
pub const HEADER_FIELDS: &[(&str, usize, usize)] = RawHeader::FIELDS;

/// Name, offset and size of each field of a record, for the check of `docs/formats.md`.
pub const RECORD_FIELDS: &[(&str, usize, usize)] = RawRecord::FIELDS;

/// Name, offset and size of each field of a piece, for the check of `docs/formats.md`.
pub const PIECE_FIELDS: &[(&str, usize, usize)] = RawPiece::FIELDS;

/// What every block of the log begins with.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawStart {
    pub(super) magic: [u8; 8],
    pub(super) version: U32,
    pub(super) checksum: U32,
    pub(super) set_uuid: [u8; 16],
    pub(super) device_uuid: [u8; 16],
    pub(super) place: U64,
}

disk_struct! {
    pub(super) struct RawHeader, 256 bytes {
        magic: [u8; 8] = 0,
        version: U32 = 8,
        checksum: U32 = 12,
        set_uuid: [u8; 16] = 16,
        device_uuid: [u8; 16] = 32,
        place: U64 = 48,
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
        magic: [u8; 8] = 0,
        version: U32 = 8,
        checksum: U32 = 12,
        set_uuid: [u8; 16] = 16,
        device_uuid: [u8; 16] = 32,
        place: U64 = 48,
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

const fn begins_with_start(place_offset: usize, next_offset: usize) -> bool {
    place_offset == std::mem::offset_of!(RawStart, place) && next_offset == size_of::<RawStart>()
}

// The start of a block is read and written apart from what follows.
const _: () = assert!(
    begins_with_start(std::mem::offset_of!(RawHeader, place), std::mem::offset_of!(RawHeader, generation))
        && begins_with_start(std::mem::offset_of!(RawRecord, place), std::mem::offset_of!(RawRecord, epoch))
);
