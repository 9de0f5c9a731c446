//! The segment header: block 0 of every zone of a segment. It is the same on all columns but for own column and place, and
//! durable before the first record.

use byte_struct::byte_struct;
use zerocopy::little_endian::{I32, U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::block::{NONE, check_start, seal};
use super::columns::Columns;
use super::error::{Structure, ZonedError};
use super::sequence::{Epoch, RawEpoch, Sequence};
use super::shape::{Access, Carrier, Class, SegmentPlan, SegmentShape, ShapeFault};

/// Name, offset and size of each field, for the check of `docs/formats.md`.
pub const SEGMENT_FIELDS: &[(&str, usize, usize)] = RawSegment::FIELDS;

/// Name, offset and size of each field that a block of a footer or of a fence begins with, for the check of
/// `docs/formats.md`.
pub const SEGMENT_START_FIELDS: &[(&str, usize, usize)] = RawSegmentStart::FIELDS;

/// Name, offset and size of each field of a column, for the check of `docs/formats.md`.
pub const COLUMN_FIELDS: &[(&str, usize, usize)] = RawColumn::FIELDS;

const MAGIC: [u8; 8] = *b"TwZonSg\0";
const WHAT: Structure = Structure::SegmentHeader;

byte_struct! {
    struct RawColumn, 8 bytes {
        0  2  slot: U16,
        2  2  reserve: U16,
        4  4  zone: U32,
    }
}

byte_struct! {
    struct RawSegment, 4096 bytes {
        0    8     magic: bytes,
        8    4     version: U32,
        12   4     checksum: U32,
        16   16    set_uuid: bytes,
        32   16    device_uuid: bytes,
        48   8     segment: U64,
        56   8     epoch: RawEpoch,
        64   8     first_sequence: U64,
        72   4     zone: U32,
        76   2     column: U16,
        78   1     width: u8,
        79   1     parity: u8,
        80   1     class: u8,
        81   1     access: u8,
        82   1     carrier: u8,
        83   1     reserve_a: u8,
        84   2     record_blocks: U16,
        86   2     group: U16,
        88   4     band_blocks: U32,
        92   4     data_blocks: U32,
        96   4     footer_blocks: U32,
        100  4     generation: U32,
        104  4     level: I32,
        108  4     slot: U32,
        112  8     tag: U64,
        120  8     reserve_b: bytes,
        128  512   columns: [RawColumn; 64],
        640  3456  reserve: bytes,
    }
}

byte_struct! {
    /// What the blocks of a footer and of a fence begin with.
    pub(super) struct RawSegmentStart, 40 bytes {
        0   8  magic: bytes,
        8   4  version: U32,
        12  4  checksum: U32,
        16  8  segment: U64,
        24  8  epoch: RawEpoch,
        32  8  tag: U64,
    }
}

impl RawSegmentStart {
    /// Of a block that this epoch writes to the segment; [`seal`] fills in the rest.
    pub(super) fn new(header: &SegmentHeader, epoch: Epoch) -> RawSegmentStart {
        let mut start = RawSegmentStart::new_zeroed();
        start.segment.set(header.segment);
        start.epoch = epoch.to_raw();
        start.tag.set(header.tag);
        start
    }

    /// Checks that the block belongs to the segment.
    pub(super) fn check(&self, structure: Structure, header: &SegmentHeader) -> Result<(), ZonedError> {
        structure.belongs("segment", self.segment.get(), header.segment)?;
        structure.belongs("tag", self.tag.get(), header.tag)
    }
}

/// Where a header was read, or is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZonePlace {
    /// The array.
    pub set_uuid: [u8; 16],
    /// The member.
    pub device_uuid: [u8; 16],
    /// The zone.
    pub zone: u32,
}

/// A column of a segment: a zone of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SegmentColumn {
    /// The member's slot in the array.
    pub slot: u16,
    /// The zone when the segment was opened; `None` for a column that was left out, since its member was missing.
    pub zone: Option<u32>,
}

/// A checked segment header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The segment's number, never used twice (Z-I16), never 0.
    pub segment: u64,
    /// Drawn for each segment; its records and footers repeat it, so that what the zone held before is not taken for one.
    pub tag: u64,
    /// The epoch that opened it.
    pub epoch: Epoch,
    /// The counter when it was written, above all that were handed out before.
    pub first_sequence: Sequence,
    /// What it is filled with.
    pub class: Class,
    /// How its zones are divided.
    pub shape: SegmentShape,
    /// The map's slot: what a place in the map names.
    pub slot: u32,
    /// This column.
    pub column: u8,
    /// Which writing of this column: 0 at first, one more each time it is rebuilt. The highest one that has a complete footer
    /// counts.
    pub generation: u32,
    /// All columns, [`Columns::width`] of them.
    pub columns: Vec<SegmentColumn>,
}

impl SegmentHeader {
    /// Checks `bytes`, block 0 of the zone at `place`.
    ///
    /// # Errors
    /// [`ZonedError`] names the first thing that is wrong.
    pub fn parse(bytes: &[u8], place: ZonePlace) -> Result<SegmentHeader, ZonedError> {
        let (header, found) = Self::parse_anywhere(bytes)?;
        WHAT.belongs_to("set_uuid", &found.set_uuid, &place.set_uuid)?;
        WHAT.belongs_to("device_uuid", &found.device_uuid, &place.device_uuid)?;
        WHAT.belongs("zone", found.zone, place.zone)?;
        Ok(header)
    }

    /// Checks everything except its place in an array, and returns that place too: for a look at a member without its array.
    ///
    /// # Errors
    /// [`ZonedError`] names the first thing that is wrong.
    pub fn parse_anywhere(bytes: &[u8]) -> Result<(SegmentHeader, ZonePlace), ZonedError> {
        let raw = RawSegment::read_from_bytes(check_start(WHAT, bytes, MAGIC)?).expect("a block");
        WHAT.reserved(&[raw.reserve_a], 83)?;
        WHAT.reserved(&raw.reserve_b, 120)?;
        WHAT.reserved(&raw.reserve, 640)?;
        let (set_uuid, device_uuid, zone) = (raw.set_uuid, raw.device_uuid, raw.zone.get());
        let shape = shape_of(&raw)?;
        let width = shape.plan().columns.width();
        let code = raw.class;
        let class = Class::ALL.into_iter().find(|class| *class as u8 == code);
        let expected = "1 (small), 2 (large), 3 (reclaim) or 4 (recovery)";
        let class = WHAT.known(class, "class", || code.to_string(), || expected.into())?;
        let column = raw.column.get();
        let range = || format!("below the width {width}");
        WHAT.require(column < width.into(), "column", || column.to_string(), range)?;
        let segment = raw.segment.get();
        WHAT.require(segment != 0, "segment", || "0".into(), || "a number from 1".into())?;
        let epoch = Epoch::of_raw(raw.epoch);
        let most = || format!("at most {}", Epoch::NUMBER_MAX);
        WHAT.require(epoch.number <= Epoch::NUMBER_MAX, "epoch", || epoch.to_string(), most)?;
        let header = SegmentHeader {
            segment,
            tag: raw.tag.get(),
            epoch,
            first_sequence: Sequence(raw.first_sequence.get()),
            class,
            shape,
            slot: raw.slot.get(),
            column: column as u8,
            generation: raw.generation.get(),
            columns: columns_of(&raw, width)?,
        };
        // Only a rebuilt column lies elsewhere than the columns say.
        let own = header.columns[usize::from(header.column)].zone;
        let is_there = header.generation > 0 || own == Some(zone);
        let listed = || own.map_or("none".into(), |zone| zone.to_string());
        WHAT.require(
            is_there,
            "columns",
            || format!("zone {} at own column", listed()),
            || format!("zone {zone}"),
        )?;
        Ok((header, ZonePlace { set_uuid, device_uuid, zone }))
    }

    /// The block to write at `place`.
    ///
    /// # Panics
    /// If a value is out of bounds, so that [`SegmentHeader::parse`] would refuse it.
    #[must_use]
    pub fn encode(&self, place: ZonePlace) -> Vec<u8> {
        let mut raw = RawSegment::new_zeroed();
        let plan = self.shape.plan();
        raw.set_uuid = place.set_uuid;
        raw.device_uuid = place.device_uuid;
        raw.zone.set(place.zone);
        raw.segment.set(self.segment);
        raw.epoch = self.epoch.to_raw();
        raw.first_sequence.set(self.first_sequence.0);
        raw.column.set(self.column.into());
        raw.width = plan.columns.width();
        raw.parity = plan.columns.parity();
        raw.class = self.class as u8;
        raw.access = plan.access as u8;
        raw.carrier = plan.carrier as u8;
        raw.record_blocks.set(plan.record_blocks);
        raw.group.set(plan.group);
        raw.band_blocks.set(plan.band_blocks);
        raw.data_blocks.set(self.shape.data_blocks());
        raw.footer_blocks.set(self.shape.footer_blocks());
        raw.generation.set(self.generation);
        raw.level.set(plan.columns.level().md_number());
        raw.slot.set(self.slot);
        raw.tag.set(self.tag);
        for (raw, column) in raw.columns.iter_mut().zip(&self.columns) {
            raw.slot.set(column.slot);
            raw.zone.set(column.zone.unwrap_or(NONE));
        }
        let mut block = raw.as_bytes().to_vec();
        seal(&mut block, MAGIC);
        let read = SegmentHeader::parse(&block, place);
        assert_eq!(read.as_ref(), Ok(self), "a header is read as it was written");
        block
    }
}

fn shape_of(raw: &RawSegment) -> Result<SegmentShape, ZonedError> {
    let columns = Columns::read(WHAT, raw.level.get(), raw.width.into(), raw.parity)?;
    let access = Access::ALL.into_iter().find(|access| *access as u8 == raw.access);
    let expected = || "1 (append), 2 (sequential) or 3 (placed)".into();
    let access = WHAT.known(access, "access", || raw.access.to_string(), expected)?;
    let carrier = Carrier::read(WHAT, raw.carrier)?;
    let plan = SegmentPlan {
        columns,
        access,
        carrier,
        record_blocks: raw.record_blocks.get(),
        group: raw.group.get(),
        band_blocks: raw.band_blocks.get(),
    };
    SegmentShape::with_regions(plan, raw.data_blocks.get(), raw.footer_blocks.get()).map_err(
        |ShapeFault { field, found, expected }| ZonedError::Field { structure: WHAT, field, found, expected },
    )
}

fn columns_of(raw: &RawSegment, width: u8) -> Result<Vec<SegmentColumn>, ZonedError> {
    let (used, unused) = raw.columns.split_at(usize::from(width));
    WHAT.reserved(unused.as_bytes(), 128 + used.as_bytes().len())?;
    used.iter()
        .enumerate()
        .map(|(column, raw)| {
            WHAT.reserved(raw.reserve.as_bytes(), 128 + column * size_of::<RawColumn>() + 2)?;
            let zone = Some(raw.zone.get()).filter(|zone| *zone != NONE);
            Ok(SegmentColumn { slot: raw.slot.get(), zone })
        })
        .collect()
}
