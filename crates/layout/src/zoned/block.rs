//! What every self-contained block begins with, magic, version and checksum, and how it is sealed and checked.

use super::error::{Structure, ZonedError};
use crate::Checksum;

/// Bytes in a block, whatever the member's logical block is.
pub const BLOCK_BYTES: usize = 4096;

/// The version that is written.
pub const VERSION: u32 = 1;

/// What a block number is where there is none: a column left out, a place that the drive chooses.
pub(super) const NONE: u32 = u32::MAX;

const VERSION_AT: usize = 8;
const CHECKSUM_AT: usize = 12;

/// Writes magic, version and checksum into a block that is complete but for these.
pub(super) fn seal(block: &mut [u8], magic: [u8; 8]) {
    assert_eq!(block.len(), BLOCK_BYTES, "bytes of a block");
    block[..VERSION_AT].copy_from_slice(&magic);
    block[VERSION_AT..CHECKSUM_AT].copy_from_slice(&VERSION.to_le_bytes());
    Checksum::seal(block, CHECKSUM_AT);
}

/// The first block of `bytes`.
pub(super) fn whole(structure: Structure, bytes: &[u8]) -> Result<&[u8; BLOCK_BYTES], ZonedError> {
    let (found, needed) = (bytes.len(), BLOCK_BYTES);
    bytes.first_chunk().ok_or(ZonedError::Truncated { structure, found, needed })
}

/// Checks length, magic, checksum and version, in this order, and returns the block.
pub(super) fn check_start(
    structure: Structure,
    bytes: &[u8],
    magic: [u8; 8],
) -> Result<&[u8; BLOCK_BYTES], ZonedError> {
    let block = whole(structure, bytes)?;
    if block[..VERSION_AT] != magic {
        return Err(ZonedError::Absent { structure });
    }
    let word = |at: usize| u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
    let (found, expected) = (word(CHECKSUM_AT), Checksum::without(block, CHECKSUM_AT));
    if found != expected {
        return Err(ZonedError::Checksum { structure, found, expected });
    }
    if word(VERSION_AT) != VERSION {
        return Err(ZonedError::Version { structure, found: word(VERSION_AT), known: VERSION });
    }
    Ok(block)
}
