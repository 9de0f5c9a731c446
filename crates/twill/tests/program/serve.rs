//! `serve` and the commands on a served array.

use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use signal_hook::consts::SIGINT;

use crate::world::{MEMBER_BYTES, World, output_of, tool};

#[test]
fn from_create_to_stop() {
    let world = World::new();
    let members = world.array(4);
    let server = world.serve(&[], &members);
    assert!(server.announcement["exports"][0].as_str().unwrap().contains("nbd.sock"));
    let status = server.status();
    assert_eq!((&status["name"], &status["level"]), (&"test".into(), &"raid5".into()));
    assert_eq!(status["members"].as_array().unwrap().len(), 4);

    // Nobody else gets the members meanwhile.
    let create = world.twill(&["create", "--level", "5", "--force"], &members);
    assert_eq!(create.code, 6, "{create:?}");
    let again = world.twill(&["serve", "--control", "other.sock", "--unix", "other.nbd"], &members);
    assert_eq!(again.code, 6, "{again:?}");
    let same_socket = world.twill(&["serve", "--control", "control.sock", "--unix", "other.nbd"], &members);
    assert_eq!(same_socket.code, 9, "{same_socket:?}");

    server.twill(&["fail", "m1"]).succeeds();
    let status = server.status();
    assert_eq!(status["members"][1]["state"], "failed");
    assert_eq!(server.twill(&["fail", "0"]).code, 14, "the array would be lost");
    assert_eq!(server.twill(&["fail", "m9"]).code, 8);
    assert_eq!(server.twill(&["fail", "7"]).code, 8);
    assert_eq!(server.twill(&["remove", "m0"]).code, 6, "it is in use");
    server.twill(&["remove", "failed"]).succeeds();
    assert_eq!(server.status()["members"][1]["state"], "missing");

    let holds_something = world.member("fs", MEMBER_BYTES);
    world.write(&holds_something, 0, b"XFSB");
    assert_eq!(server.twill(&["add", "fs"]).code, 3);
    let small = world.member("small", 4 << 20);
    assert_ne!(server.twill(&["add", &small]).code, 0);
    let new = world.member("new", MEMBER_BYTES);
    server.twill(&["add", &new]).succeeds();
    server.wait_for("a rebuild", |status| {
        status["rebuild"].is_null() && status["members"][1]["state"] == "in-sync"
    });
    assert!(server.status()["members"][1]["path"].as_str().unwrap().ends_with("new"));

    let events = server.twill(&["events", "--json"]).succeeds().stdout;
    let events: Vec<Value> = events.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kinds: Vec<&str> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    for kind in ["member-failed", "member-removed", "recovery-started", "recovery-finished"] {
        assert!(kinds.contains(&kind), "{kind}: {kinds:?}");
    }
    assert!(
        events
            .windows(2)
            .all(|pair| pair[1]["sequence"].as_u64() == pair[0]["sequence"].as_u64().map(|n| n + 1))
    );
    assert!(events.iter().all(|event| event["unix_ms"].as_u64() > Some(1_600_000_000_000)));
    assert!(server.twill(&["events"]).succeeds().stdout.contains("rebuilt and in sync"));
    server.stop();

    let now: Vec<String> = ["m0", "new", "m2", "m3"].map(str::to_owned).to_vec();
    let assembled = world.twill(&["assemble", "--json"], &now).succeeds().json();
    assert_eq!(assembled["arrays"][0]["resync_from_bytes"], Value::Null, "stopped cleanly");
    assert!(!world.path("control.sock").exists());
    let stale = world.twill(&["assemble"], &["m0", "m1", "m2", "m3"]).succeeds();
    assert!(stale.stdout.contains("m1: not taken"), "{stale:?}");
}

#[test]
fn detail_says_what_mdadm_says() {
    let world = World::new();
    let members = world.array(4);
    let server = world.serve(&[], &members);
    let detail = server.twill(&["detail"]).succeeds().stdout;
    for row in [
        "Raid Level : raid5",
        "Raid Devices : 4",
        "State : clean",
        "Chunk Size : 64K",
        "Layout : left-symmetric",
    ] {
        assert!(detail.contains(row), "{row}: {detail}");
    }
    assert_eq!(detail.matches("active sync").count(), 4, "{detail}");
    let short = server.twill(&["status"]).succeeds().stdout;
    assert!(short.starts_with("test: raid5 [4/4] [UUUU] clean"), "{short}");
    server.stop();
}

#[test]
fn the_json_answer_keeps_its_names() {
    let world = World::new();
    let members = world.array(3);
    let server = world.serve(&[], &members);
    let names = server.twill(&["detail", "--json"]).succeeds().names();
    let wanted = "absence_record avoid_slow bitmap block_device chunk_bytes clean consistency_policy created_unix_s degraded events exports[].connections exports[].uri fabric failed failing layout level logical_block_bytes \
        member_bytes members[].bad_block_bytes members[].corrected_reads members[].deleted members[].device_bytes members[].device_uuid members[].errors members[].failfast members[].path \
        members[].read_bytes members[].read_latency_ns members[].recovered_bytes members[].slot members[].state members[].write_bytes \
        members[].write_latency_ns members[].write_mostly metadata name p99_budget_ns parity_at_targets pid raid_devices rate_max rate_min read_only rebuild redo_log scrub \
        shards size_bytes spare_group started_unix_s state stripes_in_doubt update_policy updated_unix_s uuid writes_recorded";
    let names: Vec<&str> =
        names.iter().map(String::as_str).filter(|name| !name.starts_with("counters.")).collect();
    assert_eq!(names, wanted.split_whitespace().collect::<Vec<_>>());
    server.stop();
}

/// Where the kernel has ublk, tests/vm/ublk.sh says what happens.
#[test]
fn without_ublk_the_program_says_what_to_do_before_it_looks_at_members() {
    if std::path::Path::new("/dev/ublk-control").exists() {
        return eprintln!("skipped: this kernel has ublk");
    }
    let world = World::new();
    let run =
        world.refused(17, &["no ublk", "modprobe ublk_drv", "Linux 6.5"], &["serve", "--ublk"], &["m0"]);
    assert!(!run.stderr.contains("m0"), "{}", run.stderr);
    world.refused(2, &["invalid value 'x'"], &["serve", "--ublk=x"], &["m0"]);
}

#[test]
fn a_parity_cache_that_would_end_the_daemon_is_refused() {
    let world = World::new();
    let members = world.array(3);
    let serve = ["serve", "--parity-cache", "64T"];
    world.refused(2, &["--parity-cache: 67108864 MiB are more than half"], &serve, &members);
}

#[test]
fn the_update_policy_is_set_while_it_is_served() {
    let world = World::new();
    let members = world.array(3);
    let server = world.serve(&["--update-policy", "adaptive"], &members);
    let status = || server.call("status", &Value::Null)["result"].clone();
    assert_eq!((&status()["update_policy"], &status()["avoid_slow"]), (&"adaptive".into(), &false.into()));
    assert!(server.twill(&["detail"]).succeeds().stdout.contains("Update Policy : adaptive\n"));
    server.twill(&["set", "--avoid-slow", "on"]).succeeds();
    assert!(server.twill(&["status"]).succeeds().stdout.contains("adaptive, avoids slow members"));
    server.twill(&["set", "--update-policy", "fewest-reads", "--avoid-slow", "off"]).succeeds();
    assert_eq!(
        (&status()["update_policy"], &status()["avoid_slow"]),
        (&"fewest-reads".into(), &false.into())
    );
    let unknown = server.call("set", &json!({ "update_policy": "luck" }));
    assert_eq!(unknown["error"]["code"], -32602);
    server.stop();
}

#[test]
fn the_control_socket_speaks_json_rpc() {
    let world = World::new();
    let members = world.array(3);
    let server = world.serve(&[], &members);
    let pong = server.call("ping", &Value::Null);
    assert_eq!((&pong["jsonrpc"], &pong["id"]), (&"2.0".into(), &1.into()));
    assert_eq!(pong["result"]["pid"], server.process.id());
    let codes = [
        ("nonsense", -32700),
        ("[]", -32600),
        (r#"{"jsonrpc":"2.0","id":1,"method":"explode"}"#, -32601),
        (r#"{"jsonrpc":"2.0","id":1,"method":"fail"}"#, -32602),
        (r#"{"jsonrpc":"2.0","id":1,"method":"fail","params":{"member":1}}"#, -32602),
        (r#"{"jsonrpc":"2.0","id":1,"method":"fail","params":{"member":"m0","now":true}}"#, -32602),
    ];
    for (line, code) in codes {
        assert_eq!(server.call_raw(line)["error"]["code"], code, "{line}");
    }
    let gone = server.call("fail", &json!({ "member": "nobody" }));
    assert_eq!(
        (&gone["error"]["code"], &gone["error"]["data"]["kind"]),
        (&(-32008).into(), &"not-found".into())
    );
    server.stop();
}

#[test]
fn what_a_call_does_not_say_is_as_documented() {
    let world = World::new();
    let members = world.array(3);
    let server = world.serve(&[], &members);
    for method in ["set", "scrub", "events"] {
        for params in ["", r#","params":null"#, r#","params":{}"#] {
            let answer =
                server.call_raw(&format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}"{params}}}"#));
            assert!(answer.get("error").is_none(), "{method} {params:?}: {answer}");
            server.wait_for("a check", |status| method != "scrub" || status["scrub"]["phase"] != "running");
        }
    }
    let lacks = server.call_raw(r#"{"jsonrpc":"2.0","id":1,"method":"fail"}"#)["error"].clone();
    assert!(lacks["message"].as_str().unwrap().contains("missing field `member`"), "{lacks}");
    assert_eq!(server.call("stop", &json!({}))["result"]["clean"], true);
}

/// A shell has its background jobs ignore SIGINT, which they hand on to what they start, and the server leaves ignored what was
/// when it started. A signal that is handled is not ignored in what is started; here it does as without a handler.
fn hear_interrupts() {
    let does_as_without = Arc::new(AtomicBool::new(true));
    signal_hook::flag::register_conditional_default(SIGINT, does_as_without)
        .expect("a signal that can be had");
}

#[test]
fn signals_stop_in_order() {
    hear_interrupts();
    let Some(kill) = tool("kill") else { return };
    for signal in ["-INT", "-TERM"] {
        let world = World::new();
        let members = world.array(3);
        let mut server = world.serve(&[], &members);
        let sent = Command::new(&kill).args([signal, &server.process.id().to_string()]).status().unwrap();
        assert!(sent.success());
        assert_eq!(server.end(), Some(0), "{}", server.log());
        let assembled = world.twill(&["assemble", "--json"], &members).succeeds().json();
        assert_eq!(assembled["arrays"][0]["resync_from_bytes"], Value::Null);
        assert!(!world.path("control.sock").exists());
    }
}

#[test]
fn a_daemon_returns_when_it_serves_and_is_found_by_name() {
    let world = World::new();
    let members = world.array(3);
    let serve = ["serve", "--daemon", "--shards", "1", "--pid-file", "pid", "--log", "log"];
    let started = world.twill(&serve, &members).succeeds();
    assert!(started.stdout.contains("test is served"), "{started:?}");
    let control = world.path("run/test.sock");
    assert!(control.exists() && world.path("run/test.nbd").exists(), "the default places");

    let status = world.twill::<&str>(&["status", "--json"], &[]).succeeds().json();
    let pid = status["arrays"][0]["pid"].to_string();
    assert_eq!(fs::read_to_string(world.path("pid")).unwrap().trim(), pid);
    world.twill::<&str>(&["status", "test"], &[]).succeeds();
    let other = world.twill::<&str>(&["status", "other"], &[]);
    assert!(other.code == 8 && other.stderr.contains("served: test"), "{other:?}");

    let others: Vec<String> = (0..3).map(|i| world.member(&format!("o{i}"), MEMBER_BYTES)).collect();
    world.twill(&["create", "--level", "5", "--name", "other"], &others).succeeds();
    world.twill(&["serve", "--daemon", "--shards", "1"], &others).succeeds();
    let two = world.twill::<&str>(&["detail"], &[]);
    assert!(two.code == 13 && two.stderr.contains("other, test"), "{two:?}");
    world.twill::<&str>(&["stop", "other"], &[]).succeeds();
    world.twill::<&str>(&["stop"], &[]).succeeds();
    assert!(!control.exists() && !world.path("pid").exists());
    world.twill(&["create", "--level", "5", "--force"], &members).succeeds();
    assert_eq!(world.twill::<&str>(&["stop"], &[]).code, 8);
    assert!(fs::read_to_string(world.path("log")).unwrap().contains("serving"));
}

#[test]
fn a_daemon_that_cannot_start_says_so_with_its_code() {
    let world = World::new();
    let members = world.members(3);
    let serve = ["serve", "--daemon", "--control", "c.sock", "--unix", "n.sock"];
    let run = world.refused(4, &["m0", "no md superblock"], &serve, &members);
    assert_eq!(run.stderr.matches("twill: ").count(), 1, "said once: {run:?}");
    let run = world.refused(4, &[], &[&serve[..], &["--json"]].concat(), &members);
    assert_eq!(run.json()["error"]["kind"], "not-a-member");
}

fn held_by(world: &World, members: &[String]) -> Vec<Vec<u8>> {
    members.iter().map(|member| fs::read(world.path(member)).unwrap()).collect()
}

#[test]
fn a_read_only_server_writes_nothing() {
    let world = World::new();
    let members = world.array(3);
    let before = held_by(&world, &members);
    let server = world.serve(&["--read-only"], &members);
    assert_eq!(server.status()["read_only"], true);
    server.stop();
    assert!(before == held_by(&world, &members));
}

/// An orderly stop whose caller does not wait for the answer: the array was stopped, and its server stayed for ever.
#[test]
fn a_caller_that_leaves_during_a_stop_leaves_no_server_behind() {
    let world = World::new();
    let mut server = world.serve(&[], &world.array(3));
    let mut stream = UnixStream::connect(world.path("control.sock")).expect("the control socket");
    writeln!(stream, "{}", serde_json::json!({"jsonrpc": "2.0", "id": 1, "method": "stop"}))
        .expect("writable");
    drop(stream);
    assert_eq!(server.end(), Some(0));
    assert!(!world.path("control.sock").exists());
}

#[test]
fn a_server_that_only_reads_is_alone_with_others_that_do() {
    let world = World::new();
    let members = world.array(3);
    let server = world.serve(&["--read-only"], &members);
    let serve = ["serve", "--control", "other.sock", "--unix", "other.nbd"];
    let run = world.twill(&serve, &members);
    assert!(run.code == 6, "{run:?}");
    server.stop();
    let server = world.serve(&[], &members);
    let run = world.twill(&[&serve[..], &["--read-only"]].concat(), &members);
    assert!(run.code == 6, "what changes under it is not read: {run:?}");
    server.stop();
}

/// A superblock at another place, and newer than the array: the next start believed it.
/// Only md superblocks were cleared: a partition tool made the table again, over the member.
#[test]
fn what_is_added_has_no_partition_table_left() {
    let world = World::new();
    let members = world.array(3);
    let larger = MEMBER_BYTES + (8 << 20); // the array does not use its end
    let disk = world.member("disk", larger);
    world.partition(&disk, larger);
    let server = world.serve(&[], &members);
    let refused = server.twill(&["add", &disk]);
    assert!(refused.code == 3 && refused.stderr.contains("a GPT partition table"), "{refused:?}");
    let added = server.twill(&["add", "--force", &disk]).succeeds();
    assert!(added.stdout.contains("disk is no longer a GPT partition table"), "{added:?}");
    for at in [510, 512, larger - 512] {
        assert_eq!(world.bytes("disk", at, 8), [0; 8], "at {at}");
    }
    server.twill(&["fail", &members[1]]).succeeds();
    server.wait_for("a recovery", |status| status["members"][1]["state"] == "in-sync");
    server.stop();
}

#[test]
fn what_is_added_has_no_other_superblock_left() {
    let world = World::new();
    let members = world.array(3);
    std::thread::sleep(Duration::from_millis(1100)); // a creation time that is later
    let other = ["create", "--level", "1", "--name", "other", "--metadata", "1.0"];
    let larger = MEMBER_BYTES + (8 << 20); // its end is not used, and that superblock is there
    let others = [world.member("o0", larger), world.member("o1", larger)];
    world.twill(&other, &others).succeeds();
    let server = world.serve(&[], &members);
    server.twill(&["fail", &members[1]]).succeeds();
    let refused = server.twill(&["add", &others[0]]);
    assert!(refused.code != 0 && refused.stderr.contains("--force"), "{refused:?}");
    server.twill(&["add", "--force", &others[0]]).succeeds();
    let is_whole = |status: &serde_json::Value| {
        let members = status["members"].as_array().expect("members");
        status["rebuild"].is_null()
            && members.iter().filter(|member| member["state"] == "in-sync").count() == 3
    };
    server.wait_for("a recovery", is_whole);
    server.stop();
    let now = [members[0].clone(), others[0].clone(), members[2].clone()];
    let server = world.serve(&["--no-degraded"], &now);
    assert!(is_whole(&server.status()));
    server.stop();
}

/// It waited for ever, with the members locked.
#[test]
fn a_place_that_cannot_be_listened_at_is_said_and_the_members_are_free_again() {
    let world = World::new();
    let members = world.array(3);
    fs::create_dir(world.path("folder")).unwrap();
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = other.local_addr().unwrap().to_string();
    let read = || members.iter().map(|member| fs::read(world.path(member)).unwrap()).collect::<Vec<_>>();
    let before = read();
    let places: [&[&str]; 5] = [
        &["--unix", "no/such/folder"],
        &["--unix", "folder"],
        &["--tcp", "203.0.113.7:10809"],
        &["--tcp", &taken],
        &["--tcp", "127.0.0.1:0", "--tcp", &taken],
    ];
    for place in places {
        let serve = [&["serve", "--control", "c.sock"], place].concat();
        let run = world.twill(&serve, &members);
        let is_said = run.stderr.contains("cannot listen at") && run.stderr.contains("nothing was written");
        assert!(run.code > 0 && is_said, "{place:?}: {run:?}");
        assert!(read() == before, "{place:?}: superblocks were written first");
    }
    world.serve(&[], &members).stop();
}

/// A shard panicked when a member failed after the reader of the log had gone.
#[test]
fn a_log_that_nobody_reads_is_no_reason_to_end() {
    let world = World::new();
    let members = world.array(3);
    let mut command = world.command();
    command.args(["serve", "--control", "c.sock", "--unix", "n.sock", "-v"]).args(&members);
    let mut process = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
    drop(process.stderr.take());
    let ask = |words: &[&str]| world.twill(&[words, &["--control", "c.sock"]].concat(), &[] as &[&str]);
    let start = Instant::now();
    while ask(&["status"]).code != 0 {
        assert!(start.elapsed() < Duration::from_secs(60), "it does not serve");
        std::thread::sleep(Duration::from_millis(50));
    }
    ask(&["fail", "m1"]).succeeds();
    let status = ask(&["status"]).succeeds().stdout;
    assert!(status.contains("[U_U]"), "{status}");
    ask(&["stop"]).succeeds();
    assert!(process.wait().expect("it ends").success());
}

#[test]
fn a_command_for_an_array_of_another_name_is_refused() {
    let world = World::new();
    let members = world.array(3);
    let server = world.serve(&[], &members);
    for words in [&["stop", "other"][..], &["fail", "--array", "other", "1"]] {
        let run = server.twill(words);
        assert!(run.code == 8 && run.stderr.contains("not \"other\""), "{words:?}: {run:?}");
    }
    server.twill(&["status", "test"]).succeeds();
    let refused = server.twill(&["add", "m9"]);
    assert!(refused.code != 0, "{refused:?}");
    world.member("m9", 10 << 20);
    assert_eq!(server.twill(&["add", "m9"]).code, 10, "too small");
    world.member("m9", MEMBER_BYTES);
    server.twill(&["add", "m9"]).succeeds(); // it is not held by the try before
    server.stop();
}

/// The kernel may let go of a removed member a moment after the server has.
#[test]
fn a_device_that_is_still_held_for_a_moment_is_waited_for() {
    let world = World::new();
    let members = world.members(3);
    let create = ["create", "--level", "5", "--name", "test", "--bitmap", "internal"];
    world.twill(&create, &members).succeeds();
    let server = world.serve(&[], &members);
    world.member("m9", MEMBER_BYTES);
    server.twill(&["fail", "m1"]).succeeds();
    server.twill(&["remove", "m1"]).succeeds();
    for (command, member) in [("re-add", "m1"), ("add", "m9")] {
        let held = fs::File::open(world.path(member)).unwrap();
        held.lock().unwrap();
        let freed = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(500));
            drop(held);
        });
        server.twill(&[command, member]).succeeds();
        freed.join().unwrap();
    }
    let held = fs::File::open(world.path(&world.member("m8", MEMBER_BYTES))).unwrap();
    held.lock().unwrap();
    assert_eq!(server.twill(&["add", "m8"]).code, 6, "not for ever");
    server.stop();
}

/// The superblocks of the others could not be written, so they failed too, as many as the level survives.
#[test]
fn a_member_that_fails_under_a_read_only_server_takes_no_other_with_it() {
    let world = World::new();
    let members = world.members(4);
    world.twill(&["create", "--level", "6", "--name", "test", "--wait"], &members).succeeds();
    let before = held_by(&world, &members);
    let server = world.serve(&["--read-only"], &members);
    server.twill(&["fail", "m1"]).succeeds();
    let state = |status: &Value, member: usize| status["members"][member]["state"].clone();
    server.wait_for("the failure", |status| state(status, 1) == "failed");
    std::thread::sleep(std::time::Duration::from_millis(700)); // several looks of the manager
    let status = server.status();
    assert!([0, 2, 3].iter().all(|&member| state(&status, member) == "in-sync"), "{status:#}");
    let events = server.twill(&["events", "--json"]).succeeds().stdout;
    assert!(!events.contains("metadata"), "{events}");
    server.stop();
    assert!(before == held_by(&world, &members));
}

#[test]
fn a_new_array_is_made_to_agree_before_create_returns() {
    let world = World::new();
    let members = world.members(3);
    world.write("m1", 8 << 20, b"something");
    world.twill(&["create", "--level", "5", "--force", "--wait"], &members).succeeds();
    let assembled = world.twill(&["assemble", "--json"], &members).succeeds().json();
    assert_eq!(assembled["arrays"][0]["resync_from_bytes"], Value::Null);
    // What m1 holds is the parity of the other two at the same place, whichever of the three holds it.
    let parts: Vec<_> = members.iter().map(|member| world.bytes(member, 8 << 20, 9)).collect();
    let sum: Vec<u8> = (0..9).map(|i| parts.iter().fold(0, |sum, part| sum ^ part[i])).collect();
    assert_eq!(sum, [0; 9]);
}

#[test]
fn data_survives_a_lost_member_through_a_real_client() {
    let (Some(nbdcopy), Some(_)) = (tool("nbdcopy"), tool("nbdinfo")) else { return };
    let world = World::new();
    let members = world.array(4);
    let data: Vec<u8> = (0..2u32 << 20).flat_map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    fs::write(world.path("data"), &data).unwrap();
    let server = world.serve(&[], &members);
    let uri = format!("nbd+unix:///?socket={}", world.path("nbd.sock").display());
    let copy = |from: &str, to: &str| {
        let mut copied = Command::new(&nbdcopy);
        copied.current_dir(world.folder.path()).args(["--flush", from, to]);
        assert!(copied.stdout(Stdio::null()).status().unwrap().success(), "{from} to {to}: {}", server.log());
    };
    copy("data", &uri);
    server.twill(&["fail", "m2"]).succeeds();
    copy(&uri, "back");
    let back = fs::read(world.path("back")).unwrap();
    assert!(back[..data.len()] == data[..]);
    server.stop();
    if let Some(mdadm) = tool("mdadm") {
        let examined = output_of(&mdadm, &["--examine".as_ref(), &world.path("m0")]);
        assert!(examined.contains("- correct") && examined.contains("AA.A"), "{examined}");
    }
}

#[test]
fn a_killed_server_is_followed_by_a_resync_and_its_sockets_do_no_harm() {
    let Some(nbdcopy) = tool("nbdcopy") else { return };
    let world = World::new();
    let members = world.array(3);
    let data: Vec<u8> = (0..1u32 << 20).flat_map(|i| i.wrapping_mul(2_246_822_519).to_le_bytes()).collect();
    fs::write(world.path("data"), &data).unwrap();
    let uri = format!("nbd+unix:///?socket={}", world.path("nbd.sock").display());
    let copy = |from: &str, to: &str| {
        let mut copied = Command::new(&nbdcopy);
        copied.current_dir(world.folder.path()).args(["--flush", from, to]);
        assert!(copied.stdout(Stdio::null()).status().unwrap().success(), "{from} to {to}");
    };
    let mut server = world.serve(&[], &members);
    copy("data", &uri);
    server.process.kill().unwrap();
    server.end();
    assert!(world.path("control.sock").exists() && world.path("nbd.sock").exists());

    let server = world.serve(&[], &members);
    server.wait_for("a resync", |status| status["rebuild"].is_null());
    copy(&uri, "back");
    assert!(fs::read(world.path("back")).unwrap()[..data.len()] == data[..]);
    server.stop();
}

#[test]
fn watching_and_waiting_end() {
    let world = World::new();
    let members = world.members(3);
    world.write("m1", 8 << 20, b"something");
    world.twill(&["create", "--level", "5", "--force", "--name", "test"], &members).succeeds();
    let server = world.serve(&[], &members);
    server.twill(&["status", "--wait"]).succeeds();
    assert!(server.status()["rebuild"].is_null());
    let watcher = ["status", "--watch", "--json", "--control", "control.sock"];
    let watcher = world.command().args(watcher).stdout(Stdio::piped()).spawn().unwrap();
    let follower = ["events", "--follow", "--control", "control.sock"];
    let follower = world.command().args(follower).stdout(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_secs(1));
    server.stop();
    for (process, says) in [(watcher, "\"level\":\"raid5\""), (follower, "resync finished")] {
        let output = process.wait_with_output().unwrap();
        assert!(output.status.success());
        assert!(String::from_utf8_lossy(&output.stdout).contains(says), "{output:?}");
    }
}

#[test]
fn an_array_that_lacks_a_member_takes_a_spare_of_its_group() {
    let world = World::new();
    let poor = world.array(3);
    let rich: Vec<String> = (0..4).map(|i| world.member(&format!("r{i}"), MEMBER_BYTES)).collect();
    let create = ["create", "--level", "5", "--name", "rich", "--spare-devices", "1"];
    world.twill(&create, &rich).succeeds();
    // Both where servers look for each other.
    let (run, group) = (world.path("run"), ["--spare-group", "rack"]);
    fs::create_dir_all(&run).unwrap();
    let socket = |name: &str| run.join(name).display().to_string();
    let (rich_control, rich_nbd) = (socket("rich.sock"), socket("rich.nbd"));
    let mut donor = world
        .command()
        .args(["serve", "--shards", "1", "--control", &rich_control, "--unix", &rich_nbd])
        .args(group)
        .args(&rich)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let asked = || world.twill::<&str>(&["status", "--json", "--control", &rich_control], &[]);
    let start = Instant::now();
    while asked().code != 0 {
        assert!(start.elapsed().as_secs() < 60, "it does not serve: {:?}", asked());
        std::thread::sleep(Duration::from_millis(50));
    }
    let server = world.serve(&group, &poor);
    assert_eq!(server.status()["spare_group"], "rack");
    server.twill(&["fail", "2"]).succeeds();
    server.wait_for("a spare", |status| status["members"][2]["state"] == "in-sync");
    let path = server.status()["members"][2]["path"].as_str().unwrap().to_owned();
    assert!(path.ends_with("r3"), "{path}");
    let left = asked().succeeds().json()["arrays"][0]["members"].as_array().unwrap().len();
    assert_eq!(left, 3, "the other array has it no more");
    server.stop();
    world.twill::<&str>(&["stop", "--control", &rich_control], &[]).succeeds();
    donor.wait().unwrap();
    let examined = world.twill(&["examine", "--json", "r3"], &[] as &[&str]).succeeds().json();
    assert!(examined["members"][0]["superblock"]["name"].as_str().unwrap().ends_with("test"), "{examined}");
}

/// It was nowhere to be seen, and locked until the server ended.
#[test]
fn a_failed_member_stays_listed_until_it_is_removed_and_events_name_devices() {
    let world = World::new();
    let members = world.members(4);
    world.twill(&["create", "--level", "5", "--name", "test", "--spare-devices", "1"], &members).succeeds();
    let server = world.serve(&[], &members);
    let path = |name: &str| world.path(name).display().to_string();
    server.twill(&["fail", "m1"]).succeeds();
    server.wait_for("the spare", |status| status["members"][1]["state"] == "in-sync");
    let status = server.status();
    let listed = &status["members"][3];
    assert_eq!((&listed["path"], &listed["state"]), (&json!(path("m1")), &json!("failed")), "{status:#}");
    assert_eq!((&listed["slot"], &status["members"][1]["path"]), (&Value::Null, &json!(path("m3"))));
    let said = server.twill(&["status"]).succeeds().stdout;
    assert!(said.contains(&format!("no slot: {}, faulty", path("m1"))), "{said}");
    assert_eq!(world.twill(&["add", "--control", "control.sock", "--force", "m1"], &[] as &[&str]).code, 6);
    let said = server.twill(&["events"]).succeeds().stdout;
    for (what, device) in [("member 1 failed", "m1"), ("rebuilt", "m3")] {
        let line = said.lines().find(|line| line.contains(what)).unwrap_or_else(|| panic!("{what}: {said}"));
        assert!(line.ends_with(&format!("[{}]", path(device))), "{line}");
    }
    let said = server.twill(&["remove", "failed"]).succeeds().stdout;
    assert_eq!(said, format!("removed 1 failed member: {}\n", path("m1")));
    assert_eq!(server.status()["members"].as_array().unwrap().len(), 3);
    let said = server.twill(&["remove", "failed"]).succeeds().stdout;
    assert!(said.contains("nothing is removed"), "{said}");
    server.twill(&["add", "--force", "m1"]).succeeds();
    assert_eq!(server.status()["members"][3]["state"], "spare");
    server.stop();
}

#[test]
fn no_degraded_and_limits_that_contradict_each_other_are_refused() {
    let world = World::new();
    let members = world.array(4);
    let serve = ["serve", "--control", "c.sock", "--unix", "n.sock", "--no-degraded"];
    world.refused(5, &["slot 3"], &serve, &members[..3]);
    world.refused(2, &["1..=256"], &["serve", "--shards", "1000"], &members);
    let run = world.refused(2, &["--shards"], &["serve", "--json", "--shards", "0"], &members);
    assert_eq!(run.json()["error"]["kind"], "usage", "{run:?}");
    let server = world.serve(&["--no-degraded"], &members);
    let run = server.twill(&["set", "--rate", "100K", "--rate-min", "1M"]);
    assert!(run.code == 2 && run.stderr.contains("more than --rate"), "{run:?}");
    server.twill(&["set", "--rate", "1M", "--rate-min", "100K"]).succeeds();
    let said = server.twill(&["status"]).succeeds().stdout;
    assert!(
        said.contains("limits: at most 1 MiB/s of resync, recovery and check, at least 100 KiB/s"),
        "{said}"
    );
    server.stop();
}
