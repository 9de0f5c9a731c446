//! Reads the bitmap of a member.

use layout::md_bitmap::{Bitmap, BitmapSuper, PAGE_BYTES};
use layout::md_superblock::{Superblock, SuperblockError};

use super::member_file::MemberFile;

/// The bitmap beside a superblock, or why it is not usable; None if the array has none.
pub fn read(member: &MemberFile, superblock: &Superblock) -> Option<Result<Bitmap, Unreadable>> {
    let start = superblock.bitmap_start()?;
    Some(read_at(member, superblock, start.bytes()))
}

/// Why a bitmap is not usable.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// What is there is no bitmap, or of a kind that Twill does not keep.
    #[error(transparent)]
    Format(#[from] SuperblockError),
    /// It could not be read.
    #[error("it cannot be read: {0}")]
    Io(#[from] std::io::Error),
}

fn read_at(member: &MemberFile, superblock: &Superblock, start: u64) -> Result<Bitmap, Unreadable> {
    let (uuid, room) = (superblock.set_uuid(), superblock.bitmap_room(member.device_bytes).unwrap_or(0));
    let head = member.read(start, PAGE_BYTES)?;
    let needed = BitmapSuper::parse(&head, uuid, room)?.bitmap_bytes();
    let bytes = member.read(start, usize::try_from(needed).unwrap_or(usize::MAX))?;
    Ok(Bitmap::parse(&bytes, uuid, room)?)
}
