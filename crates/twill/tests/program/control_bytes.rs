//! The control socket on mutations of good calls, before a served array: whatever is said there, each line is answered as
//! JSON-RPC has it, nothing is lost, and the server goes on.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;

use serde_json::{Value, json};

use crate::calls::{Random, calls};
use crate::nbd::FUA;
use crate::world::World;

const LINES: usize = 4000;
const BLOCK: usize = 4096;

#[test]
fn whatever_is_said_to_the_control_socket_is_answered() {
    let world = World::new();
    let members = world.members(5);
    world.twill(&["create", "--level", "6", "--name", "test"], &members).succeeds();
    world.member("spare", crate::world::MEMBER_BYTES);
    let server = world.serve(&[], &members);
    let mut client = world.client();
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
