//! What `--force` leaves on a device.

/// Former contents in the data area of a member.
pub fn stays(path: &str, stays: &[String]) -> String {
    format!(
        "{path} still has {}: the data area is never cleared, and it stays until the array writes there\n",
        stays.join(" and ")
    )
}
