//! What all shards of a zoned array share.

use std::sync::Arc;

use layout::zoned::Epoch;

use super::checkpoints::Checkpoints;
use super::config::LogConfig;
use super::health::LogMembers;
use super::map::{Change, Map};
use super::map_memory::MapMemory;
use super::pins::Pins;
use super::places_memory::PlacesInMemory;
use super::segment_table::SegmentTable;
use super::sequence::Sequences;
use super::space::Space;
use super::valid_blocks::ValidBlocks;
use super::zeroed::Zeroed;
use crate::counters::Counters;
use crate::members::Failing;

/// The state of an array that serves.
pub struct LogShared {
    /// What is fixed.
    pub config: LogConfig,
    /// The epoch of this run, durable on every member that is present.
    pub epoch: Epoch,
    /// Sequences of this epoch.
    pub sequences: Sequences,
    /// Where each block is.
    pub map: Map,
    /// The blocks that the map names, where it is larger than its memory.
    pub valid: Option<ValidBlocks>,
    /// Which write of zeroes stands for each range.
    pub zeroed: Zeroed,
    /// The segments.
    pub table: SegmentTable,
    /// Where records are that footers say too.
    pub places: PlacesInMemory,
    /// What writers wait for and reclaim makes.
    pub space: Space,
    /// The members' health.
    pub members: LogMembers,
    /// Readers.
    pub pins: Pins,
    /// Segments that are being opened.
    pub openings: Pins,
    /// Memory of the map.
    pub memory: MapMemory,
    /// The newest checkpoint.
    pub checkpoints: Checkpoints,
    /// The counters of each shard.
    pub counters: Arc<[Counters]>,
}

impl LogShared {
    /// Takes a member out of use, if the array can do without it. What it held is written anew elsewhere, and tasks that
    /// wait for zones look again: a segment without the member needs none of its zones.
    pub fn fail(&self, slot: usize, reason: &str) -> Failing {
        let failing = self.members.fail(slot, reason);
        if failing == Failing::Failed {
            self.space.want();
            self.table.nudge();
        }
        failing
    }

    /// Whether the map is larger than the memory that it may take, so that groups of it may be in the log.
    pub fn is_map_paged(&self) -> bool {
        self.config.map_limits.is_exceeded_by(self.map.groups())
    }

    /// A segment is gone: all its zones are empty or set aside, and its slot is free.
    pub fn segment_is_gone(&self, slot: u32) {
        self.valid.iter().for_each(|valid| valid.emptied(slot));
        self.table.remove(slot);
    }

    /// Entries of the map changed: counts the live blocks of their segments, first what came. The bits of what went before the
    /// counts, so that a segment without live blocks has none.
    pub fn count(&self, changes: &[Change]) {
        if let Some(valid) = &self.valid {
            changes.iter().filter_map(|change| change.to.place()).for_each(|place| valid.add(place));
            changes.iter().filter_map(|change| change.from.place()).for_each(|place| valid.remove(place));
        }
        let came = |change: &Change| Some((change.to.place()?.slot, change.is_late));
        for alike in changes.chunk_by(|before, next| came(before) == came(next)) {
            if let Some((slot, is_late)) = came(&alike[0]) {
                self.table.add_live(slot, alike.len() as u64, is_late);
            }
        }
        for Change { from, is_late, .. } in changes {
            if let Some(place) = from.place() {
                self.table.remove_live(place.slot, *is_late);
            }
        }
    }
}
