//! How a zone of a segment is divided: header, data region, footer; groups and bands of the data region; records and their
//! rows. Everything here is arithmetic on what a segment header says.

use super::columns::{ColumnRole, Columns};
use super::entry::ENTRY_BYTES;
use super::error::{Structure, ZonedError};

/// Blocks of a zone before its data region: the segment header.
pub const HEADER_BLOCKS: u32 = 1;
/// The most descriptor blocks of a record.
pub const DESCRIPTOR_BLOCKS_MAX: u32 = 4;
/// The most rows of a record.
pub const ROWS_MAX: u32 = 255;
/// The most blocks of an append group: the id of a stripe has 16 bits, and the shortest record is one block.
pub const GROUP_BLOCKS_MAX: u32 = 1 << 16;
/// The most blocks of a data region: header, data and footer are numbered in 32 bits, with room to spare.
pub const DATA_BLOCKS_MAX: u32 = 1 << 31;
/// Bytes before the entries of a descriptor block, and of a footer block.
pub(super) const HEAD_BYTES: usize = 64;
/// Bytes of a block after its head.
pub(super) const BODY_BYTES: usize = 4096 - HEAD_BYTES;
/// Bytes of a checksum of one of a record's own blocks.
pub(super) const SUM_BYTES: usize = 4;
/// Bytes of a stripe's id behind each footer entry of an append segment.
pub(super) const STRIPE_BYTES: usize = 2;

/// Where the metadata of blocks lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Carrier {
    /// Beside each block, in 64 bytes out of band.
    Oob = 1,
    /// In descriptor blocks, at the start of each record.
    Inband = 2,
}

/// How a member's zones are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// By Zone Append: the drive chooses the place.
    Append = 1,
    /// At the write pointer, in order.
    Sequential = 2,
    /// Anywhere in the zone, in any order: software zones, conventional zones.
    Placed = 3,
}

/// What a segment is filled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Writes below the large chunk's size.
    Small = 1,
    /// Large writes.
    Large = 2,
    /// Blocks moved out of segments that are to be emptied.
    Reclaim = 3,
    /// Stripes written anew by recovery.
    Recovery = 4,
}

impl Carrier {
    const ALL: [Carrier; 2] = [Carrier::Oob, Carrier::Inband];

    /// The carrier that a structure names by its number.
    pub(super) fn read(structure: Structure, code: u8) -> Result<Carrier, ZonedError> {
        let carrier = Carrier::ALL.into_iter().find(|carrier| *carrier as u8 == code);
        let expected = || "1 (out of band) or 2 (in band)".into();
        structure.known(carrier, "carrier", || code.to_string(), expected)
    }

    /// Rows that one descriptor block names, at this many data columns.
    #[must_use]
    pub const fn rows_per_descriptor(data_columns: u8) -> u32 {
        (BODY_BYTES / (ENTRY_BYTES * data_columns as usize + SUM_BYTES)) as u32
    }

    /// Descriptor blocks of a record with this many rows: none out of band, else one to [`DESCRIPTOR_BLOCKS_MAX`], a record
    /// of no rows included. `None` if they would be more, or the rows more than [`ROWS_MAX`].
    #[must_use]
    pub fn descriptor_blocks(self, rows: u32, data_columns: u8) -> Option<u32> {
        if rows > ROWS_MAX {
            return None;
        }
        match self {
            Carrier::Oob => Some(0),
            Carrier::Inband => {
                let blocks = rows.div_ceil(Self::rows_per_descriptor(data_columns)).max(1);
                (blocks <= DESCRIPTOR_BLOCKS_MAX).then_some(blocks)
            }
        }
    }

    /// Blocks of a record with this many rows, its descriptor included. `None` as above.
    #[must_use]
    pub fn record_blocks(self, rows: u32, data_columns: u8) -> Option<u32> {
        Some(rows + self.descriptor_blocks(rows, data_columns)?)
    }

    /// The longest record of at most this many blocks that has no block to spare: one more row may need one more descriptor
    /// block. `None` if there is no room for a row.
    #[must_use]
    pub fn whole_record(self, blocks: u32, data_columns: u8) -> Option<u32> {
        match self.rows_in(blocks, data_columns) {
            0 => None,
            rows => self.record_blocks(rows, data_columns),
        }
    }

    /// The most rows of a record that has at most this many blocks.
    #[must_use]
    pub fn rows_in(self, blocks: u32, data_columns: u8) -> u32 {
        match self {
            Carrier::Oob => blocks.min(ROWS_MAX),
            Carrier::Inband => {
                let per_block = Self::rows_per_descriptor(data_columns);
                let rows = |descriptors: u32| {
                    blocks.saturating_sub(descriptors).min(descriptors * per_block).min(ROWS_MAX)
                };
                (1..=DESCRIPTOR_BLOCKS_MAX).map(rows).max().expect("a descriptor")
            }
        }
    }
}

impl Access {
    pub(super) const ALL: [Access; 3] = [Access::Append, Access::Sequential, Access::Placed];
}

impl Class {
    pub(super) const ALL: [Class; 4] = [Class::Small, Class::Large, Class::Reclaim, Class::Recovery];
}

/// A block of a zone's data region, counted from the region's start. The same in all columns of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DataOffset(pub u32);

impl DataOffset {
    /// The block of the zone, counted from the zone's start.
    #[must_use]
    pub const fn zone_block(self) -> u32 {
        self.0 + HEADER_BLOCKS
    }

    /// The offset of a block of the zone; `None` for the header.
    #[must_use]
    pub const fn of_zone_block(block: u32) -> Option<DataOffset> {
        match block.checked_sub(HEADER_BLOCKS) {
            None => None,
            Some(offset) => Some(DataOffset(offset)),
        }
    }
}

/// What is chosen for a segment before its zones are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SegmentPlan {
    /// Its level and width.
    pub columns: Columns,
    /// How its zones are written.
    pub access: Access,
    /// Where its metadata lies.
    pub carrier: Carrier,
    /// Blocks of its longest record, the descriptor included.
    pub record_blocks: u16,
    /// Longest records in a group; only append segments have groups.
    pub group: u16,
    /// Blocks of the data region after which parity moves on; of append segments whole groups.
    pub band_blocks: u32,
}

/// A value of a plan or shape that is out of bounds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {found}, expected {expected}")]
pub struct ShapeFault {
    /// The field of the segment header.
    pub field: &'static str,
    /// Its value, with its unit.
    pub found: String,
    /// What it may be.
    pub expected: String,
}

/// How the zones of a segment are divided. Its values are in bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SegmentShape {
    plan: SegmentPlan,
    data_blocks: u32,
    footer_blocks: u32,
}

impl SegmentShape {
    /// Divides zones of `capacity_blocks`: as much data as leaves room for the footer, in append segments whole groups.
    ///
    /// # Errors
    /// [`ShapeFault`] names the value of the plan that is out of bounds; `data_blocks` if there is no room for a record.
    pub fn new(plan: SegmentPlan, capacity_blocks: u32) -> Result<SegmentShape, ShapeFault> {
        check_plan(&plan)?;
        let room = capacity_blocks.saturating_sub(HEADER_BLOCKS);
        let data = room - room.div_ceil(entries_per_footer(plan.access) + 1);
        let data_blocks =
            if plan.access == Access::Append { data - data % group_blocks(&plan) } else { data };
        let footer_blocks = data_blocks.div_ceil(entries_per_footer(plan.access));
        Self::with_regions(plan, data_blocks, footer_blocks)
    }

    /// The shape that a segment header names.
    pub(super) fn with_regions(
        plan: SegmentPlan,
        data_blocks: u32,
        footer_blocks: u32,
    ) -> Result<SegmentShape, ShapeFault> {
        check_plan(&plan)?;
        let unit =
            if plan.access == Access::Append { group_blocks(&plan) } else { plan.record_blocks.into() };
        let is_whole = plan.access != Access::Append || data_blocks.is_multiple_of(unit);
        if data_blocks < unit || !is_whole || data_blocks > DATA_BLOCKS_MAX {
            let whole = if plan.access == Access::Append { ", whole groups" } else { "" };
            let expected = format!("{unit} to {DATA_BLOCKS_MAX} blocks{whole}");
            return Err(fault("data_blocks", format!("{data_blocks} blocks"), expected));
        }
        let footer = data_blocks.div_ceil(entries_per_footer(plan.access));
        if footer_blocks != footer {
            let found = format!("{footer_blocks} blocks");
            return Err(fault("footer_blocks", found, format!("{footer} blocks for {data_blocks} of data")));
        }
        Ok(SegmentShape { plan, data_blocks, footer_blocks })
    }

    /// What was chosen.
    #[must_use]
    pub const fn plan(&self) -> &SegmentPlan {
        &self.plan
    }

    /// Blocks of the data region.
    #[must_use]
    pub const fn data_blocks(&self) -> u32 {
        self.data_blocks
    }

    /// Blocks of the footer behind a full data region.
    #[must_use]
    pub const fn footer_blocks(&self) -> u32 {
        self.footer_blocks
    }

    /// Whether its records are appended, and so in groups.
    #[must_use]
    pub fn is_append(&self) -> bool {
        self.plan.access == Access::Append
    }

    /// Blocks of a group: a fixed range of the data region, whatever the length of the records in it.
    #[must_use]
    pub fn group_blocks(&self) -> u32 {
        group_blocks(&self.plan)
    }

    /// The group that a block is in; of use in append segments only.
    #[must_use]
    pub fn group_of(&self, offset: DataOffset) -> u32 {
        offset.0 / self.group_blocks().max(1)
    }

    /// The band of the stripe that a block is in. A stripe does not cross a band, and a band is whole groups, so that the
    /// block's offset alone tells it.
    #[must_use]
    pub fn band_of(&self, offset: DataOffset) -> u32 {
        offset.0 / self.plan.band_blocks
    }

    /// What a column holds at a block.
    ///
    /// # Panics
    /// If there is no such column.
    #[must_use]
    pub fn role(&self, column: u8, offset: DataOffset) -> ColumnRole {
        self.plan.columns.role(column, self.band_of(offset))
    }

    /// The column that holds the data with this index, in a stripe with a block at `offset`.
    ///
    /// # Panics
    /// If there is no such index.
    #[must_use]
    pub fn data_column(&self, index: u8, offset: DataOffset) -> u8 {
        self.plan.columns.data_column(index, self.band_of(offset))
    }

    /// Blocks from `offset` to the end of its band or of the data region, of append segments to the end of its group: a
    /// record that begins here has at most as many.
    #[must_use]
    pub fn room_at(&self, offset: DataOffset) -> u32 {
        let unit = if self.is_append() { self.group_blocks() } else { self.plan.band_blocks };
        let unit_end = (u64::from(offset.0 / unit) + 1) * u64::from(unit);
        (unit_end.min(self.data_blocks.into()) as u32).saturating_sub(offset.0)
    }

    /// Rows of the longest record.
    #[must_use]
    pub fn rows_max(&self) -> u32 {
        self.plan.carrier.rows_in(self.plan.record_blocks.into(), self.plan.columns.data())
    }

    /// Rows of the data region when all records are as long as they may be: the segment holds these times the data columns.
    #[must_use]
    pub fn rows(&self) -> u32 {
        let record = u32::from(self.plan.record_blocks);
        let rows_of = |blocks: u32| {
            let rest = self.plan.carrier.rows_in(blocks % record, self.plan.columns.data());
            blocks / record * self.rows_max() + rest
        };
        let bands = self.data_blocks / self.plan.band_blocks;
        bands * rows_of(self.plan.band_blocks) + rows_of(self.data_blocks % self.plan.band_blocks)
    }

    /// Bytes of a footer's entry: append segments need the stripe's id with it.
    #[must_use]
    pub fn footer_entry_bytes(&self) -> usize {
        footer_entry_bytes(self.plan.access)
    }

    /// Blocks that a block of the footer names: 201, 183 in append segments.
    #[must_use]
    pub fn entries_per_footer(&self) -> u32 {
        entries_per_footer(self.plan.access)
    }

    /// Blocks of the footer when the data region ends after `data_blocks`, as in a short segment.
    #[must_use]
    pub fn footer_blocks_of(&self, data_blocks: u32) -> u32 {
        data_blocks.div_ceil(self.entries_per_footer())
    }

    /// The block of the zone at which the footer of a full segment begins.
    #[must_use]
    pub fn footer_start(&self) -> u32 {
        DataOffset(self.data_blocks).zone_block()
    }
}

fn check_plan(plan: &SegmentPlan) -> Result<(), ShapeFault> {
    let (record, data) = (u32::from(plan.record_blocks), plan.columns.data());
    let whole = plan.carrier.whole_record(record, data);
    if whole != Some(record) {
        let expected = match whole {
            Some(blocks) => format!("a record whose blocks are all in use, such as {blocks} blocks"),
            None => "room for a descriptor and a row".into(),
        };
        return Err(fault("record_blocks", format!("{record} blocks"), expected));
    }
    let is_append = plan.access == Access::Append;
    let group = group_blocks(plan);
    if is_append && (group == 0 || group > GROUP_BLOCKS_MAX) {
        let expected = format!("1 to {} records of {record} blocks", GROUP_BLOCKS_MAX / record);
        return Err(fault("group", format!("{} records", plan.group), expected));
    }
    let unit = if is_append { group } else { record };
    if plan.band_blocks < unit || is_append && !plan.band_blocks.is_multiple_of(unit) {
        let expected = format!("{unit} blocks or {}", if is_append { "a multiple" } else { "more" });
        return Err(fault("band_blocks", format!("{} blocks", plan.band_blocks), expected));
    }
    Ok(())
}

fn fault(field: &'static str, found: String, expected: String) -> ShapeFault {
    ShapeFault { field, found, expected }
}

fn group_blocks(plan: &SegmentPlan) -> u32 {
    u32::from(plan.group) * u32::from(plan.record_blocks)
}

fn footer_entry_bytes(access: Access) -> usize {
    if access == Access::Append { ENTRY_BYTES + STRIPE_BYTES } else { ENTRY_BYTES }
}

fn entries_per_footer(access: Access) -> u32 {
    (BODY_BYTES / footer_entry_bytes(access)) as u32
}
