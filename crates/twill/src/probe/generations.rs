//! The record of generations beside a member's superblock.

use engine::array::generations::find_record;
use layout::generations::GenerationsRecord;
use layout::md_superblock::Superblock;

use super::member_file::MemberFile;

/// The record that goes with the superblock of a member, if there is one.
pub fn record_of(member: &MemberFile, superblock: &Superblock) -> Option<GenerationsRecord> {
    find_record(superblock, member.device_bytes, |offset, bytes| member.read(offset.get(), bytes).ok())
}
