//! Reads the bitmap of a member, and those of an array that is about to start.

use engine::array::assemble::Assembly;
use engine::array::start_bitmap::{self, StartBitmap};
use layout::geometry::Geometry;
use layout::md_bitmap::{Bitmap, BitmapSuper, PAGE_BYTES};
use layout::md_superblock::{Superblock, SuperblockError};

use super::candidates::Candidates;
use super::member_file::MemberFile;
use crate::exit::ExitKind;
use crate::failure::Problem;

/// The bitmap beside a superblock, or why it is not usable; None if the array has none.
pub fn read(member: &MemberFile, superblock: &Superblock) -> Option<Result<Bitmap, Unreadable>> {
    let start = superblock.bitmap_start()?;
    Some(read_at(member, superblock, start.bytes()))
}

/// The bitmap that an array starts with, if it has one; `superblocks` by slot. md's other kinds are refused: under a
/// lockless bitmap (version 6) unwritten places have no parity, and another host may use a clustered array (version 5).
///
/// # Errors
/// A member cannot be read, or its bitmap is of another kind.
pub fn decide_start(
    candidates: &Candidates,
    assembly: &Assembly,
    superblocks: &[Option<Superblock>],
    geometry: &Geometry,
) -> Result<Option<StartBitmap>, Problem> {
    let (mut found, mut room) = (Vec::new(), u64::MAX);
    for (slot, superblock) in superblocks.iter().enumerate() {
        found.push(None);
        let Some((index, superblock)) = assembly.slots[slot].zip(superblock.as_ref()) else { continue };
        let path = &candidates.paths[index];
        let member = MemberFile::open(path)?;
        room = room.min(superblock.bitmap_room(member.device_bytes).unwrap_or(0));
        // The bitmap of a member that is being rebuilt is incomplete.
        if superblock.recovery_offset().is_some() {
            continue;
        }
        let read = read(&member, superblock);
        if let Some(Err(foreign)) = read.as_ref().filter(|read| matches!(read, Err(why) if why.is_foreign()))
        {
            let problem = Problem::new(ExitKind::Unsupported, path, foreign.to_string());
            return Err(problem.help(
                "only md can read from it which parity exists and which other hosts write here; remove it with md first: \
                 mdadm --grow --bitmap=none",
            ));
        }
        found[slot] = read.map(|read| read.map_err(|why| why.to_string()));
    }
    let resync = assembly.resync_from_bytes;
    let start = start_bitmap::decide(&found, geometry, assembly.set_uuid, assembly.events, resync, room);
    if let Some(why) = start.as_ref().and_then(|start| start.distrust.as_ref()) {
        tracing::warn!(
            "no member's bitmap is usable, so every bit counts as set and all of the array is resynced: {why}"
        );
    }
    Ok(start)
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

impl Unreadable {
    /// It is a bitmap of a kind that Twill does not keep, and that must not be overwritten.
    pub fn is_foreign(&self) -> bool {
        matches!(self, Unreadable::Format(SuperblockError::BitmapVersion { .. }))
    }
}

fn read_at(member: &MemberFile, superblock: &Superblock, start: u64) -> Result<Bitmap, Unreadable> {
    let (uuid, room) = (superblock.set_uuid(), superblock.bitmap_room(member.device_bytes).unwrap_or(0));
    let head = member.read(start, PAGE_BYTES)?;
    let needed = BitmapSuper::parse(&head, uuid, room)?.bitmap_bytes();
    let bytes = member.read(start, usize::try_from(needed).unwrap_or(usize::MAX))?;
    Ok(Bitmap::parse(&bytes, uuid, room)?)
}
