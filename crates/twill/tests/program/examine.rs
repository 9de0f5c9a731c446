//! `examine`: the words that mdadm has too, and a reason for everything that is no superblock.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::world::{World, output_of, tool};

/// `Key : value` lines.
fn rows(text: &str) -> BTreeMap<String, String> {
    let row =
        |line: &str| line.split_once(" : ").map(|(key, value)| (key.trim().into(), value.trim().into()));
    text.lines().filter_map(row).collect()
}

#[test]
fn mdadm_reads_the_same() {
    let Some(mdadm) = tool("mdadm") else { return };
    const KEYS: [&str; 19] = [
        "Magic",
        "Version",
        "Array UUID",
        "Raid Level",
        "Raid Devices",
        "Avail Dev Size",
        "Array Size",
        "Data Offset",
        "Super Offset",
        "Unused Space",
        "State",
        "Device UUID",
        "Bad Block Log",
        "Checksum",
        "Events",
        "Layout",
        "Chunk Size",
        "Device Role",
        "Array State",
    ];
    let cases: [(&[&str], usize); 6] = [
        (&["--level", "5"], 4),
        (&["--level", "6", "--metadata", "1.0", "--chunk", "4K"], 5),
        (&["--level", "1", "--metadata", "1.1"], 2),
        (&["--level", "10", "--layout", "o2"], 3),
        (&["--level", "0"], 2),
        (&["--level", "5", "-x", "1"], 4),
    ];
    for (arguments, count) in cases {
        let world = World::new();
        let members = world.members(count);
        world.twill(&[&["create", "--name", "a"], arguments].concat(), &members).succeeds();
        for member in &members {
            let theirs = rows(&output_of(&mdadm, &[Path::new("--examine"), &world.path(member)]));
            let ours = rows(&world.twill(&["examine"], &[member]).succeeds().stdout);
            for key in KEYS {
                assert_eq!(ours.get(key), theirs.get(key), "{arguments:?} {member}: {key}\n{theirs:#?}");
            }
            assert!(theirs["Name"].starts_with(&ours["Name"]), "{theirs:?}");
        }
    }
}

#[test]
fn the_json_answer_keeps_its_names() {
    let world = World::new();
    let members = world.array(3);
    let names = world.twill(&["examine", "--json"], &members).succeeds().names();
    let superblock = "array_bytes array_state array_uuid available_member_bytes bad_block_log_entries \
        bad_block_log_sectors_from_superblock bitmap bitmap_sectors_from_superblock checksum chunk_bytes clean \
        corrected_reads creation_unix_s data_offset_bytes device_number device_role device_uuid events feature_map features layout \
        level logical_block_bytes name raid_devices recovery_offset_bytes resync_offset_bytes slot super_offset_bytes \
        unused_after_sectors unused_before_sectors update_unix_s used_member_bytes version";
    let mut wanted =
        vec!["members[].device_bytes".to_owned(), "members[].path".into(), "members[].problem".into()];
    wanted.extend(superblock.split_whitespace().map(|name| format!("members[].superblock.{name}")));
    assert_eq!(names, wanted);
}

#[test]
fn every_flipped_byte_of_a_superblock_is_found() {
    let world = World::new();
    let members = world.array(3);
    let header = world.bytes("m1", 4096, 512);
    // Every field, a few bytes of each; the last bytes of the sector are roles without a device.
    for at in (0..256).step_by(3).chain([256, 300]) {
        world.damage("m1", 4096 + at);
        let run = world.refused(11, &["m1"], &["examine"], &members);
        assert!(run.stdout.contains("Problem"), "{at}: {run:?}");
        assert!(run.stdout.contains("m2:"), "the others are examined: {run:?}");
        world.write("m1", 4096, &header);
    }
    world.twill(&["examine"], &members).succeeds();
}

#[test]
fn what_has_no_superblock_is_told_apart() {
    let world = World::new();
    let members = world.array(3);
    world.member("blank", 1 << 20);
    fs::create_dir(world.path("folder")).unwrap();
    world.refused(4, &["blank: has no md superblock"], &["examine"], &["blank"]);
    world.refused(4, &["folder: is a folder"], &["examine"], &["folder"]);
    world.refused(8, &["gone: cannot open"], &["examine"], &["gone"]);
    for bytes in [2 << 20, 65536, 12288, 8192, 4100, 4096, 1, 0] {
        fs::File::options().write(true).open(world.path("m1")).unwrap().set_len(bytes).unwrap();
        let run = world.twill(&["examine", "--json"], &members);
        assert_eq!(run.code, 11, "{bytes}: {run:?}");
        let problem = &run.json()["members"][1]["problem"];
        assert!(problem["what"].as_str().is_some_and(|what| !what.is_empty()), "{bytes}: {problem}");
    }
}

#[test]
fn unknown_features_are_named() {
    let world = World::new();
    let members = world.array(3);
    // Feature bit 9, a write journal, with the checksum that goes with it: the sum grows by as much as the word does.
    for member in &members {
        let word = |at: u64| u32::from_le_bytes(world.bytes(member, at, 4).try_into().unwrap());
        let (features, checksum) = (word(4096 + 8), word(4096 + 216));
        world.write(member, 4096 + 8, &(features | 1 << 9).to_le_bytes());
        world.write(member, 4096 + 216, &checksum.wrapping_add(1 << 9).to_le_bytes());
    }
    let run = world.twill(&["examine"], &members).succeeds();
    assert!(run.stdout.contains("JOURNAL"), "{run:?}");
    world.refused(12, &["JOURNAL"], &["assemble"], &members);
    world.refused(12, &["JOURNAL"], &["serve", "--control", "c.sock", "--unix", "n.sock"], &members);
}

#[test]
fn a_resync_offset_that_no_device_has_is_no_crash() {
    let world = World::new();
    let members = world.array(3);
    // From all ones to a little less, with the checksum that goes with it.
    let word = |at: u64| u32::from_le_bytes(world.bytes("m0", at, 4).try_into().unwrap());
    let (offset, checksum) = (word(4096 + 208), word(4096 + 216));
    world.write("m0", 4096 + 208, &(offset - 256).to_le_bytes());
    world.write("m0", 4096 + 216, &(checksum - 256).to_le_bytes());
    let run = world.twill(&["examine"], &members);
    assert!(run.code == 0 || run.code == 11, "{run:?}");
}

#[test]
fn bad_blocks_are_listed_as_mdadm_lists_them() {
    let world = World::new();
    world.array(3);
    // The feature bit, with the checksum that goes with it, and three entries: sector and length.
    let word = |at: u64| u32::from_le_bytes(world.bytes("m0", at, 4).try_into().unwrap());
    let (features, checksum) = (word(4096 + 8), word(4096 + 216));
    world.write("m0", 4096 + 8, &(features | 8).to_le_bytes());
    world.write("m0", 4096 + 216, &(checksum + 8).to_le_bytes());
    let entries = [5000u64 << 10 | 8, 6000 << 10 | 512, 9000 << 10 | 1, u64::MAX];
    world.write("m0", 12288, &entries.map(u64::to_le_bytes).concat());
    let said = world.twill(&["examine"], &["m0"]).succeeds().stdout;
    assert_eq!(rows(&said)["Bad Blocks"], "3 entries", "{said}");
    let places = ["5000 for 8 sectors", "6000 for 512 sectors", "9000 for 1 sector"];
    for place in places {
        assert!(said.contains(&format!(" : {place}\n")), "{place}: {said}");
    }
    let described =
        &world.twill(&["examine", "--json"], &["m0"]).succeeds().json()["members"][0]["superblock"];
    assert_eq!(
        described["bad_blocks"][0],
        serde_json::json!({ "offset_bytes": 5000 * 512, "bytes": 8 * 512 })
    );
    assert_eq!(described["bad_blocks"].as_array().map(Vec::len), Some(3));
    if let Some(mdadm) = tool("mdadm") {
        let theirs = output_of(&mdadm, &[Path::new("--examine-badblocks"), &world.path("m0")]);
        assert!(places.iter().all(|place| theirs.contains(place)), "{theirs}");
    }
    world.write("m0", 12288, &(5000u64 << 10).to_le_bytes());
    let said = world.twill(&["examine"], &["m0"]).succeeds().stdout;
    assert!(rows(&said)["Bad Blocks"].contains("is damaged"), "{said}");
}

#[test]
fn a_member_that_was_cut_short_says_how_much_is_missing() {
    let world = World::new();
    world.array(3);
    fs::File::options().write(true).open(world.path("m1")).unwrap().set_len(6 << 20).unwrap();
    let says = ["m1: has 6 MiB, needs 12 MiB: was it cut short?"];
    world.refused(11, &says, &["examine"], &["m1"]);
}
