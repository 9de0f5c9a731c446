//! The bad-block log of a member.

use engine::bad_blocks::BadBlocks;
use layout::md_superblock::{BadRange, Features, Superblock, decode_bad_blocks};

use super::member_file::MemberFile;
use crate::exit::ExitKind;
use crate::failure::Problem;

/// What the member's bad-block log lists, none if its superblock says that there is nothing in it.
///
/// # Errors
/// The log cannot be read, or makes no sense: md does not take such a member either, since nobody can say which of its
/// blocks hold data.
pub fn bad_blocks_of(member: &MemberFile, superblock: &Superblock) -> Result<BadBlocks, Problem> {
    Ok(BadBlocks::from_log(&bad_ranges_of(member, superblock)?, superblock.data_offset()))
}

/// The same as the log has it, in places of the device.
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
