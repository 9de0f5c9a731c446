//! What a start or a read finds to be wrong, named by member and byte.

use layout::units::Slot;

use super::port::LogPort;
use crate::events::Event;
use crate::limits::BLOCK_BYTES;
use crate::zone_device::ZoneDevice;

/// A block that is not what was written there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The member's slot.
    pub slot: usize,
    /// The zone.
    pub zone: u32,
    /// The block of the zone.
    pub block: u32,
    /// What is wrong there.
    pub what: &'static str,
}

/// Reports damage as an event.
pub fn report<D: ZoneDevice>(port: &LogPort<D>, damage: &Damage) {
    let Some(device) = port.device(damage.slot) else { return };
    let in_zone = u64::from(damage.block) * BLOCK_BYTES as u64;
    port.shared.members.report(Event::LogDamaged {
        member: Slot::of_index(damage.slot),
        offset_bytes: device.zoned().offset_bytes(damage.zone, in_zone),
        what: damage.what,
    });
}
