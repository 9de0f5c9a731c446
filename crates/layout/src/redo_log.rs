//! The redo log of a degraded array: what is durable before a stripe is touched while members are missing.
//!
//! Invariants:
//! - A [`RedoHeader`], [`RedoRecord`] or [`WholeRecord`] exists only after `parse` found magic, version, checksum,
//!   array, member and place right, or because it was made here. Bytes of a member are none of them.
//! - A record's contents can be had only from a [`WholeRecord`], whose payload was checked too.
//! - The log lies between what md knows of on a member and its data, where md never looks.
//!
//! What is written when is the engine's matter. Bytes are drawn in `docs/formats.md`.

mod area;
mod header;
mod record;

pub use area::{AREA_BYTES_MAX, BitmapExtent, RedoArea, SlotPlan};
pub use header::{DOUBTS_MAX, FIELDS as HEADER_FIELDS, RedoHeader, StripeRange};
pub use record::{
    FIELDS as RECORD_FIELDS, PIECE_FIELDS, PIECES_MAX, PieceKind, RedoPiece, RedoRecord, WholeRecord,
};

use crate::md_superblock::display_uuid;

/// Header and record headers fill one block, the largest unit that a device writes whole or not at all.
pub const BLOCK_BYTES: usize = 4096;

/// What is written. Version 1 had no [`PieceKind::Missing`] and no [`PieceKind::Unlogged`], and is read, too.
pub const VERSION: u32 = 2;

/// Whose log it is and where: what every block of it says about itself, against misdirected writes and old contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The array.
    pub set_uuid: [u8; 16],
    /// The member.
    pub device_uuid: [u8; 16],
    /// Where on the device, in bytes.
    pub offset_bytes: u64,
}

/// Why a block of the log cannot be believed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RedoError {
    /// There is none.
    #[error("no redo log here")]
    Absent,
    /// Fewer bytes than a block.
    #[error("{found} bytes of {needed}")]
    Truncated {
        /// Bytes there are.
        found: usize,
        /// Bytes there should be.
        needed: usize,
    },
    /// A version to come.
    #[error("version {0} of the redo log, this is {VERSION}")]
    Version(u32),
    /// Torn or damaged.
    #[error("checksum {found:#x}, expected {expected:#x}")]
    Checksum {
        /// What it says.
        found: u32,
        /// What its bytes make.
        expected: u32,
    },
    /// Another array's, another member's, or written for another place.
    #[error("it belongs to array {} member {}, byte {}", display_uuid(&.0.set_uuid), display_uuid(&.0.device_uuid), .0.offset_bytes)]
    Foreign(Place),
    /// The checksum is right and a value makes no sense: a mistake of whoever wrote it.
    #[error("{field} is {found}, expected {expected}")]
    Field {
        /// Which.
        field: &'static str,
        /// Its value.
        found: u64,
        /// What it may be.
        expected: &'static str,
    },
}

/// CRC-32C of bytes that come in pieces.
#[derive(Debug)]
pub struct Checksum(crc_fast::Digest);

impl Default for Checksum {
    fn default() -> Self {
        Checksum(crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi))
    }
}

impl Checksum {
    /// Goes on with these bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The sum of all bytes so far.
    #[must_use]
    pub fn value(&self) -> u32 {
        self.0.finalize() as u32
    }

    /// The sum of these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> u32 {
        let mut sum = Checksum::default();
        sum.add(bytes);
        sum.value()
    }
}

/// Where a block's checksum is.
const CHECKSUM_AT: std::ops::Range<usize> = 12..16;

/// Fills in the checksum of a block.
fn seal(block: &mut [u8]) {
    block[CHECKSUM_AT].fill(0);
    let sum = Checksum::of(block);
    block[CHECKSUM_AT].copy_from_slice(&sum.to_le_bytes());
}

/// What header and records have in common: magic, version, checksum. `bytes` is one block.
fn check_seal(bytes: &[u8], magic: [u8; 8]) -> Result<(), RedoError> {
    if bytes.len() < BLOCK_BYTES {
        return Err(RedoError::Truncated { found: bytes.len(), needed: BLOCK_BYTES });
    }
    if bytes[..8] != magic {
        return Err(RedoError::Absent);
    }
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let mut block = bytes[..BLOCK_BYTES].to_vec();
    seal(&mut block);
    let expected = u32::from_le_bytes(block[CHECKSUM_AT].try_into().expect("four bytes"));
    if word(12) != expected {
        return Err(RedoError::Checksum { found: word(12), expected });
    }
    match word(8) {
        1..=VERSION => Ok(()),
        other => Err(RedoError::Version(other)),
    }
}

/// Refuses what another array, another member or another place was meant for.
fn check_place(found: Place, expected: Place) -> Result<(), RedoError> {
    if found == expected { Ok(()) } else { Err(RedoError::Foreign(found)) }
}
