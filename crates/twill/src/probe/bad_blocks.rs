//! The bad-block log of a member.

use engine::bad_blocks::BadBlocks;
use layout::md_superblock::{BadRange, Features, Superblock, decode_bad_blocks};

use super::member_file::MemberFile;
use crate::exit::ExitKind;
use crate::failure::Problem;

/// The ranges in the member's bad-block log; none if its superblock says that the log is empty.
///
/// # Errors
/// The log cannot be read or decoded. md does not take such a member either: any of its blocks may be bad.
pub fn bad_blocks_of(member: &MemberFile, superblock: &Superblock) -> Result<BadBlocks, Problem> {
    Ok(BadBlocks::from_log(&bad_ranges_of(member, superblock)?, superblock.data_offset()))
}

/// As [`bad_blocks_of`], in sectors of the device.
///
/// # Errors
/// As [`bad_blocks_of`].
pub fn bad_ranges_of(member: &MemberFile, superblock: &Superblock) -> Result<Vec<BadRange>, Problem> {
    let Some((start, length)) = superblock.bad_block_log() else { return Ok(Vec::new()) };
    if !superblock.features().contains(Features::BAD_BLOCKS) {
        return Ok(Vec::new());
    }
    let log = member.read(start.bytes(), length.bytes() as usize);
    let log = log.map_err(|error| Problem::from_io(&member.path, "read the bad-block log of", &error))?;
    decode_bad_blocks(&log, superblock.bad_block_shift()).map_err(|error| {
        let what = format!("its bad-block log is damaged: {error}");
        Problem::new(ExitKind::Damaged, &member.path, what)
    })
}
