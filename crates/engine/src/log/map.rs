//! Which place holds a block: the map of an array, in groups of one mapping block each, all of them in memory.
//!
//! An entry of 8 bytes holds a place of 40 bits and 24 bits of the block's checksum, so that every read is verified without
//! reading metadata (Z-I12); an entry of 4 bytes holds a place alone. Z-I3: of the writes of a block the one with the highest
//! sequence stands, in whatever order they complete ([`pending`]).

mod pending;

use std::ops::Range;

use self::pending::{PendingBlocks, PendingRanges};
use super::sequence::Sequence;
use crate::limits::BLOCK_BYTES;
use crate::sync::sequential::Mutex;

/// Bits of a place in an entry of 8 bytes.
const PLACE_BITS: u32 = 40;
/// Bits of the checksum beside it.
pub const CHECK_BITS: u32 = 64 - PLACE_BITS;

/// How an entry is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// 4 bytes: the paper's.
    Narrow,
    /// 8 bytes: with checksum bits.
    Wide,
}

impl EntryKind {
    /// Entries of one mapping block.
    pub fn group_blocks(self) -> u64 {
        let bytes = if self == EntryKind::Wide { 8 } else { 4 };
        BLOCK_BYTES as u64 / bytes
    }

    /// Places below this can be told.
    pub fn places_max(self) -> u64 {
        // The two highest stand for zeroes and lost.
        if self == EntryKind::Wide { (1 << PLACE_BITS) - 2 } else { (1 << 32) - 2 }
    }
}

/// Where a block's contents are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapped {
    /// Nowhere: it reads as zeroes.
    Zeroes,
    /// They were proven durable and cannot be made any more: it reads as an error, never as an older value (Z-I7).
    Lost,
    /// At a place.
    At {
        /// A place: slot, column and offset as one number.
        place: u64,
        /// The low bits of the checksum of the block's contents, where entries hold them.
        check: Option<u32>,
    },
}

impl Mapped {
    /// A block at a place, with these contents.
    pub fn at(place: u64, checksum: u32) -> Mapped {
        Mapped::At { place, check: Some(checksum) }
    }
}

/// Whether contents with this checksum are those that an entry means.
pub fn check_matches(check: u32, checksum: u32) -> bool {
    (check ^ checksum) & ((1 << CHECK_BITS) - 1) == 0
}

enum Entries {
    Narrow(Box<[u32]>),
    Wide(Box<[u64]>),
}

impl Entries {
    fn zeroes(kind: EntryKind) -> Entries {
        let count = kind.group_blocks() as usize;
        match kind {
            EntryKind::Narrow => Entries::Narrow(vec![u32::MAX; count].into()),
            EntryKind::Wide => Entries::Wide(vec![u64::MAX; count].into()),
        }
    }

    fn get(&self, at: usize) -> Mapped {
        let (place, zeroes, check) = match self {
            Entries::Narrow(entries) => (u64::from(entries[at]), u64::from(u32::MAX), None),
            Entries::Wide(entries) => {
                let places = (1 << PLACE_BITS) - 1;
                (entries[at] & places, places, Some((entries[at] >> PLACE_BITS) as u32))
            }
        };
        match zeroes - place {
            0 => Mapped::Zeroes,
            1 => Mapped::Lost,
            _ => Mapped::At { place, check },
        }
    }

    fn set(&mut self, at: usize, mapped: Mapped) {
        match self {
            Entries::Narrow(entries) => {
                entries[at] = match mapped {
                    Mapped::Zeroes => u32::MAX,
                    Mapped::Lost => u32::MAX - 1,
                    Mapped::At { place, .. } => u32::try_from(place).expect("places fit the entry"),
                };
            }
            Entries::Wide(entries) => {
                entries[at] = match mapped {
                    Mapped::Zeroes => u64::MAX,
                    Mapped::Lost => (1 << PLACE_BITS) - 2,
                    Mapped::At { place, check } => {
                        assert!(place < EntryKind::Wide.places_max(), "places fit the entry");
                        (u64::from(check.unwrap_or(0)) << PLACE_BITS) | place
                    }
                };
            }
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

/// The map of an array, shared by all shards. A lock is held for a few entries of one group at a time.
pub struct Map {
    kind: EntryKind,
    blocks: u64,
    groups: Box<[Mutex<Group>]>,
    ranges: PendingRanges,
}

impl Map {
    /// A map of `blocks` blocks, all zeroes.
    pub fn new(blocks: u64, kind: EntryKind) -> Self {
        let groups = blocks.div_ceil(kind.group_blocks());
        let groups = (0..groups).map(|_| Mutex::new(Group::default())).collect();
        Map { kind, blocks, groups, ranges: PendingRanges::default() }
    }

    /// Blocks of the array.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// How entries are kept.
    pub fn kind(&self) -> EntryKind {
        self.kind
    }

    fn group(&self, block: u64) -> (&Mutex<Group>, usize) {
        assert!(block < self.blocks, "block {block} is in the array");
        let group_blocks = self.kind.group_blocks();
        (&self.groups[(block / group_blocks) as usize], (block % group_blocks) as usize)
    }

    /// Where a block's contents are. The caller has pinned what it may find.
    pub fn get(&self, block: u64) -> Mapped {
        let (group, at) = self.group(block);
        group.lock().entries.as_ref().map_or(Mapped::Zeroes, |entries| entries.get(at))
    }

    /// Sets an entry, at a start, before anything is served. Returns what stood there.
    pub fn set(&self, block: u64, mapped: Mapped) -> Mapped {
        let (group, at) = self.group(block);
        let mut group = group.lock();
        let entries = group.entries.get_or_insert_with(|| Entries::zeroes(self.kind));
        let old = entries.get(at);
        entries.set(at, mapped);
        old
    }

    /// A write of a block begins: called before it takes its sequence.
    pub fn begin(&self, block: u64) {
        self.group(block).0.lock().pending.begin(block);
    }

    /// Maps a block that was written (Z-I1: the caller has seen all records of its stripe return). Returns what it replaces,
    /// or None if a newer write stands: the place is then dead.
    pub fn apply(&self, block: u64, sequence: Sequence, mapped: Mapped) -> Option<Mapped> {
        let (group, at) = self.group(block);
        let mut group = group.lock();
        if !group.pending.apply(block, sequence) {
            return None;
        }
        self.ranges.note(block, sequence);
        let entries = group.entries.get_or_insert_with(|| Entries::zeroes(self.kind));
        let old = entries.get(at);
        entries.set(at, mapped);
        Some(old)
    }

    /// A write of a block ends, applied or not.
    pub fn end(&self, block: u64) {
        self.group(block).0.lock().pending.end(block);
    }

    /// Zeroes of a range begin: called before they take their sequence.
    pub fn begin_range(&self, blocks: Range<u64>) -> RangeInFlight<'_> {
        assert!(blocks.start < blocks.end && blocks.end <= self.blocks, "the range is in the array");
        RangeInFlight { map: self, id: self.ranges.begin(blocks.clone()), blocks }
    }

    /// Blocks that are mapped to a place, in order.
    pub fn mapped(&self) -> impl Iterator<Item = (u64, Mapped)> {
        (0..self.blocks).map(|block| (block, self.get(block))).filter(|(_, mapped)| *mapped != Mapped::Zeroes)
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
    pub fn apply(&self, sequence: Sequence, mut replaced: impl FnMut(Mapped)) {
        let group_blocks = self.map.kind.group_blocks();
        let mut start = self.blocks.start;
        while start < self.blocks.end {
            let end = ((start / group_blocks + 1) * group_blocks).min(self.blocks.end);
            self.apply_group(start..end, sequence, &mut replaced);
            start = end;
        }
    }

    fn apply_group(&self, part: Range<u64>, sequence: Sequence, replaced: &mut impl FnMut(Mapped)) {
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
                replaced(entries.get(at));
                entries.set(at, Mapped::Zeroes);
            }
        }
        if is_clear && part.end - part.start == self.map.kind.group_blocks() {
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

    use super::*;
    use crate::log::sequence::Sequences;
    use crate::sync::models::{check, threads};
    use std::sync::Mutex as StdMutex;

    #[test]
    fn the_highest_sequence_stands() {
        check(|| {
            let (map, sequences) = (Map::new(4, EntryKind::Wide), Sequences::new(1));
            let written = StdMutex::new(Vec::new());
            let left = std::sync::atomic::AtomicUsize::new(3);
            threads(3, move |thread| {
                if thread == 0 {
                    let range = map.begin_range(0..4);
                    let sequence = sequences.take().expect("numbers are left");
                    shuttle::thread::yield_now();
                    range.apply(sequence, |_| {});
                    written.lock().unwrap().push((sequence, Mapped::Zeroes));
                } else {
                    for _ in 0..2 {
                        map.begin(1);
                        let sequence = sequences.take().expect("numbers are left");
                        let mapped = Mapped::at(sequence.0 & 0xff, 7);
                        shuttle::thread::yield_now();
                        map.apply(1, sequence, mapped);
                        map.end(1);
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

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;

    fn at(place: u64) -> Mapped {
        Mapped::at(place, 0xabcd)
    }

    /// Z-I3, in memory: the completions of two writes come in the other order.
    #[test]
    fn an_older_completion_never_overwrites_a_newer_one() {
        for kind in [EntryKind::Wide, EntryKind::Narrow] {
            let map = Map::new(3000, kind);
            map.begin(2000);
            map.begin(2000);
            assert_eq!(map.apply(2000, Sequence(6), at(60)), Some(Mapped::Zeroes));
            map.end(2000);
            assert_eq!(map.apply(2000, Sequence(5), at(50)), None, "the place of the older is dead");
            map.end(2000);
            let expected =
                if kind == EntryKind::Wide { at(60) } else { Mapped::At { place: 60, check: None } };
            assert_eq!(map.get(2000), expected);
            map.begin(2000);
            assert_eq!(map.apply(2000, Sequence(7), at(70)), Some(expected), "nothing of it was in flight");
            map.end(2000);
        }
    }

    #[test]
    fn zeroes_pass_what_is_newer_and_hold_back_what_is_older() {
        let map = Map::new(2000, EntryKind::Wide);
        for block in [10, 600, 1999] {
            map.set(block, at(block));
        }
        map.begin(11); // sequence 8: in flight when the zeroes are applied, and older
        let range = map.begin_range(5..1999);
        map.begin(600); // sequence 10: begins, is applied and ends while the zeroes, 9, are in flight
        map.apply(600, Sequence(10), at(601));
        map.end(600);
        let mut replaced = Vec::new();
        range.apply(Sequence(9), |old| replaced.extend((old != Mapped::Zeroes).then_some(old)));
        drop(range);
        assert_eq!((replaced, map.get(10), map.get(600)), (vec![at(10)], Mapped::Zeroes, at(601)));
        assert_eq!(map.apply(11, Sequence(8), at(11)), None);
        map.end(11);
        assert_eq!((map.get(11), map.get(1999)), (Mapped::Zeroes, at(1999)));
        assert_eq!(map.mapped().map(|(block, _)| block).collect::<Vec<_>>(), [600, 1999]);
    }

    #[test]
    fn entries_hold_the_largest_places_and_tell_zeroes_from_lost() {
        for kind in [EntryKind::Wide, EntryKind::Narrow] {
            let map = Map::new(1, kind);
            let largest = kind.places_max() - 1;
            for mapped in [at(largest), at(0), Mapped::Lost, Mapped::Zeroes] {
                map.set(0, mapped);
                let is_same = match (map.get(0), mapped) {
                    (Mapped::At { place, .. }, Mapped::At { place: set, .. }) => place == set,
                    (got, set) => got == set,
                };
                assert!(is_same, "{mapped:?}");
            }
        }
        assert!(check_matches(0xff00_0001, 0x0100_0001) && !check_matches(1, 2));
    }
}
