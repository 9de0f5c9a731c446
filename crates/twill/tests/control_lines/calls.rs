//! Calls over the control socket, and lines that are nearly such.

use serde_json::{Value, json};

/// Good calls of every method but `stop`.
pub fn calls() -> Vec<String> {
    let calls = [
        ("ping", Value::Null),
        ("status", Value::Null),
        ("events", json!({ "since": 3 })),
        ("fail", json!({ "member": "m1" })),
        ("remove", json!({ "member": "m1" })),
        ("remove", json!({ "member": "failed" })),
        ("add", json!({ "path": "spare", "force": true })),
        ("add", json!({ "path": "m0", "force": true })),
        ("re-add", json!({ "path": "m1" })),
        ("replace", json!({ "member": "m0", "with": "spare", "force": true })),
        ("replace", json!({ "member": "2" })),
        ("scrub", json!({ "repair": false, "trust_data": false, "restart": true })),
        ("scrub-wish", json!({ "wish": "pause" })),
        ("scrub-wish", json!({ "wish": "cancel" })),
        ("scrub-report", Value::Null),
        ("set", json!({ "update_policy": "adaptive", "avoid_slow": true, "rate_max": 1u64 << 30 })),
        ("set", json!({ "rate_min": 1, "p99_budget_ns": 1_000_000 })),
    ];
    let line = |(method, params): (&str, Value)| {
        json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string()
    };
    calls.into_iter().map(line).collect()
}

/// Draws how a line is changed.
pub struct Random(pub u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n.max(1)
    }

    /// A line with a few bytes or a whole value changed; never a line's end, and never a `stop`.
    pub fn mutate(&mut self, line: &str) -> Vec<u8> {
        const VALUES: [&str; 9] =
            ["null", "-1", "1e999", "18446744073709551616", "\"\"", "[]", "{}", "\"\\u0000\"", "[[[[[[[["];
        let mut bytes = line.as_bytes().to_vec();
        for _ in 0..self.below(4) {
            if bytes.len() < 2 {
                break;
            }
            let at = self.below(bytes.len());
            match self.below(6) {
                0 => bytes[at] ^= 1 << self.below(8),
                1 => bytes[at] = self.below(256) as u8,
                2 => drop(bytes.remove(at)),
                3 => bytes.truncate(at.max(1)),
                4 => bytes.extend_from_within(at..),
                _ => {
                    let value = VALUES[self.below(VALUES.len())];
                    let colon =
                        bytes[at..].iter().position(|byte| *byte == b':').map_or(at, |found| at + found + 1);
                    let end = bytes[colon..]
                        .iter()
                        .position(|byte| b",}".contains(byte))
                        .map_or(colon, |n| colon + n);
                    bytes.splice(colon..end, value.bytes());
                }
            }
        }
        bytes.retain(|byte| *byte != b'\n');
        if bytes.windows(4).any(|word| word == b"stop") { Vec::new() } else { bytes }
    }
}
