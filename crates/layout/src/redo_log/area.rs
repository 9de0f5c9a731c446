//! Where on a member the log lies, and how it is cut into slots.

use super::raw::PIECES_MAX;
use crate::headroom::{BLOCK_BYTES, BitmapExtent, Headroom};
use crate::md_superblock::Superblock;
use crate::units::DeviceOffset;

/// The largest log. The engine empties the log continuously, so that more room gains nothing.
pub const AREA_BYTES_MAX: u64 = 16 << 20;

/// Two headers, so that a torn one leaves the other.
const HEADERS: u64 = 2;
/// With fewer slots every write would wait until the log is emptied.
const SLOTS_MIN: u64 = 4;
/// Room for more slots than this goes into larger slots, which hold more writes each.
const SLOTS_MANY: u64 = 32;
/// The smallest slot: a header and a few small writes.
const SLOT_BYTES_MIN: u64 = 64 << 10;
const SLOT_BYTES_MAX: u64 = 512 << 10;
/// What mdadm needs before the data to add a bitmap later: superblock, bad-block log, and the largest bitmap.
const MD_ROOM_BYTES: u64 = 256 << 10;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Room for the log on one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedoArea {
    /// First byte on the device, a multiple of 4 KiB.
    pub start: DeviceOffset,
    /// Length in bytes, a multiple of 4 KiB.
    pub bytes: u64,
}

impl RedoArea {
    /// The room between everything that md keeps before the data and the data. `None` if that is too little, and at
    /// version 1.0, where nothing precedes the data.
    #[must_use]
    pub fn of(superblock: &Superblock, bitmap: BitmapExtent) -> Option<RedoArea> {
        let Headroom { start_bytes: low, end_bytes: end } = Headroom::of(superblock, bitmap)?;
        // Leave mdadm its room for a bitmap, unless the log fits nowhere else.
        let least = HEADERS * BLOCK + SLOTS_MIN * SLOT_BYTES_MIN;
        let low = if end >= MD_ROOM_BYTES.max(low) + least { MD_ROOM_BYTES.max(low) } else { low };
        let bytes = end.checked_sub(low)?.min(AREA_BYTES_MAX);
        (bytes >= least).then_some(RedoArea { start: DeviceOffset::new(end - bytes), bytes })
    }

    /// Where header 0 or 1 is on the device.
    #[must_use]
    pub fn header_offset(self, copy: u64) -> DeviceOffset {
        self.start + copy % HEADERS * BLOCK
    }
}

/// How the log is cut into slots, the same on every member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotPlan {
    /// Bytes of a slot, its header included.
    pub slot_bytes: u32,
    /// Number of slots.
    pub slots: u32,
}

impl SlotPlan {
    /// The slots for `members` members whose smallest log has `area_bytes`. A slot holds at least one block of every
    /// member. `None` if the log is too small for that.
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

    /// The slots that a header names; `None` if they do not fit in `area_bytes`.
    #[must_use]
    pub fn checked(slot_bytes: u32, slots: u32, area_bytes: u64) -> Option<SlotPlan> {
        let fits =
            u64::from(slot_bytes).checked_mul(u64::from(slots))?.checked_add(HEADERS * BLOCK)? <= area_bytes;
        let whole = slot_bytes as usize > BLOCK_BYTES && (slot_bytes as usize).is_multiple_of(BLOCK_BYTES);
        (fits && whole && slots > 0).then_some(SlotPlan { slot_bytes, slots })
    }

    /// Where a slot is on the device.
    #[must_use]
    pub fn slot_offset(self, area: RedoArea, slot: u32) -> DeviceOffset {
        assert!(slot < self.slots, "slot {slot} of {}", self.slots);
        area.start + HEADERS * BLOCK + u64::from(slot) * u64::from(self.slot_bytes)
    }

    /// Bytes of a slot after its header.
    #[must_use]
    pub fn payload_bytes(self) -> usize {
        self.slot_bytes as usize - BLOCK_BYTES
    }
}
