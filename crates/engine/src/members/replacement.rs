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

use std::ops::Range;

use super::{MemberState, Members};
use crate::bad_blocks::BadBlocks;
use crate::events::Event;
use crate::read_errors::ReadErrors;
use crate::sync::sequential::Mutex;
use crate::sync::sequential::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::SeqCst};

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
    fn from_byte(byte: u8) -> Self {
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
    step: AtomicU8,
    /// Bytes of the data area that were copied, in order.
    copied_bytes: AtomicU64,
    /// The superblock kept for the slot is the replacement's.
    has_superblock: AtomicBool,
    /// Places that could neither be read nor made.
    bad: Mutex<BadBlocks>,
    bad_room: AtomicUsize,
}

impl Members {
    fn replacement(&self, slot: u32) -> &Replacement {
        &self.slots[slot as usize].replacement
    }

    /// How far the replacement of the member in a slot is.
    pub fn replacing(&self, slot: u32) -> Replacing {
        Replacing::from_byte(self.replacement(slot).step.load(SeqCst))
    }

    /// What a slot means for a read that ends before `end_bytes` of its data area. None: the slot has got another device
    /// since the read was planned, and that does not hold the range yet (invariant 8). If it is another step after the
    /// bad places were looked at, those were another device's.
    pub(crate) fn step_to_read(&self, slot: u32, end_bytes: u64) -> Option<Replacing> {
        let step = self.replacing(slot);
        let holds = || match self.geometry.parity_chunks() {
            0 => self.state(slot) == MemberState::InSync,
            _ => self.in_sync_to(slot, end_bytes),
        };
        (step != Replacing::Moving && (!step.has_slot() || holds())).then_some(step)
    }

    /// Every shard has the replacement beside the member in a slot: from here on it gets every write. `from_bytes` were
    /// copied in an earlier run; its bad-block log has room for `bad_room` entries. False if the member is not in sync, or
    /// is being replaced already.
    pub fn begin_replacement(&self, slot: u32, from_bytes: u64, bad_room: usize) -> bool {
        let _changing = self.changing.lock();
        if self.state(slot) != MemberState::InSync || self.replacing(slot) != Replacing::No {
            return false;
        }
        let replacement = self.replacement(slot);
        replacement.copied_bytes.store(from_bytes, SeqCst);
        *replacement.bad.lock() = BadBlocks::default();
        replacement.bad_room.store(bad_room, SeqCst);
        self.change_step(slot, Replacing::Copying);
        self.report(Event::ReplacementStarted { member: slot, from_bytes });
        true
    }

    /// Bytes of the member's data area that its replacement has.
    pub fn copied_bytes(&self, slot: u32) -> u64 {
        self.replacement(slot).copied_bytes.load(SeqCst)
    }

    /// Everything below `bytes` was copied. Nothing happens if the replacement has got the slot meanwhile: since then it
    /// has missed writes beyond its cursor.
    pub fn copied_to(&self, slot: u32, bytes: u64) {
        let _changing = self.changing.lock();
        if self.replacing(slot) == Replacing::Copying {
            self.replacement(slot).copied_bytes.fetch_max(bytes, SeqCst);
        }
    }

    /// A place that can neither be read nor made is bad on the replacement. False if its log has no room for that.
    pub fn set_bad_on_replacement(&self, slot: u32, range: Range<u64>) -> bool {
        let replacement = self.replacement(slot);
        let mut bad = replacement.bad.lock();
        let mut with = bad.clone();
        if with.set(range) && with.entries() > replacement.bad_room.load(SeqCst) {
            return false;
        }
        *bad = with;
        true
    }

    pub(super) fn clear_bad_of_replacement(&self, slot: u32, range: &Range<u64>) {
        if self.replacing(slot) == Replacing::Copying {
            let replacement = self.replacement(slot);
            replacement.bad.lock().clear_within(range, replacement.bad_room.load(SeqCst));
        }
    }

    /// Where the copying may be taken up in a later run: its first bad place is known to this run only.
    pub fn copied_without_bad(&self, slot: u32, done_bytes: u64) -> u64 {
        let first_bad = self.replacement(slot).bad.lock().first();
        first_bad.map_or(done_bytes, |first| first.min(done_bytes))
    }

    /// The replacement in a slot is not used any more; the member stays. False if the replacement has the slot by now: what
    /// is wrong with it is wrong with the member.
    pub fn fail_replacement(&self, slot: u32, reason: &str) -> bool {
        let changing = self.changing.lock();
        match self.replacing(slot) {
            Replacing::No => return true,
            Replacing::Copying => self.change_step(slot, Replacing::No),
            Replacing::Moving | Replacing::Taken | Replacing::Alone => return false,
        }
        drop(changing);
        self.report(Event::ReplacementFailed { member: slot, reason: reason.to_string() });
        true
    }

    /// The replacement holds everything, durably, and its own superblock says so: it has the slot. False if the member
    /// failed, or the replacement.
    pub fn hand_over(&self, slot: u32) -> bool {
        let _changing = self.changing.lock();
        if self.state(slot) != MemberState::InSync || self.replacing(slot) != Replacing::Copying {
            return false;
        }
        self.move_in(slot);
        self.change_step(slot, Replacing::Taken);
        true
    }

    /// The superblocks call the replacement the member: the old one gets nothing any more.
    pub fn let_go(&self, slot: u32) {
        let _changing = self.changing.lock();
        if self.replacing(slot) == Replacing::Taken {
            self.replacement(slot).step.store(Replacing::Alone as u8, SeqCst);
        }
    }

    /// No shard knows the old member any more.
    pub fn end_replacement(&self, slot: u32) {
        let _changing = self.changing.lock();
        self.replacement(slot).has_superblock.store(false, SeqCst);
        self.replacement(slot).step.store(Replacing::No as u8, SeqCst);
        self.update_whole();
    }

    /// The superblock that is kept for a slot is from here on the replacement's, which has it.
    pub(crate) fn superblock_is_replacements(&self, slot: u32) {
        self.replacement(slot).has_superblock.store(true, SeqCst);
    }

    /// Whether what a superblock says of offsets is about the replacement.
    pub(crate) fn is_superblock_replacements(&self, slot: u32) -> bool {
        self.replacement(slot).has_superblock.load(SeqCst)
    }

    /// The member fails: a replacement that gets its writes will have the slot as soon as [`Members::fall_to`] says so.
    /// Where it has to be rebuilt from. Called with `changing` locked.
    pub(super) fn falls_to_replacement(&self, slot: u32) -> Option<u64> {
        if self.replacing(slot) != Replacing::Copying {
            return None;
        }
        let from_bytes = self.copied_bytes(slot);
        self.move_in(slot);
        self.slots[slot as usize].recovered_bytes.store(from_bytes, SeqCst);
        self.slots[slot as usize].lacks_marked.store(false, SeqCst);
        Some(from_bytes)
    }

    /// The replacement has the slot, whose state says by now what it lacks. Called with `changing` locked.
    pub(super) fn fall_to(&self, slot: u32) {
        self.replacement(slot).step.store(Replacing::Alone as u8, SeqCst);
    }

    /// What is known of the slot is about the replacement.
    fn move_in(&self, slot: u32) {
        self.replacement(slot).step.store(Replacing::Moving as u8, SeqCst);
        let slot = &self.slots[slot as usize];
        *slot.read_errors.lock() = ReadErrors::default();
        *slot.bad.lock() = std::mem::take(&mut *slot.replacement.bad.lock());
        slot.bad_room.store(slot.replacement.bad_room.load(SeqCst), SeqCst);
        slot.bad_version.fetch_add(1, SeqCst);
        slot.errors.store(0, SeqCst);
    }

    /// Called with `changing` locked. As with states, it counts as not on disk before anyone can act on it.
    fn change_step(&self, slot: u32, step: Replacing) {
        self.metadata.wanted.fetch_add(1, SeqCst);
        self.replacement(slot).step.store(step as u8, SeqCst);
        self.update_whole();
        self.wake_keeper();
    }
}
