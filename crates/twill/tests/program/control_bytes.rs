//! The control socket on mutations of good calls, before a served array: whatever is said there, each line is answered as
//! JSON-RPC has it, nothing is lost, and the server goes on.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;

use serde_json::{Value, json};

use crate::nbd::{Client, FUA};
use crate::world::World;

const LINES: usize = 4000;
const BLOCK: usize = 4096;

/// Good calls of every method but `stop`.
fn calls() -> Vec<String> {
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

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n.max(1)
    }

    /// A line with a few bytes or a whole value changed; never a line's end, and never a `stop`.
    fn mutate(&mut self, line: &str) -> Vec<u8> {
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

#[test]
fn whatever_is_said_to_the_control_socket_is_answered() {
    let world = World::new();
    let members = world.members(5);
    world.twill(&["create", "--level", "6", "--name", "test"], &members).succeeds();
    world.member("spare", crate::world::MEMBER_BYTES);
    let server = world.serve(&[], &members);
    let mut client = Client::connect(&world.path("nbd.sock")).expect("served");
    for block in 0..64u64 {
        assert_eq!(client.write(block * 65536, &[block as u8 + 1; BLOCK], FUA).expect("answered"), 0);
    }
    let mut stream = UnixStream::connect(world.path("control.sock")).expect("the control socket");
    let mut answers = BufReader::new(stream.try_clone().expect("a socket"));
    let (mut random, calls) = (Random(1), calls());
    let (mut good, mut refused) = (0, 0);
    for number in 0..LINES {
        let mut line = random.mutate(&calls[number % calls.len()]);
        // A line without an id has no answer; the one that follows it always has.
        let next = format!("after {number}");
        line.extend_from_slice(
            format!("\n{}\n", json!({ "jsonrpc": "2.0", "id": next, "method": "ping" })).as_bytes(),
        );
        stream.write_all(&line).expect("the server reads");
        loop {
            let mut text = String::new();
            answers.read_line(&mut text).expect("readable");
            let answer: Value =
                serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text:?}"));
            assert!(
                answer["jsonrpc"] == "2.0" && answer.get("result").is_some() != answer.get("error").is_some()
            );
            assert_ne!(
                answer["error"]["data"]["kind"],
                "internal",
                "{}: {answer}",
                String::from_utf8_lossy(&line)
            );
            if answer["id"] == next.as_str() {
                break;
            }
            *if answer.get("error").is_none() { &mut good } else { &mut refused } += 1;
        }
    }
    assert!(good > LINES / 20 && refused > LINES / 4, "{good} calls were good, {refused} refused");
    for block in 0..64u64 {
        let data = client.read(block * 65536, BLOCK as u32).expect("answered").expect("readable");
        assert!(data.iter().all(|byte| *byte == block as u8 + 1), "block {block}");
    }
    drop(client);
    server.stop();
}
