//! `monitor`: a member that fails, a server that is killed and a monitor that starts again, told by mail, over the web and to a
//! program. What takes them here is a sendmail, an HTTP server and a program of the test.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::world::World;

/// An operator hears of it within this time, on an idle machine within 5 seconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// An HTTP server that refuses the first `refusals` requests. What is posted to the others.
fn web(refusals: usize) -> (String, Receiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/alerts", listener.local_addr().expect("an address"));
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for (number, stream) in listener.incoming().flatten().enumerate() {
            let mut stream = BufReader::new(stream);
            let mut length = 0;
            loop {
                let mut line = String::new();
                if stream.read_line(&mut line).unwrap_or(0) == 0 || line == "\r\n" {
                    break;
                }
                if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().expect("a length");
                }
            }
            let mut body = vec![0; length];
            stream.read_exact(&mut body).expect("a body");
            let status = if number < refusals { "503 Service Unavailable" } else { "204 No Content" };
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            stream.get_mut().write_all(answer.as_bytes()).expect("an answer");
            if number >= refusals {
                _ = sender.send(serde_json::from_slice(&body).expect("JSON"));
            }
        }
    });
    (url, receiver)
}

/// A program that appends its arguments and what it reads to a file.
fn program(world: &World, name: &str, output: &str) -> String {
    let path = world.path(name);
    let output = world.path(output);
    let text = format!("#!/bin/sh\n{{ echo \"$*\"; cat; echo; }} >>{}\n", output.display());
    fs::write(&path, text).expect("a program");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it can be run");
    path.display().to_string()
}

fn monitor(world: &World, arguments: &[&str]) -> Child {
    let mut command = world.command();
    command.env("TWILL_RUNTIME_DIR", world.folder.path()).arg("monitor").args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program")
}

fn wait_for(world: &World, file: &str, words: &str) -> String {
    let start = Instant::now();
    loop {
        let text = fs::read_to_string(world.path(file)).unwrap_or_default();
        if text.contains(words) {
            return text;
        }
        assert!(start.elapsed() < PATIENCE, "no {words:?} in {file}: {text}");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_failed_member_and_a_killed_server_are_told_by_every_channel() {
    let world = World::new();
    let members = world.array(4);
    let mut server = world.serve(&[], &members);
    let (url, posted) = web(0);
    let sendmail = program(&world, "sendmail", "mails");
    let told = program(&world, "told", "events");
    let arguments = [
        "--mail",
        "root",
        "--sendmail",
        &sendmail,
        "--webhook",
        &url,
        "--program",
        &told,
        "--interval",
        "200ms",
    ];
    let mut child = monitor(&world, &arguments);
    wait_for(&world, "state/monitor.json", "\"test\"");
    server.twill(&["fail", "m1"]).succeeds();
    let mail = wait_for(&world, "mails", "failed");
    for words in
        ["root@localhost", "Subject: twill: test on ", "member 1 failed", "m1", "`twill status` says"]
    {
        assert!(mail.contains(words), "no {words:?} in {mail}");
    }
    let batch = posted.recv_timeout(PATIENCE).expect("a post");
    let alert = &batch["alerts"][0];
    assert_eq!(
        (&alert["event"], &alert["array"], &batch["held_back"]),
        (&"member-failed".into(), &"test".into(), &0.into())
    );
    assert!(alert["device"].as_str().is_some_and(|device| device.ends_with("m1")), "{batch}");
    wait_for(&world, "events", "member-failed test ");
    // What goes as it should is told to programs only.
    world.member("m9", crate::world::MEMBER_BYTES);
    server.twill(&["add", "m9"]).succeeds();
    wait_for(&world, "events", "recovery-finished test");
    assert!(!fs::read_to_string(world.path("mails")).expect("mails").contains("is rebuilt"));
    server.process.kill().expect("a kill");
    server.end();
    let mail = wait_for(&world, "mails", "its server has ended without stopping it");
    assert_eq!(mail.matches("Subject:").count(), 2, "{mail}");
    child.kill().expect("a kill");
    child.wait().expect("a child");
}

#[test]
fn what_happened_while_no_monitor_ran_is_told_by_the_next_one() {
    let world = World::new();
    let members = world.array(4);
    let server = world.serve(&[], &members);
    let told = program(&world, "told", "events");
    let once = |arguments: &[&str]| {
        let output = monitor(&world, &[&["--once"], arguments].concat()).wait_with_output().expect("it ends");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    assert_eq!(once(&["--program", &told]), "", "a healthy array's history is not told");
    server.twill(&["fail", "m2"]).succeeds();
    assert!(once(&["--program", &told]).contains("test: member 2 failed"));
    wait_for(&world, "events", "member-failed test ");
    assert_eq!(once(&["--program", &told]), "", "what was told is not told again");
    // A monitor that knew nothing says how the array is.
    fs::remove_file(world.path("state/monitor.json")).expect("it is kept");
    assert!(once(&[]).contains("3 of 4 members work"));
    server.stop();
}

#[test]
fn what_cannot_be_told_is_said() {
    let world = World::new();
    let (url, posted) = web(1);
    let run = |arguments: &[&str]| world.twill(&[&["monitor"], arguments].concat(), &[] as &[&str]);
    let failed = run(&["--test", "--webhook", &url]).fails(7);
    assert!(failed.stderr.contains("503"), "{failed:?}");
    run(&["--test", "--webhook", &url]).succeeds();
    assert_eq!(posted.recv_timeout(PATIENCE).expect("a post")["alerts"][0]["event"], "test");
    for (code, says, arguments) in [
        (2, "nobody to tell", &["--test"][..]),
        (2, "is no address for mail", &["--test", "--mail", "two words@x"]),
        (2, "begins with http", &["--test", "--webhook", "ftp://x"]),
        (8, "there is no program", &["--test", "--program", "/no/such"]),
        (8, "would take mail", &["--test", "--mail", "root", "--sendmail", "/no/such"]),
    ] {
        let refused = run(arguments).fails(code);
        assert!(refused.stderr.contains(says), "{refused:?}");
    }
    fs::create_dir_all(world.path("state")).expect("a folder");
    fs::write(world.path("state/monitor.json"), b"{").expect("a file");
    assert!(run(&["--once"]).fails(11).stderr.contains("remove it"));
}
