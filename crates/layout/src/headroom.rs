//! The headroom of a member of an md array: the space between what md keeps before the data and the data. md never reads or
//! writes it, and Twill has records of its own there: the redo log, the record of generations and that of absences.
//!
//! Every record begins with its kind, its array and member, and the place that it was written for, so that a misdirected
//! write or a leftover of another array is not taken for a record of this one. `docs/formats.md` draws the bytes.

use std::ops::RangeInclusive;

use byte_struct::byte_struct;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros};

use crate::Checksum;
use crate::md_superblock::{MinorVersion, Superblock};
use crate::units::DeviceOffset;
use crate::uuid::display_uuid;

/// Records are multiples of this: the largest unit that a device writes whole or not at all.
pub const BLOCK_BYTES: usize = 4096;
const BLOCK: u64 = BLOCK_BYTES as u64;

/// Name, offset and size of each field that every record begins with, for the check of `docs/formats.md`.
pub const START_FIELDS: &[(&str, usize, usize)] = RawStart::FIELDS;

byte_struct! {
    /// What every record begins with.
    pub(crate) struct RawStart, 56 bytes {
        0   8   magic: bytes,
        8   4   version: U32,
        12  4   checksum: U32,
        16  16  set_uuid: bytes,
        32  16  device_uuid: bytes,
        48  8   place: U64,
    }
}

const CHECKSUM_AT: usize = std::mem::offset_of!(RawStart, checksum);

/// What is known of a member's bitmap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BitmapExtent {
    /// There is none.
    Absent,
    /// Its superblock and bits together, in bytes.
    Bytes(u64),
    /// There is one whose length is not known.
    Unknown,
}

/// The headroom in bytes of the device, both ends multiples of 4 KiB. It may be empty, its end before its start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Headroom {
    /// After superblock, bitmap and bad-block log, as far as they stand before the data.
    pub(crate) start_bytes: u64,
    /// The last block before the data ends here.
    pub(crate) end_bytes: u64,
}

impl Headroom {
    /// `None` at version 1.0, where nothing precedes the data, and where what is known of the bitmap does not tell.
    pub(crate) fn of(superblock: &Superblock, bitmap: BitmapExtent) -> Option<Headroom> {
        if superblock.minor_version() == MinorVersion::V1_0 {
            return None;
        }
        let end_bytes = superblock.data_offset().bytes() / BLOCK * BLOCK;
        let bitmap_end = match (superblock.bitmap_start(), bitmap) {
            (None, _) => 0,
            (Some(start), BitmapExtent::Bytes(bytes)) => start.bytes().checked_add(bytes)?,
            (Some(_), BitmapExtent::Absent | BitmapExtent::Unknown) => return None,
        };
        if bitmap_end > end_bytes && superblock.bitmap_start()?.bytes() < end_bytes {
            return None;
        }
        let log_end = superblock.bad_block_log().map_or(0, |(start, length)| start.bytes() + length.bytes());
        let before_data = |end: u64| if end > end_bytes { 0 } else { end };
        let taken = [superblock.offset().get() + BLOCK, before_data(bitmap_end), before_data(log_end)];
        let start_bytes = taken.into_iter().max()?.next_multiple_of(BLOCK);
        Some(Headroom { start_bytes, end_bytes })
    }
}

/// The array, the member and the place of a record. Every record repeats it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The array.
    pub set_uuid: [u8; 16],
    /// The member.
    pub device_uuid: [u8; 16],
    /// Where on the device.
    pub offset: DeviceOffset,
}

impl Place {
    /// A place on the member with this superblock.
    #[must_use]
    pub fn on(superblock: &Superblock, offset: DeviceOffset) -> Place {
        Place { set_uuid: superblock.set_uuid(), device_uuid: superblock.device_uuid(), offset }
    }
}

/// Why a record cannot be believed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// There is none: the magic is another.
    #[error("no {0} here")]
    Absent(&'static str),
    /// Fewer bytes than the record has.
    #[error("{found} bytes of {needed}")]
    Truncated {
        /// Bytes there are.
        found: usize,
        /// Bytes there should be.
        needed: usize,
    },
    /// A version that this program does not know.
    #[error("version {found} of the {record}, this is {known}")]
    Version {
        /// Which record.
        record: &'static str,
        /// Its version.
        found: u32,
        /// The version that this program writes.
        known: u32,
    },
    /// Torn or damaged.
    #[error("checksum {found:#x}, expected {expected:#x}")]
    Checksum {
        /// The checksum in the record.
        found: u32,
        /// The checksum of its bytes.
        expected: u32,
    },
    /// The record belongs to another array or member, or was written for another place.
    #[error("it belongs to array {} member {}, byte {}", display_uuid(&.0.set_uuid), display_uuid(&.0.device_uuid), .0.offset)]
    Foreign(Place),
    /// The checksum is right but a value makes no sense: the program that wrote it is wrong.
    #[error("{field} is {found}, expected {expected}")]
    Field {
        /// The field's name in `docs/formats.md`.
        field: &'static str,
        /// Its value.
        found: u64,
        /// What it may be, in words.
        expected: &'static str,
    },
}

/// A kind of record.
pub(crate) struct RecordKind {
    pub(crate) magic: [u8; 8],
    /// What an operator reads it called.
    pub(crate) name: &'static str,
    /// Versions that are read; the last one is written.
    pub(crate) versions: RangeInclusive<u32>,
}

impl RecordKind {
    /// The start of a record for `place`; [`sealed`] fills in its checksum.
    pub(crate) fn start(&self, place: Place) -> RawStart {
        let mut start = RawStart::new_zeroed();
        start.magic = self.magic;
        start.version.set(*self.versions.end());
        start.set_uuid = place.set_uuid;
        start.device_uuid = place.device_uuid;
        start.place.set(place.offset.get());
        start
    }

    /// That there is none.
    pub(crate) fn absent(&self) -> RecordError {
        RecordError::Absent(self.name)
    }

    /// Checks the record of `length` bytes that `bytes` begin with, read at `place`: magic, checksum, version, array,
    /// member and place, in this order.
    pub(crate) fn check<'a>(
        &self,
        bytes: &'a [u8],
        length: usize,
        place: Place,
    ) -> Result<&'a [u8], RecordError> {
        let truncated = RecordError::Truncated { found: bytes.len(), needed: length };
        let Some(record) = bytes.get(..length) else { return Err(truncated) };
        let Ok((start, _)) = RawStart::ref_from_prefix(record) else { return Err(truncated) };
        if start.magic != self.magic {
            return Err(self.absent());
        }
        let (found, expected) = (start.checksum.get(), Checksum::without(record, CHECKSUM_AT));
        if found != expected {
            return Err(RecordError::Checksum { found, expected });
        }
        let found = start.version.get();
        if !self.versions.contains(&found) {
            return Err(RecordError::Version { record: self.name, found, known: *self.versions.end() });
        }
        let (set_uuid, device_uuid) = (start.set_uuid, start.device_uuid);
        let written_for = Place { set_uuid, device_uuid, offset: DeviceOffset::new(start.place.get()) };
        if written_for == place { Ok(record) } else { Err(RecordError::Foreign(written_for)) }
    }
}

/// The record with these contents, filled up with zeroes to whole blocks, and with its checksum.
pub(crate) fn sealed(mut record: Vec<u8>) -> Vec<u8> {
    record.resize(record.len().next_multiple_of(BLOCK_BYTES), 0);
    Checksum::seal(&mut record, CHECKSUM_AT);
    record
}
