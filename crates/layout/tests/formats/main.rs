//! Holds the tables of `docs/formats.md` against the structs: a table after a line that names a constant lists
//! exactly that constant's fields, in order, with offset and size.

mod drawn;

use layout::{absences, generations, headroom, md_bitmap, md_superblock, redo_log, zoned};

#[test]
fn docs_draw_what_the_code_writes() {
    drawn::check(&[
        ("md_superblock::FIELDS", md_superblock::FIELDS, 256),
        ("md_bitmap::FIELDS", md_bitmap::FIELDS, 256),
        ("headroom::START_FIELDS", headroom::START_FIELDS, 56),
        ("redo_log::HEADER_FIELDS", redo_log::HEADER_FIELDS, 256),
        ("redo_log::RECORD_FIELDS", redo_log::RECORD_FIELDS, 128),
        ("redo_log::PIECE_FIELDS", redo_log::PIECE_FIELDS, 32),
        ("generations::FIELDS", generations::FIELDS, 768),
        ("absences::FIELDS", absences::FIELDS, 128),
        ("absences::MEMBER_FIELDS", absences::MEMBER_FIELDS, 32),
        ("absences::CARRIED_FIELDS", absences::CARRIED_FIELDS, 24),
        ("zoned::EPOCH_FIELDS", zoned::EPOCH_FIELDS, 8),
        ("zoned::SUPERBLOCK_FIELDS", zoned::SUPERBLOCK_FIELDS, 4096),
        ("zoned::MEMBER_FIELDS", zoned::MEMBER_FIELDS, 40),
        ("zoned::SEGMENT_FIELDS", zoned::SEGMENT_FIELDS, 4096),
        ("zoned::COLUMN_FIELDS", zoned::COLUMN_FIELDS, 8),
        ("zoned::ENTRY_FIELDS", zoned::ENTRY_FIELDS, 20),
        ("zoned::DESCRIPTOR_FIELDS", zoned::DESCRIPTOR_FIELDS, 64),
        ("zoned::OOB_FIELDS", zoned::OOB_FIELDS, 64),
        ("zoned::SEGMENT_START_FIELDS", zoned::SEGMENT_START_FIELDS, 40),
        ("zoned::FOOTER_FIELDS", zoned::FOOTER_FIELDS, 64),
        ("zoned::FENCE_FIELDS", zoned::FENCE_FIELDS, 4096),
        ("zoned::RANGE_FIELDS", zoned::RANGE_FIELDS, 16),
        ("zoned::CHECKPOINT_FIELDS", zoned::CHECKPOINT_FIELDS, 64),
        ("zoned::ROOT_FIELDS", zoned::ROOT_FIELDS, 16),
        ("zoned::TABLE_FIELDS", zoned::TABLE_FIELDS, 32),
        ("zoned::ZEROES_FIELDS", zoned::ZEROES_FIELDS, 24),
        ("zoned::EMPTIED_FIELDS", zoned::EMPTIED_FIELDS, 16),
    ]);
}
