//! Members whose files run out of room or lose their end.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;

use crate::nbd::FUA;
use crate::world::{MEMBER_BYTES, World};

const PIECE: u64 = 64 << 10;
const ENOSPC: u32 = 28;
const EIO: u32 = 5;

/// A small file system with one member in it, for as long as it lives.
struct Small {
    folder: PathBuf,
}

impl Small {
    /// None, with a word, where nothing may be mounted.
    fn mount(world: &World, size: &str) -> Option<Self> {
        let folder = world.path("small");
        fs::create_dir(&folder).expect("a folder");
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "none"])
            .arg(&folder)
            .output();
        if !mount.is_ok_and(|output| output.status.success()) {
            eprintln!("skipped: this user may not mount a tmpfs");
            return None;
        }
        Some(Small { folder })
    }

    /// Takes all room that is left.
    fn fill(&self) {
        let mut file = File::create(self.folder.join("ballast")).expect("a file");
        let mut bytes = 1 << 20;
        while bytes >= 4096 {
            if file.write_all(&vec![7; bytes]).is_err() {
                bytes /= 2;
            }
        }
    }

    fn make_room(&self) {
        fs::remove_file(self.folder.join("ballast")).expect("the ballast");
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ended = Command::new("umount").arg("--lazy").arg(&self.folder).status();
    }
}

fn piece(number: u64, version: u8) -> Vec<u8> {
    (0..PIECE).map(|at| (number as u8) ^ version ^ (at >> 9) as u8).collect()
}

/// What a run over a full file system came to: pieces that were refused, and old pieces that cannot be read.
fn full(level: &str, failed: Option<&str>) -> Option<(u64, u64)> {
    let world = World::new();
    let small = Small::mount(&world, "16m")?;
    let mut members = world.members(4);
    members[0] = "small/m0".to_owned();
    world.member("small/m0", MEMBER_BYTES);
    world.twill(&["create", "--level", level, "--name", "test"], &members).succeeds();
    let server = world.serve(&[], &members);
    let mut client = world.client();
    let pieces = client.size_bytes / PIECE;
    for number in 0..pieces / 4 {
        assert_eq!(client.write(number * PIECE, &piece(number, 1), 0).expect("served"), 0);
    }
    assert_eq!(client.flush().expect("served"), 0);
    failed.into_iter().for_each(|member| drop(server.twill(&["fail", member]).succeeds()));
    small.fill();
    let mut refused = Vec::new();
    for number in pieces / 4..pieces / 2 {
        match client.write(number * PIECE, &piece(number, 2), FUA).expect("served") {
            0 => {}
            ENOSPC | EIO => refused.push(number),
            other => panic!("error {other}"),
        }
    }
    let mut unreadable = 0;
    for number in 0..pieces / 2 {
        match client.read(number * PIECE, PIECE as u32).expect("served") {
            // Not acknowledged: each block may be old or new.
            Ok(_) if refused.contains(&number) => {}
            Ok(data) => {
                assert!(data == piece(number, if number < pieces / 4 { 1 } else { 2 }), "piece {number}");
            }
            Err(EIO) => unreadable += 1,
            Err(other) => panic!("error {other}"),
        }
    }
    let states: Vec<String> = server.status()["members"]
        .as_array()
        .expect("members")
        .iter()
        .map(|member| member["state"].as_str().expect("a state").to_owned())
        .collect();
    let unwanted = states.iter().filter(|state| *state != "in-sync").count();
    assert_eq!(unwanted, failed.iter().count(), "no member fails for want of room: {states:?}");
    small.make_room();
    let mut still = 0;
    for number in pieces / 4..pieces / 2 {
        still += u64::from(client.write(number * PIECE, &piece(number, 3), 0).expect("served") != 0);
    }
    if failed.is_none() {
        assert_eq!((unreadable, still), (0, 0), "with room again all is well");
        assert_eq!(client.flush().expect("served"), 0);
        drop(client);
        server.twill(&["check"]).succeeds();
        server.stop();
    }
    Some((refused.len() as u64, unreadable))
}

#[test]
fn a_full_file_system_refuses_writes_and_damages_nothing() {
    let Some((refused, _)) = full("5", None) else { return };
    assert!(refused > 0, "the file system was full");
}

/// A missing member, and then no room: a stripe half written cannot tell what the missing member held, so it says so.
#[test]
fn a_full_file_system_under_a_degraded_array_returns_no_wrong_data() {
    // RAID-6 could do without the member that has no room: it is kept nevertheless.
    for level in ["5", "6"] {
        let Some((refused, _unreadable)) = full(level, Some("m3")) else { return };
        assert!(refused > 0, "the file system was full");
    }
}

#[test]
fn a_member_cut_short_is_noticed_by_the_next_write() {
    let world = World::new();
    let members = world.array(4);
    let server = world.serve(&[], &members);
    let mut client = world.client();
    let pieces = client.size_bytes / PIECE;
    for number in 0..pieces {
        assert_eq!(client.write(number * PIECE, &piece(number, 1), 0).expect("served"), 0);
    }
    let cut = File::options().write(true).open(world.path("m1")).expect("a member");
    cut.set_len(MEMBER_BYTES / 2).expect("cut short");
    // Full stripes: nothing is read first.
    for number in pieces - 12..pieces {
        assert_eq!(client.write(number * PIECE, &piece(number, 2), 0).expect("served"), 0);
    }
    server.wait_for("the member to fail", |status| status["members"][1]["state"] == "failed");
    assert_eq!(cut.metadata().expect("a member").len(), MEMBER_BYTES / 2, "not made long again");
    let events = server.twill(&["events"]).succeeds().stdout;
    assert!(events.contains("gone, or was cut short") && !events.contains("Gone"), "{events}");
    for number in 0..pieces {
        let data = client.read(number * PIECE, PIECE as u32).expect("served").expect("readable");
        assert!(data == piece(number, if number < pieces - 12 { 1 } else { 2 }), "piece {number}");
    }
    drop(client);
    server.stop();
}
