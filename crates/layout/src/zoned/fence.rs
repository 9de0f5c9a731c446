//! A fence: what recovery decided about the end of a segment (Z-I6). Behind it only records of its epoch or of a later one
//! count. It is the same on every column.

use byte_struct::byte_struct;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::block::{NONE, check_start, seal};
use super::error::{Structure, ZonedError};
use super::segment::{RawSegmentStart, SegmentHeader};
use super::sequence::{Epoch, Sequence};
use super::shape::HEADER_BLOCKS;

/// Ranges that one block of a fence holds.
pub const FENCE_RANGES: usize = 234;

/// Name, offset and size of each field of a fence block, for the check of `docs/formats.md`.
pub const FENCE_FIELDS: &[(&str, usize, usize)] = RawFence::FIELDS;

/// Name, offset and size of each field of a range, for the check of `docs/formats.md`.
pub const RANGE_FIELDS: &[(&str, usize, usize)] = RawRange::FIELDS;

const MAGIC: [u8; 8] = *b"TwZonFn\0";
const WHAT: Structure = Structure::Fence;

byte_struct! {
    struct RawRange, 16 bytes {
        0   4  group: U32,
        4   4  first: U32,
        8   4  count: U32,
        12  1  verdict: u8,
        13  3  reserve: bytes,
    }
}

byte_struct! {
    struct RawFence, 4096 bytes {
        0    40    start: RawSegmentStart,
        40   8     sequence: U64,
        48   2     index: U16,
        50   2     blocks: U16,
        52   2     ranges: U16,
        54   1     width: u8,
        55   41    reserve: bytes,
        96   256   pointers: [U32; 64],
        352  3744  range: [RawRange; 234],
    }
}

/// Why the stripes of a range do not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// They were never whole, and never acknowledged as durable.
    Void = 1,
    /// They were durable and cannot be made: reads of their blocks are errors, never an older value.
    Lost = 2,
}

/// Stripes that do not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FenceRange {
    /// In append segments the group; else 0.
    pub group: u32,
    /// In append segments the id of the first stripe; else the first block of the data region.
    pub first: u32,
    /// In append segments stripes; else blocks of the data region.
    pub count: u32,
    /// What became of them.
    pub verdict: Verdict,
}

/// A block of a fence. One that was read comes from [`FenceBlock::parse`]. A fence counts when all of its blocks are there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FenceBlock {
    /// The epoch that decided. Of fences that differ the highest one's counts.
    pub epoch: Epoch,
    /// The number of the fence's record.
    pub sequence: Sequence,
    /// Its number within the fence.
    pub index: u16,
    /// Blocks of the fence.
    pub blocks: u16,
    /// The block of each zone at which its write pointer stood before the fence; `None` for a column that is left out or whose
    /// member was missing.
    pub pointers: Vec<Option<u32>>,
    /// The ranges in this block, at most [`FENCE_RANGES`].
    pub ranges: Vec<FenceRange>,
}

impl FenceBlock {
    /// All blocks of a fence.
    ///
    /// # Panics
    /// If there are more than 65535 of them, or not as many pointers as the segment has columns.
    #[must_use]
    pub fn all(
        epoch: Epoch,
        sequence: Sequence,
        pointers: &[Option<u32>],
        ranges: &[FenceRange],
    ) -> Vec<FenceBlock> {
        let blocks = ranges.len().div_ceil(FENCE_RANGES).max(1);
        let blocks = u16::try_from(blocks).expect("a fence of at most 65535 blocks");
        (0..blocks)
            .map(|index| {
                let ranges = ranges.iter().skip(usize::from(index) * FENCE_RANGES).take(FENCE_RANGES);
                let (pointers, ranges) = (pointers.to_vec(), ranges.copied().collect());
                FenceBlock { epoch, sequence, index, blocks, pointers, ranges }
            })
            .collect()
    }

    /// Checks `bytes`, a block of a record in the zone with this header.
    ///
    /// # Errors
    /// [`ZonedError`] names the first thing that is wrong.
    pub fn parse(bytes: &[u8], header: &SegmentHeader) -> Result<FenceBlock, ZonedError> {
        let raw = RawFence::read_from_bytes(check_start(WHAT, bytes, MAGIC)?).expect("a block");
        WHAT.reserved(&raw.reserve, 55)?;
        raw.start.check(WHAT, header)?;
        WHAT.belongs("width", raw.width, header.shape.plan().columns.width())?;
        let (index, blocks) = (raw.index.get(), raw.blocks.get());
        WHAT.require(index < blocks, "index", || index.to_string(), || format!("below {blocks}"))?;
        let count = usize::from(raw.ranges.get());
        let most = || format!("at most {FENCE_RANGES}");
        WHAT.require(count <= FENCE_RANGES, "ranges", || format!("{count} ranges"), most)?;
        let (ranges, unused) = raw.range.split_at(count);
        WHAT.reserved(unused.as_bytes(), 352 + ranges.as_bytes().len())?;
        Ok(FenceBlock {
            epoch: Epoch::of_raw(raw.start.epoch),
            sequence: Sequence(raw.sequence.get()),
            index,
            blocks,
            pointers: pointers_of(&raw, header)?,
            ranges: (0..)
                .zip(ranges)
                .map(|(index, raw)| range_of(index, raw, header))
                .collect::<Result<_, _>>()?,
        })
    }

    /// The block to write to every column of the segment.
    ///
    /// # Panics
    /// If there are more ranges than fit, or not as many pointers as the segment has columns.
    #[must_use]
    pub fn encode(&self, header: &SegmentHeader) -> Vec<u8> {
        let width = header.shape.plan().columns.width();
        assert!(self.ranges.len() <= FENCE_RANGES, "{} ranges", self.ranges.len());
        assert_eq!(self.pointers.len(), usize::from(width), "pointers of a segment's columns");
        let mut raw = RawFence::new_zeroed();
        raw.start = RawSegmentStart::new(header, self.epoch);
        raw.sequence.set(self.sequence.0);
        raw.index.set(self.index);
        raw.blocks.set(self.blocks);
        raw.ranges.set(self.ranges.len() as u16);
        raw.width = width;
        for (raw, pointer) in raw.pointers.iter_mut().zip(&self.pointers) {
            raw.set(pointer.unwrap_or(NONE));
        }
        for (raw, range) in raw.range.iter_mut().zip(&self.ranges) {
            raw.group.set(range.group);
            raw.first.set(range.first);
            raw.count.set(range.count);
            raw.verdict = range.verdict as u8;
        }
        let mut block = raw.as_bytes().to_vec();
        seal(&mut block, MAGIC);
        block
    }
}

fn pointers_of(raw: &RawFence, header: &SegmentHeader) -> Result<Vec<Option<u32>>, ZonedError> {
    let (used, unused) = raw.pointers.split_at(header.columns.len());
    WHAT.reserved(unused.as_bytes(), 96 + used.as_bytes().len())?;
    let end = header.shape.footer_start() + header.shape.footer_blocks();
    used.iter()
        .map(|raw| match raw.get() {
            NONE => Ok(None),
            pointer => {
                let range = || format!("block {HEADER_BLOCKS} to {end} of the zone");
                let is_there = (HEADER_BLOCKS..=end).contains(&pointer);
                WHAT.require(is_there, "pointers", || format!("block {pointer}"), range)?;
                Ok(Some(pointer))
            }
        })
        .collect()
}

fn range_of(index: usize, raw: &RawRange, header: &SegmentHeader) -> Result<FenceRange, ZonedError> {
    WHAT.reserved(&raw.reserve, 352 + index * size_of::<RawRange>() + 13)?;
    let shape = &header.shape;
    let (group, first, count) = (raw.group.get(), raw.first.get(), raw.count.get());
    let (groups, most) = match shape.is_append() {
        true => (shape.data_blocks() / shape.group_blocks(), shape.group_blocks()),
        false => (1, shape.data_blocks()),
    };
    WHAT.require(group < groups, "group", || format!("group {group}"), || format!("below {groups}"))?;
    let fits = count > 0 && first.checked_add(count).is_some_and(|end| end <= most);
    WHAT.require(fits, "count", || format!("{count} from {first} on"), || format!("some, within {most}"))?;
    let verdict = [Verdict::Void, Verdict::Lost].into_iter().find(|verdict| *verdict as u8 == raw.verdict);
    let expected = || "1 (void) or 2 (lost)".into();
    let verdict = WHAT.known(verdict, "verdict", || raw.verdict.to_string(), expected)?;
    Ok(FenceRange { group, first, count, verdict })
}
