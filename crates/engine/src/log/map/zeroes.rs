//! Zeroes of a range on their way into the map.

use std::ops::Range;

use layout::zoned::MapEntry;

use super::group::Entries;
use super::{Change, Map, OutOfMemory};
use crate::log::sequence::Sequence;
use crate::sync::sequential::atomic::Ordering::SeqCst;

/// Zeroes of a range that are in flight, until this is dropped.
pub struct RangeInFlight<'a> {
    map: &'a Map,
    id: u64,
    blocks: Range<u64>,
}

impl Map {
    /// Zeroes of a range begin: called before they take their sequence, which will be `floor` or a higher one.
    pub fn begin_range(&self, blocks: Range<u64>, floor: Sequence) -> RangeInFlight<'_> {
        assert!(blocks.start < blocks.end && blocks.end <= self.blocks, "the range is in the array");
        RangeInFlight { map: self, id: self.ranges.begin(blocks.clone(), floor), blocks }
    }
}

impl RangeInFlight<'_> {
    /// The range, cut at groups.
    pub fn parts(&self) -> impl Iterator<Item = Range<u64>> {
        self.map.parts(self.blocks.clone())
    }

    /// Maps a part of the range, of one group, to zeroes, but for what newer writes have mapped meanwhile. `counted` gets what
    /// changed.
    ///
    /// # Errors
    /// Its entries are in the log: what they count has to be known.
    pub fn apply(
        &self,
        part: Range<u64>,
        sequence: Sequence,
        counted: impl FnOnce(&[Change]),
    ) -> Result<(), OutOfMemory> {
        let map = self.map;
        // What begins from here on has a higher sequence, so it is newer than the zeroes.
        let (Some(group), first) = map.group(part.start) else { return Ok(()) };
        let group = &mut *group.lock();
        if matches!(group.entries, Entries::Zeroes) && group.pending.is_empty() {
            return Ok(());
        }
        if matches!(group.entries, Entries::Out) {
            return Err(OutOfMemory { group: map.group_of(part.start) });
        }
        let newer = map.ranges.newer(self.id, &part, sequence);
        let mut changes = Vec::new();
        let mut is_clear = true;
        for (at, block) in (first..).zip(part.clone()) {
            if !group.pending.apply(block, sequence) || newer.binary_search(&block).is_ok() {
                is_clear = false;
                continue;
            }
            if group.entries.is_in_memory() {
                changes.push(map.change(group, at, MapEntry::Zeroes));
            }
        }
        if is_clear && part == map.blocks_of(map.group_of(part.start)) && group.entries.is_in_memory() {
            group.entries = Entries::Zeroes;
            map.in_memory.fetch_sub(1, SeqCst);
        }
        counted(&changes);
        Ok(())
    }
}

impl Drop for RangeInFlight<'_> {
    fn drop(&mut self) {
        self.map.ranges.end(self.id);
    }
}
