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

/// The bitmap beside a superblock, or why it cannot be believed; None if the array has none.
pub fn read(member: &MemberFile, superblock: &Superblock) -> Option<Result<Bitmap, Unreadable>> {
    let start = superblock.bitmap_start()?;
    Some(read_at(member, superblock, start.bytes()))
}

/// The bitmap that an array starts with; `superblocks` by slot. None if it has none. One of md's other kinds is refused:
/// with a lockless one (version 6) parity was never made where nothing was written, and a clustered array (version 5) may be
/// in use elsewhere.
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
        // A member that is being rebuilt has not held everything: the others know better.
        if superblock.recovery_offset().is_some() {
            continue;
        }
        let read = read(&member, superblock);
        if let Some(Err(foreign)) = read.as_ref().filter(|read| matches!(read, Err(why) if why.is_foreign()))
        {
            let problem = Problem::new(ExitKind::Unsupported, path, foreign.to_string());
            return Err(problem.help(
                "only md knows from it which parity was made and who else writes here; take it off with md first: \
                 mdadm --grow --bitmap=none",
            ));
        }
        found[slot] = read.map(|read| read.map_err(|why| why.to_string()));
    }
    let resync = assembly.resync_from_bytes;
    let start = start_bitmap::decide(&found, geometry, assembly.set_uuid, assembly.events, resync, room);
    if let Some(why) = start.as_ref().and_then(|start| start.distrust.as_ref()) {
        tracing::warn!("no member's bitmap can be believed, so all of it counts as set: {why}");
    }
    Ok(start)
}

/// Why there is no bitmap to be believed.
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
    /// It is a bitmap, of a kind that Twill does not keep: nobody should write over it.
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
