//! What a start knows from a checkpoint: the map as it was, by the places of its mapping blocks, and the segments that need not be
//! read (docs/decisions/2026-11-26-checkpoints.md).

use std::collections::BTreeMap;

use layout::zoned::{BlockName, Checkpoint, RootBlock, RootEntry, SegmentHeader, TableBlock, TableEntry};

use super::decide::Verdict;
use super::found::{Judged, live_blocks, read_live};
use super::scan::ZoneFound;
use crate::log::paging::slot_of;
use crate::log::port::LogPort;
use crate::log::space::SegmentKey;
use crate::zone_device::ZoneDevice;

/// A checkpoint that was read.
pub struct Known {
    /// What superblocks name.
    pub said: Checkpoint,
    /// Each group of the map.
    pub root: Vec<RootEntry>,
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
            .is_some_and(|(_, block)| block.block.blocks as usize == self.root.len());
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
    pub fn known(self, said: Checkpoint, groups: u64) -> Result<Known, &'static str> {
        if !self.are_whole() {
            return Err("a block of its root or of its segment table cannot be read");
        }
        let root: Vec<RootEntry> = self.root.into_values().flat_map(|block| block.entries).collect();
        if root.len() as u64 != groups {
            return Err("its root is of a map of another size");
        }
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

    /// The slot of the segment of each block that the checkpoint needs.
    pub fn pinned(&self, shape: &layout::zoned::MapShape) -> Vec<u32> {
        let mapping = self.root.iter().filter_map(|entry| slot_of(shape, entry.place?));
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
