//! Entries of the map from logical blocks to places in segments, and the blocks that hold them.

use super::block::{BLOCK_BYTES, whole};
use super::entry::{BlockEntry, BlockName};
use super::error::{Structure, ZonedError};
use super::shape::HEADER_BLOCKS;
use super::superblock::MapEntryBytes;

const WHAT: Structure = Structure::Mapping;
/// Bits of a place in an entry of 8 bytes; the rest are of the block's checksum.
const PLACE_BITS: u32 = 40;

/// A block of a segment, as the map names it: not by member and zone, so that a rebuilt column changes one line of the segment
/// table and no entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockPlace {
    /// The segment's slot.
    pub slot: u32,
    /// The column.
    pub column: u8,
    /// The block of the zone.
    pub block: u32,
}

/// What the map says of a logical block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MapEntry {
    /// It reads as zeroes: never written, or discarded.
    Zeroes,
    /// It was lost: reads are errors, never an older value.
    Lost,
    /// It is there.
    At {
        /// Where.
        place: BlockPlace,
        /// The low bits of its checksum, as many as an entry has ([`MapShape::checksum_bits`]).
        checksum: u32,
    },
}

impl MapEntry {
    /// Where the block is. None: it reads as zeroes, or was lost.
    #[must_use]
    pub const fn place(&self) -> Option<BlockPlace> {
        match self {
            MapEntry::At { place, .. } => Some(*place),
            MapEntry::Zeroes | MapEntry::Lost => None,
        }
    }
}

/// What numbers below 2^40 are divided by: by a multiplication, since divisions were most of what a mapping block cost to read, two
/// or more for each of its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Divisor {
    by: u64,
    /// 2^64 / by, rounded up.
    reciprocal: u64,
}

impl Divisor {
    /// `by`: at least 2.
    const fn new(by: u64) -> Self {
        Divisor { by, reciprocal: u64::MAX / by + 1 }
    }

    /// Quotient and remainder.
    const fn of(&self, number: u64) -> (u64, u64) {
        // Too large by one at most: rounding adds less than number / 2^64 to the quotient.
        let quotient = ((number as u128 * self.reciprocal as u128) >> 64) as u64;
        match number.checked_sub(quotient * self.by) {
            Some(rest) => (quotient, rest),
            None => (quotient - 1, number + self.by - quotient * self.by),
        }
    }
}

/// How places are numbered: (slot x map_columns + column) x capacity + block. A *word* is an entry as a number, of which the
/// lowest 4 or 8 bytes are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MapShape {
    entry: MapEntryBytes,
    map_columns: u8,
    capacity_blocks: Divisor,
    group_entries: u32,
    /// Numbers of places that a slot has.
    blocks_per_slot: Divisor,
    slots_max: u32,
}

impl MapShape {
    /// The map of an array whose zones have this capacity. `None` if a slot has no columns, or a zone no block but its header.
    #[must_use]
    pub fn new(entry: MapEntryBytes, map_columns: u8, capacity_blocks: u32) -> Option<MapShape> {
        let is_shape = map_columns > 0 && capacity_blocks > HEADER_BLOCKS;
        let group_entries = (BLOCK_BYTES / entry as usize) as u32;
        is_shape.then(|| {
            let blocks_per_slot = Divisor::new(u64::from(map_columns) * u64::from(capacity_blocks));
            let capacity_blocks = Divisor::new(capacity_blocks.into());
            MapShape { entry, map_columns, capacity_blocks, group_entries, blocks_per_slot, slots_max: 0 }
                .with_entries(entry)
        })
    }

    /// The same with entries of other bytes, and groups of as many.
    fn with_entries(self, entry: MapEntryBytes) -> MapShape {
        let shape = MapShape { entry, ..self };
        // The last two numbers stand for lost blocks and zeroes.
        let (slots, _) = shape.blocks_per_slot.of(shape.place_mask() - 1);
        MapShape { slots_max: u32::try_from(slots).unwrap_or(u32::MAX), ..shape }
    }

    /// The same with only this many entries in a mapping block, the rest zeroes: for tests, whose small arrays then have many groups.
    ///
    /// # Panics
    /// If a block has no room for them, or there are none.
    #[must_use]
    pub fn with_groups_of(self, entries: u32) -> MapShape {
        assert!((1..=self.group_entries).contains(&entries), "{entries} entries of {}", self.group_entries);
        MapShape { group_entries: entries, ..self }
    }

    /// Bytes of an entry.
    #[must_use]
    pub const fn entry_bytes(&self) -> usize {
        self.entry as usize
    }

    /// Entries of a mapping block: 1024 or 512.
    #[must_use]
    pub const fn entries_per_block(&self) -> u64 {
        self.group_entries as u64
    }

    /// Bits of a block's checksum in its entry.
    #[must_use]
    pub const fn checksum_bits(&self) -> u32 {
        match self.entry {
            MapEntryBytes::Four => 0,
            MapEntryBytes::Eight => 64 - PLACE_BITS,
        }
    }

    /// Slots that an entry can name.
    #[must_use]
    pub const fn slots_max(&self) -> u32 {
        self.slots_max
    }

    /// The word of an entry.
    ///
    /// # Panics
    /// If an entry cannot name the place: its slot is not below [`MapShape::slots_max`], or its column or block is not in a
    /// segment.
    #[must_use]
    pub fn word(&self, entry: MapEntry) -> u64 {
        match entry {
            MapEntry::Zeroes => self.mask(),
            MapEntry::Lost => self.mask() - 1,
            MapEntry::At { place, checksum } => {
                let is_block = place.column < self.map_columns
                    && (u64::from(HEADER_BLOCKS)..self.capacity_blocks.by).contains(&place.block.into());
                assert!(place.slot < self.slots_max() && is_block, "{place:?} in {self:?}");
                let column = u64::from(place.slot) * u64::from(self.map_columns) + u64::from(place.column);
                let number = column * self.capacity_blocks.by + u64::from(place.block);
                match self.entry {
                    MapEntryBytes::Four => number,
                    MapEntryBytes::Eight => number | u64::from(checksum) << PLACE_BITS,
                }
            }
        }
    }

    /// The entry of a word; `None` if it names no block: a header, or a number that is kept for nothing.
    #[must_use]
    pub fn entry(&self, word: u64) -> Option<MapEntry> {
        if word == self.mask() {
            return Some(MapEntry::Zeroes);
        }
        if word == self.mask() - 1 {
            return Some(MapEntry::Lost);
        }
        let (number, checksum) = match self.entry {
            MapEntryBytes::Four => (word, 0),
            MapEntryBytes::Eight => (word & self.place_mask(), (word >> PLACE_BITS) as u32),
        };
        let (slot, _) = self.blocks_per_slot.of(number);
        let (column, block) = self.capacity_blocks.of(number);
        let slot = u32::try_from(slot).ok().filter(|slot| *slot < self.slots_max)?;
        let column = column - u64::from(slot) * u64::from(self.map_columns);
        let place = BlockPlace { slot, column: column as u8, block: block as u32 };
        (place.block >= HEADER_BLOCKS).then_some(MapEntry::At { place, checksum })
    }

    /// The bits of a block's checksum that an entry has.
    #[must_use]
    pub const fn checksum_of(&self, checksum: u32) -> u32 {
        match self.entry {
            MapEntryBytes::Four => 0,
            MapEntryBytes::Eight => checksum & ((1 << (64 - PLACE_BITS)) - 1),
        }
    }

    /// How the root of the map writes the places of mapping blocks: as entries of 8 bytes, with the bits of a checksum.
    #[must_use]
    pub fn of_root(&self) -> MapShape {
        self.with_entries(MapEntryBytes::Eight)
    }

    /// The first logical block of the group of entries that `lba` is in.
    #[must_use]
    pub const fn first_of_group(&self, lba: u64) -> u64 {
        lba - lba % self.entries_per_block()
    }

    fn place_mask(&self) -> u64 {
        match self.entry {
            MapEntryBytes::Four => u32::MAX.into(),
            MapEntryBytes::Eight => (1 << PLACE_BITS) - 1,
        }
    }

    fn mask(&self) -> u64 {
        match self.entry {
            MapEntryBytes::Four => u32::MAX.into(),
            MapEntryBytes::Eight => u64::MAX,
        }
    }
}

/// A mapping block: the words of a group of entries. It has no head: its own entry in the record that it is written with says
/// which group it is, as of which write, and its checksum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappingBlock {
    words: Vec<u64>,
}

impl MappingBlock {
    /// Checks `bytes`, which `entry` names. Every word is an entry.
    ///
    /// # Errors
    /// [`ZonedError`] names the first thing that is wrong.
    pub fn parse(bytes: &[u8], entry: &BlockEntry, shape: &MapShape) -> Result<MappingBlock, ZonedError> {
        MappingBlock::parse_where(bytes, entry, shape, |_| true)
    }

    /// The same; and every place is in a slot for which `is_there`.
    ///
    /// # Errors
    /// [`ZonedError`] names the first thing that is wrong.
    pub fn parse_where(
        bytes: &[u8],
        entry: &BlockEntry,
        shape: &MapShape,
        is_there: impl Fn(u32) -> bool,
    ) -> Result<MappingBlock, ZonedError> {
        let bytes = whole(WHAT, bytes)?;
        let found = || entry.name.to_string();
        let is_group = matches!(entry.name, BlockName::Mapping(lba) if shape.first_of_group(lba) == lba);
        WHAT.require(is_group, "lba", found, || "the map from the first block of a group".into())?;
        entry.check(WHAT, bytes)?;
        let words: Vec<u64> = match shape.entry {
            MapEntryBytes::Four => {
                bytes.as_chunks().0.iter().map(|raw| u32::from_le_bytes(*raw).into()).collect()
            }
            MapEntryBytes::Eight => bytes.as_chunks().0.iter().map(|raw| u64::from_le_bytes(*raw)).collect(),
        };
        let is_right = |word: &u64| {
            shape.entry(*word).is_some_and(|entry| entry.place().is_none_or(|place| is_there(place.slot)))
        };
        match words.iter().position(|word| !is_right(word)) {
            None => {
                let mut words = words;
                words.truncate(shape.entries_per_block() as usize);
                Ok(MappingBlock { words })
            }
            Some(index) => Err(ZonedError::Field {
                structure: WHAT,
                field: "entry",
                found: format!("{:#x} at index {index}", words[index]),
                expected: "a block of a segment that is there, zeroes or lost".into(),
            }),
        }
    }

    /// The words, [`MapShape::entries_per_block`] of them.
    #[must_use]
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// The block that holds these words. Those that are left over are zeroes.
    ///
    /// # Panics
    /// If there are more than [`MapShape::entries_per_block`].
    #[must_use]
    pub fn encode(words: &[u64], shape: &MapShape) -> Vec<u8> {
        let most = shape.entries_per_block() as usize;
        assert!(words.len() <= most, "{} entries of {most}", words.len());
        let rest = std::iter::repeat(shape.word(MapEntry::Zeroes));
        let mut block = vec![0; BLOCK_BYTES];
        let words = words.iter().copied().chain(rest);
        match shape.entry {
            MapEntryBytes::Four => {
                let entries = block.as_chunks_mut().0.iter_mut();
                entries.zip(words).for_each(|(entry, word)| *entry = (word as u32).to_le_bytes());
            }
            MapEntryBytes::Eight => {
                let entries = block.as_chunks_mut().0.iter_mut();
                entries.zip(words).for_each(|(entry, word)| *entry = word.to_le_bytes());
            }
        }
        block
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers around multiples, and the largest, by divisors of all sizes.
    #[test]
    fn a_multiplication_divides_as_a_division_does() {
        let divisors = (2..300).chain((2..40).flat_map(|bits| [(1 << bits) - 1, 1 << bits, (1 << bits) + 1]));
        for by in divisors {
            let divisor = Divisor::new(by);
            let most = (1 << PLACE_BITS) - 1;
            let multiples = (0..64).map(|step| most / 64 * step / by * by).chain([most / by * by]);
            let numbers =
                multiples.flat_map(|number| [number.saturating_sub(1), number, number + 1, number + by - 1]);
            for number in numbers.chain([most, most - 1]).filter(|number| *number <= most) {
                assert_eq!(divisor.of(number), (number / by, number % by), "{number} by {by}");
            }
        }
    }
}
