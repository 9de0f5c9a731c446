//! Cutting the writes of a stripe so that each part fits in a record. Rows are independent of each other, so a stripe
//! may be written a few rows at a time.

use smallvec::SmallVec;

use crate::stripe::member_io::MemberWrite;
use layout::redo_log::PIECES_MAX;

/// Rows are cut at multiples of this, and in smaller ones only where a block has more pieces than a record holds.
const CUT_BYTES: u64 = 4096;
const CUT_BYTES_MIN: u64 = 512;

pub(super) type Part = SmallVec<[MemberWrite; 4]>;

/// The writes of one stripe in parts of at most `payload_bytes` and [`PIECES_MAX`] writes, ascending by rows.
/// `base_bytes` is where the stripe's rows begin in the members' data areas.
pub(super) fn cut(writes: &[MemberWrite], base_bytes: u64, payload_bytes: usize) -> Vec<Part> {
    let row = |write: &MemberWrite| write.offset - base_bytes;
    let start = writes.iter().map(row).min().unwrap_or(0) / CUT_BYTES * CUT_BYTES;
    let end = writes.iter().map(|write| row(write) + write.data.len() as u64).max().unwrap_or(0);
    let mut parts = Vec::new();
    cut_rows(writes, base_bytes, (start, end), payload_bytes, &mut parts);
    parts
}

fn cut_rows(
    writes: &[MemberWrite],
    base_bytes: u64,
    (start, end): (u64, u64),
    payload_bytes: usize,
    parts: &mut Vec<Part>,
) {
    let inside = |write: &MemberWrite| {
        let row = write.offset - base_bytes;
        let (from, to) = (row.max(start), (row + write.data.len() as u64).min(end));
        if from >= to {
            return None;
        }
        let part = |bytes: u64| usize::try_from(bytes).expect("a part of a write");
        let data = write.data.part(part(from - row), part(to - from));
        Some(MemberWrite { slot: write.slot, offset: base_bytes + from, data })
    };
    let part: Part = writes.iter().filter_map(inside).collect();
    let bytes: usize = part.iter().map(|write| write.data.len()).sum();
    if part.is_empty() {
        return;
    }
    if bytes <= payload_bytes && part.len() <= PIECES_MAX {
        parts.push(part);
        return;
    }
    let unit = if end - start > CUT_BYTES { CUT_BYTES } else { CUT_BYTES_MIN };
    let middle = start + ((end - start) / 2).next_multiple_of(unit);
    assert!(middle < end, "one row of every member fits in a record");
    cut_rows(writes, base_bytes, (start, middle), payload_bytes, parts);
    cut_rows(writes, base_bytes, (middle, end), payload_bytes, parts);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::{Gather, Slice};

    fn write(slot: u32, offset: u64, bytes: usize) -> MemberWrite {
        let contents: Vec<u8> =
            (0..bytes).map(|i| ((offset as usize + i) / 512 + slot as usize) as u8).collect();
        MemberWrite { slot, offset, data: Gather::from(Slice::from_bytes(&contents)) }
    }

    /// Paints parts and whole; every part fits; no row is in two parts.
    fn check(writes: &[MemberWrite], base: u64, payload: usize) -> usize {
        let (mut whole, mut parts) = (std::collections::BTreeMap::new(), std::collections::BTreeMap::new());
        let paint = |map: &mut std::collections::BTreeMap<(u32, u64), u8>, write: &MemberWrite| {
            let mut bytes = vec![0; write.data.len()];
            write.data.copy_to(&mut bytes);
            for (i, byte) in (0u64..).zip(bytes) {
                assert_eq!(map.insert((write.slot, write.offset + i), byte), None, "written once");
            }
        };
        writes.iter().for_each(|write| paint(&mut whole, write));
        let cut = cut(writes, base, payload);
        let mut below = 0;
        for part in &cut {
            assert!(part.iter().map(|write| write.data.len()).sum::<usize>() <= payload);
            assert!(part.len() <= PIECES_MAX);
            assert!(part.iter().all(|write| write.offset >= below), "rows ascend and are in one part each");
            below = part.iter().map(|write| write.offset + write.data.len() as u64).max().unwrap();
            part.iter().for_each(|write| paint(&mut parts, write));
        }
        assert_eq!(whole, parts);
        cut.len()
    }

    #[test]
    fn table_of_cuts() {
        let base = 7 << 16;
        let small = [write(1, base + 4096, 4096), write(3, base + 4096, 4096)];
        assert_eq!(check(&small, base, 60 << 10), 1);
        let uneven = [write(0, base + 512, 1024), write(4, base + 3584, 5120), write(2, base + 512, 8192)];
        assert_eq!(check(&uneven, base, 60 << 10), 1);
        let full: Vec<MemberWrite> = (0..5).map(|slot| write(slot, base, 64 << 10)).collect();
        assert_eq!(check(&full, base, 60 << 10), 8);
        let wide: Vec<MemberWrite> = (0..120).map(|slot| write(slot, base, 8192)).collect();
        assert_eq!(check(&wide, base, 508 << 10), 2);
        // many small runs in one block: more pieces than a record holds
        let runs = (0..100).flat_map(|slot| [write(slot, base, 512), write(slot, base + 1024, 2048)]);
        assert!(check(&runs.collect::<Vec<_>>(), base, 508 << 10) > 1);
        assert_eq!(check(&[], base, 60 << 10), 0);
    }
}
