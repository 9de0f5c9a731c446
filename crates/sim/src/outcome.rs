//! One of the arrays that a crash could leave: which device is in sync, and where its superblocks and bitmaps say that
//! parity or copies agree.

use std::ops::Range;
use std::rc::Rc;

use engine::array::assemble::Refusal;
use engine::members::MemberState;
use layout::geometry::Level;
use layout::md_bitmap;

use crate::disk::Disk;
use crate::scenario::Scenario;

/// One of the arrays that a crash now could leave.
pub(crate) struct Outcome {
    pub(crate) states: Vec<MemberState>,
    pub(crate) disks: Vec<Option<Rc<Disk>>>,
    /// Where the bitmap begins on the device in each slot, if there is one.
    pub(crate) bitmaps: Vec<Option<u64>>,
    /// From here on, in bytes of the data area, parity or copies need not agree.
    pub(crate) resync_from: Option<u64>,
    pub(crate) refusal: Option<Refusal>,
}

impl Outcome {
    /// Whether the array has this device in sync.
    pub(crate) fn trusts(&self, device: u32) -> bool {
        self.states.iter().zip(&self.disks).any(|(state, disk)| {
            *state == MemberState::InSync && disk.as_ref().is_some_and(|disk| disk.number == device)
        })
    }

    /// A device in sync whose bitmap may lack a bit of a changing part of `range` (of the members' data areas) after a power
    /// cut. None for RAID-10, whose bits stand for places of the array: its copies are compared after each crash.
    pub(crate) fn unmarked(
        &self,
        scenario: &Scenario,
        range: Range<u64>,
        changes: &dyn Fn(Range<u64>) -> bool,
    ) -> Option<u32> {
        let mapping = scenario.mapping()?;
        if scenario.geometry.level() == Level::Raid10 || self.resync_from.is_none() {
            return None;
        }
        let shift = mapping.unit_shift();
        for (slot, disk) in self.disks.iter().enumerate() {
            let in_sync = self.states[slot] == MemberState::InSync;
            let Some((disk, start)) = disk.as_ref().filter(|_| in_sync).zip(self.bitmaps[slot]) else {
                continue;
            };
            for unit in range.start >> shift..range.end.div_ceil(1 << shift) {
                let (mut set, bit) = (true, mapping.bit(unit));
                let byte = start + md_bitmap::SUPER_BYTES as u64 + bit / 8;
                disk.may_hold_byte(byte, |byte| set &= byte & (1 << (bit % 8)) != 0);
                if !set && changes(unit << shift..(unit + 1) << shift) {
                    return Some(disk.number);
                }
            }
        }
        None
    }
}
