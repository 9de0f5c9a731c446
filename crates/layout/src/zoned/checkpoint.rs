//! What a checkpoint writes into the log: the map's root and the segment table. Each is as many blocks as it takes; the set
//! of one checkpoint counts when all of it is there.

use byte_struct::byte_struct;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::block::{BLOCK_BYTES, check_start, seal};
use super::columns::COLUMNS_MAX;
use super::error::{Structure, ZonedError};
use super::sequence::Sequence;
use super::shape::{BODY_BYTES, DATA_BLOCKS_MAX};

/// Mapping blocks that a block of the root names.
pub const ROOT_ENTRIES: u32 = (BODY_BYTES / size_of::<RawRootEntry>()) as u32;
/// Segments that a block of the segment table names.
pub const TABLE_ENTRIES: u32 = (BODY_BYTES / size_of::<RawTableEntry>()) as u32;

/// Name, offset and size of each field that both begin with, for the check of `docs/formats.md`.
pub const CHECKPOINT_FIELDS: &[(&str, usize, usize)] = RawHead::FIELDS;
/// Name, offset and size of each field of an entry of the root, for the check of `docs/formats.md`.
pub const ROOT_FIELDS: &[(&str, usize, usize)] = RawRootEntry::FIELDS;
/// Name, offset and size of each field of an entry of the segment table, for the check of `docs/formats.md`.
pub const TABLE_FIELDS: &[(&str, usize, usize)] = RawTableEntry::FIELDS;

const ROOT_MAGIC: [u8; 8] = *b"TwZonRt\0";
const TABLE_MAGIC: [u8; 8] = *b"TwZonTb\0";
/// All entries of the group are zeroes, and there is no mapping block.
const NO_BLOCK: u64 = u64::MAX;
const MAPPED: u8 = 1;
const SEALED: u8 = 2;

byte_struct! {
    struct RawHead, 64 bytes {
        0   8   magic: bytes,
        8   4   version: U32,
        12  4   checksum: U32,
        16  16  set_uuid: bytes,
        32  8   sequence: U64,
        40  4   index: U32,
        44  4   blocks: U32,
        48  2   count: U16,
        50  4   written: U32,
        54  10  reserve: bytes,
    }
}

byte_struct! {
    struct RawRootEntry, 16 bytes {
        0  8  place: U64,
        8  8  as_of: U64,
    }
}

byte_struct! {
    struct RawTableEntry, 32 bytes {
        0   8  segment: U64,
        8   8  tag: U64,
        16  4  slot: U32,
        20  4  data_blocks: U32,
        24  4  live_blocks: U32,
        28  1  flags: u8,
        29  1  width: u8,
        30  2  lists: U16,
    }
}

/// Which block of which checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CheckpointBlock {
    /// As of which write the checkpoint is.
    pub sequence: Sequence,
    /// The block's number within the root, or within the table.
    pub index: u32,
    /// Blocks of the root, or of the table.
    pub blocks: u32,
    /// How many of them were written. The groups of a block of the root that was not are all zeroes, as of the checkpoint.
    pub written: u32,
}

/// A mapping block, as the root has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RootEntry {
    /// The word of its place, always of 8 bytes ([`super::MapShape::word`] of a map with such entries); `None` for a group that
    /// is all zeroes.
    pub place: Option<u64>,
    /// Every write of the group up to this one is in it. Later ones may be, too: recovery replays them all.
    pub as_of: Sequence,
}

/// A block of the root. One that was read comes from [`RootBlock::parse`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootBlock {
    /// Which it is.
    pub block: CheckpointBlock,
    /// The groups from `index` x [`ROOT_ENTRIES`] on.
    pub entries: Vec<RootEntry>,
}

/// A segment, as the segment table has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TableEntry {
    /// Its number.
    pub segment: u64,
    /// Its tag.
    pub tag: u64,
    /// Its slot in the map.
    pub slot: u32,
    /// Blocks of its data region.
    pub data_blocks: u32,
    /// Blocks that the mapping blocks of the root name.
    pub live_blocks: u32,
    /// Its columns.
    pub width: u8,
    /// Whether the mapping blocks of the root have all that it holds: recovery need not read it.
    pub is_mapped: bool,
    /// Whether it had its footer.
    pub is_sealed: bool,
    /// Blocks of it that are lists, of zeroes or of emptied segments; as many as fit, if there were more.
    pub lists: u16,
}

/// A block of the segment table. One that was read comes from [`TableBlock::parse`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableBlock {
    /// Which it is.
    pub block: CheckpointBlock,
    /// Segments in ascending order.
    pub entries: Vec<TableEntry>,
}

impl RootBlock {
    /// Checks a block of the root of this array.
    ///
    /// # Errors
    /// [`ZonedError`] names the first thing that is wrong.
    pub fn parse(bytes: &[u8], set_uuid: &[u8; 16]) -> Result<RootBlock, ZonedError> {
        let (block, entries) = open::<RawRootEntry>(Structure::Root, bytes, ROOT_MAGIC, set_uuid)?;
        let entry = |raw: &RawRootEntry| RootEntry {
            place: Some(raw.place.get()).filter(|place| *place != NO_BLOCK),
            as_of: Sequence(raw.as_of.get()),
        };
        Ok(RootBlock { block, entries: entries.iter().map(entry).collect() })
    }

    /// The block to write.
    ///
    /// # Panics
    /// If there are more than [`ROOT_ENTRIES`].
    #[must_use]
    pub fn encode(&self, set_uuid: [u8; 16]) -> Vec<u8> {
        let raw = |entry: &RootEntry| RawRootEntry {
            place: entry.place.unwrap_or(NO_BLOCK).into(),
            as_of: entry.as_of.0.into(),
        };
        let raws: Vec<RawRootEntry> = self.entries.iter().map(raw).collect();
        sealed(ROOT_MAGIC, set_uuid, self.block, raws.len(), raws.as_bytes())
    }
}

impl TableBlock {
    /// Checks a block of the segment table of this array.
    ///
    /// # Errors
    /// [`ZonedError`] names the first thing that is wrong.
    pub fn parse(bytes: &[u8], set_uuid: &[u8; 16]) -> Result<TableBlock, ZonedError> {
        let (block, raws) = open::<RawTableEntry>(Structure::SegmentTable, bytes, TABLE_MAGIC, set_uuid)?;
        let mut before = 0;
        let mut entries = Vec::with_capacity(raws.len());
        for raw in &raws {
            entries.push(table_entry_of(raw, before)?);
            before = raw.segment.get();
        }
        Ok(TableBlock { block, entries })
    }

    /// The block to write.
    ///
    /// # Panics
    /// If there are more than [`TABLE_ENTRIES`].
    #[must_use]
    pub fn encode(&self, set_uuid: [u8; 16]) -> Vec<u8> {
        let raw = |entry: &TableEntry| RawTableEntry {
            segment: entry.segment.into(),
            tag: entry.tag.into(),
            slot: entry.slot.into(),
            data_blocks: entry.data_blocks.into(),
            live_blocks: entry.live_blocks.into(),
            flags: if entry.is_mapped { MAPPED } else { 0 } | if entry.is_sealed { SEALED } else { 0 },
            width: entry.width,
            lists: entry.lists.into(),
        };
        let raws: Vec<RawTableEntry> = self.entries.iter().map(raw).collect();
        sealed(TABLE_MAGIC, set_uuid, self.block, raws.len(), raws.as_bytes())
    }
}

fn table_entry_of(raw: &RawTableEntry, before: u64) -> Result<TableEntry, ZonedError> {
    let what = Structure::SegmentTable;
    let segment = raw.segment.get();
    let above = || format!("above {before}, in ascending order");
    what.require(segment > before, "segment", || segment.to_string(), above)?;
    let flags = raw.flags;
    let known = || format!("at most {:#x}", MAPPED | SEALED);
    what.require(flags & !(MAPPED | SEALED) == 0, "flags", || format!("{flags:#x}"), known)?;
    let width = raw.width;
    let range = || format!("1 to {COLUMNS_MAX}");
    what.require((1..=COLUMNS_MAX).contains(&width), "width", || format!("{width} columns"), range)?;
    let (data, live) = (raw.data_blocks.get(), raw.live_blocks.get());
    let most = || format!("at most {DATA_BLOCKS_MAX} blocks");
    what.require(data <= DATA_BLOCKS_MAX, "data_blocks", || format!("{data} blocks"), most)?;
    let fits = u64::from(live) <= u64::from(data) * u64::from(width);
    let most = || format!("at most {data} in each of {width} columns");
    what.require(fits, "live_blocks", || format!("{live} blocks"), most)?;
    Ok(TableEntry {
        segment,
        tag: raw.tag.get(),
        slot: raw.slot.get(),
        data_blocks: data,
        live_blocks: live,
        width,
        is_mapped: flags & MAPPED != 0,
        is_sealed: flags & SEALED != 0,
        lists: raw.lists.get(),
    })
}

/// Checks the head of a block of a checkpoint, and that its entries fit; returns both.
fn open<E: FromBytes>(
    what: Structure,
    bytes: &[u8],
    magic: [u8; 8],
    set_uuid: &[u8; 16],
) -> Result<(CheckpointBlock, Vec<E>), ZonedError> {
    let bytes = check_start(what, bytes, magic)?;
    let (raw, body) = RawHead::read_from_prefix(bytes).expect("a block");
    what.reserved(&raw.reserve, 54)?;
    what.belongs_to("set_uuid", &raw.set_uuid, set_uuid)?;
    let (index, blocks) = (raw.index.get(), raw.blocks.get());
    what.require(index < blocks, "index", || index.to_string(), || format!("below {blocks}"))?;
    let written = raw.written.get();
    what.require(
        written < blocks,
        "written",
        || written.to_string(),
        || format!("below {blocks}, or 0: all"),
    )?;
    let written = if written == 0 { blocks } else { written };
    let (count, most) = (usize::from(raw.count.get()), BODY_BYTES / size_of::<E>());
    what.require(count <= most, "count", || format!("{count} entries"), || format!("at most {most}"))?;
    let (entries, rest) = body.split_at(count * size_of::<E>());
    what.reserved(rest, BLOCK_BYTES - rest.len())?;
    let entry = |raw| E::read_from_bytes(raw).expect("bytes of an entry");
    let entries = entries.chunks_exact(size_of::<E>()).map(entry).collect();
    Ok((CheckpointBlock { sequence: Sequence(raw.sequence.get()), index, blocks, written }, entries))
}

fn sealed(magic: [u8; 8], set_uuid: [u8; 16], own: CheckpointBlock, count: usize, entries: &[u8]) -> Vec<u8> {
    assert!(entries.len() <= BODY_BYTES, "{count} entries");
    assert!(own.index < own.blocks && (1..=own.blocks).contains(&own.written), "{own:?}");
    let mut raw = RawHead::new_zeroed();
    raw.set_uuid = set_uuid;
    raw.sequence.set(own.sequence.0);
    raw.index.set(own.index);
    raw.blocks.set(own.blocks);
    raw.written.set(if own.written == own.blocks { 0 } else { own.written });
    raw.count.set(count as u16);
    let mut block = [raw.as_bytes(), entries].concat();
    block.resize(BLOCK_BYTES, 0);
    seal(&mut block, magic);
    block
}
