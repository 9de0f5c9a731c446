//! Blocks of the log that are lists without a head: ranges that read as zeroes, and segments that are to be reset. Their own
//! entry in the record that they are written with has their kind and checksum. A list ends with its first row of zeroes.

use byte_struct::byte_struct;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::block::{BLOCK_BYTES, whole};
use super::entry::{BlockEntry, BlockName};
use super::error::{Structure, ZonedError};
use super::sequence::Sequence;

/// Ranges that a zeroes block holds.
pub const ZEROES_MAX: usize = BLOCK_BYTES / size_of::<RawZeroes>();
/// Segments that an emptied block holds.
pub const EMPTIED_MAX: usize = BLOCK_BYTES / size_of::<RawEmptied>();

/// Name, offset and size of each field of a range, for the check of `docs/formats.md`.
pub const ZEROES_FIELDS: &[(&str, usize, usize)] = RawZeroes::FIELDS;
/// Name, offset and size of each field of a segment, for the check of `docs/formats.md`.
pub const EMPTIED_FIELDS: &[(&str, usize, usize)] = RawEmptied::FIELDS;

const LOST: u32 = 1;

byte_struct! {
    struct RawZeroes, 24 bytes {
        0   8  lba: U64,
        8   4  blocks: U32,
        12  4  flags: U32,
        16  8  sequence: U64,
    }
}

byte_struct! {
    struct RawEmptied, 16 bytes {
        0  8  segment: U64,
        8  8  tag: U64,
    }
}

/// A range that reads as zeroes since a write. It lives until mapping blocks as of a later one are durable (Z-I13).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ZeroesEntry {
    /// The first logical block.
    pub lba: u64,
    /// How many.
    pub blocks: u32,
    /// The blocks did not become zeroes but were lost: reads are errors.
    pub is_lost: bool,
    /// The write.
    pub sequence: Sequence,
}

/// A segment of which all that superseded its blocks is durable: its zones may be reset (Z-I4), and if some are not, a start
/// resets them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EmptiedEntry {
    /// Its number, never 0.
    pub segment: u64,
    /// Its tag.
    pub tag: u64,
}

impl ZeroesEntry {
    /// Checks `bytes`, which `entry` names.
    ///
    /// # Errors
    /// [`ZonedError`] names the first thing that is wrong.
    pub fn parse_all(bytes: &[u8], entry: &BlockEntry) -> Result<Vec<ZeroesEntry>, ZonedError> {
        let what = Structure::Zeroes;
        let raws = rows_of::<RawZeroes>(what, bytes, entry, BlockName::Zeroes)?;
        let range = |raw: &RawZeroes| {
            let (lba, blocks, flags) = (raw.lba.get(), raw.blocks.get(), raw.flags.get());
            let fits =
                blocks > 0 && lba.checked_add(blocks.into()).is_some_and(|end| end <= BlockName::LBA_MAX + 1);
            let expected = || "a range of an array's blocks".into();
            what.require(fits, "blocks", || format!("{blocks} from block {lba} on"), expected)?;
            what.require(flags & !LOST == 0, "flags", || format!("{flags:#x}"), || "0 or 1 (lost)".into())?;
            let sequence = Sequence(raw.sequence.get());
            Ok(ZeroesEntry { lba, blocks, is_lost: flags & LOST != 0, sequence })
        };
        raws.iter().map(range).collect()
    }

    /// The block that lists these ranges.
    ///
    /// # Panics
    /// If there are more than [`ZEROES_MAX`], or one is empty.
    #[must_use]
    pub fn encode_all(ranges: &[ZeroesEntry]) -> Vec<u8> {
        assert!(ranges.len() <= ZEROES_MAX, "{} ranges", ranges.len());
        let raw = |range: &ZeroesEntry| {
            assert!(range.blocks > 0, "{range:?}");
            RawZeroes {
                lba: range.lba.into(),
                blocks: range.blocks.into(),
                flags: if range.is_lost { LOST } else { 0 }.into(),
                sequence: range.sequence.0.into(),
            }
        };
        block_of(&ranges.iter().map(raw).collect::<Vec<_>>())
    }
}

impl EmptiedEntry {
    /// Checks `bytes`, which `entry` names.
    ///
    /// # Errors
    /// [`ZonedError`] names the first thing that is wrong.
    pub fn parse_all(bytes: &[u8], entry: &BlockEntry) -> Result<Vec<EmptiedEntry>, ZonedError> {
        let what = Structure::Emptied;
        let raws = rows_of::<RawEmptied>(what, bytes, entry, BlockName::Emptied)?;
        let segment = |raw: &RawEmptied| {
            let (segment, tag) = (raw.segment.get(), raw.tag.get());
            what.require(segment != 0, "segment", || "0".into(), || "a number from 1".into())?;
            Ok(EmptiedEntry { segment, tag })
        };
        raws.iter().map(segment).collect()
    }

    /// The block that lists these segments.
    ///
    /// # Panics
    /// If there are more than [`EMPTIED_MAX`], or one is 0.
    #[must_use]
    pub fn encode_all(segments: &[EmptiedEntry]) -> Vec<u8> {
        assert!(segments.len() <= EMPTIED_MAX, "{} segments", segments.len());
        let raw = |entry: &EmptiedEntry| {
            assert!(entry.segment != 0, "{entry:?}");
            RawEmptied { segment: entry.segment.into(), tag: entry.tag.into() }
        };
        block_of(&segments.iter().map(raw).collect::<Vec<_>>())
    }
}

/// The rows before the first one of zeroes, after which nothing may stand.
fn rows_of<R: FromBytes + IntoBytes + Immutable>(
    what: Structure,
    bytes: &[u8],
    entry: &BlockEntry,
    name: BlockName,
) -> Result<Vec<R>, ZonedError> {
    let bytes = whole(what, bytes)?;
    what.require(entry.name == name, "lba", || entry.name.to_string(), || name.to_string())?;
    entry.check(what, bytes)?;
    let raws = bytes.chunks_exact(size_of::<R>()).map(|raw| R::read_from_bytes(raw).expect("bytes of a row"));
    let rows: Vec<R> = raws.take_while(|row| row.as_bytes().iter().any(|byte| *byte != 0)).collect();
    let end = rows.as_bytes().len();
    what.reserved(&bytes[end..], end)?;
    Ok(rows)
}

fn block_of<R: IntoBytes + Immutable>(rows: &[R]) -> Vec<u8> {
    let mut block = rows.as_bytes().to_vec();
    block.resize(BLOCK_BYTES, 0);
    block
}
