//! Whether a device is cut into the zones that the members of an array have.

use layout::zoned::{Access, MemberZones};

use super::plan::access_of;
use crate::limits::BLOCK_BYTES;
use crate::zone_device::ZoneDevice;

/// A device is cut into other zones.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it has {found}, and the members of the array have {expected}")]
pub struct OtherZones {
    /// Of the device.
    pub found: String,
    /// Of the array.
    pub expected: String,
}

/// Whether a device has the zones that superblocks name.
///
/// # Errors
/// It has others, or smaller ones, or fewer.
pub fn check_zones<D: ZoneDevice>(device: &D, zones: &MemberZones) -> Result<(), OtherZones> {
    let zoned = device.zoned();
    let block = BLOCK_BYTES as u64;
    let capacity_bytes = u64::from(zones.capacity_blocks) * block;
    let zone_bytes = u64::from(zones.zone_blocks) * block;
    let is_right = access_of(zoned.access) == zones.access
        && zoned.zone_bytes == zone_bytes
        && zoned.capacity_bytes >= capacity_bytes
        && zoned.zones >= zones.zones;
    if is_right {
        return Ok(());
    }
    let words = |zones: u32, zone_bytes: u64, capacity_bytes: u64, how: Access| {
        let (zone, capacity) = (zone_bytes / 1024, capacity_bytes / 1024);
        let how = match how {
            Access::Append => "by Zone Append",
            Access::Sequential => "in order",
            Access::Placed => "anywhere in a zone",
        };
        format!("{zones} zones of {zone} KiB, {capacity} KiB of each to write, {how}")
    };
    Err(OtherZones {
        found: words(zoned.zones, zoned.zone_bytes, zoned.capacity_bytes, access_of(zoned.access)),
        expected: words(zones.zones, zone_bytes, capacity_bytes, zones.access),
    })
}
