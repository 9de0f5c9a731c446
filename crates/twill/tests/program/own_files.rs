//! Files of a server that somebody else may touch: `serve --pid-file` and `--log`, what they may be written over and who removes
//! them; members that are deleted while they are served.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

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
        ("notes", 9, "something other than a process number"),
        (&other, 9, "something other than a process number"),
        ("m0", 6, "is a member of the array"),
        ("hard", 6, "is a member of the array"),
        (".", 9, "it is not a regular file"),
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

/// Nobody noticed, and `stop` called the array clean on its members.
#[test]
fn a_member_that_is_deleted_while_it_is_served_is_told() {
    let world = World::new();
    let members = world.array(3);
    let mut server = world.serve(&[], &members);
    fs::hard_link(world.path("m2"), world.path("kept")).expect("a link");
    fs::remove_file(world.path("m1")).expect("there");
    fs::remove_file(world.path("m2")).expect("there");
    for command in ["status", "detail"] {
        let said = server.twill(&[command]).succeeds().stdout;
        assert!(said.contains("m1") && said.contains("has been deleted: what it holds is lost"), "{said}");
        assert_eq!(said.matches("deleted").count(), 1, "one has another name: {said}");
    }
    let status = server.status();
    let deleted = |slot: usize| status["members"][slot]["deleted"] == true;
    assert_eq!([deleted(0), deleted(1), deleted(2)], [false, true, false], "{status:#}");
    let said = server.twill(&["stop"]).succeeds().stdout;
    assert!(said.contains("m1 had been deleted: what it held is lost"), "{said}");
    assert_eq!(server.end(), Some(0));
}

/// In a folder that others may write to, a link could have had any file of root's overwritten.
#[test]
fn links_are_not_followed_and_new_files_are_private() {
    let world = World::new();
    let members = world.array(3);
    fs::write(world.path("target"), "").expect("writable");
    symlink("target", world.path("link")).expect("a link");
    symlink("nowhere", world.path("dangling")).expect("a link");
    let serve = ["serve", "--control", "c.sock", "--unix", "n.sock"];
    for option in ["--pid-file", "--log"] {
        for link in ["link", "dangling"] {
            let arguments = [&serve[..], &[option, link]].concat();
            world.refused(9, &[option, link, "it is a link"], &arguments, &members);
        }
    }
    assert!(!world.path("nowhere").exists());
    let server = world.serve(&["--pid-file", "pid", "--log", "log"], &members);
    for name in ["pid", "log"] {
        let mode = fs::metadata(world.path(name)).expect("made").permissions().mode() & 0o777;
        assert_eq!(mode & !0o640, 0, "{name}: {mode:o}");
    }
    server.stop();
}
