//! The map from what was found: the highest sequence wins, whatever the order in which entries are offered; of equal ones,
//! which are equal contents, the first that is offered stays (Z-I3).

use layout::zoned::{MapEntry, Sequence, ZeroesEntry};

use crate::log::map::Map;

/// A map on the way, with the sequence of each entry.
pub struct Rebuild<'a> {
    map: &'a Map,
    newest: Vec<Option<Box<[u64]>>>,
    group_blocks: u64,
}

impl<'a> Rebuild<'a> {
    /// Nothing was offered; the map is empty.
    pub fn new(map: &'a Map) -> Self {
        let group_blocks = map.shape().entries_per_block();
        let groups = map.blocks().div_ceil(group_blocks) as usize;
        Rebuild { map, newest: vec![None; groups], group_blocks }
    }

    /// Offers an entry of a block. A block beyond the array is passed over.
    pub fn offer(&mut self, lba: u64, sequence: Sequence, entry: MapEntry) {
        if lba >= self.map.blocks() {
            return;
        }
        let group = &mut self.newest[(lba / self.group_blocks) as usize];
        let group = group.get_or_insert_with(|| vec![0; self.group_blocks as usize].into());
        let newest = &mut group[(lba % self.group_blocks) as usize];
        if sequence.0 > *newest {
            *newest = sequence.0;
            self.map.set(lba, entry);
        }
    }

    /// Offers a range of zeroes, or of lost blocks.
    pub fn offer_range(&mut self, range: &ZeroesEntry) {
        let end = range.lba.saturating_add(range.blocks.into()).min(self.map.blocks());
        let entry = if range.is_lost { MapEntry::Lost } else { MapEntry::Zeroes };
        (range.lba..end).for_each(|lba| self.offer(lba, range.sequence, entry));
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;
    use layout::zoned::{BlockPlace, MapEntryBytes, MapShape};

    /// Z-I3, in recovery: any order of offers gives the same map.
    #[test]
    fn the_highest_sequence_wins_in_any_order() {
        let at = |block| MapEntry::At { place: BlockPlace { slot: 0, column: 0, block }, checksum: 1 };
        let zeroes = ZeroesEntry { lba: 0, blocks: 9, is_lost: false, sequence: Sequence(5) };
        let offer = |map: &mut Rebuild<'_>, which| match which {
            0 => map.offer(1, Sequence(4), at(4)),
            1 => map.offer_range(&zeroes),
            2 => map.offer(2, Sequence(6), at(6)),
            _ => map.offer(2, Sequence(3), at(3)),
        };
        for first in 0..4 {
            for step in [1, 3] {
                let map = Map::new(4, MapShape::new(MapEntryBytes::Eight, 4, 64).expect("a shape"));
                let mut rebuild = Rebuild::new(&map);
                (0..4).for_each(|index| offer(&mut rebuild, (first + index * step) % 4));
                rebuild.offer(2, Sequence(6), at(60)); // a copy: the first stays
                rebuild.offer(99, Sequence(9), at(9));
                assert_eq!([map.get(1), map.get(2), map.get(3)], [MapEntry::Zeroes, at(6), MapEntry::Zeroes]);
            }
        }
    }
}
