//! What outlives a server: events and logs.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::world::{World, tool};

fn events(world: &World) -> Vec<Value> {
    let run = world.twill::<&str>(&["events", "--json", "--control", "control.sock"], &[]).succeeds();
    run.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(30), "not {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn events_survive_a_kill_and_the_next_server_counts_on() {
    let world = World::new();
    let members = world.array(4);
    let server = world.serve(&[], &members);
    server.twill(&["fail", "m1"]).succeeds();
    let before = events(&world);
    assert!(before.iter().any(|event| event["event"] == "member-failed"), "{before:?}");
    let file = fs::read_dir(world.path("state")).expect("the folder").filter_map(Result::ok);
    let file = file.map(|entry| entry.path()).find(|path| path.to_string_lossy().contains("events-"));
    let file = file.expect("a file of events");
    let last = before.last().expect("events")["text"].as_str().expect("text").to_owned();
    wait_until("written", || fs::read_to_string(&file).is_ok_and(|text| text.contains(&last)));
    drop(server); // killed
    let mut torn = fs::read(&file).expect("readable");
    torn.extend(b"0123abcd {\"sequence\":99999,\"te");
    fs::write(&file, torn).expect("writable");

    let server = world.serve(&[], &members);
    server.twill(&["fail", "2"]); // refused or not: the array is degraded
    server.twill(&["add", "--force", "m1"]).succeeds();
    server.wait_for("a recovery", |status| status["members"][1]["state"] == "in-sync");
    let after = events(&world);
    assert_eq!(after[..before.len()], before[..], "as they were");
    assert!(after.len() > before.len());
    for (number, event) in (1..).zip(&after) {
        assert_eq!(event["sequence"], number, "without gaps: {event}");
    }
    server.stop();
}

#[test]
fn events_of_another_array_are_not_shown() {
    let world = World::new();
    let members = world.array(4);
    let server = world.serve(&[], &members);
    server.twill(&["fail", "m1"]).succeeds();
    server.stop();
    world.twill(&["create", "--level", "5", "--name", "test", "--force"], &members).succeeds();
    let server = world.serve(&[], &members);
    assert!(!events(&world).iter().any(|event| event["event"] == "member-failed"));
    server.stop();
}

/// It logged nowhere.
#[test]
fn a_daemon_without_a_log_file_logs_all_the_same() {
    if Path::new("/dev/log").exists() {
        return eprintln!("skipped: this machine has a system log, which gets the lines");
    }
    let world = World::new();
    let members = world.array(3);
    let place = ["--control", "control.sock", "--unix", "nbd.sock"];
    world.twill(&[&["serve", "--daemon", "--shards", "1"], &place[..]].concat(), &members).succeeds();
    world.twill::<&str>(&["fail", "--control", "control.sock", "m1"], &[]).succeeds();
    let log = || fs::read_to_string(world.path("state/twill.log")).unwrap_or_default();
    wait_until("logged", || log().contains("member 1 failed"));
    world.twill::<&str>(&["stop", "--control", "control.sock"], &[]).succeeds();
    wait_until("stopped", || log().contains("stopped"));
}

#[test]
fn a_log_that_was_moved_away_is_opened_again_on_sighup() {
    let Some(kill) = tool("kill") else { return };
    let world = World::new();
    let members = world.array(3);
    let serve = ["serve", "--daemon", "--shards", "1", "--log", "log", "--pid-file", "pid"];
    let place = ["--control", "control.sock", "--unix", "nbd.sock"];
    world.twill(&[&serve[..], &place[..]].concat(), &members).succeeds();
    fs::rename(world.path("log"), world.path("log.1")).expect("the log");
    let pid = fs::read_to_string(world.path("pid")).expect("a number");
    let hang_up =
        || assert!(Command::new(&kill).args(["-HUP", pid.trim()]).status().expect("kill").success());
    hang_up();
    let log = || fs::read_to_string(world.path("log")).unwrap_or_default();
    wait_until("opened again", || log().contains("the log was opened again"));
    world.twill::<&str>(&["fail", "--control", "control.sock", "m1"], &[]).succeeds();
    wait_until("logged", || log().contains("member 1 failed"));
    // Where it cannot be opened, the old file goes on.
    fs::rename(world.path("log"), world.path("log.2")).expect("the log");
    fs::write(world.path("another"), "not a log").expect("written");
    std::os::unix::fs::symlink(world.path("another"), world.path("log")).expect("a link");
    hang_up();
    let old = || fs::read_to_string(world.path("log.2")).unwrap_or_default();
    wait_until("refused", || old().contains("the log goes on in the file that it had"));
    let another = fs::read_to_string(world.path("another")).expect("readable");
    assert_eq!(another, "not a log", "a link is not followed");
    world.twill::<&str>(&["stop", "--control", "control.sock"], &[]).succeeds();
}
