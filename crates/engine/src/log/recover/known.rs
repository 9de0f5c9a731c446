//! What a start knows from a checkpoint: the map as it was, by the places of its mapping blocks, and the segments that need not be
//! read (docs/decisions/2026-11-26-checkpoints.md).

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use layout::zoned::{BlockName, Checkpoint, RootBlock, RootEntry, SegmentHeader, TableBlock, TableEntry};

use super::decide::Verdict;
use super::found::{Judged, live_blocks, read_live};
use super::scan::ZoneFound;
use crate::log::map::Map;
use crate::log::map::groups::{ROOT_BLOCK_GROUPS, Root, in_root};
use crate::log::paging::slot_of;
use crate::log::port::LogPort;
use crate::log::space::SegmentKey;
use crate::zone_device::ZoneDevice;

/// A checkpoint that was read.
pub struct Known {
    /// What superblocks name.
    pub said: Checkpoint,
    /// Groups of the map, by block of the root.
    root: Root,
    /// The segments that were there.
    pub table: BTreeMap<SegmentKey, TableEntry>,
    /// The segments that the root and the table are in, by slot, once for each block.
    pub lists: Vec<u32>,
}

/// The blocks of a checkpoint's lists, as far as they are found.
#[derive(Default)]
pub struct Lists {
    root: BTreeMap<u32, RootBlock>,
    table: BTreeMap<u32, TableBlock>,
    slots: Vec<u32>,
}

impl Lists {
    /// Takes what a segment has of a checkpoint's lists. What cannot be read is passed over.
    pub async fn take<D: ZoneDevice>(&mut self, port: &LogPort<D>, judged: &Judged, said: Checkpoint) {
        let set_uuid = &port.shared.config.set_uuid;
        for live in live_blocks(judged, |verdict| verdict <= Verdict::Move) {
            if live.entry.sequence != said.sequence {
                continue;
            }
            match live.entry.name {
                BlockName::Root(_) => {
                    let Some(block) = read_live(port, &live).await else { continue };
                    let Ok(block) = RootBlock::parse(block.bytes(), set_uuid) else { continue };
                    self.root.insert(block.block.index, block);
                }
                BlockName::SegmentTable(_) => {
                    let Some(block) = read_live(port, &live).await else { continue };
                    let Ok(block) = TableBlock::parse(block.bytes(), set_uuid) else { continue };
                    self.table.insert(block.block.index, block);
                }
                _ => continue,
            }
            self.slots.push(live.place.slot);
        }
    }

    /// Whether all of both was found.
    pub fn are_whole(&self) -> bool {
        let root = self
            .root
            .first_key_value()
            .is_some_and(|(_, block)| block.block.written as usize == self.root.len());
        let table = self
            .table
            .first_key_value()
            .is_some_and(|(_, block)| block.block.blocks as usize == self.table.len());
        root && table
    }

    /// The checkpoint.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn known(self, said: Checkpoint, map: &Map) -> Result<Known, &'static str> {
        if !self.are_whole() {
            return Err("a block of its root or of its segment table cannot be read");
        }
        let room = |index: u32| {
            let groups = map.groups_of_root(index.into());
            (groups.end - groups.start) as usize
        };
        // The array may have grown since: the last block of the root was shorter, and nothing was written behind it.
        let fits = |(index, of): (&u32, &RootBlock)| {
            let is_last = index + 1 == of.block.blocks;
            u64::from(of.block.blocks) <= map.root_blocks()
                && (of.entries.len() == room(*index) || is_last && of.entries.len() < room(*index))
        };
        if !self.root.iter().all(fits) {
            return Err("its root is of a map of another size");
        }
        let nothing = RootEntry { place: None, as_of: said.sequence };
        let mut root: BTreeMap<u32, Vec<RootEntry>> =
            self.root.into_iter().map(|(index, block)| (index, block.entries)).collect();
        root.iter_mut().for_each(|(index, entries)| entries.resize(room(*index), nothing));
        let table = self.table.into_values().flat_map(|block| block.entries);
        let table = table.map(|entry| ((entry.segment, entry.tag), entry)).collect();
        Ok(Known { said, root, table, lists: self.slots })
    }
}

impl Known {
    /// What is to be done with a segment whose headers were found.
    pub fn decide(&self, header: &SegmentHeader, zones: &[Option<ZoneFound>]) -> Reading {
        match self.table.get(&(header.segment, header.tag)) {
            // It was not there, and it was opened before: so it had been emptied.
            None if header.first_sequence <= self.said.sequence => Reading::Gone,
            // Where drives choose places, of a column that is not there no footer says them: its records are read in those of the others.
            Some(entry)
                if entry.is_mapped
                    && entry.slot == header.slot
                    && zones.iter().flatten().all(|zone| !zone.is_active())
                    && (!header.shape.is_append() || zones.iter().all(Option::is_some)) =>
            {
                Reading::LeftOut(entry.lists)
            }
            _ => Reading::Whole,
        }
    }

    /// A group, as the root has it.
    pub fn group(&self, group: u64) -> RootEntry {
        let (block, at) = in_root(group);
        let entry = self.root.get(&block).and_then(|entries| entries.get(at));
        // What has no block of the root was not written before the checkpoint.
        entry.copied().unwrap_or(RootEntry { place: None, as_of: self.said.sequence })
    }

    /// The groups that have a mapping block, of those in a range.
    pub fn groups_with_block(&self, groups: RangeInclusive<u64>) -> impl Iterator<Item = (u64, u64)> {
        let blocks = in_root(*groups.start()).0..=in_root(*groups.end()).0;
        let numbered = self
            .root
            .range(blocks)
            .flat_map(|(block, entries)| (u64::from(*block) * ROOT_BLOCK_GROUPS..).zip(entries));
        let with_block = numbered.filter_map(|(group, entry)| Some((group, entry.place?)));
        with_block.filter(move |(group, _)| groups.contains(group))
    }

    /// The slot of the segment of each block that the checkpoint needs.
    pub fn pinned(&self, shape: &layout::zoned::MapShape) -> Vec<u32> {
        let mapping = self.root.values().flatten().filter_map(|entry| slot_of(shape, entry.place?));
        mapping.chain(self.lists.iter().copied()).collect()
    }
}

/// How much of a segment is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// Footers, or records.
    Whole,
    /// Nothing: all that it holds is in the checkpoint's map, but for this many lists.
    LeftOut(u16),
    /// Nothing: nothing of it counts.
    Gone,
}
