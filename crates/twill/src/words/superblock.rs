//! Parts of a superblock, as `create`, `assemble` and `examine` name them.

use layout::md_bitmap::BitmapSuper;
use layout::md_superblock::{DeviceRole, Superblock};

/// Which part of the members a bit stands for, as `--bitmap-mapping` has it.
pub fn mapping(bitmap: &BitmapSuper) -> &'static str {
    if bitmap.mapping().is_spread() { "dblock" } else { "contiguous" }
}

/// md's flags of a device, in mdadm's words.
pub fn device_flags(superblock: &Superblock) -> Vec<&'static str> {
    let flags = [(superblock.is_write_mostly(), "write-mostly"), (superblock.is_failfast(), "failfast")];
    flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, word)| word).collect()
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
