//! Which place holds a block: the map of an array, in groups of one mapping block each. A group is in memory, or in the log
//! where its newest mapping block is (Z6), or all zeroes.
//!
//! An entry of 8 bytes holds a place of 40 bits and 24 bits of the block's checksum, so that every read is verified without
//! reading metadata (Z-I12); an entry of 4 bytes holds a place alone. Z-I3: of the writes of a block the one with the highest
//! sequence stands, in whatever order they complete ([`pending`]).
//!
//! Nothing here reads or writes: what does is [`super::paging`] and [`super::checkpoint`].

mod group;
pub mod groups;
mod pages;
mod pending;
mod zeroes;

use std::ops::Range;
use std::task::Waker;

use self::group::Group;
use self::groups::{Groups, ROOT_BLOCK_GROUPS};
use self::pending::PendingRanges;
use super::sequence::Sequence;
use crate::sync::sequential::Mutex;
use crate::sync::sequential::atomic::{AtomicUsize, Ordering::SeqCst};
use layout::zoned::{BlockPlace, MapEntry, MapShape};
use smallvec::SmallVec;

pub use self::pages::{Claim, Evicted, Snapshot, Taken};
pub use self::zeroes::RangeInFlight;

/// Whether contents with this checksum are those that an entry means.
pub fn check_matches(shape: &MapShape, check: u32, checksum: u32) -> bool {
    shape.checksum_of(checksum) == check
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

/// An entry that changed. It is passed on under its group's lock, so that the counts of live blocks are exact at every moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// What stood there.
    pub from: MapEntry,
    /// What stands there.
    pub to: MapEntry,
    /// The newest checkpoint, if it is still being written, has the group already, and so without this change.
    pub is_late: bool,
}

/// A group that is in the log, and is needed in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// The group's number.
    pub group: u64,
}

/// The map of an array, shared by all shards. Locks are held for a few entries at a time: of one group, or of those of a stripe.
pub struct Map {
    shape: MapShape,
    blocks: u64,
    groups: Groups,
    ranges: PendingRanges,
    /// Groups that take memory.
    in_memory: AtomicUsize,
    /// Groups that were changed since the last checkpoint that has them.
    changed: AtomicUsize,
    /// Tasks that wait for a group which another one reads.
    waiting: Mutex<Vec<(u64, Waker)>>,
}

impl Map {
    /// A map of `blocks` blocks, all zeroes.
    pub fn new(blocks: u64, shape: MapShape) -> Self {
        let groups = blocks.div_ceil(shape.entries_per_block());
        Map {
            shape,
            blocks,
            groups: Groups::new(groups),
            ranges: PendingRanges::default(),
            in_memory: AtomicUsize::new(0),
            changed: AtomicUsize::new(0),
            waiting: Mutex::new(Vec::new()),
        }
    }

    /// Blocks of the array.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Groups of the map.
    pub fn groups(&self) -> u64 {
        self.groups.count()
    }

    /// How entries are kept.
    pub fn shape(&self) -> &MapShape {
        &self.shape
    }

    /// The group of a block, and the block's place there. None: nothing near it was ever written.
    fn group(&self, block: u64) -> (Option<&Mutex<Group>>, usize) {
        assert!(block < self.blocks, "block {block} is in the array");
        (self.groups.get(self.group_of(block)), self.place_in_group(block))
    }

    /// The group of a block that is being written.
    fn written_group(&self, block: u64) -> &Mutex<Group> {
        self.group(block).0.expect("a group of which a block is written is there")
    }

    /// Blocks of the root of which a group was written.
    pub fn root_blocks_there(&self) -> usize {
        self.groups.there().count()
    }

    /// Their groups: all others are zeroes.
    pub fn groups_there(&self) -> impl Iterator<Item = u64> {
        self.groups.there().flat_map(|(number, groups)| (number * ROOT_BLOCK_GROUPS..).take(groups.len()))
    }

    /// The group that a block is in.
    pub fn group_of(&self, block: u64) -> u64 {
        block / self.shape.entries_per_block()
    }

    /// The blocks of a group.
    pub fn blocks_of(&self, group: u64) -> Range<u64> {
        let first = group * self.shape.entries_per_block();
        first..(first + self.shape.entries_per_block()).min(self.blocks)
    }

    fn place_in_group(&self, block: u64) -> usize {
        (block % self.shape.entries_per_block()) as usize
    }

    /// A range cut at groups.
    pub fn parts(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let group_blocks = self.shape.entries_per_block();
        let first = range.start / group_blocks;
        let last = range.end.div_ceil(group_blocks);
        let part = move |group: u64| {
            (group * group_blocks).max(range.start)..((group + 1) * group_blocks).min(range.end)
        };
        (first..last).map(part)
    }

    /// Where a block's contents are. The caller has pinned what it may find.
    ///
    /// # Errors
    /// The log says it.
    pub fn get(&self, block: u64) -> Result<MapEntry, OutOfMemory> {
        let (Some(group), at) = self.group(block) else { return Ok(MapEntry::Zeroes) };
        let mut group = group.lock();
        group.was_used = true;
        group.entries.get(&self.shape, at).ok_or(OutOfMemory { group: self.group_of(block) })
    }

    /// Sets an entry, at a start, before anything is served. Returns what changed.
    ///
    /// # Panics
    /// If its group is in the log.
    pub fn set(&self, block: u64, mapped: MapEntry) -> Change {
        let group = self.groups.made(self.group_of(block));
        self.change(&mut group.lock(), self.place_in_group(block), mapped)
    }

    /// Changes an entry of a group that is in memory.
    fn change(&self, group: &mut Group, at: usize, to: MapEntry) -> Change {
        let (from, is_new) = group.set(&self.shape, at, to);
        if is_new {
            self.in_memory.fetch_add(1, SeqCst);
        }
        self.note_changed(group);
        Change { from, to, is_late: group.cycle == self.groups.cycle() }
    }

    fn note_changed(&self, group: &mut Group) {
        if !std::mem::replace(&mut group.is_changed, true) {
            self.changed.fetch_add(1, SeqCst);
        }
    }

    /// Writes of blocks begin, all or none: called before they take their sequences, each of which will be `floor` or a higher
    /// one. Their groups stay in memory until they end.
    ///
    /// # Errors
    /// The entries of a block are in the log.
    pub fn begin(&self, blocks: Range<u64>, floor: Sequence) -> Result<(), OutOfMemory> {
        let parts = || self.parts(blocks.clone());
        let made: SmallVec<[_; 2]> =
            parts().map(|part| self.groups.made(self.group_of(part.start))).collect();
        let mut groups: SmallVec<[_; 2]> = made.into_iter().map(Mutex::lock).collect();
        for (group, part) in groups.iter_mut().zip(parts()) {
            if matches!(group.entries, group::Entries::Out) {
                return Err(OutOfMemory { group: self.group_of(part.start) });
            }
        }
        for (group, part) in groups.iter_mut().zip(parts()) {
            group.was_used = true;
            part.for_each(|block| group.pending.begin(block, floor));
        }
        Ok(())
    }

    /// Maps blocks that were written (Z-I1: the caller has seen all records of their stripes return), and ends their writes. Where
    /// a newer write stands, the place of the older one is dead. `counted` gets what changed.
    pub fn apply(&self, written: &[WrittenBlock], counted: impl FnOnce(&[Change])) {
        let mut order: SmallVec<[u64; STRIPE_BLOCKS]> =
            written.iter().map(|own| self.group_of(own.block)).collect();
        order.sort_unstable();
        order.dedup();
        // In order, so that shards which need the same groups never wait for each other in a circle.
        let mut groups: SmallVec<[_; STRIPE_BLOCKS]> = order
            .iter()
            .map(|number| self.groups.get(*number).expect("its write has begun").lock())
            .collect();
        let group_of = |block| order.binary_search(&self.group_of(block)).expect("its group is locked");
        // The entries of a large map are in no cache. Looked at one after the other, with no lock in between, they cost about one
        // miss; each behind a lock of its own, they cost a tenth of a small write.
        let look =
            |own: &WrittenBlock| groups[group_of(own.block)].entries.touch(self.place_in_group(own.block));
        std::hint::black_box(written.iter().fold(0, |words, own| words ^ look(own)));
        let mut changes: SmallVec<[Change; STRIPE_BLOCKS]> = SmallVec::new();
        for own in written {
            let group = &mut *groups[group_of(own.block)];
            if group.pending.apply_and_end(own.block, own.sequence) {
                self.ranges.note(own.block, own.sequence);
                changes.push(self.change(group, self.place_in_group(own.block), own.entry));
            }
        }
        counted(&changes);
    }

    /// Maps a block that was moved, or lost, if its old place still stands: then the new one counts in its stead, with the
    /// sequence of the old one, and whatever is in flight decides about it as it would have about the old one (Z-I3).
    ///
    /// # Errors
    /// The log says what stands.
    pub fn replace(
        &self,
        block: u64,
        from: BlockPlace,
        mapped: MapEntry,
        counted: impl FnOnce(&[Change]),
    ) -> Result<bool, OutOfMemory> {
        let (Some(group), at) = self.group(block) else { return Ok(false) };
        let mut group = group.lock();
        let stands = group.entries.get(&self.shape, at);
        let stands = stands.ok_or(OutOfMemory { group: self.group_of(block) })?;
        let stands = matches!(stands, MapEntry::At { place, .. } if place == from);
        if stands {
            counted(&[self.change(&mut group, at, mapped)]);
        }
        Ok(stands)
    }

    /// Whether a block of a range has this entry, which is not a place. Zeroes in flight may have it soon.
    ///
    /// # Errors
    /// The log says it.
    pub fn holds(&self, range: Range<u64>, wanted: MapEntry) -> Result<bool, OutOfMemory> {
        if wanted == MapEntry::Zeroes && self.ranges.any() {
            return Ok(true);
        }
        for part in self.parts(range) {
            let (Some(group), first) = self.group(part.start) else {
                if wanted == MapEntry::Zeroes {
                    return Ok(true);
                }
                continue;
            };
            let group = group.lock();
            for at in first..first + (part.end - part.start) as usize {
                let entry = group.entries.get(&self.shape, at);
                if entry.ok_or(OutOfMemory { group: self.group_of(part.start) })? == wanted {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// A write of a block ends, and was not applied.
    pub fn abandon(&self, block: u64) {
        self.written_group(block).lock().pending.abandon(block);
    }

    /// Blocks that are mapped to a place, in order, as far as memory says it.
    #[cfg(all(test, not(feature = "model")))]
    pub(crate) fn mapped(&self) -> impl Iterator<Item = (u64, MapEntry)> {
        let mapped = |block| Some((block, self.get(block).ok()?));
        (0..self.blocks).filter_map(mapped).filter(|(_, mapped)| *mapped != MapEntry::Zeroes)
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
                    let range = map.begin_range(0..4, sequences.peek());
                    let sequence = sequences.take().expect("numbers are left");
                    shuttle::thread::yield_now();
                    range.apply(0..4, sequence, |_| {}).expect("in memory");
                    written.lock().unwrap().push((sequence, MapEntry::Zeroes));
                } else {
                    for _ in 0..2 {
                        map.begin(1..2, sequences.peek()).expect("in memory");
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
                    assert_eq!(map.get(1).expect("in memory"), written.last().expect("five writes").1);
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
    fn begin(map: &Map, block: u64) {
        map.begin(block..block + 1, Sequence(1)).expect("in memory");
    }

    #[cfg(not(feature = "model"))]
    fn get(map: &Map, block: u64) -> MapEntry {
        map.get(block).expect("in memory")
    }

    #[cfg(not(feature = "model"))]
    fn applied(map: &Map, block: u64, sequence: u64, entry: MapEntry) -> Option<MapEntry> {
        let mut replaced = None;
        let written = WrittenBlock { block, sequence: Sequence(sequence), entry };
        map.apply(&[written], |changes| replaced = changes.first().map(|change| change.from));
        replaced
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
            begin(&map, 2000);
            begin(&map, 2000);
            assert_eq!(applied(&map, 2000, 6, at(60)), Some(MapEntry::Zeroes));
            assert_eq!(applied(&map, 2000, 5, at(50)), None, "the place of the older is dead");
            assert_eq!(get(&map, 2000), kept(at(60), bytes));
            begin(&map, 2000);
            let old = applied(&map, 2000, 7, at(70));
            assert_eq!(old, Some(kept(at(60), bytes)), "nothing of it was in flight");
            begin(&map, 2000);
            begin(&map, 2000);
            map.abandon(2000);
            assert_eq!(applied(&map, 2000, 8, at(80)), Some(kept(at(70), bytes)));
            assert!(map.written_group(2000).lock().pending.is_empty(), "all have ended");
        }
    }

    /// Of the blocks of a stripe some may be the same, and many of one group.
    #[cfg(not(feature = "model"))]
    #[test]
    fn blocks_of_a_stripe_are_mapped_in_order() {
        for bytes in [WIDE, NARROW] {
            let map = new(3000, bytes);
            let blocks = [2999, 5, 5, 2000, 5, 6];
            blocks.into_iter().for_each(|block| begin(&map, block));
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
            map.apply(&written, |changes| replaced.extend(changes.iter().map(|change| change.from)));
            let new = MapEntry::Zeroes;
            assert_eq!(replaced, [new, new, new, kept(at(3), bytes), new]);
            let there = [5, 6, 2000, 2999].map(|block| get(&map, block));
            assert_eq!(there, [9, 7, 4, 1].map(|sequence| kept(at(sequence), bytes)));
            assert!(
                map.groups
                    .there()
                    .flat_map(|(_, groups)| groups)
                    .all(|group| group.lock().pending.is_empty()),
                "all have ended"
            );
        }
    }

    #[cfg(not(feature = "model"))]
    #[test]
    fn a_checkpoint_that_failed_leaves_changed_what_was() {
        let map = new(2000, WIDE);
        let sequence = || Some(Sequence(9));
        [10, 1999].into_iter().for_each(|block| _ = map.set(block, at(block)));
        let cycle = map.begin_checkpoint(|| {}).0;
        let taken: Vec<Snapshot> =
            (0..3).map(|group| map.snapshot(group, cycle, sequence).expect("taken")).collect();
        let blocks = taken.iter().map(|snapshot| snapshot.block.is_some());
        assert_eq!(blocks.collect::<Vec<_>>(), [true, false, false]);
        map.written(0, 77);
        map.set(600, at(600));
        assert_eq!(
            map.changed(),
            2,
            "one that changed after it was taken, and the last, which was not taken"
        );
        map.give_up_checkpoint();
        assert_eq!(map.changed(), 3, "the first again, though its mapping block is written");
    }

    #[cfg(not(feature = "model"))]
    #[test]
    fn zeroes_pass_what_is_newer_and_hold_back_what_is_older() {
        let map = new(2000, WIDE);
        for block in [10, 600, 1999] {
            map.set(block, at(block));
        }
        begin(&map, 11); // sequence 8: in flight when the zeroes are applied, and older
        let range = map.begin_range(5..1999, Sequence(9));
        begin(&map, 600); // sequence 10: begins, is applied and ends while the zeroes, 9, are in flight
        applied(&map, 600, 10, at(601));
        let mut replaced = Vec::new();
        for part in range.parts() {
            let old = |changes: &[Change]| replaced.extend(changes.iter().map(|change| change.from));
            range.apply(part, Sequence(9), old).expect("in memory");
        }
        drop(range);
        replaced.retain(|old| *old != MapEntry::Zeroes);
        assert_eq!((replaced, get(&map, 10), get(&map, 600)), (vec![at(10)], MapEntry::Zeroes, at(601)));
        assert_eq!(applied(&map, 11, 8, at(11)), None);
        assert_eq!((get(&map, 11), get(&map, 1999)), (MapEntry::Zeroes, at(1999)));
        assert_eq!(map.mapped().map(|(block, _)| block).collect::<Vec<_>>(), [600, 1999]);
    }
}
