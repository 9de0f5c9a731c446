//! The footer of a zone: what every block of its data region is. It is the authority for a sealed segment; what it does not
//! name as data is void.

use byte_struct::byte_struct;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::block::{BLOCK_BYTES, NONE, check_start, seal, whole};
use super::coded::CodedEntry;
use super::columns::ColumnRole;
use super::entry::{BlockEntry, ENTRY_BYTES};
use super::error::{Structure, ZonedError};
use super::segment::{RawSegmentStart, SegmentHeader};
use super::sequence::Epoch;
use super::shape::{DataOffset, STRIPE_BYTES};

/// Name, offset and size of each field of a footer block's head, for the check of `docs/formats.md`.
pub const FOOTER_FIELDS: &[(&str, usize, usize)] = RawHead::FIELDS;

const MAGIC: [u8; 8] = *b"TwZonFt\0";
const WHAT: Structure = Structure::Footer;

byte_struct! {
    struct RawHead, 64 bytes {
        0   40  start: RawSegmentStart,
        40  4  generation: U32,
        44  4  index: U32,
        48  4  data_blocks: U32,
        52  2  count: U16,
        54  1  column: u8,
        55  1  entry_bytes: u8,
        56  4  place: U32,
        60  4  reserve: U32,
    }
}

/// What a block of the data region is, by its column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FooterPart {
    /// In columns that hold data there.
    Named(BlockEntry),
    /// In columns that hold parity or copies there: the entries of the row's data, coded.
    Coded(CodedEntry),
}

impl FooterPart {
    /// The bytes, for [`super::coded::recover`].
    #[must_use]
    pub fn bytes(self) -> [u8; ENTRY_BYTES] {
        match self {
            FooterPart::Named(entry) => entry.to_bytes(),
            FooterPart::Coded(coded) => coded.0,
        }
    }
}

/// An entry of a footer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FooterEntry {
    /// What the block is.
    pub part: FooterPart,
    /// In append segments the id of its stripe in the group; else 0.
    pub stripe: u16,
}

/// A block of a footer. One that was read comes from [`FooterBlock::parse`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FooterBlock {
    /// The epoch that wrote it.
    pub epoch: Epoch,
    /// Its number within the footer.
    pub index: u32,
    /// Blocks of the data region that the whole footer names: all of it, or fewer in a segment that was closed early.
    pub data_blocks: u32,
    /// The block of the zone that it was written for; `None` if the drive chose it.
    pub place: Option<u32>,
    /// The entries, from the data region's block `index` x [`super::SegmentShape::entries_per_footer`] on.
    pub entries: Vec<FooterEntry>,
}

impl FooterBlock {
    /// The first block of the data region that it names.
    #[must_use]
    pub fn first(&self, header: &SegmentHeader) -> DataOffset {
        DataOffset(self.index * header.shape.entries_per_footer())
    }

    /// Whether `bytes`, read at `block` of the zone with this header, would be right with one bit turned. What a power cut tore
    /// differs in more.
    #[must_use]
    pub fn is_one_bit_off(bytes: &[u8], header: &SegmentHeader, block: u32) -> bool {
        const TAG_AT: usize = 32;
        let Ok(bytes) = whole(WHAT, bytes) else { return false };
        let tag = header.tag.to_le_bytes();
        let pairs = bytes.iter().zip(&MAGIC).chain(bytes[TAG_AT..].iter().zip(&tag));
        if pairs.map(|(own, expected)| (own ^ expected).count_ones()).sum::<u32>() > 1 {
            return false;
        }
        let mut bytes = *bytes;
        (0..bytes.len() * 8).any(|bit| {
            bytes[bit / 8] ^= 1 << (bit % 8);
            let is_right = FooterBlock::parse(&bytes, header, block).is_ok();
            bytes[bit / 8] ^= 1 << (bit % 8);
            is_right
        })
    }

    /// Checks `bytes`, read at `block` of the zone with this header.
    ///
    /// # Errors
    /// [`ZonedError`] names the first thing that is wrong.
    pub fn parse(bytes: &[u8], header: &SegmentHeader, block: u32) -> Result<FooterBlock, ZonedError> {
        let bytes = check_start(WHAT, bytes, MAGIC)?;
        let (raw, body) = RawHead::read_from_prefix(bytes).expect("a block");
        WHAT.reserved(raw.reserve.as_bytes(), 60)?;
        raw.start.check(WHAT, header)?;
        WHAT.belongs("column", raw.column, header.column)?;
        WHAT.belongs("generation", raw.generation.get(), header.generation)?;
        check_place(&raw, header, block)?;
        let entry_bytes = header.shape.footer_entry_bytes();
        let (raw_entries, rest) = body.split_at(usize::from(raw.count.get()) * entry_bytes);
        WHAT.reserved(rest, BLOCK_BYTES - rest.len())?;
        let index = raw.index.get();
        let mut offset = DataOffset(index * header.shape.entries_per_footer());
        let mut entries = Vec::with_capacity(raw.count.get().into());
        for raw in raw_entries.chunks_exact(entry_bytes) {
            entries.push(entry_of(raw, header, offset)?);
            offset.0 += 1;
        }
        Ok(FooterBlock {
            epoch: Epoch::of_raw(raw.start.epoch),
            index,
            data_blocks: raw.data_blocks.get(),
            place: Some(raw.place.get()).filter(|place| *place != NONE),
            entries,
        })
    }

    /// The block to write to the zone with this header.
    ///
    /// # Panics
    /// If it does not name as many blocks as it should.
    #[must_use]
    pub fn encode(&self, header: &SegmentHeader) -> Vec<u8> {
        let expected = count_of(header, self.index, self.data_blocks);
        assert_eq!(Some(self.entries.len()), expected.map(|count| count as usize), "footer entries");
        let mut raw = RawHead::new_zeroed();
        raw.start = RawSegmentStart::new(header, self.epoch);
        raw.generation.set(header.generation);
        raw.index.set(self.index);
        raw.data_blocks.set(self.data_blocks);
        raw.count.set(self.entries.len() as u16);
        raw.column = header.column;
        raw.entry_bytes = header.shape.footer_entry_bytes() as u8;
        raw.place.set(self.place.unwrap_or(NONE));
        let mut block = Vec::with_capacity(BLOCK_BYTES);
        block.extend_from_slice(raw.as_bytes());
        for entry in &self.entries {
            block.extend_from_slice(&entry.part.bytes());
            if header.shape.is_append() {
                block.extend_from_slice(&entry.stripe.to_le_bytes());
            }
        }
        block.resize(BLOCK_BYTES, 0);
        seal(&mut block, MAGIC);
        block
    }
}

/// Entries of the footer block with this index; `None` if the footer has no such block.
fn count_of(header: &SegmentHeader, index: u32, data_blocks: u32) -> Option<u32> {
    let per_block = header.shape.entries_per_footer();
    let first = u64::from(index) * u64::from(per_block);
    let left = u64::from(data_blocks).checked_sub(first).filter(|left| *left > 0)?;
    Some(left.min(per_block.into()) as u32)
}

fn check_place(raw: &RawHead, header: &SegmentHeader, block: u32) -> Result<(), ZonedError> {
    let shape = &header.shape;
    let bytes = shape.footer_entry_bytes();
    let expected = || format!("{bytes} bytes");
    let is_right = usize::from(raw.entry_bytes) == bytes;
    WHAT.require(is_right, "entry_bytes", || format!("{} bytes", raw.entry_bytes), expected)?;
    let data = raw.data_blocks.get();
    let most = shape.data_blocks();
    let range = || format!("1 to {most} blocks");
    WHAT.require((1..=most).contains(&data), "data_blocks", || format!("{data} blocks"), range)?;
    let (index, blocks) = (raw.index.get(), shape.footer_blocks_of(data));
    WHAT.require(index < blocks, "index", || index.to_string(), || format!("below {blocks}"))?;
    let count = count_of(header, index, data).expect("an index within the footer");
    let found = raw.count.get();
    let expected = || format!("{count} of {data} blocks");
    WHAT.require(u32::from(found) == count, "count", || format!("{found} blocks"), expected)?;
    let start = DataOffset(data).zone_block();
    let place = raw.place.get();
    if place != NONE || !shape.is_append() {
        WHAT.belongs("place", place, block)?;
        return WHAT.belongs("place", place, start + index);
    }
    let range = || format!("block {start} to {} of the zone", start + blocks - 1);
    let is_there = (start..start + blocks).contains(&block);
    WHAT.require(is_there, "place", || format!("block {block} of the zone"), range)
}

fn entry_of(raw: &[u8], header: &SegmentHeader, offset: DataOffset) -> Result<FooterEntry, ZonedError> {
    let (bytes, stripe) = raw.split_first_chunk::<ENTRY_BYTES>().expect("bytes of an entry");
    let part = match header.shape.role(header.column, offset) {
        ColumnRole::Data(_) => FooterPart::Named(BlockEntry::from_bytes(WHAT, bytes)?),
        ColumnRole::P | ColumnRole::Q | ColumnRole::Copy(_) => FooterPart::Coded(CodedEntry(*bytes)),
    };
    let stripe = stripe.first_chunk::<STRIPE_BYTES>().map_or(0, |bytes| u16::from_le_bytes(*bytes));
    let below = if header.shape.is_append() { header.shape.group_blocks() } else { 1 };
    WHAT.require(u32::from(stripe) < below, "stripe", || stripe.to_string(), || format!("below {below}"))?;
    Ok(FooterEntry { part, stripe })
}
