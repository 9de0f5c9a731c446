//! What `--force` leaves on a device.

use crate::plain::plain;

/// Former contents in the data area of a member.
pub fn stays(path: &str, stays: &[String]) -> String {
    format!(
        "{} still has {}: the data area is never cleared, and it stays until the array writes there\n",
        plain(path),
        stays.join(" and ")
    )
}
