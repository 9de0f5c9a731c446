//! `serve --pid-file` and `--log`: what they may be written over, and who may remove them.

use std::fs;

use crate::world::{MEMBER_BYTES, World};

#[test]
fn a_pid_file_is_that_of_who_serves() {
    let world = World::new();
    let members = world.array(3);
    fs::write(world.path("pid"), "12345\n").expect("writable"); // one that crashed has left it
    let server = world.serve(&["--pid-file", "pid"], &members);
    let own = format!("{}\n", server.process.id());
    let pid = || fs::read_to_string(world.path("pid")).expect("there");
    assert_eq!(pid(), own);
    for control in ["other.sock", "control.sock"] {
        let again = ["serve", "--control", control, "--unix", "other.nbd", "--pid-file", "pid"];
        assert_ne!(world.twill(&again, &members).code, 0);
        assert_eq!(pid(), own, "one that did not serve has removed it");
    }
    server.stop();
    assert!(!world.path("pid").exists());

    let server = world.serve(&["--pid-file", "pid"], &members);
    fs::write(world.path("pid"), "1\n").expect("writable");
    server.stop();
    assert_eq!(pid(), "1\n", "it is somebody else's now");
}

#[test]
fn a_pid_file_is_written_over_nothing_else() {
    let world = World::new();
    let members = world.array(3);
    let other = world.member("other", MEMBER_BYTES);
    fs::write(world.path("notes"), "a plan\n").expect("writable");
    fs::hard_link(world.path("m1"), world.path("hard")).expect("a link");
    let serve = ["serve", "--control", "c.sock", "--unix", "n.sock", "--pid-file"];
    for (path, code, says) in [
        ("notes", 9, "something else than a process number"),
        (&other, 9, "something else than a process number"),
        ("m0", 6, "is a member of the array"),
        ("hard", 6, "is a member of the array"),
        (".", 9, "no ordinary file"),
    ] {
        world.refused(code, &["--pid-file", path, says], &[&serve[..], &[path]].concat(), &members);
    }
    world.refused(8, &["nowhere/pid"], &[&serve[..], &["nowhere/pid"]].concat(), &members);
}

#[test]
fn a_log_is_appended_to_no_member() {
    let world = World::new();
    let members = world.array(3);
    let serve = ["serve", "--control", "c.sock", "--unix", "n.sock", "--log"];
    world.refused(6, &["--log m1", "is a member"], &[&serve[..], &["m1"]].concat(), &members);
    world.refused(6, &["--log m1", "superblock"], &[&serve[..], &["m1", "--scan", "."]].concat(), &[""; 0]);
}
