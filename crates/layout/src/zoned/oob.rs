//! The out-of-band carrier: 64 bytes beside each block of the data region. Headers and footers tell what they are by
//! themselves; their out-of-band bytes are zeroes.

use byte_struct::{Checksum, byte_struct};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::coded::CodedEntry;
use super::columns::ColumnRole;
use super::entry::{BlockEntry, ENTRY_BYTES};
use super::error::{Structure, ZonedError};
use super::record::{RecordKind, check_carrier};
use super::segment::SegmentHeader;
use super::sequence::Sequence;
use super::shape::{Carrier, DataOffset};

/// Bytes beside each block.
pub const OOB_BYTES: usize = size_of::<RawOob>();

/// Name, offset and size of each field, for the check of `docs/formats.md`.
pub const OOB_FIELDS: &[(&str, usize, usize)] = RawOob::FIELDS;

const WHAT: Structure = Structure::Oob;
const CHECKSUM_AT: usize = 60;
/// The name of a block of parity: it names nothing.
const NO_NAME: u64 = u64::MAX;

byte_struct! {
    struct RawOob, 64 bytes {
        0   8   lba: U64,
        8   8   sequence: U64,
        16  4   checksum: U32,
        20  4   segment_low: U32,
        24  2   stripe: U16,
        26  1   column: u8,
        27  1   kind: u8,
        28  4   epoch: U32,
        32  20  coded: bytes,
        52  1   rows: u8,
        53  1   row: u8,
        54  2   reserve: U16,
        56  4   tag_low: U32,
        60  4   own_checksum: U32,
    }
}

/// What a block is, by its column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OobPart {
    /// A block that has a name of its own: data; of a fence or of padding on every column.
    Named {
        /// Data, a fence or padding.
        kind: RecordKind,
        /// What it is.
        entry: BlockEntry,
        /// Up to this block of the zone *all* columns were flushed when it was sent (Z-I7).
        durable_blocks: u32,
    },
    /// Parity, or a copy.
    Parity {
        /// The write that sent the stripe out.
        sequence: Sequence,
        /// CRC-32C of the parity itself.
        checksum: u32,
        /// The entries of the row's data, coded.
        coded: CodedEntry,
    },
}

/// What stands beside a block. One that was read comes from [`OobBlock::parse`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OobBlock {
    /// The random half of the epoch that wrote it.
    pub epoch: u32,
    /// In append segments the stripe's id in its group, else the low 16 bits of its offset in the data region.
    pub stripe: u16,
    /// Rows of the stripe.
    pub rows: u8,
    /// The row of the block.
    pub row: u8,
    /// What it is.
    pub part: OobPart,
}

impl OobBlock {
    /// Checks what stands beside `block` of the zone with this header.
    ///
    /// Its epoch is the reader's matter, and so is whether addresses are within the array.
    ///
    /// # Errors
    /// [`ZonedError`] names the first thing that is wrong. [`ZonedError::Absent`]: nothing but zeroes.
    pub fn parse(bytes: &[u8], header: &SegmentHeader, block: u32) -> Result<OobBlock, ZonedError> {
        let Ok((raw, _)) = RawOob::read_from_prefix(bytes) else {
            return Err(ZonedError::Truncated { structure: WHAT, found: bytes.len(), needed: OOB_BYTES });
        };
        let (found, expected) = (raw.own_checksum.get(), Checksum::without(raw.as_bytes(), CHECKSUM_AT));
        if raw.as_bytes().iter().all(|byte| *byte == 0) {
            return Err(ZonedError::Absent { structure: WHAT });
        }
        if found != expected {
            return Err(ZonedError::Checksum { structure: WHAT, found, expected });
        }
        WHAT.reserved(raw.reserve.as_bytes(), 54)?;
        check_carrier(WHAT, header, Carrier::Oob)?;
        WHAT.belongs("segment_low", raw.segment_low.get(), header.segment as u32)?;
        WHAT.belongs("tag_low", raw.tag_low.get(), header.tag as u32)?;
        WHAT.belongs("column", raw.column, header.column)?;
        let role = check_place(&raw, header, block)?;
        let kind = RecordKind::of_code(WHAT, raw.kind)?;
        WHAT.require(kind.fits(role), "kind", || format!("{kind:?}"), || format!("that of {role:?}"))?;
        let part = match kind {
            RecordKind::Parity => parity_of(&raw)?,
            RecordKind::Data | RecordKind::Fence | RecordKind::Padding => named_of(&raw, kind)?,
        };
        let (epoch, stripe) = (raw.epoch.get(), raw.stripe.get());
        Ok(OobBlock { epoch, stripe, rows: raw.rows, row: raw.row, part })
    }

    /// The bytes to write beside a block of the zone with this header.
    #[must_use]
    pub fn encode(&self, header: &SegmentHeader) -> [u8; OOB_BYTES] {
        let mut raw = RawOob::new_zeroed();
        match self.part {
            OobPart::Named { kind, entry, durable_blocks } => {
                raw.as_mut_bytes()[..ENTRY_BYTES].copy_from_slice(&entry.to_bytes());
                raw.kind = kind as u8;
                raw.coded[..4].copy_from_slice(&durable_blocks.to_le_bytes());
            }
            OobPart::Parity { sequence, checksum, coded } => {
                raw.lba.set(NO_NAME);
                raw.sequence.set(sequence.0);
                raw.checksum.set(checksum);
                raw.kind = RecordKind::Parity as u8;
                raw.coded = coded.0;
            }
        }
        raw.segment_low.set(header.segment as u32);
        raw.tag_low.set(header.tag as u32);
        raw.column = header.column;
        raw.stripe.set(self.stripe);
        raw.epoch.set(self.epoch);
        raw.rows = self.rows;
        raw.row = self.row;
        Checksum::seal(raw.as_mut_bytes(), CHECKSUM_AT);
        raw.as_bytes().try_into().expect("64 bytes")
    }
}

/// Checks row and stripe against the block that they stand beside, and returns what the column holds there.
fn check_place(raw: &RawOob, header: &SegmentHeader, block: u32) -> Result<ColumnRole, ZonedError> {
    let shape = &header.shape;
    let (rows, row) = (raw.rows, raw.row);
    let most = shape.rows_max();
    WHAT.require((1..=most).contains(&rows.into()), "rows", || rows.to_string(), || format!("1 to {most}"))?;
    WHAT.require(row < rows, "row", || row.to_string(), || format!("below {rows}"))?;
    let offset = DataOffset::of_zone_block(block).filter(|offset| offset.0 < shape.data_blocks());
    let start = offset.and_then(|offset| offset.0.checked_sub(row.into())).map(DataOffset);
    let fits = start.is_some_and(|start| shape.room_at(start) >= rows.into());
    let found = || format!("row {row} of {rows} at block {block} of the zone");
    WHAT.require(fits, "row", found, || "a record within its band or group".into())?;
    let start = start.expect("checked");
    let stripe = raw.stripe.get();
    if shape.is_append() {
        let below = || format!("below {}", shape.group_blocks());
        WHAT.require(u32::from(stripe) < shape.group_blocks(), "stripe", || stripe.to_string(), below)?;
    } else {
        WHAT.belongs("stripe", stripe, start.0 as u16)?;
    }
    Ok(shape.role(header.column, start))
}

fn named_of(raw: &RawOob, kind: RecordKind) -> Result<OobPart, ZonedError> {
    let entry = raw.as_bytes().first_chunk::<ENTRY_BYTES>().expect("64 bytes");
    let entry = BlockEntry::from_bytes(WHAT, entry)?;
    let (durable, rest) = raw.coded.split_first_chunk::<4>().expect("20 bytes");
    WHAT.reserved(rest, 36)?;
    Ok(OobPart::Named { kind, entry, durable_blocks: u32::from_le_bytes(*durable) })
}

fn parity_of(raw: &RawOob) -> Result<OobPart, ZonedError> {
    let lba = raw.lba.get();
    WHAT.require(lba == NO_NAME, "lba", || format!("{lba:#x}"), || "all ones at parity".into())?;
    let sequence = Sequence(raw.sequence.get());
    Ok(OobPart::Parity { sequence, checksum: raw.checksum.get(), coded: CodedEntry(raw.coded) })
}
