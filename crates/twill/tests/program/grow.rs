//! `grow --bitmap`: a bitmap comes and goes on members of an array that is not served.

use std::path::Path;

use serde_json::Value;

use crate::world::{MEMBER_BYTES, Run, World, output_of, tool};

const INTERNAL: [&str; 5] = ["grow", "--bitmap", "internal", "--bitmap-chunk", "64K"];
const NONE: [&str; 3] = ["grow", "--bitmap", "none"];

fn superblock(world: &World, member: &str) -> Value {
    let examined = world.twill(&["examine", "--json"], &[member]).succeeds().json();
    examined["members"][0]["superblock"].clone()
}

fn assembled(world: &World, members: &[String]) -> Value {
    world.twill(&["assemble", "--json"], members).succeeds().json()["arrays"][0].clone()
}

fn examined_by_mdadm(world: &World, member: &str) -> Option<String> {
    Some(output_of(&tool("mdadm")?, &[Path::new("--examine"), &world.path(member)]))
}

#[test]
fn a_bitmap_comes_is_used_and_goes() {
    let world = World::new();
    let members = world.array(3);
    let before = superblock(&world, "m0")["events"].as_u64().expect("a number");
    let run = world.twill(&[&INTERNAL[..], &["--json"]].concat(), &members).succeeds().json();
    assert_eq!(
        (&run["bitmap"]["chunk_bytes"], &run["members"]),
        (&65536.into(), &members.clone().into()),
        "{run}"
    );
    for member in &members {
        let superblock = superblock(&world, member);
        assert_eq!(superblock["events"], before + 1, "{member}");
        let bitmap = &superblock["bitmap"];
        assert_eq!((&bitmap["bits_set"], &bitmap["stale"]), (&0.into(), &false.into()), "{bitmap}");
        if let Some(text) = examined_by_mdadm(&world, member) {
            assert!(text.contains("Internal Bitmap : 8 sectors from superblock"), "{text}");
        }
    }
    assert_eq!(assembled(&world, &members)["resync_from_bytes"], Value::Null);
    // A member that was away gets what is marked, which takes a bitmap.
    let server = world.serve(&[], &members);
    assert_eq!(server.status()["consistency_policy"], "bitmap");
    for step in [["fail", "1"], ["remove", "1"]] {
        server.twill(&step).succeeds();
    }
    let mut client = world.client();
    assert_eq!(client.write(0, &[7; 4096], 0).expect("served"), 0);
    server.twill(&["re-add", "m1"]).succeeds();
    server.wait_for("a recovery", |status| status["members"][1]["state"] == "in-sync");
    server.wait_for("no recovery", |status| status["rebuild"].is_null());
    let events = server.twill(&["events", "--json"]).succeeds().stdout;
    assert!(events.contains("member-re-added") && !events.contains("recovery-started"), "{events}");
    drop(client);
    server.stop();

    let run = world.twill(&NONE, &members).succeeds();
    assert!(run.stdout.contains("has no bitmap any more, on m0, m1, m2"), "{run:?}");
    for member in &members {
        assert_eq!(superblock(&world, member)["bitmap"], Value::Null);
        if let Some(text) = examined_by_mdadm(&world, member) {
            assert!(!text.contains("Bitmap") && text.contains("State : clean"), "{text}");
        }
    }
    let server = world.serve(&[], &members);
    assert_eq!(server.status()["consistency_policy"], "resync");
    server.stop();
}

/// At every version, and also where the members are found by the name of their array.
#[test]
fn each_version_has_its_place_for_a_bitmap() {
    for version in ["1.0", "1.1", "1.2"] {
        let world = World::new();
        let mut members = world.members(3);
        members.push(world.member("spare", MEMBER_BYTES));
        let create = ["create", "--level", "5", "--name", "test", "--metadata", version, "-x", "1"];
        world.twill(&create, &members).succeeds();
        let folder = world.folder.path().display().to_string();
        let by_name = ["--scan", &folder, "--name", "test", "--json"];
        let run = world.twill::<&str>(&[&["grow", "-b", "internal"], &by_name[..]].concat(), &[]).succeeds();
        assert_eq!(run.json()["spares"].as_array().map(Vec::len), Some(1), "{version}: {run:?}");
        for member in &members {
            assert!(superblock(&world, member)["bitmap"].is_object(), "{version}: {member}");
        }
        let server = world.serve(&[], &members);
        // The spare takes the slot, and the bitmap with it.
        server.twill(&["fail", "m1"]).succeeds();
        server.wait_for("a rebuild", |status| {
            status["rebuild"].is_null() && status["members"][1]["state"] == "in-sync"
        });
        server.stop();
        let bitmap = &superblock(&world, "spare")["bitmap"];
        assert_eq!(
            (&bitmap["bits_set"], &bitmap["stale"]),
            (&0.into(), &false.into()),
            "{version}: {bitmap}"
        );
    }
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let world = World::new();
    let members = world.array(3);
    let refused = |code, says: &[&str], arguments: &[&str], members: &[String]| -> Run {
        world.refused(code, says, arguments, members)
    };
    refused(6, &["has no bitmap", "--bitmap internal"], &NONE, &members);
    refused(2, &["--bitmap-chunk wants"], &[&NONE[..], &["--bitmap-chunk", "64K"]].concat(), &members);
    let chunk = |size: &'static str| ["grow", "--bitmap", "internal", "--bitmap-chunk", size];
    refused(10, &["power of two"], &chunk("100K"), &members);
    refused(2, &["--bitmap"], &["grow"], &members);
    refused(2, &["no members", "--scan"], &INTERNAL, &[]);
    refused(5, &["no member in slot 2", "name all members"], &INTERNAL, &members[..2]);
    refused(8, &["gone"], &INTERNAL, &["gone".to_owned()]);
    refused(4, &["no array named"], &[&INTERNAL[..], &["--name", "other"]].concat(), &members);
    world.twill(&INTERNAL, &members).succeeds();
    refused(9, &["has a bitmap already", "--bitmap none"], &INTERNAL, &members);
    let server = world.serve(&[], &members);
    refused(6, &["m0: is locked", "while it is stopped"], &NONE, &members);
    server.stop();

    let world = World::new();
    let members = world.array_of("0", 3);
    world.refused(10, &["RAID-0 has nothing to resync", "levels 1"], &INTERNAL, &members);
    let world = World::new();
    let members = world.members(3);
    let create = ["create", "--metadata", "zoned", "--level", "5", "--name", "logs", "--zone-size", "1M"];
    world.twill(&create, &members).succeeds();
    world.refused(12, &["is a zoned array"], &INTERNAL, &members);
}

/// As in md: not while a resync is due, and not while a bitmap of another kind says what was never written.
#[test]
fn an_array_that_is_not_clean_keeps_what_it_has() {
    for before in [&["--bitmap", "none"][..], &["--bitmap", "internal", "--bitmap-chunk", "64K"]] {
        let world = World::new();
        let members = world.members(3);
        world.twill(&[&["create", "--level", "5", "--name", "test"], before].concat(), &members).succeeds();
        let mut server = world.serve(&[], &members);
        assert_eq!(world.client().write(0, &[7; 4096], 0).expect("served"), 0);
        server.process.kill().expect("a child");
        server.end();
        let change = if before.len() == 2 { &INTERNAL[..] } else { &NONE };
        world.refused(6, &["not stopped cleanly", "twill status --wait"], change, &members);
        let server = world.serve(&[], &members);
        server.wait_for("a resync", |status| status["rebuild"].is_null());
        server.stop();
        if before.len() > 2 {
            let lockless = 6u32.to_le_bytes();
            members.iter().for_each(|member| world.write(member, 8192 + 4, &lockless));
            world.refused(12, &["lockless", "mdadm"], change, &members);
            members.iter().for_each(|member| world.write(member, 8192 + 4, &4u32.to_le_bytes()));
        }
        world.twill(change, &members).succeeds();
    }
}

/// The member that failed is stale; the others get the bitmap, and mark for it nothing of what it lacks.
#[test]
fn a_member_that_failed_before_the_bitmap_came_is_rebuilt_whole() {
    let world = World::new();
    let members = world.array(3);
    let server = world.serve(&[], &members);
    server.twill(&["fail", "1"]).succeeds();
    assert_eq!(world.client().write(0, &[7; 4096], 0).expect("served"), 0);
    server.stop();
    let run = world.twill(&INTERNAL, &members).succeeds();
    assert!(run.stdout.contains("slot 1: a member that was there has to be added"), "{run:?}");
    let left = [members[0].clone(), members[2].clone()];
    let server = world.serve(&[], &left);
    let refused = server.twill(&["re-add", "m1"]);
    assert_eq!(refused.code, 19, "{refused:?}");
    server.twill(&["add", "m1"]).succeeds();
    server.wait_for("a rebuild", |status| {
        status["rebuild"].is_null() && status["members"][1]["state"] == "in-sync"
    });
    server.stop();
}
