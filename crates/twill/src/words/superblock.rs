//! Parts of a superblock, as `create`, `assemble` and `examine` name them.

use layout::md_bitmap::BitmapSuper;
use layout::md_superblock::DeviceRole;

/// Which part of the members a bit stands for, as `--bitmap-mapping` has it.
pub fn mapping(bitmap: &BitmapSuper) -> &'static str {
    if bitmap.mapping().is_spread() { "dblock" } else { "contiguous" }
}

/// What a device is to its array.
pub fn role(role: DeviceRole) -> String {
    match role {
        DeviceRole::Active(slot) => format!("Active device {slot}"),
        DeviceRole::Spare => "spare".into(),
        DeviceRole::Faulty => "Faulty".into(),
        DeviceRole::Journal => "Journal".into(),
    }
}
