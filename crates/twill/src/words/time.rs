//! Points in time.

use std::time::{Duration, UNIX_EPOCH};

/// Seconds since 1970 as `2026-01-31T12:00:00Z`.
pub fn seconds(unix_s: u64) -> String {
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(unix_s.min(1 << 37))).to_string()
}

/// Milliseconds since 1970 as `2026-01-31T12:00:00.000Z`.
pub fn milliseconds(unix_ms: u64) -> String {
    humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(unix_ms.min(1 << 47))).to_string()
}
