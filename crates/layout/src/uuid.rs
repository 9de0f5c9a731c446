//! UUIDs in words.

/// A UUID as mdadm prints it: four groups of eight digits.
#[must_use]
pub fn display_uuid(uuid: &[u8; 16]) -> String {
    let group =
        |i: usize| uuid[i * 4..i * 4 + 4].iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    (0..4).map(group).collect::<Vec<_>>().join(":")
}
