//! Where on a member the log has room.

use super::raw::{BLOCK_BYTES, PIECES_MAX};
use crate::md_superblock::{MinorVersion, Superblock};

/// More than this is of no use: the log is emptied again and again.
pub const AREA_BYTES_MAX: u64 = 16 << 20;

/// Two headers, so that a torn one leaves the other.
const HEADERS: u64 = 2;
/// With fewer slots a write would wait for the log to be emptied each time.
const SLOTS_MIN: u64 = 4;
/// With more the slots are made larger, for more writes in one.
const SLOTS_MANY: u64 = 32;
/// The least slot: a header and a few small writes.
const SLOT_BYTES_MIN: u64 = 64 << 10;
const SLOT_BYTES_MAX: u64 = 512 << 10;
/// What mdadm may want for a bitmap that is added later: superblock, bad-block log and the largest room it keeps.
const MD_ROOM_BYTES: u64 = 256 << 10;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// What is known of a member's bitmap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BitmapExtent {
    /// There is none.
    Absent,
    /// Its superblock and bits together, in bytes.
    Bytes(u64),
    /// There is one and nobody knows how long it is.
    Unknown,
}

/// Room for the log on one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedoArea {
    /// First byte on the device, a multiple of 4 KiB.
    pub start_bytes: u64,
    /// Length in bytes, a multiple of 4 KiB.
    pub bytes: u64,
}

impl RedoArea {
    /// The room right before a member's data, after everything that md has there. `None` at version 1.0, where data
    /// stands first, or if there is too little.
    #[must_use]
    pub fn of(superblock: &Superblock, bitmap: BitmapExtent) -> Option<RedoArea> {
        if superblock.minor_version() == MinorVersion::V1_0 {
            return None;
        }
        let bitmap_end = match (superblock.bitmap_start(), bitmap) {
            (None, _) => 0,
            (Some(start), BitmapExtent::Bytes(bytes)) => start.bytes().checked_add(bytes)?,
            (Some(_), BitmapExtent::Absent | BitmapExtent::Unknown) => return None,
        };
        let log_end = superblock.bad_block_log().map_or(0, |(start, length)| start.bytes() + length.bytes());
        let end = superblock.data_offset().bytes() / BLOCK * BLOCK;
        let before_data = |end_of: u64| if end_of > end { 0 } else { end_of };
        if bitmap_end > end && superblock.bitmap_start()?.bytes() < end {
            return None;
        }
        let taken = [superblock.offset() + BLOCK, before_data(bitmap_end), before_data(log_end)];
        let low = taken.into_iter().max()?.next_multiple_of(BLOCK);
        // What md may want later is left to it, unless there is nothing else.
        let least = HEADERS * BLOCK + SLOTS_MIN * SLOT_BYTES_MIN;
        let low = if end >= MD_ROOM_BYTES.max(low) + least { MD_ROOM_BYTES.max(low) } else { low };
        let bytes = end.checked_sub(low)?.min(AREA_BYTES_MAX);
        (bytes >= least).then_some(RedoArea { start_bytes: end - bytes, bytes })
    }

    /// Where header 0 or 1 is on the device, in bytes.
    #[must_use]
    pub fn header_offset(self, copy: u64) -> u64 {
        self.start_bytes + copy % HEADERS * BLOCK
    }
}

/// How the areas of an array's members are cut into slots, the same on every member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotPlan {
    /// Bytes of a slot, its header included.
    pub slot_bytes: u32,
    /// How many there are.
    pub slots: u32,
}

impl SlotPlan {
    /// The slots of an array of `members` members of which the smallest log has `area_bytes`. A slot holds at least
    /// one block of every member. `None` if that is too much.
    #[must_use]
    pub fn new(members: u32, area_bytes: u64) -> Option<SlotPlan> {
        let room = area_bytes.checked_sub(HEADERS * BLOCK).filter(|_| members as usize <= PIECES_MAX)?;
        let least = (BLOCK * (u64::from(members) + 1)).next_power_of_two().max(SLOT_BYTES_MIN);
        let wanted = (room / SLOTS_MANY / BLOCK * BLOCK).clamp(least, SLOT_BYTES_MAX.max(least));
        let slots = room / wanted;
        (slots >= SLOTS_MIN).then(|| SlotPlan {
            slot_bytes: u32::try_from(wanted).expect("a slot is small"),
            slots: u32::try_from(slots).expect("few slots"),
        })
    }

    /// What a header may say: `None` if such slots do not fit in `area_bytes`.
    #[must_use]
    pub fn checked(slot_bytes: u32, slots: u32, area_bytes: u64) -> Option<SlotPlan> {
        let fits =
            u64::from(slot_bytes).checked_mul(u64::from(slots))?.checked_add(HEADERS * BLOCK)? <= area_bytes;
        let whole = slot_bytes as usize > BLOCK_BYTES && (slot_bytes as usize).is_multiple_of(BLOCK_BYTES);
        (fits && whole && slots > 0).then_some(SlotPlan { slot_bytes, slots })
    }

    /// Where a slot is on the device, in bytes.
    #[must_use]
    pub fn slot_offset(self, area: RedoArea, slot: u32) -> u64 {
        assert!(slot < self.slots, "slot {slot} of {}", self.slots);
        area.start_bytes + HEADERS * BLOCK + u64::from(slot) * u64::from(self.slot_bytes)
    }

    /// Bytes of a slot after its header.
    #[must_use]
    pub fn payload_bytes(self) -> usize {
        self.slot_bytes as usize - BLOCK_BYTES
    }
}
