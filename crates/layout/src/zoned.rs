//! The format of zoned arrays: log-structured, written only at the ends of segments.
//!
//! Invariants:
//! - A value of this module that was read comes from its `parse`, which has checked magic, version, checksum, reserve, bounds,
//!   and that it belongs to this array, member, segment and place. Bytes that were not checked are slices.
//! - What `encode` writes `parse` reads again as the same value.
//! - Which blocks of a zone hold data and which parity follows from the segment's header and the block's offset alone.
//!
//! The engine decides what is written when. `docs/formats.md` draws the bytes.

mod block;
mod checkpoint;
pub mod coded;
mod columns;
mod entry;
mod error;
mod fence;
mod footer;
mod list;
mod map;
mod member;
mod oob;
mod record;
mod segment;
mod sequence;
mod shape;
mod superblock;
pub mod superblock_log;

pub use crate::Checksum;
pub use block::{BLOCK_BYTES, VERSION};
pub use checkpoint::{
    CHECKPOINT_FIELDS, CheckpointBlock, ROOT_ENTRIES, ROOT_FIELDS, RootBlock, RootEntry, TABLE_ENTRIES,
    TABLE_FIELDS, TableBlock, TableEntry,
};
pub use columns::{COLUMNS_MAX, ColumnRole, Columns};
pub use entry::{BlockEntry, BlockName, ENTRY_BYTES, ENTRY_FIELDS, ZEROES_CHECKSUM};
pub use error::{Structure, ZonedError};
pub use fence::{FENCE_FIELDS, FENCE_RANGES, FenceBlock, FenceRange, RANGE_FIELDS, Verdict};
pub use footer::{FOOTER_FIELDS, FooterBlock, FooterEntry, FooterPart};
pub use list::{EMPTIED_FIELDS, EMPTIED_MAX, EmptiedEntry, ZEROES_FIELDS, ZEROES_MAX, ZeroesEntry};
pub use map::{BlockPlace, MapEntry, MapShape, MappingBlock};
pub use member::{MEMBER_FIELDS, Member, MemberState};
pub use oob::{OOB_BYTES, OOB_FIELDS, OobBlock, OobPart};
pub use record::{DESCRIPTOR_FIELDS, RecordDescriptor, RecordKind, StripeDescriptor};
pub use segment::{
    COLUMN_FIELDS, SEGMENT_FIELDS, SEGMENT_START_FIELDS, SegmentColumn, SegmentHeader, ZonePlace,
};
pub use sequence::{EPOCH_FIELDS, Epoch, Sequence};
pub use shape::{
    Access, Carrier, Class, DATA_BLOCKS_MAX, DESCRIPTOR_BLOCKS_MAX, DataOffset, GROUP_BLOCKS_MAX,
    HEADER_BLOCKS, ROWS_MAX, SegmentPlan, SegmentShape, ShapeFault,
};
pub use superblock::{
    ArrayPlan, Checkpoint, EPOCHS_MAX, LogPlace, MEMBERS_MAX, MapEntryBytes, MemberZones, NAME_BYTES_MAX,
    SUPERBLOCK_FIELDS, Superblock, ZONE_BLOCKS_MIN, ZONES_MIN,
};
