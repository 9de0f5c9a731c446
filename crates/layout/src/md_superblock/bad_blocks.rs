//! The bad-block log: ranges of a member that could not be read or written, 64 bits each.

use super::SuperblockError;
use crate::units::Sectors;

/// Ends the log; the rest of it is filled with this.
const END: u64 = u64::MAX;

const LENGTH_BITS: u32 = 10;
const LENGTH_MAX: u64 = (1 << LENGTH_BITS) - 1;
const START_MAX: u64 = (1 << (64 - LENGTH_BITS)) - 1;

/// A bad range. It counts from the start of the **device**, not of the data area, as md has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BadRange {
    /// First bad sector of the device.
    pub start: Sectors,
    /// Sectors that are bad.
    pub length: Sectors,
}

/// Reads the log up to its end mark. `shift` is the superblock's: the log may count in units of 2^shift sectors.
///
/// # Errors
/// [`SuperblockError::Field`] if an entry has no length or ends beyond what 64 bits address.
pub fn decode_bad_blocks(log: &[u8], shift: u8) -> Result<Vec<BadRange>, SuperblockError> {
    let mut ranges = Vec::new();
    for entry in log.chunks_exact(8) {
        let entry = u64::from_le_bytes(entry.try_into().expect("chunks of 8 bytes"));
        if entry == END {
            break;
        }
        let wrong = || SuperblockError::Field {
            field: "bad-block entry",
            found: entry,
            expected: "a range with a length, within the device".into(),
        };
        let scale = |value: u64| value.checked_mul(1u64.checked_shl(u32::from(shift))?);
        let start = scale(entry >> LENGTH_BITS).ok_or_else(wrong)?;
        let length = scale(entry & LENGTH_MAX).filter(|length| *length > 0).ok_or_else(wrong)?;
        start.checked_add(length).ok_or_else(wrong)?;
        ranges.push(BadRange { start: Sectors(start), length: Sectors(length) });
    }
    Ok(ranges)
}

/// Writes a log of `log_bytes` with these ranges, in units of single sectors (shift 0).
///
/// # Errors
/// [`SuperblockError::BadBlockLogFull`], or [`SuperblockError::BadBlockRange`] for a range that an entry cannot hold.
pub fn encode_bad_blocks(ranges: &[BadRange], log_bytes: usize) -> Result<Vec<u8>, SuperblockError> {
    let room = log_bytes / 8;
    if ranges.len() > room {
        return Err(SuperblockError::BadBlockLogFull { entries: ranges.len(), room });
    }
    let mut log = Vec::with_capacity(log_bytes);
    for BadRange { start, length } in ranges.iter().copied() {
        let entry = start.0.wrapping_shl(LENGTH_BITS) | length.0;
        if length.0 == 0 || length.0 > LENGTH_MAX || start.0 > START_MAX || entry == END {
            return Err(SuperblockError::BadBlockRange { start, length });
        }
        log.extend_from_slice(&entry.to_le_bytes());
    }
    log.resize(log_bytes, 0xff);
    Ok(log)
}
