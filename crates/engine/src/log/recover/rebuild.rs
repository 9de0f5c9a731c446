//! The map from what was found: the checkpoint's, and over it what came later. The highest sequence wins, whatever the order in
//! which entries are offered; of equal ones, which are equal contents, the first that is offered stays (Z-I3).

use std::collections::BTreeMap;

use layout::zoned::{MapEntry, Sequence, ZeroesEntry};

use crate::log::map::Map;

/// A map on the way, with the sequence of each entry.
pub struct Rebuild<'a> {
    map: &'a Map,
    /// Of the groups that are open.
    newest: BTreeMap<u64, Box<[u64]>>,
}

impl<'a> Rebuild<'a> {
    /// Nothing was offered.
    pub fn new(map: &'a Map) -> Self {
        Rebuild { map, newest: BTreeMap::new() }
    }

    /// A group, which is in memory, is open to offers. What it holds is as of `as_of`: it gives way to what is newer. Where an
    /// entry does not stand, since its place is gone, it gives way to anything: to the copy that was moved, which has the highest
    /// sequence of those that are left.
    pub fn open(&mut self, group: u64, as_of: Sequence, stands: impl Fn(u64, MapEntry) -> bool) {
        let sequence = |block| {
            let entry = self.map.get(block).expect("a group that is open to offers is in memory");
            let stands = !matches!(entry, MapEntry::At { .. }) || stands(block, entry);
            if stands { as_of.0 } else { 0 }
        };
        let newest: Box<[u64]> = self.map.blocks_of(group).map(sequence).collect();
        self.newest.insert(group, newest);
    }

    /// Offers an entry of a block. A block beyond the array is passed over, and one of a group that is not open.
    pub fn offer(&mut self, lba: u64, sequence: Sequence, entry: MapEntry) {
        if lba >= self.map.blocks() {
            return;
        }
        let group = self.map.group_of(lba);
        let Some(newest) = self.newest.get_mut(&group) else { return };
        let newest = &mut newest[(lba - self.map.blocks_of(group).start) as usize];
        if sequence.0 > *newest {
            *newest = sequence.0;
            self.map.set(lba, entry);
        }
    }

    /// Offers a range of zeroes, or of lost blocks.
    pub fn offer_range(&mut self, range: &ZeroesEntry) {
        let end = range.lba.saturating_add(range.blocks.into()).min(self.map.blocks());
        let entry = if range.is_lost { MapEntry::Lost } else { MapEntry::Zeroes };
        if range.lba >= end {
            return;
        }
        let groups = self.map.group_of(range.lba)..=self.map.group_of(end - 1);
        let open: Vec<u64> = self.newest.range(groups).map(|(group, _)| *group).collect();
        for blocks in open.into_iter().map(|group| self.map.blocks_of(group)) {
            let part = blocks.start.max(range.lba)..blocks.end.min(end);
            part.for_each(|lba| self.offer(lba, range.sequence, entry));
        }
    }

    /// Entries that do not stand, and for which nothing was offered: none, unless what they named is lost.
    pub fn left(&self) -> Vec<u64> {
        let left = self.newest.iter().flat_map(|(group, newest)| {
            self.map.blocks_of(*group).zip(newest).filter(|(_, newest)| **newest == 0).map(|(lba, _)| lba)
        });
        left.filter(|lba| matches!(self.map.get(*lba), Ok(MapEntry::At { .. }))).collect()
    }

    /// Groups that are open.
    pub fn open_groups(&self) -> impl Iterator<Item = u64> {
        self.newest.keys().copied()
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;
    use layout::zoned::{BlockPlace, MapEntryBytes, MapShape};

    fn at(block: u32) -> MapEntry {
        MapEntry::At { place: BlockPlace { slot: 0, column: 0, block }, checksum: 1 }
    }

    fn map() -> Map {
        Map::new(4, MapShape::new(MapEntryBytes::Eight, 4, 64).expect("a shape"))
    }

    /// Z-I3, in recovery: any order of offers gives the same map.
    #[test]
    fn the_highest_sequence_wins_in_any_order() {
        let zeroes = ZeroesEntry { lba: 0, blocks: 9, is_lost: false, sequence: Sequence(5) };
        let offer = |map: &mut Rebuild<'_>, which| match which {
            0 => map.offer(1, Sequence(4), at(4)),
            1 => map.offer_range(&zeroes),
            2 => map.offer(2, Sequence(6), at(6)),
            _ => map.offer(2, Sequence(3), at(3)),
        };
        for first in 0..4 {
            for step in [1, 3] {
                let map = map();
                let mut rebuild = Rebuild::new(&map);
                rebuild.open(0, Sequence(0), |_, _| true);
                (0..4).for_each(|index| offer(&mut rebuild, (first + index * step) % 4));
                rebuild.offer(2, Sequence(6), at(60)); // a copy: the first stays
                rebuild.offer(99, Sequence(9), at(9));
                let found = [map.get(1), map.get(2), map.get(3)].map(|entry| entry.expect("in memory"));
                assert_eq!(found, [MapEntry::Zeroes, at(6), MapEntry::Zeroes]);
            }
        }
    }

    /// Over a checkpoint as of 10: what is newer counts, what is older only where the place that the checkpoint names is gone.
    #[test]
    fn what_is_older_than_a_checkpoint_counts_where_its_place_is_gone() {
        let map = map();
        for (block, entry) in [(0, at(1)), (1, at(2)), (2, at(3))] {
            map.set(block, entry);
        }
        let mut rebuild = Rebuild::new(&map);
        rebuild.open(0, Sequence(10), |block, _| block != 1);
        for (block, sequence, entry) in [
            (0, 9, at(20)), // a copy of something older
            (1, 7, at(21)), // older than what was moved
            (1, 8, at(22)), // the copy that was moved
            (2, 11, at(23)),
            (3, 9, at(24)), // superseded by zeroes before the checkpoint
        ] {
            rebuild.offer(block, Sequence(sequence), entry);
        }
        let found = [0, 1, 2, 3].map(|block| map.get(block).expect("in memory"));
        assert_eq!(found, [at(1), at(22), at(23), MapEntry::Zeroes]);
        assert!(rebuild.left().is_empty());
        rebuild.open(0, Sequence(10), |block, _| block != 2);
        assert_eq!(rebuild.left(), [2], "nothing is left of what it named");
    }
}
