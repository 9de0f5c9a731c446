//! Which events are alerts, and how many of them are sent. Pure.

use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;

/// What happened to an array, as it is sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Alert {
    /// This machine.
    pub host: String,
    /// The array's name.
    pub array: String,
    /// Its UUID; empty in a test.
    pub uuid: String,
    /// The event's name, as in `events --json`.
    pub event: String,
    /// Whether somebody should look. Others go to programs only.
    pub is_alert: bool,
    /// The device of the member that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The event in words.
    pub text: String,
    /// When, in milliseconds since 1970.
    pub unix_ms: u64,
}

/// Events that say that things go as they should. All others are alerts, those of later versions too.
const AS_THEY_SHOULD: [&str; 15] = [
    "array-stopped",
    "member-back",
    "member-re-added",
    "member-removed",
    "recovery-finished",
    "recovery-started",
    "redo-log-in-force",
    "redo-log-over",
    "redo-log-replayed",
    "replacement-finished",
    "replacement-started",
    "resync-finished",
    "resync-started",
    "scrub-finished",
    "scrub-started",
];

/// Whether somebody should look at an event, as `events --json` has it.
pub fn is_alert(event: &Value) -> bool {
    let name = event["event"].as_str().unwrap_or_default();
    let count = |field: &str| event[field].as_u64().unwrap_or(0);
    match name {
        "scrub-finished" => count("mismatch_sectors") > 0 || count("left") > 0,
        "segments-changed" => count("left_out") > 0,
        name => !AS_THEY_SHOULD.contains(&name),
    }
}

/// The rate limit of one array's alerts: a burst of `hourly`, which refills within an hour.
#[derive(Debug)]
pub struct Allowance {
    most: f64,
    left: f64,
    since: Instant,
    held_back: u64,
}

const HOUR: Duration = Duration::from_secs(3600);

impl Allowance {
    /// None was sent yet.
    pub fn new(hourly: u32, now: Instant) -> Self {
        let most = f64::from(hourly.max(1));
        Allowance { most, left: most, since: now, held_back: 0 }
    }

    /// Whether one more may be sent now, and how many were held back before it.
    pub fn take(&mut self, now: Instant) -> Option<u64> {
        let hours = now.duration_since(self.since).as_secs_f64() / HOUR.as_secs_f64();
        self.left = (self.left + hours * self.most).min(self.most);
        self.since = now;
        if self.left < 1.0 {
            self.held_back += 1;
            return None;
        }
        self.left -= 1.0;
        Some(std::mem::take(&mut self.held_back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_goes_as_it_should_is_no_alert() {
        for (event, expected) in [
            (json!({ "event": "member-failed", "member": 1 }), true),
            (json!({ "event": "something-of-a-later-version" }), true),
            (json!({ "event": "recovery-started" }), false),
            (json!({ "event": "scrub-finished", "mismatch_sectors": 0, "left": 0 }), false),
            (json!({ "event": "scrub-finished", "mismatch_sectors": 8, "left": 0 }), true),
            (json!({ "event": "segments-changed", "columns": 4, "left_out": 0 }), false),
            (json!({ "event": "segments-changed", "columns": 3, "left_out": 1 }), true),
        ] {
            assert_eq!(is_alert(&event), expected, "{event}");
        }
    }

    #[test]
    fn a_flood_is_counted_and_said_with_the_next_alert() {
        let start = Instant::now();
        let mut allowance = Allowance::new(4, start);
        let taken: Vec<_> = (0..10).filter_map(|_| allowance.take(start)).collect();
        assert_eq!(taken, [0; 4]);
        assert_eq!(allowance.take(start + HOUR / 4), Some(6));
        assert_eq!(allowance.take(start + HOUR / 4), None);
        let days: Vec<_> = (0..10).filter_map(|_| allowance.take(start + HOUR * 48)).collect();
        assert_eq!(days, [1, 0, 0, 0], "a burst is no longer after days without an alert");
    }
}
