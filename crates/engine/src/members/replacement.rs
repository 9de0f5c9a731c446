//! A device that is to replace a member that still works (mdadm's `--replace`): it gets every write that the member
//! gets, while the member's contents are copied to it.
//!
//! - Reads go to the member until everything is copied, then to the replacement. Writes go to both until the superblocks
//!   name the replacement as the member: a later run may start from either, and neither lacks an acknowledged write
//!   (invariant 8).
//! - When the replacement fails, only the replacement ends. The superblocks record its failure before any write is
//!   acknowledged that it lacks.
//! - When the member fails, the replacement takes its slot at that moment, and is rebuilt from where the copying had come.
//!   A write that a shard has begun goes to the replacement too.

use crate::bad_blocks::BadBlocks;
use crate::sync::sequential::Mutex;
use crate::sync::sequential::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize};

/// The step of a member's replacement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Replacing {
    /// The member is not being replaced.
    No = 0,
    /// The replacement gets every write, and the member's contents are being copied to it.
    Copying = 1,
    /// For a moment, while the slot's bad blocks and counts become the replacement's. No read starts meanwhile.
    Moving = 2,
    /// The replacement holds everything and has the slot; the old member gets writes, too.
    Taken = 3,
    /// The replacement has the slot, and the old member gets no more writes. The shards have yet to detach it.
    Alone = 4,
}

impl Replacing {
    pub(super) fn from_byte(byte: u8) -> Self {
        match byte {
            0 => Replacing::No,
            1 => Replacing::Copying,
            2 => Replacing::Moving,
            3 => Replacing::Taken,
            4 => Replacing::Alone,
            other => unreachable!("{other} is no step of a replacement"),
        }
    }

    /// Whether the replacement is the slot's current device.
    pub fn has_slot(self) -> bool {
        matches!(self, Replacing::Taken | Replacing::Alone)
    }
}

/// The replacement of a slot's member.
#[derive(Default)]
pub(super) struct Replacement {
    pub(super) step: AtomicU8,
    /// Bytes of the data area that were copied, in order.
    pub(super) copied_bytes: AtomicU64,
    /// The superblock kept for the slot is the replacement's.
    pub(super) has_superblock: AtomicBool,
    /// Blocks that could be neither read nor reconstructed.
    pub(super) bad: Mutex<BadBlocks>,
    pub(super) bad_room: AtomicUsize,
}
