//! The server is killed (SIGKILL) under load, again and again, over file members. Nothing that was acknowledged is
//! lost, no block is anything but one of its versions, and after the resync every stripe's parity agrees.
//!
//! `TWILL_KILL_ROUNDS=100 cargo test -p twill-raid --test program kill_9` is the long run. `TWILL_KILL_SEED` repeats a run
//! as far as a kill can be repeated.

use std::fs;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::load::{Random, Writer, compare_all, number};
use crate::nbd::Client;
use crate::world::{MEMBER_BYTES, Server, World};

const MEMBERS: usize = 4;
/// The data areas of all members of a RAID-5 sum up to zero.
fn assert_parity_agrees(world: &World, members: &[String]) {
    let data_offset = world.twill(&["examine", "--json"], members).succeeds().json();
    let offset = data_offset["members"][0]["superblock"]["data_offset_bytes"].as_u64().expect("a place");
    let all: Vec<Vec<u8>> =
        members.iter().map(|name| fs::read(world.path(name)).expect("a member")).collect();
    let end =
        world.twill(&["examine", "--json"], members).json()["members"][0]["superblock"]["used_member_bytes"]
            .as_u64();
    let end = (offset + end.expect("a size")).min(MEMBER_BYTES);
    let agrees = |at: &u64| all.iter().fold(0, |sum, member| sum ^ member[*at as usize]) == 0;
    let wrong = (offset..end).find(|at| !agrees(at));
    assert_eq!(wrong, None, "the first byte whose parity does not agree");
}

fn rounds() -> u64 {
    number("TWILL_KILL_ROUNDS", 5)
}

/// Serves these members, loads them and kills the server, `rounds` times; `check` looks after each. Returns how many
/// requests were acknowledged.
fn kill_under_load(
    world: &World,
    members: &[String],
    check: impl Fn(u64, &mut [Writer]),
) -> (u64, Vec<Writer>) {
    let seed = number("TWILL_KILL_SEED", 0x9e37_79b9);
    let socket = world.path("nbd.sock");
    let mut random = Random(seed);
    let mut writers: Vec<Writer> = Vec::new();
    let mut acknowledged = 0;
    for round in 0..rounds() {
        let server = world.serve(&["--shards", "2"], members);
        if writers.is_empty() {
            writers = Writer::all(Client::connect(&socket).expect("served").size_bytes, seed);
        }
        let pid = Pid::from_child(&server.process);
        let delay = Duration::from_millis(5 + random.below(250));
        let killer = thread::spawn(move || {
            thread::sleep(delay);
            kill_process(pid, Signal::KILL).expect("it runs");
        });
        thread::scope(|scope| {
            let loads: Vec<_> =
                writers.iter_mut().map(|writer| scope.spawn(|| writer.load(&socket))).collect();
            acknowledged += loads.into_iter().map(|load| load.join().expect("no panic")).sum::<u64>();
        });
        killer.join().expect("no panic");
        drop(server);
        check(round, &mut writers);
    }
    println!("{} kills, {acknowledged} requests acknowledged", rounds());
    (acknowledged, writers)
}

#[test]
fn kill_9_under_load_loses_nothing_that_was_acknowledged() {
    let world = World::new();
    let members = world.array(MEMBERS);
    let (acknowledged, _) = kill_under_load(&world, &members, |round, writers| {
        // Every third time the next server is killed, too, while it makes parity agree.
        if round % 3 == 2 {
            drop(world.serve(&[], &members));
        }
        let server = world.serve(&[], &members);
        compare_all(&world, writers);
        server.wait_for("a resync", |status| status["rebuild"].is_null());
        server.stop();
        assert_parity_agrees(&world, &members);
    });
    assert!(acknowledged > rounds() * 10, "{acknowledged} requests in {} rounds are no load", rounds());
}

/// Without a member, what a half-written stripe held there is known to the redo log alone. No server needs force,
/// and none has a stripe in doubt.
#[test]
fn kill_9_with_a_member_missing_loses_nothing_either() {
    let world = World::new();
    let members = world.array(MEMBERS);
    let server = world.serve(&[], &members);
    server.twill(&["fail", &members[1]]).succeeds();
    assert_eq!(server.status()["redo_log"], "in-force", "an operator's failure waits for it");
    server.stop();
    let left: Vec<String> = members.iter().filter(|name| **name != members[1]).cloned().collect();
    let (acknowledged, mut writers) = kill_under_load(&world, &left, |_, writers| {
        let server = world.serve(&[], &left);
        compare_all(&world, writers);
        server.stop();
    });
    assert!(acknowledged > rounds() * 10, "{acknowledged} requests in {} rounds are no load", rounds());
    let server = world.serve(&[], &left);
    let spare = world.member("spare", MEMBER_BYTES);
    server.twill(&["add", &spare]).succeeds();
    let whole = |status: &serde_json::Value| {
        status["rebuild"].is_null()
            && status["members"].as_array().expect("members").iter().all(|m| m["state"] == "in-sync")
    };
    server.wait_for("a recovery", whole);
    compare_all(&world, &mut writers);
    server.stop();
    let all = [&left[..1], &[spare], &left[1..]].concat();
    assert_parity_agrees(&world, &all);
}

/// As md does it: nothing is logged, which `status` says, and after a crash stripes are in doubt.
#[test]
fn without_a_log_a_crash_with_a_member_missing_leaves_doubt() {
    let world = World::new();
    let members = world.array(MEMBERS);
    let server = world.serve(&["--no-redo-log"], &members);
    assert_eq!(server.status()["redo_log"], "unused");
    server.twill(&["fail", &members[1]]).succeeds();
    server.stop();
    let left: Vec<String> = members.iter().filter(|name| **name != members[1]).cloned().collect();
    let doubts = |options: &[&str]| {
        let server = world.serve(options, &left);
        let mut client = world.client();
        assert_eq!(client.write(0, &[7; 8192], 0).expect("served"), 0);
        drop(server); // killed
        let server = world.serve(options, &left);
        let doubts = server.status()["stripes_in_doubt"].as_u64().expect("a number");
        server.stop();
        doubts
    };
    assert_eq!(doubts(&[]), 0, "logged");
    assert!(doubts(&["--no-redo-log"]) > 0, "not logged");
}

/// The member is gone for good: an operator accepts what parity makes, first of one stripe, then of all, and a spare is filled.
#[test]
fn doubt_ends_by_an_operators_word() {
    let world = World::new();
    let members = world.array(MEMBERS);
    let server = world.serve(&["--no-redo-log"], &members);
    let refused = server.twill(&["accept-doubt", "--all"]).fails(6);
    assert!(refused.stderr.contains("no member is missing"), "{refused:?}");
    server.twill(&["fail", &members[1]]).succeeds();
    let mut client = world.client();
    assert_eq!(client.write(0, &[7; 8192], 0).expect("served"), 0);
    drop(server); // killed
    let left: Vec<String> = members.iter().filter(|name| **name != members[1]).cloned().collect();
    let server = world.serve(&["--no-redo-log"], &left);
    let doubts = |server: &Server<'_>| {
        let status = server.status();
        (status["stripes_in_doubt"].as_u64().expect("a number"), status["doubts"].clone())
    };
    let (before, ranges) = doubts(&server);
    let first = ranges[0]["first"].as_u64().expect("a stripe");
    assert!(before > 1, "{ranges}");
    for arguments in [&["status"][..], &["status", "--wait"]] {
        let run = server.twill(arguments).fails(20);
        let said = format!("{}{}", run.stdout, run.stderr);
        assert!(said.contains("in doubt") && said.contains("twill accept-doubt"), "{run:?}");
    }
    let spare = world.member("spare", MEMBER_BYTES);
    server.twill(&["add", &spare]).succeeds();
    let one = server.twill(&["accept-doubt", "--stripes", &first.to_string(), "--json"]).succeeds();
    assert_eq!((one.json()["stripes"].as_u64(), doubts(&server).0), (Some(1), before - 1));
    server.twill(&["accept-doubt", "--stripes", "9-3"]).fails(2);
    server.twill(&["accept-doubt", "--stripes", "99999999"]).fails(2);
    assert_eq!(doubts(&server).0, before - 1, "refusals change nothing");
    server.twill(&["accept-doubt", "--all"]).succeeds();
    let in_sync = |status: &serde_json::Value| {
        status["members"].as_array().expect("members").iter().all(|member| member["state"] == "in-sync")
    };
    server.wait_for("the spare", in_sync);
    server.twill(&["status", "--wait"]).succeeds();
    assert_eq!(client_reads(&world), 0);
    assert!(server.twill(&["events"]).succeeds().stdout.contains("by an operator's word"));
    server.stop();
}

/// How many reads fail.
fn client_reads(world: &World) -> usize {
    let mut client = world.client();
    let reads = (0..client.size_bytes).step_by(1 << 20);
    let failed = reads.filter(|at| {
        let bytes = (client.size_bytes - at).min(1 << 20) as u32;
        client.read(*at, bytes).expect("served").is_err()
    });
    failed.count()
}

/// An orderly stop had the superblocks name a resync that was due to stripes long since good, and all of them were in doubt
/// again at the next start.
#[test]
fn what_was_overwritten_is_not_in_doubt_after_an_orderly_stop() {
    let world = World::new();
    let members = world.array(MEMBERS);
    let left = &members[1..];
    let server = world.serve(&["--no-redo-log"], &members);
    server.twill(&["fail", &members[0]]).succeeds();
    let mut client = world.client();
    assert_eq!(client.write(0, &[7; 8192], 0).expect("served"), 0);
    drop(server); // killed
    let server = world.serve(&["--no-redo-log"], left);
    let doubts = |server: &Server<'_>| server.status()["stripes_in_doubt"].as_u64().expect("a number");
    assert!(doubts(&server) > 0);
    let mut client = world.client();
    for at in (0..client.size_bytes).step_by(1 << 20) {
        let bytes = (client.size_bytes - at).min(1 << 20) as usize;
        assert_eq!(client.write(at, &vec![9; bytes], 0).expect("served"), 0);
    }
    assert_eq!(doubts(&server), 0, "all was overwritten");
    server.stop();
    for options in [&[][..], &["--no-redo-log"], &[]] {
        let server = world.serve(options, left);
        assert_eq!(doubts(&server), 0, "{options:?}");
        let mut client = world.client();
        assert_eq!(client.read(0, 8192).expect("served"), Ok(vec![9; 8192]));
        server.stop();
    }
}

/// With this policy superblocks always say clean, so no start would replay the log.
#[test]
fn nothing_is_logged_where_superblocks_do_not_say_that_writes_are_under_way() {
    let world = World::new();
    let members = world.array(MEMBERS);
    let server = world.serve(&["--consistency-policy", "none"], &members);
    server.twill(&["fail", &members[1]]).succeeds();
    assert_eq!(server.status()["redo_log"], "unused");
    server.stop();
}
