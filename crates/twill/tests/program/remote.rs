//! Members on other machines: arrays over namespaces of `twill target`, which is killed, paused, down at a start, and taken over by
//! another host while the first one sleeps.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::nbd::{Client, FUA};
use crate::targets::{MEMBER_BYTES, PATIENCE, Target, wait_until_stopped};
use crate::world::{Run, Server, World};

const BLOCK: usize = 4096;

fn create(world: &World, members: &[String]) {
    let create = ["create", "--level", "5", "--name", "test", "--chunk", "64K", "--bitmap", "internal"];
    // The files are new: their parity agrees.
    world.twill(&[&create[..], &["--assume-clean"]].concat(), members).succeeds();
}

/// Data that differs from block to block.
fn pattern(version: u8) -> Vec<u8> {
    (0..32 * BLOCK).map(|at| (at / BLOCK) as u8 ^ version.wrapping_mul(37)).collect()
}

fn remote(status: &Value, slot: usize) -> &Value {
    &status["members"][slot]["remote"]
}

fn event_names(server: &Server<'_>) -> Vec<String> {
    let events = server.twill(&["events", "--json"]).succeeds();
    let lines = events.stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let names = lines.filter_map(|event| event["event"].as_str().map(str::to_owned));
    let names: Vec<String> = names.collect();
    assert!(!names.is_empty(), "{}", events.stdout);
    names
}

#[test]
fn a_target_that_is_killed_and_restarted_within_the_limit_costs_no_error() {
    let world = World::new();
    let mut target = Target::start(&world, &["a", "b", "c"]);
    let members = target.members();
    create(&world, &members);
    let examined = world.twill(&["examine", "--json"], &members).succeeds().json();
    assert!(examined["members"][2]["superblock"].is_object(), "{examined:#}");
    let server = world.serve(&["--hdr-digest", "--data-digest"], &members);
    let mut client = world.client();
    assert_eq!(client.write(0, &pattern(1), 0).unwrap(), 0);
    assert_eq!(client.flush().unwrap(), 0);
    assert_eq!(client.write(0, &pattern(2), 0).unwrap(), 0);
    assert_eq!(remote(&server.status(), 0)["state"], "connected");
    assert_eq!(remote(&server.status(), 0)["reserved"], true);
    target.kill();
    let mut writer = world.client();
    let waiting = std::thread::spawn(move || writer.write(512 * BLOCK as u64, &pattern(3), FUA).unwrap());
    server.wait_for("the loss", |status| remote(status, 1)["state"] == "away");
    target.restart();
    assert_eq!(waiting.join().unwrap(), 0, "{}", server.log());
    assert_eq!(client.read(0, 32 * BLOCK as u32).unwrap().unwrap(), pattern(2));
    assert_eq!(client.read(512 * BLOCK as u64, 32 * BLOCK as u32).unwrap().unwrap(), pattern(3));
    server.wait_for("all members", |status| {
        (0..3).all(|slot| {
            status["members"][slot]["state"] == "in-sync" && remote(status, slot)["reconnects"] == 1
        })
    });
    let names = event_names(&server);
    assert!(names.contains(&"member-away".into()) && names.contains(&"member-back".into()), "{names:?}");
    drop(client);
    server.stop();
    let server = world.serve(&[], &members);
    assert_eq!(world.client().read(0, 32 * BLOCK as u32).unwrap().unwrap(), pattern(2));
    server.stop();
}

/// A reservation that this host has taken, and of which it did not hear, is its own: the next attempt goes on from there.
#[test]
fn a_connection_that_is_lost_again_at_any_answer_of_the_next_one_fences_nobody() {
    let world = World::new();
    let targets: Vec<Target<'_>> =
        ["a", "b", "c"].iter().map(|file| Target::linked(&world, file, 16 << 20)).collect();
    let members: Vec<String> = targets.iter().flat_map(Target::members).collect();
    create(&world, &members);
    let server = world.serve(&[], &members);
    let mut client = world.client();
    let mut lost = 0;
    for number in 0.. {
        let link = targets[1].link();
        let reconnects = remote(&server.status(), 1)["reconnects"].as_u64().expect("a count");
        link.cut_and_lose_answer(number);
        server.wait_for("the member", |status| {
            let remote = remote(status, 1);
            remote["state"] == "connected" && remote["reconnects"].as_u64() > Some(reconnects)
        });
        let block = vec![number as u8; BLOCK];
        assert_eq!(client.write(0, &block, 0).unwrap(), 0, "answer {number}: {}", server.log());
        if !link.has_lost_answer() {
            break;
        }
        lost += 1;
    }
    assert!(lost > 10, "only {lost} answers were lost");
    assert_eq!(server.status()["members"][1]["state"], "in-sync", "{}", server.log());
    drop(client);
    server.stop();
}

#[test]
fn a_target_that_answers_late_fails_and_is_taken_back() {
    let world = World::new();
    let targets: Vec<Target<'_>> =
        ["a", "b", "c"].iter().map(|file| Target::start(&world, &[file])).collect();
    let members: Vec<String> = targets.iter().flat_map(Target::members).collect();
    create(&world, &members);
    let server = world.serve(&["--member-time-limit", "2"], &members);
    let mut client = world.client();
    assert_eq!(client.write(0, &pattern(1), 0).unwrap(), 0);
    assert_eq!(client.flush().unwrap(), 0);
    targets[1].signal(Signal::STOP);
    let start = Instant::now();
    assert_eq!(client.write(0, &pattern(2), 0).unwrap(), 0, "{}", server.log());
    assert!(start.elapsed() < Duration::from_secs(12), "{:?}", start.elapsed());
    server.wait_for("the failure", |status| status["members"][1]["state"] == "failed");
    assert_eq!(client.write(64 * BLOCK as u64, &pattern(3), 0).unwrap(), 0);
    assert_eq!(client.read(0, 32 * BLOCK as u32).unwrap().unwrap(), pattern(2));
    targets[1].signal(Signal::CONT);
    server.wait_for("the return", |status| status["members"][1]["state"] == "in-sync");
    assert!(event_names(&server).contains(&"member-re-added".into()));
    // Without another member the data comes from the one that was away, too: nothing stale is there.
    server.twill(&["fail", "0"]).succeeds();
    assert_eq!(client.read(0, 32 * BLOCK as u32).unwrap().unwrap(), pattern(2));
    assert_eq!(client.read(64 * BLOCK as u64, 32 * BLOCK as u32).unwrap().unwrap(), pattern(3));
    drop(client);
    server.stop();
}

/// Another host: its own identity, locks and control sockets.
fn other_host(world: &World, members: &[String], arguments: &[&str]) -> Result<Child, Run> {
    let mut command = world.command();
    command
        .env("TWILL_RUNTIME_DIR", world.path("run2"))
        .env("TWILL_STATE_DIR", world.path("state2"))
        .args(["serve", "--json", "--control", "control2.sock", "--unix", "nbd2.sock", "--shards", "1"])
        .args(["--hostnqn", "nqn.2026-11.test:host2"])
        .args(arguments)
        .args(members)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(File::create(world.path("server2.log")).expect("a log"));
    let mut process = command.spawn().expect("the program");
    let mut stdout = BufReader::new(process.stdout.take().expect("a pipe"));
    let mut said = String::new();
    while !said.ends_with("\n}\n") {
        if stdout.read_line(&mut said).expect("readable") == 0 {
            break;
        }
    }
    if said.contains("\"error\"") || said.is_empty() {
        let code = process.wait().expect("a child").code().unwrap_or(-1);
        let stderr = std::fs::read_to_string(world.path("server2.log")).unwrap_or_default();
        return Err(Run { code, stdout: said, stderr });
    }
    Ok(process)
}

#[test]
fn a_host_that_was_paused_and_fenced_changes_nothing_when_it_wakes() {
    let world = World::new();
    let target = Target::start(&world, &["a", "b", "c"]);
    let members = target.members();
    create(&world, &members);
    let first = world.serve(&[], &members);
    let mut client = world.client();
    assert_eq!(client.write(0, &pattern(1), 0).unwrap(), 0);
    let refused = other_host(&world, &members, &[]).expect_err("another host has the members");
    assert!(refused.stderr.contains("--take-over") || refused.stdout.contains("--take-over"), "{refused:?}");
    // Asleep with a write on its way.
    kill_process(Pid::from_child(&first.process), Signal::STOP).unwrap();
    wait_until_stopped(first.process.id());
    client.send((crate::nbd::WRITE, FUA), 7, 0, 32 * BLOCK as u32, &pattern(9)).unwrap();
    let mut second = other_host(&world, &members, &["--take-over"]).expect("it takes over");
    let mut others = Client::connect(&world.path("nbd2.sock")).expect("served");
    assert_eq!(others.write(0, &pattern(2), 0).unwrap(), 0);
    assert_eq!(others.flush().unwrap(), 0);
    kill_process(Pid::from_child(&first.process), Signal::CONT).unwrap();
    let (_, error) = client.reply().unwrap();
    assert_ne!(error, 0, "a fenced host acknowledges nothing");
    assert_ne!(client.write(0, &pattern(9), FUA).unwrap(), 0);
    assert_eq!(others.read(0, 32 * BLOCK as u32).unwrap().unwrap(), pattern(2));
    first.wait_for("the fence", |status| remote(status, 0)["state"] == "fenced");
    let status = first.status();
    for slot in 0..3 {
        assert_eq!(status["members"][slot]["state"], "in-sync", "no member fails for a fence: {status:#}");
    }
    assert!(first.log().contains("has taken the member over"), "{}", first.log());
    assert!(event_names(&first).contains(&"fenced".into()));
    drop(first);
    assert_eq!(others.read(0, 32 * BLOCK as u32).unwrap().unwrap(), pattern(2));
    drop(others);
    world.twill::<&str>(&["stop", "--force", "--control", "control2.sock"], &[]).succeeds();
    assert!(second.wait().unwrap().success());
    let server = world.serve(&[], &members);
    assert_eq!(world.client().read(0, 32 * BLOCK as u32).unwrap().unwrap(), pattern(2));
    server.stop();
}

/// Rounds of a long test: few, or as many as it takes to believe it.
fn rounds() -> usize {
    if std::env::var_os("TWILL_ALL_CASES").is_some() { 100 } else { 3 }
}

const SLEEPERS_WORDS: &[u8; 16] = b"of the sleeper: ";
/// Where both hosts write.
const REGION: usize = 1 << 20;

/// Writes the sleeper's words all over the region until a write fails.
fn write_until_refused(mut client: Client, seed: usize) {
    let data = SLEEPERS_WORDS.repeat(8 * BLOCK / SLEEPERS_WORDS.len());
    for count in 0.. {
        let at = (seed + count * 7919) % (REGION / BLOCK - 8) * BLOCK;
        if !matches!(client.write(at as u64, &data, 0), Ok(0)) {
            return;
        }
    }
}

fn sleepers_words_are_on(world: &World, files: &[&str]) -> bool {
    let is_on =
        |file: &&str| world.bytes(file, 0, 16 << 20).chunks(512).any(|part| part.starts_with(SLEEPERS_WORDS));
    files.iter().any(is_on)
}

/// A host sleeps with writes on their way, another takes over, the first wakes. `leaves`: when it wakes, the other has left, and
/// no reservation is there any more.
fn sleeps_and_wakes(world: &World, files: &[&str], members: &[String], leaves: bool) {
    let first = world.serve(&["--keep-alive-tmo", "1"], members);
    let writers: Vec<_> = (0..2)
        .map(|seed| {
            let client = world.client();
            std::thread::spawn(move || write_until_refused(client, seed * 31))
        })
        .collect();
    let mut client = world.client();
    let start = Instant::now();
    while !sleepers_words_are_on(world, files) {
        assert!(start.elapsed() < PATIENCE, "nothing is written: {}", first.log());
    }
    kill_process(Pid::from_child(&first.process), Signal::STOP).unwrap();
    wait_until_stopped(first.process.id());
    let mut second =
        other_host(world, members, &["--take-over", "--keep-alive-tmo", "1"]).expect("it takes over");
    let mut others = Client::connect(&world.path("nbd2.sock")).expect("served");
    for at in (0..REGION).step_by(32 * BLOCK) {
        assert_eq!(others.write(at as u64, &pattern(2), 0).unwrap(), 0);
    }
    assert_eq!(others.flush().unwrap(), 0);
    assert!(!sleepers_words_are_on(world, files), "all of the region is written over");
    let mut leave = |others: Client| {
        drop(others);
        world.twill::<&str>(&["stop", "--force", "--control", "control2.sock"], &[]).succeeds();
        assert!(second.wait().unwrap().success());
    };
    let mut others = Some(others);
    if leaves {
        leave(others.take().expect("it has not left"));
    }
    kill_process(Pid::from_child(&first.process), Signal::CONT).unwrap();
    // Both end: their writes fail.
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    assert_ne!(client.write(0, &pattern(9), FUA).unwrap(), 0, "a fenced host acknowledges nothing");
    assert!(!sleepers_words_are_on(world, files), "the sleeper's writes are on a member: {}", first.log());
    if !leaves {
        first.wait_for("the fence", |status| remote(status, 0)["state"] == "fenced");
        let status = first.status();
        assert!((0..3).all(|slot| status["members"][slot]["state"] == "in-sync"), "{status:#}");
        assert!(first.log().contains("has taken the member over"), "{}", first.log());
    }
    drop((client, first));
    if let Some(mut others) = others {
        for at in (0..REGION).step_by(32 * BLOCK) {
            assert_eq!(others.read(at as u64, 32 * BLOCK as u32).unwrap().unwrap(), pattern(2));
        }
        leave(others);
    }
}

#[test]
fn a_host_that_sleeps_under_load_changes_nothing_when_it_wakes() {
    let world = World::new();
    let files = ["a", "b", "c"];
    let target = Target::start(&world, &files);
    let members = target.members();
    create(&world, &members);
    for round in 0..rounds() {
        sleeps_and_wakes(&world, &files, &members, round % 5 == 1);
    }
}

#[test]
fn an_array_starts_without_a_machine_that_is_down_when_the_operator_says_so() {
    let world = World::new();
    let mut targets: Vec<Target<'_>> =
        ["a", "b", "c"].iter().map(|file| Target::start(&world, &[file])).collect();
    let members: Vec<String> = targets.iter().flat_map(Target::members).collect();
    create(&world, &members);
    targets[1].kill();
    let refused =
        world.twill(&["serve", "--control", "control.sock", "--unix", "nbd.sock"], &members).fails(7);
    let says = ["cannot connect to its target", &members[1], "--run"];
    assert!(says.iter().all(|words| refused.stderr.contains(words)), "{}", refused.stderr);
    let server = world.serve(&["--run"], &members);
    assert!(server.log().contains("left out"), "{}", server.log());
    assert_eq!(server.status()["members"][1]["state"], "missing", "{:#}", server.status());
    assert_eq!(world.client().write(0, &pattern(1), FUA).unwrap(), 0);
    targets[1].restart();
    server.wait_for("the member", |status| status["members"][1]["state"] == "in-sync");
    assert!(event_names(&server).contains(&"member-re-added".into()));
    // Nothing stale: without another member the data comes from the one that was away.
    server.twill(&["fail", "0"]).succeeds();
    assert_eq!(world.client().read(0, 32 * BLOCK as u32).unwrap().unwrap(), pattern(1));
    server.stop();
}

#[test]
fn superblocks_on_other_machines_are_renamed_and_cleared() {
    let world = World::new();
    let target = Target::start(&world, &["a", "b", "c"]);
    let members = target.members();
    create(&world, &members);
    world.twill(&["rename", "other"], &members).succeeds();
    let server = world.serve(&[], &members);
    assert_eq!(server.status()["name"], "other");
    // Under a server they are its own.
    let refused = world.twill(&["zero-superblock"], &members).fails(6);
    assert!(refused.stderr.contains("has reserved it"), "{}", refused.stderr);
    server.stop();
    world.twill(&["zero-superblock"], &members).succeeds();
    let run = world.twill(&["examine"], &members[..1]);
    assert!((run.stderr.clone() + &run.stdout).contains("has no md superblock"), "{run:?}");
    let run = world.twill(&["correct-size"], &members[..1]);
    assert!(run.stderr.contains("has no md superblock"), "{run:?}");
}

#[test]
fn what_a_killed_host_left_is_taken_back_by_the_next_one_here() {
    let world = World::new();
    let target = Target::start(&world, &["a", "b", "c"]);
    let members = target.members();
    create(&world, &members);
    let server = world.serve(&[], &members);
    assert_eq!(world.client().write(0, &pattern(1), FUA).unwrap(), 0);
    drop(server); // killed
    let server = world.serve(&[], &members);
    assert_eq!(world.client().read(0, 32 * BLOCK as u32).unwrap().unwrap(), pattern(1));
    server.stop();
}

#[test]
fn what_is_served_is_discovered_and_mistakes_are_named() {
    let world = World::new();
    let target = Target::start(&world, &["a", "b"]);
    let address = format!("127.0.0.1:{}", target.port);
    let found = world.twill::<&str>(&["discover", "--json", &address], &[]).succeeds().json();
    let subsystems = found["subsystems"].as_array().unwrap().iter().filter(|one| one["kind"] == "nvm");
    let names: Vec<&str> = subsystems.map(|one| one["member"].as_str().unwrap()).collect();
    assert_eq!(names, target.members());
    let table = world.twill::<&str>(&["discover", &address], &[]).succeeds();
    assert!(table.stdout.contains(&target.members()[1]), "{}", table.stdout);
    for (member, says) in [
        ("nvme://127.0.0.1", "twill discover"),
        ("nvme://127.0.0.1:x/nqn.2026-11.test:a", "no TCP port"),
        ("nvme://127.0.0.1/a", "does not begin with nqn."),
        ("nvme://127.0.0.1/nqn.2026-11.test:a/0", "no namespace"),
    ] {
        let run = world.twill(&["examine"], &[member]).fails(2);
        assert!(run.stderr.contains(says), "{member}: {}", run.stderr);
    }
    let missing = format!("nvme://{address}/nqn.2026-11.test:missing");
    let run = world.twill(&["examine"], &[missing]);
    assert!(run.code != 0 && (run.stderr.clone() + &run.stdout).contains("no such subsystem"), "{run:?}");
    let nowhere = "nvme://127.0.0.1:1/nqn.2026-11.test:a";
    let run = world.twill(&["examine"], &[nowhere]);
    assert!(run.code != 0 && (run.stderr.clone() + &run.stdout).contains("cannot connect"), "{run:?}");
}

/// Counters of the array, and bytes that its members' connections have sent and received.
fn traffic(server: &Server<'_>) -> (Value, u64, u64) {
    let status = server.status();
    let sum = |what: &str| {
        let members = status["members"].as_array().expect("members");
        members.iter().filter_map(|member| member["remote"][what].as_u64()).sum()
    };
    (status["counters"].clone(), sum("sent_bytes"), sum("received_bytes"))
}

#[test]
fn targets_make_parity_among_themselves_and_a_killed_one_costs_no_error() {
    let world = World::new();
    let mut targets: Vec<Target<'_>> =
        ["a", "b", "c", "d"].iter().map(|file| Target::start(&world, &[file])).collect();
    let members: Vec<String> = targets.iter().flat_map(Target::members).collect();
    create(&world, &members);
    let server = world.serve(&["--fabric", "peer"], &members);
    server.wait_for("attached targets", |status| {
        (0..4).all(|slot| remote(status, slot)["unreached_targets"] == 0)
    });
    let explain = ["fabric", "explain", "--control", "control.sock", "--json"];
    let explained = world.twill::<&str>(&explain, &[]).succeeds().json();
    assert_eq!(explained["reasons"].as_array().unwrap().len(), 1, "only whole stripes: {explained:#}");
    let mut client = world.client();
    let block = |version: u8, at: u64| vec![version ^ (at as u8).wrapping_mul(59); BLOCK];
    let (before, sent_before, received_before) = traffic(&server);
    let places = || (0..200u64).map(|at| at * 37 % 4096 * BLOCK as u64);
    for at in places() {
        assert_eq!(client.write(at, &block(2, at), 0).unwrap(), 0);
    }
    let (after, sent, received) = traffic(&server);
    let grown = |name: &str| after[name].as_u64().unwrap() - before[name].as_u64().unwrap();
    assert_eq!(
        (grown("peer_steps"), grown("member_writes"), grown("mended_steps")),
        (200, 0, 0),
        "{after:#}"
    );
    // Commands and digests beside each block; nothing old comes.
    let written = 200 * BLOCK as u64;
    assert!((written..written * 11 / 10).contains(&(sent - sent_before)), "{sent} {sent_before}");
    assert!(received - received_before < written / 20, "{received} {received_before}");

    let mut writer = world.client();
    let writing = std::thread::spawn(move || {
        let rounds = (3..6).flat_map(|version| places().map(move |at| (version, at)));
        rounds.map(|(version, at)| writer.write(at, &block(version, at), 0).unwrap()).all(|error| error == 0)
    });
    std::thread::sleep(Duration::from_millis(30));
    targets[2].kill();
    server.wait_for("the loss", |status| remote(status, 2)["state"] != "connected");
    targets[2].restart();
    assert!(writing.join().unwrap(), "{}", server.log());
    for at in places() {
        assert_eq!(client.read(at, BLOCK as u32).unwrap().unwrap(), block(5, at), "at {at}");
    }
    server.wait_for("all members", |status| {
        (0..4).all(|slot| {
            status["members"][slot]["state"] == "in-sync" && remote(status, slot)["unreached_targets"] == 0
        })
    });
    server.twill(&["check"]).succeeds();
    drop(client);
    server.stop();
}

/// Without a redo log targets make parity also while a member is missing, but of what that member held.
#[test]
fn with_a_member_missing_and_no_redo_log_targets_go_on_making_parity() {
    let world = World::new();
    let targets: Vec<Target<'_>> =
        ["a", "b", "c", "d"].iter().map(|file| Target::start(&world, &[file])).collect();
    let members: Vec<String> = targets.iter().flat_map(Target::members).collect();
    create(&world, &members);
    let server = world.serve(&["--fabric", "peer", "--no-redo-log"], &members);
    server.wait_for("attached targets", |status| {
        (0..4).all(|slot| remote(status, slot)["unreached_targets"] == 0)
    });
    server.twill(&["fail", &members[1]]).succeeds();
    let mut client = world.client();
    let (before, sent_before, received_before) = traffic(&server);
    let block = |version: u8, at: u64| vec![version ^ (at as u8).wrapping_mul(59); BLOCK];
    let places = || (0..200u64).map(|at| at * 37 % 4096 * BLOCK as u64);
    for at in places() {
        assert_eq!(client.write(at, &block(2, at), 0).unwrap(), 0);
    }
    let (after, sent, received) = traffic(&server);
    let steps = after["peer_steps"].as_u64().unwrap() - before["peer_steps"].as_u64().unwrap();
    // A quarter of the writes have their parity there, and a quarter are of that member's chunks.
    assert!((60..140).contains(&steps), "{steps} of 200: {after:#}");
    let written = 200 * BLOCK as u64;
    assert!(sent - sent_before < written * 11 / 10, "{sent} {sent_before}");
    // Of four members two are read where the missing one is written, and nothing else is.
    assert!(received - received_before < written * 7 / 10, "{received} {received_before}");
    for at in places() {
        assert_eq!(client.read(at, BLOCK as u32).unwrap().unwrap(), block(2, at), "at {at}");
    }
    server.twill(&["re-add", &members[1]]).succeeds();
    server.wait_for("all members", |status| status["members"][1]["state"] == "in-sync");
    let check = server.twill(&["check", "--json"]).succeeds().json();
    assert_eq!(check["report"]["mismatch_sectors"], 0, "{check:#}");
    drop(client);
    server.stop();
}

/// Room for two orders of 16 KiB at a target: further ones are made at the host, and no target has to refuse any.
#[test]
fn targets_with_little_memory_leave_what_they_have_no_room_for_to_the_host() {
    const WRITE: usize = 4 * BLOCK;
    let world = World::new();
    let little = ["--allow-any", "--peer-memory", "64K"];
    let targets: Vec<Target<'_>> = ["a", "b", "c", "d"]
        .iter()
        .map(|file| Target::with_access(&world, &[file], MEMBER_BYTES, &little))
        .collect();
    let members: Vec<String> = targets.iter().flat_map(Target::members).collect();
    create(&world, &members);
    let server = world.serve(&["--fabric", "peer"], &members);
    server.wait_for("attached targets", |status| {
        (0..4).all(|slot| {
            remote(status, slot)["unreached_targets"] == 0 && remote(status, slot)["credit_bytes"] == 64 << 10
        })
    });
    let place = |writer: u64, at: u64| (at * 8 + writer) * 5 % 256 * WRITE as u64;
    let data = |writer: u64, at: u64| vec![(writer as u8 + 1) ^ (at as u8).wrapping_mul(59); WRITE];
    std::thread::scope(|scope| {
        for writer in 0..8 {
            let mut client = world.client();
            scope.spawn(move || {
                for at in 0..32 {
                    assert_eq!(client.write(place(writer, at), &data(writer, at), 0).unwrap(), 0);
                }
            });
        }
    });
    let mut client = world.client();
    for (writer, at) in (0..8).flat_map(|writer| (0..32).map(move |at| (writer, at))) {
        let read = client.read(place(writer, at), WRITE as u32).unwrap().unwrap();
        assert!(read == data(writer, at), "{writer} {at}");
    }
    let (counters, ..) = traffic(&server);
    assert!(counters["peer_steps"].as_u64().unwrap() > 0, "{counters:#}");
    server.twill(&["check"]).succeeds();
    let log = std::fs::read_to_string(world.path("target.log")).unwrap();
    assert!(!log.contains("was given memory for"), "{log}");
    drop(client);
    server.stop();
}

#[test]
fn a_check_and_a_rebuild_among_targets_leave_the_hosts_network_alone() {
    let world = World::new();
    let targets: Vec<Target<'_>> =
        ["a", "b", "c", "d", "e"].iter().map(|file| Target::start(&world, &[file])).collect();
    let members: Vec<String> = targets.iter().flat_map(Target::members).collect();
    create(&world, &members[..4]);
    let server = world.serve(&["--fabric", "peer"], &members[..4]);
    let are_attached = |status: &Value| (0..4).all(|slot| remote(status, slot)["unreached_targets"] == 0);
    server.wait_for("attached targets", are_attached);
    assert_eq!(world.client().write(0, &pattern(1), FUA).unwrap(), 0);
    // Of all that is read and written at the members, in percent.
    let host_percent = |what: &str, work: &dyn Fn()| {
        let (before, sent_before, received_before) = traffic(&server);
        work();
        let (after, sent, received) = traffic(&server);
        let grown = |name: &str| after[name].as_u64().unwrap() - before[name].as_u64().unwrap();
        assert!(grown("peer_upkeep") >= (MEMBER_BYTES >> 16) * 9 / 10, "{what}: {after:#}");
        (sent - sent_before + received - received_before) as f64 * 100.0 / (4 * MEMBER_BYTES) as f64
    };
    let of_check = host_percent("check", &|| _ = server.twill(&["check"]).succeeds());
    assert!(of_check < 1.0, "{of_check} %");
    // Slow until the new target is attached to the others.
    server.twill(&["set", "--rate", "1"]).succeeds();
    server.twill(&["fail", "1"]).succeeds();
    server.twill(&["add", &members[4]]).succeeds();
    server.wait_for("attached targets", |status| {
        status["members"][1]["state"] == "recovering" && are_attached(status)
    });
    let of_rebuild = host_percent("rebuild", &|| {
        server.twill(&["set", "--rate", "0"]).succeeds();
        server.wait_for("the new member", |status| status["members"][1]["state"] == "in-sync");
    });
    assert!(of_rebuild < 1.0, "{of_rebuild} %");
    assert_eq!(server.twill(&["check", "--json"]).succeeds().json()["report"]["mismatch_sectors"], 0);
    // What was rebuilt is right: another member is made from it.
    server.twill(&["fail", "0"]).succeeds();
    assert_eq!(world.client().read(0, 32 * BLOCK as u32).unwrap().unwrap(), pattern(1));
    server.stop();
}
