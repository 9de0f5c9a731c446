//! Arrays that md was in the middle of `--replace` with: the member that is replaced and its copy have one slot.

use std::fs;

use layout::md_superblock::{DeviceRole, MinorVersion, Superblock};
use layout::units::Sectors;

use crate::world::{MEMBER_BYTES, World};

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
        change(world, name, |superblock| superblock.set_role(COPY, DeviceRole::Active(1)));
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

#[test]
fn the_member_that_is_replaced_serves_and_its_copy_is_stale_from_then_on() {
    let world = World::new();
    let at = array(&world);
    replace(&world, at);
    let all = names(&["copy", "m2", "m1", "m0"]);
    let run = world.twill(&["assemble", "--explain"], &all).succeeds();
    assert!(run.stdout.contains("to replace m1 in slot 1"), "{run:?}");
    let copy = world.bytes("copy", 0, MEMBER_BYTES as usize);
    let server = world.serve(&[], &all);
    let status = server.status();
    assert!((0..3).all(|slot| status["members"][slot]["state"] == "in-sync"), "{status}");
    server.stop();
    assert!(world.bytes("copy", 0, MEMBER_BYTES as usize) == copy, "nobody writes to it");
    let without = names(&["copy", "m2", "m0"]);
    let run = world.twill(&["assemble", "--explain"], &without).succeeds();
    assert!(run.stdout.contains("stale") && run.stdout.contains("slot 1: nobody"), "{run:?}");
}

#[test]
fn the_copy_of_a_member_that_is_gone_is_recovered_from_where_it_was() {
    let world = World::new();
    let at = array(&world);
    replace(&world, at);
    let bytes = superblock(&world, "m1").size().bytes() as usize;
    world.damage("copy", at + COPIED_BYTES - 1); // nobody looks there again
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
        (false, None, DeviceRole::Active(1))
    );
}
