//! What the program prints: one document where one was asked for, and an error where it cannot be written.

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::world::{MEMBER_BYTES, Run, World, tool};

#[test]
fn an_answer_that_cannot_be_written_is_an_error() {
    let world = World::new();
    let members = world.array(3);
    let server = world.serve(&[], &members);
    for arguments in [
        &["examine", "m0"][..],
        &["examine", "--json", "m0"],
        &["status", "--control", "control.sock"],
        &["events", "--control", "control.sock", "--json"],
        &["--help"],
        &["create", "--help"],
    ] {
        let full = File::options().write(true).open("/dev/full").expect("Linux has it");
        let output = world.command().args(arguments).stdout(full).output().expect("the program");
        let said = String::from_utf8_lossy(&output.stderr);
        // No events yet: nothing was to be written.
        let code = if arguments[0] == "events" { 0 } else { 7 };
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert_eq!(said.contains("No space left on device"), code == 7, "{arguments:?}: {said}");
    }
    server.stop();
}

#[test]
fn a_reader_that_has_gone_is_no_error() {
    let world = World::new();
    let members = world.array(3);
    let mut process = world
        .command()
        .args(["examine", "--json"])
        .args(members)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program");
    drop(process.stdout.take());
    let output = process.wait_with_output().expect("a child");
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}

#[test]
fn who_waits_gets_one_document() {
    let world = World::new();
    let members = world.array(3);
    let server = world.serve(&[], &members);
    server.twill(&["set", "--rate", "10M"]).succeeds();
    for command in [["fail", "m1"], ["remove", "failed"], ["add", "m1"]] {
        server.twill(&command).succeeds();
    }
    let waited = server.twill(&["status", "--wait", "--json"]).succeeds().json();
    assert_eq!(waited["arrays"][0]["members"][1]["state"], "in-sync", "{waited:#}");
    server.stop();
}

/// The array, and then an error: two documents.
#[test]
fn a_creation_that_is_interrupted_is_one_document() {
    let Some(kill) = tool("kill") else { return };
    let world = World::new();
    let members: Vec<String> = (0..3).map(|i| world.member(&format!("m{i}"), 256 << 30)).collect();
    // In the data: a resync is due. Of so much it is not over before it is seen, however busy the machine is.
    world.write("m0", 1 << 30, b"something");
    // A job of a shell without job control ignores interrupts, and so would all that it starts.
    let Some(env) = tool("env") else { return };
    let twill = world.command();
    let mut process = Command::new(env)
        .arg("--default-signal=INT")
        .arg(twill.get_program())
        .envs(twill.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .current_dir(world.folder.path())
        .args(["create", "--level", "5", "--force", "--wait", "--json"])
        .args(&members)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program");
    // Who hears signals, and then holds the members, is at the resync.
    let status = format!("/proc/{}/status", process.id());
    let hears = || std::fs::read_to_string(&status).is_ok_and(|text| catches_interrupts(&text));
    // Seen from outside: a lock of this test's own would refuse it the member.
    let member = format!(":{} ", std::fs::metadata(world.path("m0")).expect("there").ino());
    let is_held = || std::fs::read_to_string("/proc/locks").expect("Linux").contains(&member);
    let since = Instant::now();
    while !(hears() && is_held()) {
        if process.try_wait().expect("a child").is_some() {
            panic!("it did not wait for a resync: {:?}", process.wait_with_output());
        }
        if since.elapsed() > Duration::from_secs(100) {
            let seen = (hears(), is_held());
            process.kill().expect("a child"); // a resync writes as long as it may
            panic!("(it hears signals, it holds the member): {seen:?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_millis(300));
    let sent = Command::new(&kill).args(["-INT", &process.id().to_string()]).status().expect("kill");
    assert!(sent.success());
    let output = process.wait_with_output().expect("a child");
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    let document: Value = serde_json::from_slice(&output.stdout).expect("one document");
    assert_eq!((&document["level"], &document["error"]["exit_code"]), (&"raid5".into(), &130.into()));
}

fn catches_interrupts(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 2 != 0)
}

#[test]
fn a_wrong_command_line_is_told_whole() {
    let world = World::new();
    let run = world.refused::<&str>(2, &["<MEMBER>"], &["create", "--json"], &[]);
    let message = run.json()["error"]["message"].as_str().expect("a message").to_owned();
    assert!(message.contains("not provided") && message.contains("--level <LEVEL>"), "{message}");
    assert!(message.contains("<MEMBER>") && !message.contains("Usage"), "{message}");
}

/// A file's name may clear the screen, or look like a line of the answer.
#[test]
fn a_name_that_a_terminal_would_obey_is_escaped() {
    let world = World::new();
    let members: Vec<String> = ["a\n\u{1b}[2J", "b", "c"].map(|name| world.member(name, MEMBER_BYTES)).into();
    let no_escape = |run: Run| {
        let said = run.stdout + &run.stderr;
        assert!(said.contains("a\\n\\u{1b}[2J") && !said.contains('\u{1b}'), "{said:?}");
    };
    no_escape(world.twill(&["examine"], &members));
    no_escape(world.twill(&["assemble"], &members));
    world.twill(&["create", "--level", "5", "--name", "test"], &members).succeeds();
    no_escape(world.twill(&["create", "--level", "5"], &members));
    no_escape(world.twill(&["examine"], &members));
    no_escape(world.twill(&["assemble", "--explain"], &members));
    let server = world.serve(&[], &members);
    no_escape(server.twill(&["detail"]));
    server.twill(&["fail", "0"]).succeeds();
    no_escape(server.twill(&["status"]));
    no_escape(server.twill(&["events"]));
    let paths = server.status()["members"][0]["path"].as_str().map(str::to_owned);
    assert!(paths.is_some_and(|path| path.ends_with("a\n\u{1b}[2J")), "JSON has the name as it is");
    assert!(!server.log().contains('\u{1b}'), "{:?}", server.log());
    server.stop();
}
