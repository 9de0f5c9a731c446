//! The in-band carrier: the descriptor that begins each record. It names every block of the whole stripe, so that any one
//! record of a stripe tells what it held, and the sums of the record's own blocks.
//!
//! A descriptor has one to four blocks. Each is whole by itself: it has a head, the entries of its rows (row by row, in each
//! row by data index), and the sums of its own blocks of these rows.

use byte_struct::{Checksum, byte_struct};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::block::{BLOCK_BYTES, NONE, whole};
use super::columns::ColumnRole;
use super::entry::{BlockEntry, ENTRY_BYTES};
use super::error::{Structure, ZonedError};
use super::segment::SegmentHeader;
use super::sequence::Sequence;
use super::shape::{Carrier, DataOffset, HEAD_BYTES, SUM_BYTES};

/// Name, offset and size of each field of a descriptor's head, for the check of `docs/formats.md`.
pub const DESCRIPTOR_FIELDS: &[(&str, usize, usize)] = RawHead::FIELDS;

const MAGIC: [u8; 4] = *b"TwRc";
const WHAT: Structure = Structure::Descriptor;
const CHECKSUM_AT: usize = 4;

byte_struct! {
    struct RawHead, 64 bytes {
        0   4   magic: bytes,
        4   4   checksum: U32,
        8   8   segment: U64,
        16  4   epoch: U32,
        20  4   stripe: U32,
        24  8   sequence: U64,
        32  4   durable_blocks: U32,
        36  4   place: U32,
        40  1   column: u8,
        41  1   rows: u8,
        42  1   data_columns: u8,
        43  1   kind: u8,
        44  8   tag: U64,
        52  1   descriptor_blocks: u8,
        53  1   descriptor: u8,
        54  10  reserve: bytes,
    }
}

/// What a column holds of a stripe, as its record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecordKind {
    /// Data of the log. What each block is its entry says.
    Data = 1,
    /// Parity or copies of the data.
    Parity = 2,
    /// A fence, the same on every column.
    Fence = 3,
    /// Nothing: it stands in for a void stripe, or, without rows, for the rest of a band. On every column.
    Padding = 4,
}

impl RecordKind {
    pub(super) const ALL: [RecordKind; 4] =
        [RecordKind::Data, RecordKind::Parity, RecordKind::Fence, RecordKind::Padding];

    pub(super) fn of_code(structure: Structure, code: u8) -> Result<RecordKind, ZonedError> {
        let kind = Self::ALL.into_iter().find(|kind| *kind as u8 == code);
        let expected = || "1 (data), 2 (parity), 3 (fence) or 4 (padding)".into();
        structure.require(kind.is_some(), "kind", || code.to_string(), expected)?;
        Ok(kind.expect("checked"))
    }

    /// The kind of a column's record in a stripe of data.
    #[must_use]
    pub fn of_role(role: ColumnRole) -> RecordKind {
        if role.is_data() { RecordKind::Data } else { RecordKind::Parity }
    }

    /// Whether a record of this kind may be where the column has this role.
    pub(super) fn fits(self, role: ColumnRole) -> bool {
        match self {
            RecordKind::Data | RecordKind::Parity => self == RecordKind::of_role(role),
            RecordKind::Fence | RecordKind::Padding => true,
        }
    }
}

/// What the descriptors of all columns of a stripe say alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StripeDescriptor {
    /// The random half of the epoch that wrote it.
    pub epoch: u32,
    /// In append segments the stripe's id in its group, else the stripe's offset in the data region.
    pub stripe: u32,
    /// The write that sent it out. Blocks that were moved keep older numbers in their entries.
    pub sequence: Sequence,
    /// Up to this block of the zone *all* columns were flushed when it was sent (Z-I7).
    pub durable_blocks: u32,
    /// Rows of the stripe.
    pub rows: u8,
    /// Every data block of the stripe: row by row, in each row by data index.
    pub entries: Vec<BlockEntry>,
}

/// A record's descriptor. One that was read comes from [`RecordDescriptor::parse`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordDescriptor {
    /// What it shares with the other columns of the stripe.
    pub stripe: StripeDescriptor,
    /// What this column holds.
    pub kind: RecordKind,
    /// The block of the zone that it was written for; `None` if the drive chose it.
    pub place: Option<u32>,
    /// CRC-32C of each block of this record, by row.
    pub checksums: Vec<u32>,
}

impl StripeDescriptor {
    /// Writes the descriptor of one column. `header` is that of the column's zone, `blocks` the start of the record: as many
    /// blocks as the descriptor has. Nothing is allocated.
    ///
    /// # Panics
    /// If entries or checksums are not as many as the rows, or `blocks` not as long as the descriptor.
    pub fn encode_into(
        &self,
        header: &SegmentHeader,
        kind: RecordKind,
        place: Option<u32>,
        checksums: &[u32],
        blocks: &mut [u8],
    ) {
        let data_columns = header.shape.plan().columns.data();
        let (rows, width) = (usize::from(self.rows), usize::from(data_columns));
        let count = descriptor_blocks(self.rows, data_columns).expect("few rows");
        assert_eq!(self.entries.len(), rows * width, "entries of {rows} rows");
        assert_eq!(checksums.len(), rows, "checksums of {rows} rows");
        assert_eq!(blocks.len(), count * BLOCK_BYTES, "bytes of a descriptor of {rows} rows");
        let mut raw = RawHead::new_zeroed();
        raw.magic = MAGIC;
        raw.segment.set(header.segment);
        raw.epoch.set(self.epoch);
        raw.stripe.set(self.stripe);
        raw.sequence.set(self.sequence.0);
        raw.durable_blocks.set(self.durable_blocks);
        raw.place.set(place.unwrap_or(NONE));
        raw.column = header.column;
        raw.rows = self.rows;
        raw.data_columns = data_columns;
        raw.kind = kind as u8;
        raw.tag.set(header.tag);
        raw.descriptor_blocks = count as u8;
        let per_block = Carrier::rows_per_descriptor(data_columns) as usize;
        for (index, block) in blocks.chunks_exact_mut(BLOCK_BYTES).enumerate() {
            let first = index * per_block;
            let end = rows.min(first + per_block);
            raw.descriptor = index as u8;
            block[..HEAD_BYTES].copy_from_slice(raw.as_bytes());
            let mut at = HEAD_BYTES;
            let mut put = |bytes: &[u8]| {
                block[at..at + bytes.len()].copy_from_slice(bytes);
                at += bytes.len();
            };
            self.entries[first * width..end * width].iter().for_each(|entry| put(&entry.to_bytes()));
            checksums[first..end].iter().for_each(|sum| put(&sum.to_le_bytes()));
            block[at..].fill(0);
            Checksum::seal(block, CHECKSUM_AT);
        }
    }

    /// The entries of one row, by data index.
    ///
    /// # Panics
    /// If there is no such row.
    #[must_use]
    pub fn row(&self, row: usize) -> &[BlockEntry] {
        assert!(row < usize::from(self.rows), "row {row} of {}", self.rows);
        let width = self.entries.len() / usize::from(self.rows);
        &self.entries[row * width..(row + 1) * width]
    }
}

impl RecordDescriptor {
    /// How many descriptor blocks a record has, as its first one says, which is checked: [`RecordDescriptor::parse`] wants
    /// that many.
    ///
    /// # Errors
    /// [`ZonedError`] names the first thing that is wrong.
    pub fn blocks_needed(bytes: &[u8], header: &SegmentHeader, block: u32) -> Result<usize, ZonedError> {
        Ok(check_head(bytes, header, block, 0)?.descriptor_blocks.into())
    }

    /// Checks the descriptor of the record that begins at `block` of the zone with this header. `bytes` begin with all of its
    /// descriptor blocks.
    ///
    /// Its epoch is the reader's matter, and so is whether addresses are within the array.
    ///
    /// # Errors
    /// [`ZonedError`] names the first thing that is wrong.
    pub fn parse(bytes: &[u8], header: &SegmentHeader, block: u32) -> Result<RecordDescriptor, ZonedError> {
        let head = check_head(bytes, header, block, 0)?;
        let data_columns = header.shape.plan().columns.data();
        let (rows, width) = (usize::from(head.rows), usize::from(data_columns));
        let needed = usize::from(head.descriptor_blocks) * BLOCK_BYTES;
        if bytes.len() < needed {
            return Err(ZonedError::Truncated { structure: WHAT, found: bytes.len(), needed });
        }
        let per_block = Carrier::rows_per_descriptor(data_columns) as usize;
        let mut entries = Vec::with_capacity(rows * width);
        let mut checksums = Vec::with_capacity(rows);
        for (index, bytes) in bytes[..needed].chunks_exact(BLOCK_BYTES).enumerate() {
            let own = if index == 0 { head } else { check_head(bytes, header, block, index as u8)? };
            check_alike(&head, &own)?;
            let rows_here = rows.min((index + 1) * per_block) - index * per_block;
            let body = &bytes[HEAD_BYTES..];
            let (raw_entries, body) = body.split_at(rows_here * width * ENTRY_BYTES);
            let (raw_sums, rest) = body.split_at(rows_here * SUM_BYTES);
            WHAT.reserved(rest, BLOCK_BYTES - rest.len())?;
            for raw in raw_entries.as_chunks().0 {
                entries.push(BlockEntry::from_bytes(WHAT, raw)?);
            }
            checksums.extend(raw_sums.as_chunks().0.iter().map(|raw| u32::from_le_bytes(*raw)));
        }
        let kind = RecordKind::of_code(WHAT, head.kind)?;
        let stripe = StripeDescriptor {
            epoch: head.epoch.get(),
            stripe: head.stripe.get(),
            sequence: Sequence(head.sequence.get()),
            durable_blocks: head.durable_blocks.get(),
            rows: head.rows,
            entries,
        };
        let place = Some(head.place.get()).filter(|place| *place != NONE);
        let record = RecordDescriptor { stripe, kind, place, checksums };
        record.check_own_sums(header, block)?;
        Ok(record)
    }

    /// Blocks of the record, its descriptor included.
    #[must_use]
    pub fn record_blocks(&self, header: &SegmentHeader) -> u32 {
        let plan = header.shape.plan();
        plan.carrier
            .record_blocks(self.stripe.rows.into(), plan.columns.data())
            .expect("checked when it was read")
    }

    /// The sums of a column with data stand twice, as the stripe's entries and as the record's own.
    fn check_own_sums(&self, header: &SegmentHeader, block: u32) -> Result<(), ZonedError> {
        let offset = DataOffset::of_zone_block(block).expect("checked with the head");
        let ColumnRole::Data(index) = header.shape.role(header.column, offset) else { return Ok(()) };
        for (row, own) in self.checksums.iter().enumerate() {
            let named = self.stripe.row(row)[usize::from(index)].checksum;
            WHAT.require(
                named == *own,
                "checksums",
                || format!("{own:#010x} for row {row}"),
                || format!("{named:#010x} as in the row's entry"),
            )?;
        }
        Ok(())
    }
}

fn descriptor_blocks(rows: u8, data_columns: u8) -> Option<usize> {
    Carrier::Inband.descriptor_blocks(rows.into(), data_columns).map(|blocks| blocks as usize)
}

/// Checks one block of a descriptor: length, magic, checksum, that it belongs to this segment, column and place, and that its
/// values are in bounds.
fn check_head(bytes: &[u8], header: &SegmentHeader, block: u32, index: u8) -> Result<RawHead, ZonedError> {
    let bytes = whole(WHAT, bytes)?;
    let (raw, _) = RawHead::read_from_prefix(bytes).expect("a block");
    if raw.magic != MAGIC {
        return Err(ZonedError::Absent { structure: WHAT });
    }
    let (found, expected) = (raw.checksum.get(), Checksum::without(bytes, CHECKSUM_AT));
    if found != expected {
        return Err(ZonedError::Checksum { structure: WHAT, found, expected });
    }
    WHAT.reserved(&raw.reserve, 54)?;
    check_carrier(WHAT, header, Carrier::Inband)?;
    WHAT.belongs("segment", raw.segment.get(), header.segment)?;
    WHAT.belongs("tag", raw.tag.get(), header.tag)?;
    WHAT.belongs("column", raw.column, header.column)?;
    WHAT.belongs("data_columns", raw.data_columns, header.shape.plan().columns.data())?;
    WHAT.belongs("descriptor", raw.descriptor, index)?;
    check_place(&raw, header, block)?;
    let (rows, blocks) = (raw.rows, raw.descriptor_blocks);
    let needed = descriptor_blocks(rows, raw.data_columns);
    let expected = || match needed {
        Some(needed) => format!("{needed} for {rows} rows"),
        None => format!("few enough rows, not {rows}"),
    };
    let is_right = needed == Some(blocks.into());
    WHAT.require(is_right, "descriptor_blocks", || blocks.to_string(), expected)?;
    Ok(raw)
}

/// In a segment whose metadata lies elsewhere, what looks like metadata is contents.
pub(super) fn check_carrier(
    what: Structure,
    header: &SegmentHeader,
    carrier: Carrier,
) -> Result<(), ZonedError> {
    let own = header.shape.plan().carrier;
    let found = || format!("{carrier:?}");
    what.require(own == carrier, "carrier", found, || format!("{own:?} as in the segment header"))
}

/// Place, room, stripe and kind: what they may be follows from the block at which the record stands.
fn check_place(raw: &RawHead, header: &SegmentHeader, block: u32) -> Result<(), ZonedError> {
    let shape = &header.shape;
    let offset = DataOffset::of_zone_block(block).filter(|offset| offset.0 < shape.data_blocks());
    let range = || format!("1 to {}", shape.data_blocks());
    WHAT.require(offset.is_some(), "place", || format!("block {block} of the zone"), range)?;
    let offset = offset.expect("checked");
    let place = raw.place.get();
    if place != NONE || !shape.is_append() {
        WHAT.belongs("place", place, block)?;
    }
    let stripe = raw.stripe.get();
    if shape.is_append() {
        let below = || format!("below {}", shape.group_blocks());
        WHAT.require(stripe < shape.group_blocks(), "stripe", || stripe.to_string(), below)?;
    } else {
        WHAT.belongs("stripe", stripe, offset.0)?;
    }
    let plan = shape.plan();
    let needed = plan.carrier.record_blocks(raw.rows.into(), plan.columns.data());
    let room = shape.room_at(offset).min(plan.record_blocks.into());
    let fits = needed.is_some_and(|needed| needed <= room);
    WHAT.require(fits, "rows", || raw.rows.to_string(), || format!("a record of at most {room} blocks"))?;
    let kind = RecordKind::of_code(WHAT, raw.kind)?;
    let role = shape.role(header.column, offset);
    WHAT.require(kind.fits(role), "kind", || format!("{kind:?}"), || format!("that of {role:?}"))?;
    let has_rows = raw.rows > 0 || kind == RecordKind::Padding;
    WHAT.require(has_rows, "rows", || "0".into(), || "rows, unless it is padding".into())
}

/// The heads of one descriptor's blocks differ in checksum and index only.
fn check_alike(first: &RawHead, own: &RawHead) -> Result<(), ZonedError> {
    let mut alike = *own;
    alike.checksum = first.checksum;
    alike.descriptor = first.descriptor;
    let is_alike = alike.as_bytes() == first.as_bytes();
    let found = || format!("of another record at block {} of it", own.descriptor);
    WHAT.require(is_alike, "descriptor", found, || "the same record in all of its blocks".into())
}
