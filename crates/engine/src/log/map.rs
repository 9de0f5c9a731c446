//! Which place holds a block: the map of an array, in groups of one mapping block each, all of them in memory.
//!
//! An entry of 8 bytes holds a place of 40 bits and 24 bits of the block's checksum, so that every read is verified without
//! reading metadata (Z-I12); an entry of 4 bytes holds a place alone. Z-I3: of the writes of a block the one with the highest
//! sequence stands, in whatever order they complete ([`pending`]).

mod pending;

use std::ops::Range;

use self::pending::{PendingBlocks, PendingRanges};
use super::sequence::Sequence;
use crate::sync::sequential::Mutex;
use layout::zoned::{BlockPlace, MapEntry, MapShape};
use smallvec::SmallVec;

/// Whether contents with this checksum are those that an entry means.
pub fn check_matches(shape: &MapShape, check: u32, checksum: u32) -> bool {
    shape.checksum_of(checksum) == check
}

enum Entries {
    Narrow(Box<[u32]>),
    Wide(Box<[u64]>),
}

impl Entries {
    fn zeroes(shape: &MapShape) -> Entries {
        let count = shape.entries_per_block() as usize;
        match shape.entry_bytes() {
            4 => Entries::Narrow(vec![u32::MAX; count].into()),
            _ => Entries::Wide(vec![u64::MAX; count].into()),
        }
    }

    fn get(&self, shape: &MapShape, at: usize) -> MapEntry {
        let word = match self {
            Entries::Narrow(entries) => entries[at].into(),
            Entries::Wide(entries) => entries[at],
        };
        shape.entry(word).expect("an entry that was set")
    }

    fn set(&mut self, shape: &MapShape, at: usize, entry: MapEntry) {
        let word = shape.word(entry);
        match self {
            Entries::Narrow(entries) => entries[at] = word as u32,
            Entries::Wide(entries) => entries[at] = word,
        }
    }
}

/// One mapping block, and the writes of its blocks that are in flight.
#[derive(Default)]
struct Group {
    /// None: all zeroes.
    entries: Option<Entries>,
    pending: PendingBlocks,
}

impl Group {
    /// An entry as it is kept.
    fn word(&self, at: usize) -> u64 {
        match &self.entries {
            None => 0,
            Some(Entries::Narrow(entries)) => entries[at].into(),
            Some(Entries::Wide(entries)) => entries[at],
        }
    }
}

/// Blocks of most stripes of small writes.
const STRIPE_BLOCKS: usize = 16;

/// A block that was written, and where it is.
#[derive(Clone, Copy, Debug)]
pub struct WrittenBlock {
    /// The block.
    pub block: u64,
    /// Of its write.
    pub sequence: Sequence,
    /// Where it is.
    pub entry: MapEntry,
}

/// The map of an array, shared by all shards. Locks are held for a few entries at a time: of one group, or of those of a stripe.
pub struct Map {
    shape: MapShape,
    blocks: u64,
    groups: Box<[Mutex<Group>]>,
    ranges: PendingRanges,
}

impl Map {
    /// A map of `blocks` blocks, all zeroes.
    pub fn new(blocks: u64, shape: MapShape) -> Self {
        let groups = blocks.div_ceil(shape.entries_per_block());
        let groups = (0..groups).map(|_| Mutex::new(Group::default())).collect();
        Map { shape, blocks, groups, ranges: PendingRanges::default() }
    }

    /// Blocks of the array.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// How entries are kept.
    pub fn shape(&self) -> &MapShape {
        &self.shape
    }

    fn group(&self, block: u64) -> (&Mutex<Group>, usize) {
        assert!(block < self.blocks, "block {block} is in the array");
        (&self.groups[self.group_number(block) as usize], self.place_in_group(block))
    }

    fn group_number(&self, block: u64) -> u64 {
        block / self.shape.entries_per_block()
    }

    fn place_in_group(&self, block: u64) -> usize {
        (block % self.shape.entries_per_block()) as usize
    }

    /// Where a block's contents are. The caller has pinned what it may find.
    pub fn get(&self, block: u64) -> MapEntry {
        let (group, at) = self.group(block);
        group.lock().entries.as_ref().map_or(MapEntry::Zeroes, |entries| entries.get(&self.shape, at))
    }

    /// Sets an entry, at a start, before anything is served. Returns what stood there.
    pub fn set(&self, block: u64, mapped: MapEntry) -> MapEntry {
        let (group, at) = self.group(block);
        let mut group = group.lock();
        let entries = group.entries.get_or_insert_with(|| Entries::zeroes(&self.shape));
        let old = entries.get(&self.shape, at);
        entries.set(&self.shape, at, mapped);
        old
    }

    /// A write of a block begins: called before it takes its sequence.
    pub fn begin(&self, block: u64) {
        self.group(block).0.lock().pending.begin(block);
    }

    /// Maps blocks that were written (Z-I1: the caller has seen all records of their stripes return), and ends their writes. Calls
    /// `replaced` for each: with what it replaces, or None if a newer write stands, and its own place is dead.
    pub fn apply(&self, written: &[WrittenBlock], mut replaced: impl FnMut(Option<MapEntry>)) {
        let mut order: SmallVec<[u64; STRIPE_BLOCKS]> =
            written.iter().map(|own| self.group_number(own.block)).collect();
        order.sort_unstable();
        order.dedup();
        // In order, so that shards which need the same groups never wait for each other in a circle.
        let mut groups: SmallVec<[_; STRIPE_BLOCKS]> =
            order.iter().map(|number| self.groups[*number as usize].lock()).collect();
        let group_of = |block| order.binary_search(&self.group_number(block)).expect("its group is locked");
        // The entries of a large map are in no cache. Looked at one after the other, with no lock in between, they cost about one
        // miss; each behind a lock of its own, they cost a tenth of a small write.
        let look = |own: &WrittenBlock| groups[group_of(own.block)].word(self.place_in_group(own.block));
        std::hint::black_box(written.iter().fold(0, |words, own| words ^ look(own)));
        let mut apply = |own: &WrittenBlock| {
            let group = &mut *groups[group_of(own.block)];
            if !group.pending.apply_and_end(own.block, own.sequence) {
                return None;
            }
            self.ranges.note(own.block, own.sequence);
            let at = self.place_in_group(own.block);
            let entries = group.entries.get_or_insert_with(|| Entries::zeroes(&self.shape));
            let old = entries.get(&self.shape, at);
            entries.set(&self.shape, at, own.entry);
            Some(old)
        };
        let old: SmallVec<[Option<MapEntry>; STRIPE_BLOCKS]> = written.iter().map(&mut apply).collect();
        drop(groups);
        old.into_iter().for_each(&mut replaced);
    }

    /// Maps a block that was moved, or lost, if its old place still stands: then the new one counts in its stead, with the
    /// sequence of the old one, and whatever is in flight decides about it as it would have about the old one (Z-I3).
    pub fn replace(&self, block: u64, from: BlockPlace, mapped: MapEntry) -> bool {
        let (group, at) = self.group(block);
        let mut group = group.lock();
        let Some(entries) = &mut group.entries else { return false };
        let stands = matches!(entries.get(&self.shape, at), MapEntry::At { place, .. } if place == from);
        if stands {
            entries.set(&self.shape, at, mapped);
        }
        stands
    }

    /// Whether a block of a range has this entry, which is not a place. Zeroes in flight may have it soon.
    pub fn holds(&self, range: Range<u64>, wanted: MapEntry) -> bool {
        if wanted == MapEntry::Zeroes && self.ranges.any() {
            return true;
        }
        let group_blocks = self.shape.entries_per_block();
        let mut start = range.start;
        while start < range.end {
            let end = ((start / group_blocks + 1) * group_blocks).min(range.end);
            let (group, first) = self.group(start);
            let group = group.lock();
            let found = match &group.entries {
                None => wanted == MapEntry::Zeroes,
                Some(entries) => {
                    (first..first + (end - start) as usize).any(|at| entries.get(&self.shape, at) == wanted)
                }
            };
            if found {
                return true;
            }
            start = end;
        }
        false
    }

    /// A write of a block ends, and was not applied.
    pub fn abandon(&self, block: u64) {
        self.group(block).0.lock().pending.abandon(block);
    }

    /// Zeroes of a range begin: called before they take their sequence.
    pub fn begin_range(&self, blocks: Range<u64>) -> RangeInFlight<'_> {
        assert!(blocks.start < blocks.end && blocks.end <= self.blocks, "the range is in the array");
        RangeInFlight { map: self, id: self.ranges.begin(blocks.clone()), blocks }
    }

    /// Blocks that are mapped to a place, in order.
    pub fn mapped(&self) -> impl Iterator<Item = (u64, MapEntry)> {
        (0..self.blocks)
            .map(|block| (block, self.get(block)))
            .filter(|(_, mapped)| *mapped != MapEntry::Zeroes)
    }
}

/// Zeroes of a range that are in flight, until this is dropped.
pub struct RangeInFlight<'a> {
    map: &'a Map,
    id: u64,
    blocks: Range<u64>,
}

impl RangeInFlight<'_> {
    /// Maps the range to zeroes, but for what newer writes have mapped meanwhile. `replaced` gets what stood there.
    pub fn apply(&self, sequence: Sequence, mut replaced: impl FnMut(MapEntry)) {
        let group_blocks = self.map.shape.entries_per_block();
        let mut start = self.blocks.start;
        while start < self.blocks.end {
            let end = ((start / group_blocks + 1) * group_blocks).min(self.blocks.end);
            self.apply_group(start..end, sequence, &mut replaced);
            start = end;
        }
    }

    fn apply_group(&self, part: Range<u64>, sequence: Sequence, replaced: &mut impl FnMut(MapEntry)) {
        let (group, first) = self.map.group(part.start);
        let mut group = group.lock();
        let Group { entries, pending } = &mut *group;
        if entries.is_none() && pending.is_empty() {
            return;
        }
        let newer = self.map.ranges.newer(self.id, &part, sequence);
        let mut is_clear = true;
        for (at, block) in (first..).zip(part.clone()) {
            if !pending.apply(block, sequence) || newer.binary_search(&block).is_ok() {
                is_clear = false;
                continue;
            }
            if let Some(entries) = entries {
                replaced(entries.get(&self.map.shape, at));
                entries.set(&self.map.shape, at, MapEntry::Zeroes);
            }
        }
        if is_clear && part.end - part.start == self.map.shape.entries_per_block() {
            *entries = None;
        }
    }
}

impl Drop for RangeInFlight<'_> {
    fn drop(&mut self) {
        self.map.ranges.end(self.id);
    }
}

#[cfg(all(test, feature = "model"))]
mod model {
    //! Model of the map: whatever the order of completion, the highest sequence stands.

    use super::tests::{WIDE, at, new};
    use super::*;
    use crate::log::sequence::Sequences;
    use crate::sync::models::{check, threads};
    use std::sync::Mutex as StdMutex;

    #[test]
    fn the_highest_sequence_stands() {
        check(|| {
            let (map, sequences) = (new(4, WIDE), Sequences::new(1));
            let written = StdMutex::new(Vec::new());
            let left = std::sync::atomic::AtomicUsize::new(3);
            threads(3, move |thread| {
                if thread == 0 {
                    let range = map.begin_range(0..4);
                    let sequence = sequences.take().expect("numbers are left");
                    shuttle::thread::yield_now();
                    range.apply(sequence, |_| {});
                    written.lock().unwrap().push((sequence, MapEntry::Zeroes));
                } else {
                    for _ in 0..2 {
                        map.begin(1);
                        let sequence = sequences.take().expect("numbers are left");
                        let mapped = at(sequence.0 & 0xff);
                        shuttle::thread::yield_now();
                        map.apply(&[WrittenBlock { block: 1, sequence, entry: mapped }], |_| {});
                        written.lock().unwrap().push((sequence, mapped));
                    }
                }
                if left.fetch_sub(1, std::sync::atomic::Ordering::SeqCst) == 1 {
                    let mut written = written.lock().unwrap();
                    written.sort_by_key(|(sequence, _)| *sequence);
                    assert_eq!(map.get(1), written.last().expect("five writes").1);
                }
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use layout::zoned::{BlockPlace, MapEntryBytes};

    pub(super) const WIDE: MapEntryBytes = MapEntryBytes::Eight;
    #[cfg(not(feature = "model"))]
    pub(super) const NARROW: MapEntryBytes = MapEntryBytes::Four;

    pub(super) fn new(blocks: u64, bytes: MapEntryBytes) -> Map {
        Map::new(blocks, MapShape::new(bytes, 4, 4096).expect("a shape"))
    }

    pub(super) fn at(block: u64) -> MapEntry {
        let place = BlockPlace { slot: 3, column: 2, block: block as u32 + 1 };
        MapEntry::At { place, checksum: 0xabcd }
    }

    #[cfg(not(feature = "model"))]
    fn applied(map: &Map, block: u64, sequence: u64, entry: MapEntry) -> Option<MapEntry> {
        let mut replaced = Vec::new();
        let written = WrittenBlock { block, sequence: Sequence(sequence), entry };
        map.apply(&[written], |old| replaced.push(old));
        replaced.pop().expect("one block")
    }

    #[cfg(not(feature = "model"))]
    fn kept(entry: MapEntry, bytes: MapEntryBytes) -> MapEntry {
        match entry {
            MapEntry::At { place, .. } if bytes == NARROW => MapEntry::At { place, checksum: 0 },
            entry => entry,
        }
    }

    /// Z-I3, in memory: the completions of two writes come in the other order.
    #[cfg(not(feature = "model"))]
    #[test]
    fn an_older_completion_never_overwrites_a_newer_one() {
        for bytes in [WIDE, NARROW] {
            let map = new(3000, bytes);
            map.begin(2000);
            map.begin(2000);
            assert_eq!(applied(&map, 2000, 6, at(60)), Some(MapEntry::Zeroes));
            assert_eq!(applied(&map, 2000, 5, at(50)), None, "the place of the older is dead");
            assert_eq!(map.get(2000), kept(at(60), bytes));
            map.begin(2000);
            let old = applied(&map, 2000, 7, at(70));
            assert_eq!(old, Some(kept(at(60), bytes)), "nothing of it was in flight");
            map.begin(2000);
            map.begin(2000);
            map.abandon(2000);
            assert_eq!(applied(&map, 2000, 8, at(80)), Some(kept(at(70), bytes)));
            assert!(map.group(2000).0.lock().pending.is_empty(), "all have ended");
        }
    }

    /// Of the blocks of a stripe some may be the same, and many of one group.
    #[cfg(not(feature = "model"))]
    #[test]
    fn blocks_of_a_stripe_are_mapped_in_order() {
        for bytes in [WIDE, NARROW] {
            let map = new(3000, bytes);
            let blocks = [2999, 5, 5, 2000, 5, 6];
            blocks.into_iter().for_each(|block| map.begin(block));
            let written: Vec<WrittenBlock> = blocks
                .into_iter()
                .zip([1, 3, 2, 4, 9, 7])
                .map(|(block, sequence)| WrittenBlock {
                    block,
                    sequence: Sequence(sequence),
                    entry: at(sequence),
                })
                .collect();
            let mut replaced = Vec::new();
            map.apply(&written, |old| replaced.push(old));
            let new = Some(MapEntry::Zeroes);
            assert_eq!(replaced, [new, new, None, new, Some(kept(at(3), bytes)), new]);
            let there = [5, 6, 2000, 2999].map(|block| map.get(block));
            assert_eq!(there, [9, 7, 4, 1].map(|sequence| kept(at(sequence), bytes)));
            assert!(map.groups.iter().all(|group| group.lock().pending.is_empty()), "all have ended");
        }
    }

    #[cfg(not(feature = "model"))]
    #[test]
    fn zeroes_pass_what_is_newer_and_hold_back_what_is_older() {
        let map = new(2000, WIDE);
        for block in [10, 600, 1999] {
            map.set(block, at(block));
        }
        map.begin(11); // sequence 8: in flight when the zeroes are applied, and older
        let range = map.begin_range(5..1999);
        map.begin(600); // sequence 10: begins, is applied and ends while the zeroes, 9, are in flight
        applied(&map, 600, 10, at(601));
        let mut replaced = Vec::new();
        range.apply(Sequence(9), |old| replaced.extend((old != MapEntry::Zeroes).then_some(old)));
        drop(range);
        assert_eq!((replaced, map.get(10), map.get(600)), (vec![at(10)], MapEntry::Zeroes, at(601)));
        assert_eq!(applied(&map, 11, 8, at(11)), None);
        assert_eq!((map.get(11), map.get(1999)), (MapEntry::Zeroes, at(1999)));
        assert_eq!(map.mapped().map(|(block, _)| block).collect::<Vec<_>>(), [600, 1999]);
    }
}
