//! md's bad-block log: ranges of a member that could not be read or written, 64 bits each.

use std::collections::BTreeSet;

use super::SuperblockError;
use crate::units::Sectors;

/// The end mark, which fills the rest of the log.
const END: u64 = u64::MAX;

const LENGTH_BITS: u32 = 10;
const LENGTH_MAX: u64 = (1 << LENGTH_BITS) - 1;
const START_MAX: u64 = (1 << (64 - LENGTH_BITS)) - 1;

/// A bad range. As in md, it counts from the start of the **device**, not of the data area.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BadRange {
    /// First bad sector of the device.
    pub start: Sectors,
    /// Sectors that are bad.
    pub length: Sectors,
}

/// Reads the log up to its end mark. Entries count in units of 2^`shift` sectors; `shift` is in the superblock.
///
/// # Errors
/// [`SuperblockError::Field`] if an entry has no length, or its end does not fit in 64 bits.
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

/// A log of `log_bytes` with these ranges, in units of single sectors (shift 0).
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

/// One write to a bad-block log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogStep {
    /// Where it begins in the log.
    pub offset: usize,
    /// What is written there.
    pub bytes: Vec<u8>,
}

/// The writes that turn `old` into `new`, each of whole blocks. The caller makes each durable before the next.
///
/// A power cut between two writes, or inside one at a block boundary, must not lose an entry that is in both logs.
/// Entries are packed, so that adding or removing one moves all entries behind it, possibly into another block. Hence
/// three passes:
///
/// 1. Remove entries that an earlier power cut left twice, from the first block on: the second copy of an entry is the
///    one that is out of place.
/// 2. Insert the new entries, from the last block on.
/// 3. Remove the entries that go, from the first block on.
///
/// If old and new entries together do not fit in the log, it is written in one step, and a power cut may lose entries
/// that move.
pub fn bad_block_steps(old: &[u8], new: &[u8], block_bytes: usize) -> Vec<LogStep> {
    let whole = LogStep { offset: 0, bytes: new.to_vec() };
    if old.len() != new.len() || !new.len().is_multiple_of(block_bytes) {
        return vec![whole];
    }
    let at_once = steps_to(old, new, block_bytes);
    if at_once.len() <= 1 {
        return at_once;
    }
    let (Ok(entries), Ok(staying)) = (decode_bad_blocks(old, 0), decode_bad_blocks(new, 0)) else {
        return vec![whole];
    };
    let log_of = |entries: &BTreeSet<BadRange>| {
        encode_bad_blocks(&entries.iter().copied().collect::<Vec<_>>(), new.len())
    };
    let mut all: BTreeSet<BadRange> = entries.into_iter().collect();
    let once = log_of(&all);
    all.extend(staying);
    let (Ok(once), Ok(both)) = (once, log_of(&all)) else { return vec![whole] };
    let mut coming = steps_to(&once, &both, block_bytes);
    coming.reverse();
    [steps_to(old, &once, block_bytes), coming, steps_to(&both, new, block_bytes)].concat()
}

/// The blocks of `to` that differ, in order.
fn steps_to(from: &[u8], to: &[u8], block_bytes: usize) -> Vec<LogStep> {
    let blocks = (0..to.len()).step_by(block_bytes).map(|offset| (offset, offset..offset + block_bytes));
    let changed = blocks.filter(|(_, block)| from[block.clone()] != to[block.clone()]);
    changed.map(|(offset, block)| LogStep { offset, bytes: to[block].to_vec() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK_BYTES: usize = 512;

    fn log_of(starts: &[u64]) -> Vec<u8> {
        let range = |start: &u64| BadRange { start: Sectors(*start), length: Sectors(8) };
        encode_bad_blocks(&starts.iter().map(range).collect::<Vec<_>>(), 4096).expect("it fits")
    }

    fn starts(log: &[u8]) -> Vec<u64> {
        decode_bad_blocks(log, 0).expect("a log").iter().map(|range| range.start.0).collect()
    }

    /// A power cut after any number of blocks leaves every entry that is in both logs, and none that is in neither.
    /// That also holds for a log in which earlier cuts left entries twice.
    #[test]
    fn a_cut_while_a_log_is_written_forgets_nothing() {
        let mut seed = 11u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (seed >> 33) % below
        };
        let (mut log, mut twice) = (log_of(&[]), 0);
        for round in 0..4000 {
            let old = starts(&log);
            twice += usize::from(!old.is_sorted_by(|a, b| a < b));
            let mut new: Vec<u64> =
                old.iter().copied().filter(|_| round % 5 == 0 || random(40) > 0).collect();
            new.extend((0..random(8)).map(|_| random(4000) * 8));
            new.sort_unstable();
            new.dedup();
            new.truncate(240);
            let after = log_of(&new);
            let steps = bad_block_steps(&log, &after, BLOCK_BYTES);
            let cut = if round % 3 == 0 { random(steps.len() as u64 + 1) as usize } else { steps.len() };
            for step in &steps[..cut] {
                assert_eq!(step.bytes.len(), BLOCK_BYTES, "one block at a time");
                log[step.offset..step.offset + BLOCK_BYTES].copy_from_slice(&step.bytes);
                let found = starts(&log);
                let stays = |start: &&u64| old.contains(start) && new.contains(start);
                let lost: Vec<&u64> =
                    old.iter().filter(stays).filter(|start| !found.contains(start)).collect();
                assert!(lost.is_empty(), "round {round}: {lost:?} forgotten");
                assert!(
                    found.iter().all(|start| old.contains(start) || new.contains(start)),
                    "round {round}"
                );
            }
            assert!(cut < steps.len() || log == after, "round {round}");
        }
        assert!(twice > 20, "{twice} logs with entries twice are few");
    }

    #[test]
    fn a_log_within_one_block_or_in_large_blocks_is_written_once() {
        let (old, new) = (log_of(&[16, 32]), log_of(&[8, 16, 32]));
        let steps = bad_block_steps(&old, &new, BLOCK_BYTES);
        assert_eq!(steps, [LogStep { offset: 0, bytes: new[..BLOCK_BYTES].to_vec() }]);
        let many: Vec<u64> = (0..200).map(|i| i * 16).collect();
        assert_eq!(bad_block_steps(&log_of(&many), &new, 4096).len(), 1);
        assert_eq!(bad_block_steps(&new, &new, BLOCK_BYTES), []);
        assert_eq!(bad_block_steps(&[], &new, BLOCK_BYTES), [LogStep { offset: 0, bytes: new.clone() }]);
    }
}
