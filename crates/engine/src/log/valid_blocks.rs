//! Which blocks of each segment the map names, a bit for each: so that reclaim finds what counts of a victim without the map,
//! most of which may be in the log.
//!
//! A bit changes under the lock of the map's group that changes. Of two blocks no map names one place, so a bit has one group at a
//! time, and is exact whenever its segment is *known*.
//!
//! Memory: a bit for each block of the members, 32 MiB for 1 TiB. Where all of the map is in memory there are none: there they
//! would cost each write a miss of the cache more, and save nothing.

use std::sync::OnceLock;

use layout::zoned::BlockPlace;

use super::config::LogConfig;
use crate::sync::sequential::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

/// Bits take this part of what the map may take, at most: at a petabyte there are none, and reclaim asks the map.
const MEMORY_PART: u64 = 4;
/// They always may take so much.
const MEMORY_LEAST_BYTES: u64 = 1 << 20;

/// See the file's header.
pub struct ValidBlocks {
    /// Blocks of a zone.
    zone_blocks: usize,
    /// Members at the start, and those that there may be.
    members: [usize; 2],
    slots: Box<[Slot]>,
}

struct Slot {
    /// Of columns that the array had at the start.
    words: Box<[AtomicU64]>,
    /// Of those that it has grown by since.
    added: OnceLock<Box<[AtomicU64]>>,
    /// The bits are those of the map: of segments that this run has opened, and of those before once every group was looked at.
    is_known: AtomicBool,
}

impl Slot {
    fn all_words(&self) -> impl Iterator<Item = &AtomicU64> {
        self.words.iter().chain(self.added.get().into_iter().flatten())
    }
}

fn words(bits: usize) -> Box<[AtomicU64]> {
    (0..bits.div_ceil(64)).map(|_| AtomicU64::new(0)).collect()
}

impl ValidBlocks {
    /// No block is named, and this is known. None: the map is all in memory, or the bits would take too much.
    pub fn of(config: &LogConfig, members: usize, groups: u64) -> Option<Self> {
        let zone_blocks = config.capacity_blocks as usize;
        let bits = zone_blocks * members;
        let bytes = u64::from(config.slots()) * bits as u64 / 8;
        let memory = config.map_limits.memory_bytes().filter(|_| config.map_limits.is_exceeded_by(groups))?;
        let most = (memory / MEMORY_PART).max(MEMORY_LEAST_BYTES);
        let slot = |_| Slot { words: words(bits), added: OnceLock::new(), is_known: AtomicBool::new(true) };
        let members = [members, config.member_slots()];
        let slots = || (0..config.slots()).map(slot).collect();
        (bytes <= most).then(|| ValidBlocks { zone_blocks, members, slots: slots() })
    }

    fn bit(&self, place: BlockPlace) -> (&AtomicU64, u64) {
        let slot = &self.slots[place.slot as usize];
        let (column, [before, all]) = (usize::from(place.column), self.members);
        let (words, column) = match column.checked_sub(before) {
            None => (&slot.words, column),
            Some(added) => {
                let bits = self.zone_blocks * all.saturating_sub(before);
                (slot.added.get_or_init(|| words(bits)), added)
            }
        };
        let bit = column * self.zone_blocks + place.block as usize;
        (&words[bit / 64], 1 << (bit % 64))
    }

    /// The map names a block.
    pub fn add(&self, place: BlockPlace) {
        let (word, bit) = self.bit(place);
        word.fetch_or(bit, SeqCst);
    }

    /// The map does not name a block any more.
    pub fn remove(&self, place: BlockPlace) {
        let (word, bit) = self.bit(place);
        word.fetch_and(!bit, SeqCst);
    }

    /// Whether the map names a block. None: that is not known of its segment.
    pub fn has(&self, place: BlockPlace) -> Option<bool> {
        let (word, bit) = self.bit(place);
        self.is_known(place.slot).then(|| word.load(SeqCst) & bit != 0)
    }

    /// Whether it is known which blocks of a segment the map names.
    pub fn is_known(&self, slot: u32) -> bool {
        self.slots[slot as usize].is_known.load(SeqCst)
    }

    /// A start has not looked at all groups that may name blocks of this segment.
    pub fn forget(&self, slot: u32) {
        self.slots[slot as usize].is_known.store(false, SeqCst);
    }

    /// Whether it is known of all segments.
    pub fn are_known(&self) -> bool {
        self.slots.iter().all(|slot| slot.is_known.load(SeqCst))
    }

    /// Every group was looked at.
    pub fn all_are_known(&self) {
        self.slots.iter().for_each(|slot| slot.is_known.store(true, SeqCst));
    }

    /// Blocks of a segment that the map names. None: that is not known.
    pub fn count(&self, slot: u32) -> Option<u32> {
        let words = self.slots[slot as usize].all_words();
        self.is_known(slot).then(|| words.map(|word| word.load(SeqCst).count_ones()).sum())
    }

    /// A segment is gone, which the map names no block of.
    pub fn emptied(&self, slot: u32) {
        let slot = &self.slots[slot as usize];
        let is_empty = slot.all_words().all(|word| word.load(SeqCst) == 0);
        assert!(is_empty, "the map names no block of a segment that goes (Z-I4)");
        slot.is_known.store(true, SeqCst);
    }
}
