//! `set --rate` counts at once: a pause that it asked for ends when it is changed, and when its work is not wanted any more.
//! At a byte a second such a pause takes days.

use serde_json::{Value, json};

use crate::world::{MEMBER_BYTES, Server, World, has_taken};

/// A first piece was worked on, and what comes next has to wait.
fn has_begun(status: &Value) -> bool {
    status["rebuild"]["done_bytes"].as_u64() > Some(0)
}

fn resynced(world: &World) -> Server<'_> {
    let members = world.array(3);
    let server = world.serve(&[], &members);
    server.wait_for("a resync", |status| status["rebuild"].is_null());
    server.twill(&["set", "--rate", "1"]).succeeds();
    server
}

fn is_recovering_onto(status: &Value, name: &str) -> bool {
    status["members"][1]["state"] == "recovering" && has_taken(status, 1, name)
}

#[test]
fn a_new_rate_ends_the_pause_of_the_old_one() {
    let world = World::new();
    let server = resynced(&world);
    let spare = world.member("s0", MEMBER_BYTES);
    server.twill(&["fail", "1"]).succeeds();
    server.twill(&["add", &spare]).succeeds();
    server.wait_for("a recovery", has_begun);
    server.twill(&["set", "--rate", "0"]).succeeds();
    server.wait_for("its end", |status| status["members"][1]["state"] == "in-sync");
    server.stop();
}

#[test]
fn a_spare_does_not_wait_until_the_pause_of_a_failed_recovery_is_over() {
    let world = World::new();
    let server = resynced(&world);
    let spares = ["s0", "s1"].map(|name| world.member(name, MEMBER_BYTES));
    server.twill(&["fail", "1"]).succeeds();
    server.twill(&["add", &spares[0]]).succeeds();
    server.wait_for("a recovery", |status| is_recovering_onto(status, "s0") && has_begun(status));
    server.twill(&["add", &spares[1]]).succeeds();
    server.twill(&["fail", "1"]).succeeds();
    server.wait_for("another one", |status| is_recovering_onto(status, "s1"));
    server.stop();
}

/// It said at once that there was nothing to wait for: the manager had not looked yet.
#[test]
fn status_waits_for_what_was_just_asked_for() {
    let world = World::new();
    let server = resynced(&world);
    server.twill(&["set", "--rate", "0"]).succeeds();
    let spares = ["s0", "s1"].map(|name| world.member(name, MEMBER_BYTES));
    server.twill(&["replace", "1", "--with", &spares[0]]).succeeds();
    server.twill(&["status", "--wait"]).succeeds();
    assert_eq!(server.status()["members"].as_array().map(Vec::len), Some(3));
    server.twill(&["fail", "1"]).succeeds();
    server.twill(&["add", &spares[1]]).succeeds();
    server.twill(&["status", "--wait"]).succeeds();
    assert_eq!(server.status()["members"][1]["state"], "in-sync");
    server.stop();
}

#[test]
fn a_scrub_does_not_wait_until_the_pause_of_a_cancelled_one_is_over() {
    let world = World::new();
    let server = resynced(&world);
    for number in 0..2 {
        server.twill(&["check", "--no-wait"]).succeeds();
        server.wait_for("a scrub", |status| {
            (&status["rebuild"]["kind"], has_begun(status)) == (&json!("check"), true)
        });
        server.twill(&["scrub", "cancel"]).succeeds();
        server.wait_for("its end", |status| status["rebuild"].is_null());
        assert_eq!(server.status()["scrub"]["phase"], "cancelled", "scrub {number}");
    }
    server.stop();
}
