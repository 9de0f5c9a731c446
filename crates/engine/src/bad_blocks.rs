//! The bad blocks of one member: ranges of its data area that could not be written, or whose contents could not be
//! reconstructed. On the member they are kept in md's bad-block log; here they are ranges of bytes.

use std::ops::Range;

use layout::md_superblock::BadRange;
use layout::units::{MemberOffset, SECTOR_BYTES, Sectors};

/// Longest range of one entry, in sectors: what md writes (`BB_MAX_LEN`).
const ENTRY_SECTORS_MAX: u64 = 512;

/// Ranges in ascending order, apart from each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BadBlocks {
    ranges: Vec<Range<MemberOffset>>,
}

impl BadBlocks {
    /// Reads a log, whose entries count in sectors of the device; the data area starts at `data_offset`. Ranges before the
    /// data area are dropped.
    pub fn from_log(log: &[BadRange], data_offset: Sectors) -> Self {
        let mut bad = BadBlocks::default();
        for BadRange { start, length } in log {
            let end = start.0.saturating_add(length.0).saturating_sub(data_offset.0);
            let start = start.0.saturating_sub(data_offset.0);
            if start < end {
                let offset = |sector: u64| MemberOffset::new(sector.saturating_mul(SECTOR_BYTES));
                bad.set(offset(start)..offset(end));
            }
        }
        bad
    }

    /// The entries of a log, in sectors of the device.
    pub fn to_log(&self, data_offset: Sectors) -> Vec<BadRange> {
        let mut log = Vec::new();
        for range in &self.ranges {
            let (mut start, end) = (range.start.get() / SECTOR_BYTES, range.end.get().div_ceil(SECTOR_BYTES));
            while start < end {
                let length = (end - start).min(ENTRY_SECTORS_MAX);
                log.push(BadRange { start: Sectors(data_offset.0 + start), length: Sectors(length) });
                start += length;
            }
        }
        log
    }

    /// How many entries of a log the ranges need.
    pub fn entries(&self) -> usize {
        let entries = |range: &Range<MemberOffset>| {
            (range.end - range.start).div_ceil(ENTRY_SECTORS_MAX * SECTOR_BYTES)
        };
        usize::try_from(self.ranges.iter().map(entries).sum::<u64>()).unwrap_or(usize::MAX)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Where the first range begins.
    pub fn first(&self) -> Option<MemberOffset> {
        self.ranges.first().map(|range| range.start)
    }

    /// Bytes in all.
    pub fn bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.end - range.start).sum()
    }

    /// Whether any part of `range` is bad.
    pub fn meets(&self, range: &Range<MemberOffset>) -> bool {
        self.ranges.iter().any(|bad| bad.start < range.end && range.start < bad.end)
    }

    /// Whether all of `range` is bad.
    pub fn covers(&self, range: &Range<MemberOffset>) -> bool {
        self.ranges.iter().any(|bad| bad.start <= range.start && range.end <= bad.end)
    }

    /// Adds `range`. False if all of it was bad already.
    pub fn set(&mut self, range: Range<MemberOffset>) -> bool {
        if self.covers(&range) {
            return false;
        }
        let touches = |bad: &Range<MemberOffset>| bad.start <= range.end && range.start <= bad.end;
        let joined = self
            .ranges
            .iter()
            .filter(|bad| touches(bad))
            .fold(range.clone(), |all, bad| all.start.min(bad.start)..all.end.max(bad.end));
        self.ranges.retain(|bad| !touches(bad));
        let index = self.ranges.partition_point(|bad| bad.start < joined.start);
        self.ranges.insert(index, joined);
        true
    }

    /// Removes `range`, which was written, unless the rest would need more than `room` entries of a log: then all of it
    /// stays bad, as in md. False if nothing changed.
    pub fn clear_within(&mut self, range: &Range<MemberOffset>, room: usize) -> bool {
        let mut without = self.clone();
        if !without.clear(range) || without.entries() > room.max(self.entries()) {
            return false;
        }
        *self = without;
        true
    }

    /// Removes `range`, which was written. False if none of it was bad.
    pub fn clear(&mut self, range: &Range<MemberOffset>) -> bool {
        if !self.meets(range) {
            return false;
        }
        let rest = |bad: &Range<MemberOffset>| {
            let before = bad.start..bad.end.min(range.start);
            let after = bad.start.max(range.end)..bad.end;
            [before, after].into_iter().filter(|part| part.start < part.end)
        };
        self.ranges = self.ranges.iter().flat_map(rest).collect();
        true
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // lists of ranges, some of one
mod tests {
    use super::*;

    fn of(ranges: &[Range<u64>]) -> BadBlocks {
        let mut bad = BadBlocks::default();
        ranges.iter().for_each(|range| {
            bad.set(at(range.clone()));
        });
        bad
    }

    fn at(range: Range<u64>) -> Range<MemberOffset> {
        MemberOffset::new(range.start)..MemberOffset::new(range.end)
    }

    #[test]
    fn ranges_join_and_split() {
        let mut bad = of(&[4096..8192, 12288..16384]);
        assert!(bad.set(at(8192..12288)), "the gap");
        assert_eq!(bad, of(&[4096..16384]));
        assert!(!bad.set(at(5120..8192)), "nothing new");
        assert!(bad.clear(&at(8192..8704)));
        assert_eq!(bad, of(&[8704..16384, 4096..8192]));
        assert!(!bad.clear(&at(8192..8704)) && !bad.meets(&at(8192..8704)));
        assert!(bad.meets(&at(0..4097)) && bad.meets(&at(16383..20000)) && !bad.meets(&at(16384..20000)));
        assert!(bad.clear(&at(0..u64::MAX)) && bad.is_empty());
    }

    /// A write in the middle of a bad range made two of it, and a healthy member failed since its log had no room for both.
    #[test]
    fn a_full_log_keeps_what_would_be_two() {
        let mut bad = of(&[0..16384, 32768..36864]);
        assert!(!bad.clear_within(&at(4096..8192), 2) && bad == of(&[0..16384, 32768..36864]));
        assert!(bad.clear_within(&at(0..4096), 2), "one shorter");
        assert!(bad.clear_within(&at(32768..36864), 2), "one less");
        assert!(
            bad.clear_within(&at(8192..12288), 2) && bad == of(&[4096..8192, 12288..16384]),
            "room again"
        );
    }

    /// Every set and clear against a byte map.
    #[test]
    fn as_a_map_of_sectors() {
        let (mut bad, mut map, mut seed) = (BadBlocks::default(), [false; 64], 7u64);
        for step in 0..4000 {
            seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let start = seed >> 33 & 63;
            let end = (start + 1 + (seed >> 50) % 9).min(64);
            let part = &mut map[start as usize..end as usize];
            let (bytes, set) = (at(start * 512..end * 512), step % 3 != 0);
            let changed = if set { bad.set(bytes.clone()) } else { bad.clear(&bytes) };
            assert_eq!(changed, part.iter().any(|is| *is != set), "step {step}");
            part.fill(set);
            for (sector, is) in (0u64..).zip(&map) {
                assert_eq!(
                    bad.meets(&at(sector * 512..sector * 512 + 512)),
                    *is,
                    "step {step} sector {sector}"
                );
            }
            assert_eq!(bad.bytes(), map.iter().filter(|is| **is).count() as u64 * 512);
            assert!(bad.ranges.windows(2).all(|pair| pair[0].end < pair[1].start), "{bad:?}");
        }
    }

    #[test]
    fn a_log_counts_from_the_start_of_the_device_and_in_short_entries() {
        let bad = of(&[0..512, 1 << 20..(1 << 20) + 513 * 512]);
        let log = bad.to_log(Sectors(2048));
        let plain: Vec<(u64, u64)> = log.iter().map(|entry| (entry.start.0, entry.length.0)).collect();
        assert_eq!(plain, [(2048, 1), (4096, 512), (4608, 1)]);
        assert_eq!(bad.entries(), 3);
        assert_eq!(BadBlocks::from_log(&log, Sectors(2048)), bad);
        let across = [BadRange { start: Sectors(2040), length: Sectors(16) }];
        assert_eq!(BadBlocks::from_log(&across, Sectors(2048)), of(&[0..4096]), "what lies in the data area");
    }
}
