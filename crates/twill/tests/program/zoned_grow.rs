//! Zoned arrays that grow by members while they are served, as operators see it.

use std::fs;
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::world::{Server, World};
use crate::zoned::{MEMBER_BYTES, assert_holds, create, fill, holds, kill, members, write};

/// Waits until every segment is over all members.
fn wait_grown(server: &Server) -> Value {
    for _ in 0..1200 {
        let status = server.status();
        if status["zoned"]["growing"] == false {
            return status;
        }
        thread::sleep(Duration::from_millis(50));
    }
    panic!("it keeps growing: {:#}", server.status());
}

/// Level, what is added, and what may be lost then.
const GROWS: [(&str, &[&str], &[&str]); 4] = [
    ("0", &["m4"], &[]),
    ("5", &["m4"], &["m0"]),
    ("6", &["m4", "m5"], &["m1", "m4"]),
    ("10", &["m4", "m5"], &["m5"]),
];

#[test]
fn a_served_array_grows_and_has_its_new_size_at_the_next_start() {
    for (level, added, lost) in GROWS {
        let world = World::new();
        let mut paths = members(&world, 4);
        let size = create(&world, level, &paths)["size_bytes"].as_u64().expect("a size");
        let blocks = size / 4096;
        let server = world.serve(&[], &paths);
        let mut client = world.client();
        fill(&mut client, blocks, 1); // all that there is
        let flags: Vec<&str> = added.iter().flat_map(|path| ["--add", *path]).collect();
        added.iter().for_each(|path| _ = world.member(path, MEMBER_BYTES));
        let wrong = server.twill(&[&["grow", "--raid-devices", "9"], &flags[..]].concat()).fails(2);
        assert!(wrong.stderr.contains("do not make 9"), "{wrong:?}");
        let grown = server.twill(&[&["grow"], &flags[..]].concat()).succeeds();
        assert!(grown.stdout.contains(&format!("{} members now", 4 + added.len())), "{grown:?}");
        write(&mut client, 0, 100, 2, 0); // while it grows
        let status = wait_grown(&server);
        assert_eq!(status["raid_devices"].as_u64(), Some(4 + added.len() as u64), "{status:#}");
        assert_eq!(status["size_bytes"].as_u64(), Some(size), "clients see what they saw");
        let next = status["zoned"]["next_size_bytes"].as_u64().expect("a size");
        assert!(next > size + size / 10, "{level}: {next} after {size}");
        let events = server.twill(&["events"]).succeeds().stdout;
        assert!(events.contains("more: segments are rewritten") && events.contains("it is"), "{events}");
        assert_holds(&mut client, 0, 100, 2);
        drop(client);
        server.stop();
        paths.extend(added.iter().map(|path| (*path).to_owned()));
        let server = world.serve(&[], &paths);
        assert_eq!(server.status()["size_bytes"].as_u64(), Some(next), "level {level}");
        let mut client = world.client();
        fill(&mut client, next / 4096, 3);
        lost.iter().for_each(|path| _ = server.twill(&["fail", path]).succeeds());
        holds(&mut client, next / 4096, 3);
        drop(client);
        server.stop();
    }
}

#[test]
fn a_server_that_is_killed_goes_on_growing() {
    let world = World::new();
    let mut paths = members(&world, 4);
    let size = create(&world, "5", &paths)["size_bytes"].as_u64().expect("a size");
    let mut server = world.serve(&[], &paths);
    let mut client = world.client();
    fill(&mut client, size / 4096, 1);
    assert_eq!(client.flush().expect("served"), 0);
    world.member("m4", MEMBER_BYTES);
    server.twill(&["grow", "--add", "m4"]).succeeds();
    drop(client);
    kill(&mut server);
    paths.push("m4".to_owned());
    let server = world.serve(&[], &paths);
    wait_grown(&server);
    holds(&mut world.client(), size / 4096, 1);
    server.twill(&["check"]).succeeds();
    server.stop();
}

#[test]
fn what_does_not_fit_is_refused_and_the_array_is_as_it_was() {
    let world = World::new();
    let paths = members(&world, 4);
    create(&world, "5", &paths);
    let server = world.serve(&[], &paths);
    let mut client = world.client();
    write(&mut client, 0, 50, 1, 0);
    world.member("small", MEMBER_BYTES / 2);
    fs::write(world.path("text"), "not empty".repeat(1000)).expect("a file");
    for (device, code, words) in
        [("small", 10, "zones"), ("text", 3, "--force"), ("m1", 6, "m1"), ("nothing", 8, "nothing")]
    {
        let refused = server.twill(&["grow", "--add", device]);
        assert_eq!(refused.code, code, "{device}: {refused:?}");
        assert!(refused.stderr.contains(words), "{refused:?}");
    }
    let many: Vec<String> = (0..5).map(|i| world.member(&format!("n{i}"), MEMBER_BYTES)).collect();
    let flags: Vec<&str> = many.iter().flat_map(|path| ["--add", path.as_str()]).collect();
    let refused = server.twill(&[&["grow"], &flags[..]].concat()).fails(10);
    assert!(refused.stderr.contains("over 8 members at most"), "{refused:?}");
    server.twill(&["fail", "m2"]).succeeds();
    let refused = server.twill(&["grow", "--add", "n0"]);
    assert!(refused.code != 0 && refused.stderr.contains("missing or still being made whole"), "{refused:?}");
    assert_eq!(server.status()["raid_devices"], 4);
    assert_holds(&mut client, 0, 50, 1);
    drop(client);
    server.stop();
}
