//! Arrays with a write-intent bitmap: what a crash leaves, and what the next start makes of it.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::nbd::FUA;
use crate::world::{MEMBER_BYTES, Server, World, output_of, tool};

const CHUNK: u64 = 64 << 10;

/// A RAID-5 of three members with a bit for each stripe, all of it written.
fn array(world: &World) -> Vec<String> {
    let members = world.members(3);
    let bitmap = ["--bitmap", "internal", "--bitmap-chunk", "64K"];
    let create = ["create", "--level", "5", "--name", "test", "--chunk", "64K"];
    world.twill(&[&create[..], &bitmap[..]].concat(), &members).succeeds();
    members
}

/// Writes `data` to the array from a byte on, with a flush.
fn write(world: &World, data: &[u8], offset: u64) -> bool {
    let Some(qemu) = tool("qemu-io") else { return false };
    fs::write(world.path("data"), data).unwrap();
    let write = format!("write -s {} {offset} {}", world.path("data").display(), data.len());
    let uri = format!("nbd+unix:///?socket={}", world.path("nbd.sock").display());
    let mut process = Command::new(qemu);
    process.args(["-f", "raw", &uri, "-c", &write, "-c", "flush"]).stdout(Stdio::null());
    assert!(process.status().unwrap().success());
    true
}

fn data_offset(world: &World) -> u64 {
    let examined = world.twill(&["examine", "--json", "m0"], &[] as &[&str]).succeeds().json();
    examined["members"][0]["superblock"]["data_offset_bytes"].as_u64().unwrap()
}

fn agrees(world: &World, stripe: u64) -> bool {
    let at = data_offset(world) + stripe * CHUNK;
    let parts: Vec<_> = (0..3).map(|i| world.bytes(&format!("m{i}"), at, CHUNK as usize)).collect();
    (0..CHUNK as usize).all(|i| parts.iter().fold(0, |sum, part| sum ^ part[i]) == 0)
}

fn bits_set(status: &Value) -> u64 {
    status["bitmap"]["bits_set"].as_u64().unwrap()
}

fn resynced(server: &Server<'_>) {
    server.wait_for("a resync", |status| status["rebuild"].is_null());
}

#[test]
fn after_a_crash_only_what_is_marked_is_resynced() {
    let world = World::new();
    let members = array(&world);
    let mut server = world.serve(&[], &members);
    if !write(&world, &[7; 2 * CHUNK as usize], 20 * 2 * CHUNK) || !write(&world, &[9; 4096], 40 * 2 * CHUNK)
    {
        return;
    }
    assert_eq!(bits_set(&server.status()), 2);
    server.process.kill().unwrap();
    server.end();
    let examined = world.twill(&["examine", "--json"], &members).succeeds().json();
    for member in examined["members"].as_array().unwrap() {
        let bitmap = &member["superblock"]["bitmap"];
        assert_eq!((&bitmap["bits_set"], &bitmap["stale"]), (&2.into(), &false.into()), "{bitmap}");
    }
    // A stripe that a crash left half written, which is marked; and one that is not marked, which must stay as it is.
    let at = data_offset(&world);
    world.damage("m0", at + 20 * CHUNK + 5);
    world.damage("m2", at + 41 * CHUNK);
    let server = world.serve(&[], &members);
    resynced(&server);
    let status = server.status();
    assert_eq!((&status["consistency_policy"], &status["clean"]), (&"bitmap".into(), &true.into()));
    server.stop();
    assert!(agrees(&world, 20) && agrees(&world, 40));
    assert!(!agrees(&world, 41), "a stripe that is not marked is left alone");
    let words = world.twill(&["examine", "m1"], &[] as &[&str]).succeeds().stdout;
    assert!(words.contains("0 of 176 bits set") || words.contains("0 of "), "{words}");
}

/// 44 bits over 176 stripes: stripes 20 and 64 have the same bit, 41 has another.
#[test]
fn a_spread_bitmap_marks_stripes_all_over_and_is_for_levels_with_parity() {
    let world = World::new();
    let members = world.members(3);
    let bitmap = ["--bitmap", "internal", "--bitmap-chunk", "256K", "--bitmap-mapping", "dblock"];
    let create = ["create", "--level", "5", "--name", "test", "--chunk", "64K"];
    let mirror = world.twill(&[&["create", "--level", "1"], &bitmap[..]].concat(), &members);
    assert!(mirror.stderr.contains("only levels with parity"), "{}", mirror.stderr);
    let created = world.twill(&[&create[..], &bitmap[..]].concat(), &members).succeeds();
    assert!(created.stdout.contains("md does not start this array"), "{}", created.stdout);
    let mut server = world.serve(&[], &members);
    if !write(&world, &[7; 4096], 20 * 2 * CHUNK) || !write(&world, &[9; 4096], 40 * 2 * CHUNK) {
        return;
    }
    assert_eq!(bits_set(&server.status()), 2);
    server.process.kill().unwrap();
    server.end();
    let examined = world.twill(&["examine", "--json", "m0"], &[] as &[&str]).succeeds().json();
    let bitmap = &examined["members"][0]["superblock"]["bitmap"];
    assert_eq!((&bitmap["mapping"], &bitmap["bits_set"]), (&"dblock".into(), &2.into()), "{bitmap}");
    let bits = bitmap["bits"].as_u64().expect("bits");
    let at = data_offset(&world);
    let (same, other) = (20 + bits, 41);
    world.damage("m0", at + same * CHUNK);
    world.damage("m2", at + other * CHUNK);
    let server = world.serve(&[], &members);
    resynced(&server);
    server.stop();
    assert!(agrees(&world, 20) && agrees(&world, same), "stripes of a bit that was set");
    assert!(!agrees(&world, other), "a stripe whose bit was not");
}

/// The crash takes a member with it. Only stripes that were being written may have been left half done: all others are
/// read, without force.
#[test]
fn a_crash_that_takes_a_member_leaves_only_what_is_marked_in_doubt() {
    let world = World::new();
    let members = array(&world);
    let mut server = world.serve(&[], &members);
    if !write(&world, &[7; 2 * CHUNK as usize], 20 * 2 * CHUNK) || !write(&world, &[9; 4096], 40 * 2 * CHUNK)
    {
        return;
    }
    server.process.kill().unwrap();
    server.end();
    let left = [members[0].clone(), members[2].clone()];
    let answer = world.twill(&["assemble", "--json"], &left).succeeds().json();
    let range = |first: u64| serde_json::json!({ "first": first, "end": first + 1 });
    assert_eq!(answer["arrays"][0]["in_doubt"], serde_json::json!([range(20), range(40)]), "{answer}");
    let server = world.serve(&[], &left);
    assert_eq!(server.status()["stripes_in_doubt"], 2);
    let mut client = world.client();
    let mut refused = Vec::new();
    for chunk in 0..128 {
        if client.read(chunk * CHUNK, 4096).expect("served").is_err() {
            refused.push(chunk / 2);
        }
    }
    // Of a stripe whose parity is what is gone, all data is there.
    assert!(!refused.is_empty() && refused.iter().all(|stripe| [20, 40].contains(stripe)), "{refused:?}");
    server.stop();
}

/// A device that takes a slot gets the array's bitmap, so where its log may be is known. It was not, and an array whose members
/// had been replaced one by one had no room for a log when the next one failed.
#[test]
fn members_that_were_replaced_have_room_for_the_redo_log() {
    let world = World::new();
    let members = array(&world);
    let server = world.serve(&[], &members);
    for old in &members[..2] {
        let new = world.member(&format!("{old}-new"), MEMBER_BYTES);
        server.twill(&["replace", old, "--with", &new]).succeeds();
        let is_replaced = |status: &Value| {
            let path = |member: &Value| member["path"].as_str().is_some_and(|path| path.ends_with(&new));
            status["rebuild"].is_null() && status["members"].as_array().expect("members").iter().any(path)
        };
        server.wait_for("a replacement", is_replaced);
    }
    server.twill(&["fail", &members[2]]).succeeds();
    assert_eq!(server.status()["redo_log"], "in-force");
    server.stop();
}

/// What the log makes again is good: superblocks do not name it after an orderly stop, also where no log is kept then.
#[test]
fn what_is_marked_is_in_doubt_after_a_crash_alone() {
    let world = World::new();
    let members = array(&world);
    let server = world.serve(&[], &members);
    server.twill(&["fail", &members[1]]).succeeds();
    if !write(&world, &[7; 4096], 20 * 2 * CHUNK) {
        return;
    }
    drop(server); // killed
    let left = [members[0].clone(), members[2].clone()];
    for options in [&[][..], &["--no-redo-log"], &[]] {
        let server = world.serve(options, &left);
        assert_eq!(server.status()["stripes_in_doubt"], 0, "{options:?}");
        server.stop();
    }
}

#[test]
fn a_bitmap_that_is_out_of_date_or_damaged_costs_a_whole_resync() {
    for damaged in [true, false] {
        let world = World::new();
        let members = array(&world);
        let mut server = world.serve(&[], &members);
        if !write(&world, &[7; 4096], 0) {
            return;
        }
        server.process.kill().unwrap();
        server.end();
        for member in &members {
            if damaged {
                world.damage(member, 8192);
            } else {
                world.write(member, 8192 + 24, &0u64.to_le_bytes());
            }
        }
        world.damage("m2", data_offset(&world) + 41 * CHUNK);
        let server = world.serve(&[], &members);
        resynced(&server);
        server.stop();
        assert!(
            agrees(&world, 41),
            "damaged: {damaged}; {}",
            fs::read_to_string(world.path("server.log")).unwrap()
        );
        let examined = world.twill(&["examine", "--json"], &members).succeeds().json();
        assert_eq!(examined["members"][1]["superblock"]["bitmap"]["bits_set"], 0, "it is kept again");
    }
}

/// The goal is a second for all of the restart. Wall time says little on a machine with other work, so it is the
/// server's own processor time, of a build without all optimisations.
#[test]
fn a_large_sparse_array_is_back_within_a_second_of_a_crash() {
    let world = World::new();
    let members: Vec<String> = (0..5).map(|i| world.member(&format!("m{i}"), 256 << 30)).collect();
    world.twill(&["create", "--level", "5", "--name", "test"], &members).succeeds();
    let mut server = world.serve(&[], &members);
    let status = server.status();
    assert!(
        status["size_bytes"].as_u64().unwrap() > 1 << 39 && status["consistency_policy"] == "bitmap",
        "mdadm's default"
    );
    assert_eq!(status["bitmap"]["chunk_bytes"], 64 << 20);
    if !write(&world, &[7; 4096], 1 << 39) {
        return;
    }
    server.process.kill().unwrap();
    server.end();
    let server = world.serve(&[], &members);
    let statistics = fs::read_to_string(format!("/proc/{}/stat", server.process.id())).unwrap();
    let ticks: u64 = statistics.split(' ').skip(13).take(2).map(|word| word.parse::<u64>().unwrap()).sum();
    assert!(ticks < 100, "{ticks} ticks of 10 ms until it served");
    assert_eq!(bits_set(&server.status()), 1);
}

#[test]
fn options_that_contradict_each_other_are_refused() {
    let world = World::new();
    let members = world.members(3);
    let create = |options: &[&'static str]| [&["create", "--level", "5"], options].concat();
    for (code, says, options) in [
        (2, "forbids", &["--bitmap", "none", "--consistency-policy", "bitmap"][..]),
        (2, "wants --bitmap", &["--bitmap-chunk", "64K"]),
        (2, "leave out", &["--bitmap", "internal", "--consistency-policy", "resync"]),
    ] {
        world.refused(code, &[says], &create(options), &members);
    }
    let none = world.twill(&create(&["--consistency-policy", "none"]), &members);
    assert!(none.code != 0 && none.stderr.contains("serve"), "{none:?}");
    let small = world.twill(&create(&["--bitmap", "internal", "--bitmap-chunk", "5000B"]), &members);
    assert!(small.code != 0 && small.stderr.contains("power of two"), "{small:?}");
    let striped = ["create", "--level", "0", "--bitmap", "internal"];
    let striped = world.twill(&striped, &members);
    assert!(striped.code != 0 && striped.stderr.contains("nothing to resync"), "{striped:?}");
}

#[test]
fn without_consistency_nothing_is_written_down_and_a_bitmap_forbids_it() {
    let world = World::new();
    let members = world.array(3);
    let mut server = world.serve(&["--consistency-policy", "none"], &members);
    assert_eq!(server.status()["consistency_policy"], "none");
    if !write(&world, &[7; 4096], 0) {
        return;
    }
    server.process.kill().unwrap();
    server.end();
    let assembled = world.twill(&["assemble", "--json"], &members).succeeds().json();
    assert_eq!(assembled["arrays"][0]["resync_from_bytes"], Value::Null, "the superblocks never said dirty");
    drop(server);
    let world = World::new();
    let members = array(&world);
    let refused =
        world.twill(&["serve", "--consistency-policy", "none", "--control", "c", "--unix", "n"], &members);
    assert!(refused.code == 2 && refused.stderr.contains("bitmap"), "{refused:?}");
}

/// Member 1 goes away.
fn is_away(server: &Server<'_>) {
    server.twill(&["fail", "1"]).succeeds();
    server.twill(&["remove", "1"]).succeeds();
}

#[test]
fn a_member_that_was_away_gets_what_is_marked_and_nothing_else() {
    let world = World::new();
    let members = array(&world);
    let server = world.serve(&[], &members);
    if !write(&world, &[7; 4096], 0) {
        return;
    }
    is_away(&server);
    write(&world, &[8; 2 * CHUNK as usize], 20 * 2 * CHUNK);
    let at = data_offset(&world);
    world.damage("m1", at + 20 * CHUNK + 5); // one that is marked, and one that must stay as it is
    world.damage("m1", at + 41 * CHUNK);
    let away = world.bytes("m1", 0, MEMBER_BYTES as usize);
    let again = server.twill(&["re-add", "--json", "m1"]).succeeds().json();
    assert_eq!(again["done"], "re-added");
    server.wait_for("a recovery", |status| status["members"][1]["state"] == "in-sync");
    server.wait_for("no recovery", |status| status["rebuild"].is_null());
    let back = world.bytes("m1", 0, MEMBER_BYTES as usize);
    let differs = |stripe: u64| {
        let range = (at + stripe * CHUNK) as usize..(at + (stripe + 1) * CHUNK) as usize;
        away[range.clone()] != back[range]
    };
    let stripes = (MEMBER_BYTES - at) / CHUNK;
    assert_eq!((0..stripes).filter(|stripe| differs(*stripe)).collect::<Vec<_>>(), [20], "{}", server.log());
    let events = server.twill(&["events", "--json"]).succeeds().stdout;
    assert!(events.contains("member-re-added") && !events.contains("recovery-started"), "{events}");
    let refused = server.twill(&["re-add", "m1"]);
    assert!(refused.code == 6 && refused.stderr.contains("already"), "{refused:?}");
    server.stop();
    assert!(agrees(&world, 20) && !agrees(&world, 41));
    if let Some(mdadm) = tool("mdadm") {
        let text = output_of(&mdadm, &[Path::new("--examine"), &world.path("m1")]);
        assert!(text.contains("Active device 1") && text.contains("State : clean"), "{text}");
        assert!(!text.contains("Recovery Offset"), "{text}");
    }
}

/// md's lockless bitmap: parity was never made where nothing was written, and only md knows where that is.
#[test]
fn an_array_with_a_bitmap_of_another_kind_is_refused() {
    let world = World::new();
    let members = array(&world);
    let examined = world.twill(&["examine", "--json", "m1"], &[] as &[&str]).succeeds().json();
    let at = examined["members"][0]["superblock"]["bitmap_offset_bytes"].as_i64();
    let at = at.and_then(|at| u64::try_from(at).ok()).unwrap_or(8 << 10); // from the start of the member
    for member in &members {
        assert_eq!(world.bytes(member, at, 4), b"bitm");
        world.write(member, at + 4, &6u32.to_le_bytes());
    }
    let serve = ["serve", "--control", "c.sock", "--unix", "n.sock"];
    world.refused(12, &["version 6", "mdadm --grow --bitmap=none"], &serve, &members);
}

#[test]
fn a_recovery_by_bitmap_goes_on_after_a_crash_as_md_would_go_on() {
    let world = World::new();
    let members = array(&world);
    let mut server = world.serve(&[], &members);
    if !write(&world, &[7; 4096], 0) {
        return;
    }
    is_away(&server);
    write(&world, &[8; 16 * 2 * CHUNK as usize], 20 * 2 * CHUNK);
    let at = data_offset(&world);
    world.damage("m1", at + 41 * CHUNK);
    // Else the crash would leave stripes in doubt, from which no member can be recovered.
    server.wait_for("a clean array", |status| status["clean"] == true);
    server.twill(&["set", "--rate", "1"]).succeeds(); // it is under way for as long as the test takes
    let events = |name: &str| {
        let examined = world.twill(&["examine", "--json", name], &[] as &[&str]).succeeds().json();
        examined["members"][0]["superblock"]["events"].as_u64().expect("a number")
    };
    let before = events("m0");
    server.twill(&["re-add", "m1"]).succeeds();
    server.wait_for("a recovery", |status| !status["rebuild"].is_null());
    // A crash before the others tell of it leaves a member that has to be re-added once more.
    server.wait_for("superblocks of it", |_| events("m0") > before && events("m1") == events("m0"));
    server.process.kill().unwrap();
    server.end();
    let examined = world.twill(&["examine", "--json", "m1"], &[] as &[&str]).succeeds().json();
    let features = examined["members"][0]["superblock"]["features"].to_string();
    assert!(features.contains("RECOVERY_BITMAP"), "{features}");
    if let Some(mdadm) = tool("mdadm") {
        let text = output_of(&mdadm, &[Path::new("--examine"), &world.path("m1")]);
        assert!(text.contains("Feature Map : 0x83") && text.contains("Recovery Offset"), "{text}");
    }
    let server = world.serve(&[], &members);
    server.wait_for("a recovery", |status| status["members"][1]["state"] == "in-sync");
    resynced(&server);
    server.stop();
    assert!((20..36).all(|stripe| agrees(&world, stripe)));
    assert!(!agrees(&world, 41), "what is not marked is left alone");
}

#[test]
fn a_member_that_was_away_while_the_array_was_not_served_comes_back_when_it_is_wanted() {
    let world = World::new();
    let members = array(&world);
    let server = world.serve(&[], &members);
    if !write(&world, &[7; 4096], 0) {
        return;
    }
    server.stop();
    let two = [members[0].clone(), members[2].clone()];
    let server = world.serve(&[], &two);
    write(&world, &[8; 4096], 20 * 2 * CHUNK);
    server.stop();
    let explained = world.twill(&["assemble"], &members).stdout;
    assert!(explained.contains("re-add"), "{explained}");
    let server = world.serve(&["--re-add"], &members);
    server.wait_for("a recovery", |status| status["members"][1]["state"] == "in-sync");
    server.stop();
    assert!(agrees(&world, 20) && agrees(&world, 0));
}

/// A new disk had taken the number of a member that the other side called failed. The bitmap of the side that went on took
/// that member back, and reads gave what only the lost side had been told.
#[test]
fn a_member_that_went_on_apart_is_not_re_added() {
    const WROTE: u64 = 4 << 20;
    for (level, count, one, other) in [("1", 3, &[0, 1][..], &[2][..]), ("10", 4, &[0, 2], &[1, 3])] {
        let world = World::new();
        let members = world.members(count);
        let create = ["create", "--level", level, "--name", "test", "--assume-clean"];
        let bitmap = ["--bitmap", "internal", "--bitmap-chunk", "64K"];
        world.twill(&[&create[..], &bitmap].concat(), &members).succeeds();
        let side = |slots: &[usize]| slots.iter().map(|&slot| members[slot].clone()).collect::<Vec<_>>();
        let server = world.serve(&[], &side(one));
        assert_eq!(world.client().write(WROTE, &[0xaa; 4096], FUA).expect("served"), 0);
        server.stop();
        let server = world.serve(&[], &side(other));
        let mut client = world.client();
        assert_eq!(client.write(2 * WROTE, &[0xbb; 4096], FUA).expect("served"), 0);
        let new = world.member("new", MEMBER_BYTES);
        server.twill(&["add", &new]).succeeds();
        server.twill(&["status", "--wait"]).succeeds();
        let away = &members[one[1]];
        let refused = server.twill(&["re-add", away]);
        assert!(refused.code == 19 && refused.stderr.contains("generation"), "RAID-{level}: {refused:?}");
        for _ in 0..4 {
            let read = client.read(WROTE, 4096).expect("served").expect("no error");
            assert!(read == [0; 4096], "RAID-{level} reads what only the other side was told");
        }
        server.twill(&["add", "--force", away]).succeeds(); // as a new disk it may
        drop(client);
        server.stop();
    }
}

#[test]
fn who_lacks_more_than_is_marked_is_not_taken_back() {
    let world = World::new();
    let members = world.array(3);
    let server = world.serve(&["--shards", "1"], &members);
    is_away(&server);
    let refused = server.twill(&["re-add", "m1"]);
    assert!(refused.code == 19 && refused.stderr.contains("without a bitmap"), "{refused:?}");
    let stranger = world.member("stranger", MEMBER_BYTES);
    assert_eq!(server.twill(&["re-add", &stranger]).code, 4);
    assert_eq!(server.twill(&["re-add", "nobody"]).code, 8);
}
