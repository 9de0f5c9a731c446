//! A device that is to replace a member that still works (mdadm's `--replace`): it gets every write that the member
//! gets, while what the member holds is copied to it.
//!
//! - Reads go to the member until everything was copied, then to the replacement. Writes go to both until the
//!   superblocks call the replacement the member: never does one of the two that a later run could start from lack
//!   what was acknowledged (invariant 8).
//! - A replacement that fails ends the replacement, and nothing else. Before anything is acknowledged that it lacks,
//!   the superblocks say that it failed.
//! - When the member fails, the replacement has its slot at that moment, and is rebuilt from where the copying was.
//!   A shard that has begun a write to both has told it to the replacement, too.

use crate::bad_blocks::BadBlocks;
use crate::sync::sequential::Mutex;
use crate::sync::sequential::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize};

/// How far the replacement of a member is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Replacing {
    /// Nobody replaces it.
    No = 0,
    /// The replacement gets what the member gets, and what that held before.
    Copying = 1,
    /// For a moment: what is known of the slot becomes what is known of the replacement. Nobody reads meanwhile.
    Moving = 2,
    /// The replacement holds everything and has the slot; the old member gets writes, too.
    Taken = 3,
    /// The replacement has the slot for itself. The shards have yet to forget the old member.
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

    /// Whether the replacement is what the slot means.
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
    /// Places that could neither be read nor made.
    pub(super) bad: Mutex<BadBlocks>,
    pub(super) bad_room: AtomicUsize,
}
