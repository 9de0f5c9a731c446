//! Members that are replaced while they work, and arrays that md was in the middle of `--replace` with: the member that is
//! replaced and its copy have one slot.

use std::fs;

use serde_json::Value;

use layout::md_superblock::{DeviceRole, MinorVersion, Superblock};
use layout::units::{Sectors, Slot};

use crate::world::{MEMBER_BYTES, World, has_taken};

const SUPERBLOCK_AT: u64 = 4096;
const COPY: u32 = 3;
/// What the copy has of the member.
const COPIED_BYTES: u64 = 1 << 20;

/// A RAID-5 of three members that agree: `m0` and `m1` hold the same, `m2` zeroes. Returns where the data is.
fn array(world: &World) -> u64 {
    let members = world.array(3);
    let server = world.serve(&[], &members);
    server.wait_for("a resync", |status| status["rebuild"].is_null());
    server.stop();
    let at = superblock(world, "m0").data_offset().bytes();
    let pattern: Vec<u8> =
        (0..superblock(world, "m0").size().bytes()).map(|i| (i / 512 % 251) as u8).collect();
    world.write("m0", at, &pattern);
    world.write("m1", at, &pattern);
    at
}

fn superblock(world: &World, name: &str) -> Superblock {
    let bytes = world.bytes(name, SUPERBLOCK_AT, 4096);
    Superblock::parse(&bytes, MinorVersion::V1_2, MEMBER_BYTES).expect("a superblock")
}

fn change(world: &World, name: &str, change: impl FnOnce(&mut Superblock)) {
    let mut superblock = superblock(world, name);
    change(&mut superblock);
    world.write(name, SUPERBLOCK_AT, &superblock.encode(512));
}

/// md replaces `m1` by `copy`, which has the first part of it.
fn replace(world: &World, at: u64) {
    fs::copy(world.path("m1"), world.path("copy")).unwrap();
    (COPIED_BYTES..superblock(world, "m1").size().bytes())
        .step_by(32 << 10)
        .for_each(|byte| world.damage("copy", at + byte));
    for name in ["m0", "m1", "m2", "copy"] {
        change(world, name, |superblock| superblock.set_role(COPY, DeviceRole::Active(Slot::new(1))));
    }
    change(world, "copy", |superblock| {
        superblock.set_device(COPY, [0xc0; 16]);
        superblock.set_recovery_offset(Some(Sectors(COPIED_BYTES / 512)));
        superblock.set_replacement(true);
    });
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

fn is_whole(status: &Value) -> bool {
    status["rebuild"].is_null() && (0..3).all(|slot| status["members"][slot]["state"] == "in-sync")
}

/// `copy` holds what `m1` holds, and is the member in its slot.
fn was_replaced(world: &World, at: u64) {
    let bytes = superblock(world, "copy").size().bytes() as usize;
    assert!(world.bytes("copy", at, bytes) == world.bytes("m1", at, bytes), "the same contents");
    let copy = superblock(world, "copy");
    assert_eq!(
        (copy.is_replacement(), copy.recovery_offset(), copy.role()),
        (false, None, DeviceRole::Active(Slot::new(1)))
    );
    let old = superblock(world, "m1").dev_number();
    assert_eq!(superblock(world, "m0").role_of(old), Some(DeviceRole::Faulty));
}

#[test]
fn what_md_had_begun_to_replace_is_replaced() {
    let world = World::new();
    let at = array(&world);
    replace(&world, at);
    let all = names(&["copy", "m2", "m1", "m0"]);
    let run = world.twill(&["assemble", "--explain"], &all).succeeds();
    assert!(run.stdout.contains("to replace the member in slot 1"), "{run:?}");
    world.damage("copy", at + COPIED_BYTES - 1); // it was copied, and is not read again
    let server = world.serve(&[], &all);
    server.wait_for("a replacement", |status| has_taken(status, 1, "copy"));
    server.wait_for("a whole array", is_whole);
    let status = server.status();
    assert_eq!(status["members"].as_array().unwrap().len(), 3, "{status}");
    server.stop();
    world.damage("copy", at + COPIED_BYTES - 1);
    was_replaced(&world, at);
    let run = world.twill(&["assemble", "--explain"], &all).succeeds();
    let verdict = run.stdout.lines().find(|line| line.contains("m1: not taken:")).expect("it was replaced");
    assert!(verdict.contains("has gone on without it, in another generation"), "{verdict}");
}

#[test]
fn a_member_is_replaced_by_a_device_and_let_go() {
    let world = World::new();
    let at = array(&world);
    world.member("copy", MEMBER_BYTES);
    let server = world.serve(&[], &names(&["m0", "m1", "m2"]));
    let refused = server.twill(&["replace", "m1"]);
    assert!(refused.code == 8 && refused.stderr.contains("no spare"), "{refused:?}");
    server.twill(&["set", "--rate", "1"]).succeeds(); // it is under way until that is changed
    let begun = server.twill(&["replace", "m1", "--with", "copy", "--json"]).succeeds().json();
    assert_eq!(begun["done"], "replacing");
    let status = server.status();
    let (row, kind) = (&status["members"][3], &status["rebuild"]["kind"]);
    assert_eq!((&row["slot"], &row["state"]), (&Value::from(1), &Value::from("replacing")), "{status}");
    assert!(*kind == "replacement" || kind.is_null(), "{status}");
    assert_eq!(server.twill(&["replace", "1", "--with", "copy"]).code, 9);
    server.twill(&["set", "--rate", "0"]).succeeds();
    server.wait_for("a replacement", |status| has_taken(status, 1, "copy"));
    server.wait_for("a whole array", is_whole);
    let events = server.twill(&["events"]).succeeds().stdout;
    assert!(!events.contains("failed"), "{events}");
    let replaced = events.lines().find(|line| line.contains("member 1 was replaced")).expect("told");
    assert!(
        replaced.contains("m1]"),
        "the device to be pulled is named, not the one that took its slot: {replaced}"
    );
    // It is no longer held.
    world.twill(&["create", "--level", "1", "--name", "other", "--force", "missing"], &["m1"]).succeeds();
    server.stop();
    was_replaced_by_contents(&world, at);
}

fn was_replaced_by_contents(world: &World, at: u64) {
    let bytes = superblock(world, "copy").size().bytes() as usize;
    assert!(world.bytes("copy", at, bytes) == world.bytes("m0", at, bytes), "the same contents");
    assert_eq!(superblock(world, "copy").role(), DeviceRole::Active(Slot::new(1)));
}

#[test]
fn a_replacement_goes_on_after_a_stop_and_is_called_off() {
    let world = World::new();
    let at = array(&world);
    world.member("copy", MEMBER_BYTES);
    let (members, all) = (names(&["m0", "m1", "m2"]), names(&["m0", "m1", "m2", "copy"]));
    let server = world.serve(&[], &members);
    server.twill(&["set", "--rate", "1"]).succeeds();
    server.twill(&["replace", "m1", "--with", "copy"]).succeeds();
    server.stop();
    assert!(superblock(&world, "copy").is_replacement());
    let server = world.serve(&[], &all);
    server.wait_for("a replacement", |status| has_taken(status, 1, "copy"));
    server.wait_for("a whole array", is_whole);
    server.stop();
    was_replaced(&world, at);
    // Back again, but not to the end.
    let all = names(&["m0", "copy", "m2"]);
    let server = world.serve(&[], &all);
    server.twill(&["set", "--rate", "1"]).succeeds();
    server.twill(&["replace", "copy", "--with", "m1"]).succeeds();
    server.twill(&["remove", "m1"]).succeeds();
    server.wait_for("nothing under way", |status| {
        is_whole(status) && status["members"].as_array().unwrap().len() == 3
    });
    let events = server.twill(&["events"]).succeeds().stdout;
    assert!(events.contains("member 1 stays") && !events.contains("failed"), "{events}");
    server.stop();
    let run = world.twill(&["assemble", "--explain"], &names(&["m0", "copy", "m2", "m1"])).succeeds();
    assert!(run.stdout.contains("m1: not taken"), "{run:?}");
}

#[test]
fn the_replacement_of_a_member_that_fails_steps_in() {
    let world = World::new();
    let at = array(&world);
    world.member("copy", MEMBER_BYTES);
    let server = world.serve(&[], &names(&["m0", "m1", "m2"]));
    server.twill(&["set", "--rate", "1"]).succeeds();
    server.twill(&["replace", "m1", "--with", "copy"]).succeeds();
    server.twill(&["fail", "m1"]).succeeds();
    server.twill(&["set", "--rate", "0"]).succeeds();
    server.wait_for("a recovery", |status| is_whole(status) && has_taken(status, 1, "copy"));
    let events = server.twill(&["events", "--json"]).succeeds().stdout;
    assert!(events.contains("member-failed") && events.contains("recovery-finished"), "{events}");
    server.stop();
    was_replaced(&world, at);
}

#[test]
fn the_copy_of_a_member_that_is_gone_is_recovered_from_where_it_was() {
    let world = World::new();
    let at = array(&world);
    replace(&world, at);
    let bytes = superblock(&world, "m1").size().bytes() as usize;
    world.damage("copy", at + COPIED_BYTES - 1); // it is not read again
    let server = world.serve(&[], &names(&["m0", "copy", "m2"]));
    server.wait_for("a recovery", |status| status["members"][1]["state"] == "in-sync");
    let events = server.twill(&["events", "--json"]).succeeds().stdout;
    assert!(!events.contains("member-failed"), "{events}");
    server.stop();
    world.damage("copy", at + COPIED_BYTES - 1);
    assert!(world.bytes("copy", at, bytes) == world.bytes("m1", at, bytes));
    let copy = superblock(&world, "copy");
    assert_eq!(
        (copy.is_replacement(), copy.recovery_offset(), copy.role()),
        (false, None, DeviceRole::Active(Slot::new(1)))
    );
}
