//! Which write of zeroes stands for each range of the array: the newest. An older entry of the log for the same blocks is not
//! needed any more, and reclaim drops it; without this, discards of the same blocks again and again would pile up.
//!
//! Memory: one node for each range that zeroes entries of the log still stand for, about 48 bytes, whatever its length.

use std::collections::BTreeMap;
use std::ops::Range;

use layout::zoned::Sequence;

use crate::sync::sequential::Mutex;

/// See the file's header.
#[derive(Default)]
pub struct Zeroed {
    /// Ranges that do not overlap: the end and the write of each.
    ranges: Mutex<BTreeMap<u64, (u64, Sequence)>>,
}

impl Zeroed {
    /// Zeroes of a range were written. Where newer ones stand already, they stay.
    pub fn add(&self, range: Range<u64>, sequence: Sequence) {
        let mut ranges = self.ranges.lock();
        let mut left = range.start;
        for (start, end, standing) in overlaps(&ranges, &range) {
            if standing >= sequence {
                if left < start {
                    ranges.insert(left, (start, sequence));
                }
                left = left.max(end);
                continue;
            }
            cut(&mut ranges, (start, end, standing), &range);
        }
        if left < range.end {
            ranges.insert(left, (range.end, sequence));
        }
    }

    /// The parts of a range for which this write stands.
    pub fn parts(&self, range: Range<u64>, sequence: Sequence) -> Vec<Range<u64>> {
        let ranges = self.ranges.lock();
        let own = overlaps(&ranges, &range).into_iter().filter(|(_, _, standing)| *standing == sequence);
        own.map(|(start, end, _)| start.max(range.start)..end.min(range.end)).collect()
    }

    /// Nothing of a range is zeroes of this write any more.
    pub fn remove(&self, range: Range<u64>, sequence: Sequence) {
        let mut ranges = self.ranges.lock();
        for found in overlaps(&ranges, &range) {
            if found.2 == sequence {
                cut(&mut ranges, found, &range);
            }
        }
    }
}

/// The ranges that overlap with one: start, end and write.
fn overlaps(ranges: &BTreeMap<u64, (u64, Sequence)>, range: &Range<u64>) -> Vec<(u64, u64, Sequence)> {
    let first = ranges.range(..=range.start).next_back().map_or(range.start, |(start, _)| *start);
    let found = ranges.range(first..range.end).map(|(start, (end, sequence))| (*start, *end, *sequence));
    found.filter(|(_, end, _)| *end > range.start).collect()
}

/// Takes a range out of one that overlaps with it.
fn cut(
    ranges: &mut BTreeMap<u64, (u64, Sequence)>,
    (start, end, sequence): (u64, u64, Sequence),
    out: &Range<u64>,
) {
    ranges.remove(&start);
    if start < out.start {
        ranges.insert(start, (out.start, sequence));
    }
    if out.end < end {
        ranges.insert(out.end, (end, sequence));
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;

    /// Against an array of one sequence for each block, with ranges in any order of age.
    #[test]
    fn the_newest_write_stands_for_each_block() {
        let mut chance = 7u64;
        let mut below = |bound: u64| {
            chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (chance >> 33) % bound
        };
        for _ in 0..300 {
            let (zeroed, mut model) = (Zeroed::default(), [0u64; 24]);
            for _ in 0..12 {
                let start = below(23);
                let range = start..start + 1 + below(24 - start);
                let sequence = 1 + below(9);
                let is_removed = below(4) == 0;
                for block in range.clone() {
                    let standing = &mut model[block as usize];
                    match is_removed {
                        true if *standing == sequence => *standing = 0,
                        true => {}
                        false => *standing = sequence.max(*standing),
                    }
                }
                match is_removed {
                    true => zeroed.remove(range, Sequence(sequence)),
                    false => zeroed.add(range, Sequence(sequence)),
                }
                for sequence in 1..10 {
                    let parts = zeroed.parts(0..24, Sequence(sequence));
                    let found: Vec<u64> = parts.into_iter().flatten().collect();
                    let wanted = (0..24).filter(|block| model[*block as usize] == sequence);
                    assert_eq!(found, wanted.collect::<Vec<u64>>(), "sequence {sequence}: {model:?}");
                }
            }
        }
    }
}
