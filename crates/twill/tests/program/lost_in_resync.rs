//! A member that is lost in the first resync: the array goes on as md does, degraded with what parity was made; the rest is named,
//! with the next step, and a new member waits for nothing for ever.

use serde_json::Value;

use crate::world::{MEMBER_BYTES, Server, World, has_taken};

/// Members whose contents do not agree, large enough that a resync can be held in its middle.
fn begun(world: &World, level: &str, options: &[&str], count: usize) -> Vec<String> {
    let members: Vec<String> = (0..count).map(|i| world.member(&format!("m{i}"), 4 * MEMBER_BYTES)).collect();
    for (i, member) in (1u8..).zip(&members) {
        world.write(member, 2 << 20, &vec![i; 1 << 20]);
        world.write(member, 4 * MEMBER_BYTES - (4 << 20), &vec![i << 3; 1 << 20]);
    }
    let create = [&["create", "--level", level, "--name", "test", "--force"], options].concat();
    world.twill(&create, &members).succeeds();
    members
}

/// Serves the array with a resync that stays where it is.
fn held<'a>(world: &'a World, members: &[String]) -> Server<'a> {
    let server = world.serve(&[], members);
    server.twill(&["set", "--rate", "1"]).succeeds();
    let rebuild = server.status()["rebuild"].clone();
    assert_eq!(rebuild["kind"], "resync", "it had ended before it could be held: larger members are needed");
    server
}

fn stripes_in_doubt(status: &Value) -> u64 {
    status["stripes_in_doubt"].as_u64().expect("a number")
}

fn all_in_sync(status: &Value) -> bool {
    status["members"].as_array().expect("members").iter().all(|member| member["state"] == "in-sync")
}

fn loses_a_member(level: &str, count: usize) {
    let world = World::new();
    let members = begun(&world, level, &[], count);
    let server = held(&world, &members);
    let refused = server.twill(&["fail", "m1"]).fails(23);
    for words in ["m1", "could not be read until it is back", "--force"] {
        assert!(refused.stderr.contains(words), "{words}: {refused:?}");
    }
    server.twill(&["fail", "--force", "m1"]).succeeds();
    let in_doubt = stripes_in_doubt(&server.status());
    assert!(in_doubt > 0, "{:#}", server.status());
    server.twill(&["set", "--rate", "0"]).succeeds();
    // Degraded, and its end is said with what is left and what helps: it does not wait for a resync that cannot be.
    let waited = server.twill(&["status", "--wait"]).fails(20);
    for words in ["in doubt", "bring the missing member back: twill re-add", "twill accept-doubt"] {
        assert!(format!("{}{}", waited.stdout, waited.stderr).contains(words), "{waited:?}");
    }
    server.twill(&["remove", "failed"]).succeeds();
    let refused = server.twill(&["add", "m1"]).fails(3);
    assert!(refused.stderr.contains("m1") && refused.stderr.contains("the only copy"), "{refused:?}");
    let spare = world.member("spare", 4 * MEMBER_BYTES);
    server.twill(&["add", &spare]).succeeds();
    // What parity was made of is rebuilt; the rest waits for a word.
    let waited = server.twill(&["status", "--wait"]);
    let status = server.status();
    if stripes_in_doubt(&status) > 0 {
        assert_eq!(waited.code, 20, "{waited:?}, {status:#}");
        assert!(!all_in_sync(&status), "a member with stripes in doubt is not in sync: {status:#}");
        let said = format!("{}{}", waited.stdout, waited.stderr);
        assert!(said.contains("twill accept-doubt"), "{said}");
        server.twill(&["accept-doubt", "--all"]).succeeds();
    } else {
        assert!(count > 3, "RAID-6 alone knows by itself");
    }
    server.wait_for("the spare", all_in_sync);
    server.twill(&["status", "--wait"]).succeeds();
    server.twill(&["check"]).succeeds();
    server.stop();
    let run = world.twill(&["assemble"], &[&members[0], "spare"].map(str::to_owned));
    assert!(count > 3 || run.stdout.contains("would start degraded"), "{run:?}");
}

#[test]
fn raid5_that_loses_a_member_in_its_first_resync_goes_on() {
    loses_a_member("5", 3);
}

#[test]
fn raid6_that_loses_a_member_in_its_first_resync_goes_on() {
    loses_a_member("6", 5);
}

/// It comes back with what it holds, also after another device got its slot, and nothing is in doubt any more.
#[test]
fn the_member_comes_back_in_the_place_of_a_spare() {
    for bitmap in ["internal", "none"] {
        comes_back_in_the_place_of_a_spare(bitmap);
    }
}

fn comes_back_in_the_place_of_a_spare(bitmap: &str) {
    let world = World::new();
    let members = begun(&world, "5", &["--bitmap", bitmap], 3);
    let server = held(&world, &members);
    server.twill(&["fail", "--force", "m1"]).succeeds();
    server.twill(&["set", "--rate", "0"]).succeeds();
    server.twill(&["remove", "failed"]).succeeds();
    let spare = world.member("spare", 4 * MEMBER_BYTES);
    server.twill(&["add", &spare]).succeeds();
    server.wait_for("the spare", |status| has_taken(status, 1, "spare"));
    let waited = server.twill(&["status", "--wait"]).fails(20);
    let said = format!("{}{}", waited.stdout, waited.stderr);
    assert!(said.contains("spare, which has its slot, twill remove failed, then twill re-add"), "{said}");
    let refused = server.twill(&["re-add", "m1"]).fails(6);
    assert!(refused.stderr.contains("its slot 1 has another member now"), "{refused:?}");
    server.twill(&["fail", "spare"]).succeeds();
    server.twill(&["remove", "failed"]).succeeds();
    server.twill(&["re-add", "m1"]).succeeds();
    server.wait_for("the member", all_in_sync);
    server.twill(&["status", "--wait"]).succeeds();
    server.twill(&["check"]).succeeds();
    server.stop();
}
