//! `create`: what it makes, and everything it refuses.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;

use crate::world::{MEMBER_BYTES, World, output_of, tool};

const RAID5: [&str; 3] = ["create", "--level", "5"];

#[test]
fn every_level_is_made_and_examined() {
    let cases: [(&[&str], usize, &str, u64); 8] = [
        (&["--level", "0"], 3, "raid0", 3),
        (&["--level", "1"], 3, "raid1", 1),
        (&["--level", "raid4", "--chunk", "4K"], 3, "raid4", 2),
        (&["--level", "5", "--chunk", "512K", "--layout", "ra", "--metadata", "1.1"], 3, "raid5", 2),
        (&["--level", "6", "--metadata", "1.0"], 5, "raid6", 3),
        (&["--level", "10"], 4, "raid10", 2),
        (&["--level", "10", "--layout", "f2"], 5, "raid10", 2),
        (&["--level", "5", "-n", "3", "-x", "1"], 4, "raid5", 2),
    ];
    for (arguments, count, level, data) in cases {
        let world = World::new();
        let members = world.members(count);
        let made = world
            .twill(&[&["create", "--json", "--name", "a"], arguments].concat(), &members)
            .succeeds()
            .json();
        assert_eq!(made["level"], level);
        let size = made["size_bytes"].as_u64().unwrap();
        assert!(size > (data * MEMBER_BYTES) * 3 / 4 && size <= (data + 1) * MEMBER_BYTES, "{made:#}");
        let examined = world.twill(&["examine", "--json"], &members).succeeds().json();
        for member in examined["members"].as_array().unwrap() {
            assert_eq!(member["superblock"]["level"], level);
            assert_eq!(member["superblock"]["array_uuid"], made["uuid"]);
        }
        world.twill(&["assemble"], &members).succeeds();
    }
}

#[test]
fn blank_members_need_no_resync_and_others_do() {
    let world = World::new();
    let members = world.members(3);
    let made = world.twill(&RAID5, &members).succeeds();
    assert!(made.stdout.contains("nothing was ever written"), "{made:?}");
    assert!(made.stdout.contains("chunk 64K"), "{made:?}");

    let world = World::new();
    let members = world.members(3);
    world.write("m1", 8 << 20, b"something");
    world.refused(3, &["m1: is a file with data, from byte 8388608 on", "--force"], &RAID5, &members);
    let made = world.twill(&[&RAID5[..], &["--force"]].concat(), &members).succeeds();
    assert!(made.stdout.contains("(resync)"), "{made:?}");
    let examined = world.twill(&["examine", "--json"], &members).succeeds().json();
    assert_eq!(examined["members"][0]["superblock"]["resync_offset_bytes"], 0);
    assert_eq!(world.bytes("m1", 8 << 20, 9), b"something");

    let world = World::new();
    let members = world.members(3);
    world.write("m1", 8 << 20, b"something");
    let made =
        world.twill(&[&RAID5[..], &["--force", "--assume-clean", "--json"]].concat(), &members).succeeds();
    assert!(made.json()["resync"].as_str().unwrap().contains("--assume-clean"));
}

#[test]
fn the_json_answer_keeps_its_names() {
    let world = World::new();
    let names = world.twill(&["create", "--json", "--level", "5"], &world.members(3)).succeeds().names();
    let wanted = "bitmap_chunk_bytes bitmap_mapping chunk_bytes consistency_policy layout level member_bytes members[].device_uuid members[].path members[].role \
                  metadata name next raid_devices resync size_bytes spare_devices uuid";
    assert_eq!(names, wanted.split_whitespace().collect::<Vec<_>>());
}

#[test]
fn bad_geometry_is_refused() {
    let world = World::new();
    let members = world.members(4);
    let cases: [(&[&str], usize, &[&str]); 14] = [
        (&["--level", "7"], 4, &["unknown or unsupported level 7", "levels are"]),
        (&["--level", "linear"], 4, &["linear"]),
        (&["--level", "5", "--layout", "left-symetric"], 4, &["left-symetric", "left-symmetric"]),
        (&["--level", "1", "--layout", "n2"], 4, &["no layout n2"]),
        (&["--level", "5", "--chunk", "60K"], 4, &["power of two"]),
        (&["--level", "5", "--chunk", "1K"], 4, &["4 KiB"]),
        (&["--level", "5", "--chunk", "128M"], 4, &["64 MiB"]),
        (&["--level", "5", "--chunk", "999G"], 4, &["64M"]),
        (&["--level", "1", "--chunk", "64K"], 4, &["no chunks"]),
        (&["--level", "5"], 1, &["2 to"]),
        (&["--level", "6"], 3, &["4 to"]),
        (&["--level", "5", "--size", "1G"], 4, &["--size 1 GiB", "the most is"]),
        (&["--level", "5", "--size", "1K"], 4, &["--size 1 KiB is too little"]),
        (&["--level", "5", "--chunk", "32M"], 4, &["too small", "m0"]),
    ];
    for (arguments, count, says) in cases {
        world.refused(10, says, &[&["create"], arguments].concat(), &members[..count]);
    }
}

#[test]
fn wrong_words_are_refused() {
    let world = World::new();
    let members = world.members(4);
    let cases: [(&[&str], i32); 10] = [
        (&["--level", "5", "--chunk", "64X"], 2),
        (&["--level", "5", "--chunk", "-1"], 2),
        (&["--level", "5", "-n", "5"], 2),
        (&["--level", "5", "-n", "4", "-x", "1"], 2),
        (&["--level", "5", "--name", "a/b"], 2),
        (&["--level", "5", "--name", ""], 2),
        (&["--level", "5", "--name", "a name that is longer than thirty-two bytes"], 2),
        (&["--level", "5", "--frobnicate"], 2),
        (&["--level", "5", "--metadata", "0.90"], 12),
        (&["--level", "5", "--metadata", "2.0"], 12),
    ];
    for (arguments, code) in cases {
        world.refused(code, &[], &[&["create"], arguments].concat(), &members);
    }
    world.refused::<&str>(2, &["required"], &RAID5, &[]);
}

#[test]
fn a_superblock_is_not_overwritten_without_force() {
    let world = World::new();
    let mut members = world.array(4);
    let run = world.refused(3, &["m0: has an md superblock 1.2", "test", "--force"], &RAID5, &members);
    assert_eq!(run.stderr.matches("--force destroys").count(), 4, "every member is named: {run:?}");
    // One of them among new ones is enough, wherever its superblock is, and damaged too.
    members[1..].iter_mut().for_each(|member| *member = world.member(&format!("{member}-new"), MEMBER_BYTES));
    world.refused(3, &["m0"], &RAID5, &members);
    world.damage("m0", 4096 + 200);
    world.refused(3, &["m0", "damaged", "checksum"], &RAID5, &members);
    world.damage("m0", 4096 + 200);
    world.damage("m0", 4096);
    world.refused(3, &["m0", "damaged", "magic"], &RAID5, &members);
}

#[test]
fn force_gives_up_what_was_there_and_says_so() {
    let world = World::new();
    let members = world.members(3);
    world.twill(&["create", "--level", "5", "--metadata", "1.0", "--name", "old"], &members).succeeds();
    let made = world.twill(&[&RAID5[..], &["--force"]].concat(), &members).succeeds();
    assert!(made.stdout.contains("m0 is no longer an md superblock 1.0"), "{made:?}");
    let examined = world.twill(&["examine", "--json"], &members).succeeds().json();
    assert_eq!(examined["members"][0]["superblock"]["version"], "1.2");
    assert_eq!(examined["members"][0]["others"].as_array().unwrap().len(), 0, "the old one is gone");
}

#[test]
fn a_file_system_is_not_overwritten_without_force() {
    let Some(mkfs) = tool("mkfs.ext4") else { return };
    let world = World::new();
    let members = world.members(4);
    let made = Command::new(mkfs).args(["-q", "-F"]).arg(world.path("m2")).status().unwrap();
    assert!(made.success());
    world.refused(3, &["m2", "ext4", "--force"], &RAID5, &members);
    world.twill(&[&RAID5[..], &["--force"]].concat(), &members).succeeds();
    assert_eq!(world.bytes("m2", 1024 + 56, 2), [0, 0], "a mount by mistake finds nothing");
}

/// The backup of the partition table stayed, and partition tools made the table again from it, over the superblock.
#[test]
fn force_clears_what_is_outside_the_data_area_and_names_what_is_inside() {
    let world = World::new();
    let odd_bytes = MEMBER_BYTES + 4096; // the array uses whole chunks, so the end is outside
    let odd: Vec<String> = (0..3).map(|i| world.member(&format!("odd{i}"), odd_bytes)).collect();
    world.partition("odd1", odd_bytes);
    world.refused(3, &["odd1: has", "a GPT partition table", "the backup of"], &RAID5, &odd);
    let made = world.twill(&[&RAID5[..], &["--force"]].concat(), &odd).succeeds();
    assert!(
        made.stdout.contains("odd1 is no longer a GPT partition table or a partition table or"),
        "{made:?}"
    );
    assert!(!made.stdout.contains("still has"), "{made:?}");
    for at in [510, 512, odd_bytes - 512] {
        assert_eq!(world.bytes("odd1", at, 8), [0; 8], "at {at}");
    }
    if let Some(wipefs) = tool("wipefs") {
        let listed = output_of(&wipefs, &[Path::new("--no-act"), &world.path("odd1")]);
        assert!(listed.contains("linux_raid_member") && listed.lines().count() == 2, "{listed}");
    }

    let full = world.members(2);
    world.partition("m1", MEMBER_BYTES);
    let create = ["create", "--level", "1", "--name", "full", "--force", "--json"];
    let made = world.twill(&create, &full).succeeds().json();
    let stays = made["members"][1]["stays"].as_array().expect("a list");
    let backup = format!("the backup of a GPT partition table at byte {}", MEMBER_BYTES - 512);
    assert_eq!(*stays, [backup.as_str()], "{made:#}");
    assert_eq!(world.bytes("m1", MEMBER_BYTES - 512, 8), b"EFI PART", "the data area is left alone");
}

#[test]
fn the_same_member_twice_is_refused() {
    let world = World::new();
    let members = world.members(3);
    fs::hard_link(world.path("m0"), world.path("hard")).unwrap();
    symlink("m1", world.path("soft")).unwrap();
    let given = |other: &str| [&members[..], &[other.to_owned()]].concat();
    for (other, first) in [("m0", "m0"), ("./m2", "m2"), ("hard", "m0"), ("soft", "m1")] {
        let says = format!("{other}: is the same file or device as {first}");
        world.refused(13, &[&says], &RAID5, &given(other));
    }
    let forced = [&RAID5[..], &["--force"]].concat();
    world.refused(13, &["hard"], &forced, &given("hard"));
    let made = [&RAID5[..], &["--create-files", "12M"]].concat();
    world.refused(13, &["./new"], &made, &["m0", "new", "./new"]);
}

#[test]
fn data_begins_where_it_is_asked_to() {
    let world = World::new();
    let members = world.members(3);
    for (metadata, offset, bytes) in
        [("1.2", "3M", 3 << 20), ("1.1", "1M", 1 << 20), ("1.0", "64K", 64 << 10)]
    {
        let asked = [&RAID5[..], &["--force", "--metadata", metadata, "--data-offset", offset]].concat();
        world.twill(&asked, &members).succeeds();
        let told = world.twill(&["examine", "--json"], &members[..1]).succeeds().json();
        assert!(told.to_string().contains(&format!("\"data_offset_bytes\":{bytes},")), "{told}");
    }
    let fresh: Vec<String> = (0..3).map(|i| world.member(&format!("n{i}"), 12 << 20)).collect();
    for (offset, says) in [("512K", "1 MiB or more"), ("1025K", "multiple of 4K"), ("20M", "too small")] {
        world.refused(10, &[says], &[&RAID5[..], &["--data-offset", offset]].concat(), &fresh);
    }
}

#[test]
fn what_is_no_member_is_refused() {
    let world = World::new();
    let members = world.members(2);
    let given = |other: &str| [&members[..], &[other.to_owned()]].concat();
    fs::create_dir(world.path("folder")).unwrap();
    symlink("nowhere", world.path("dangling")).unwrap();
    world.refused(4, &["folder: is a folder"], &RAID5, &given("folder"));
    world.refused(4, &["/dev/null: is neither"], &RAID5, &given("/dev/null"));
    world.refused(8, &["gone: cannot open", "--create-files"], &RAID5, &given("gone"));
    world.refused(8, &["dangling"], &RAID5, &given("dangling"));
    let made = [&RAID5[..], &["--create-files", "12M"]].concat();
    world.refused(8, &["dangling"], &made, &given("dangling"));
    world.refused(8, &["no/folder"], &made, &given("no/folder"));
    let empty = world.member("empty", 0);
    world.refused(10, &["empty", "too small"], &RAID5, &given(&empty));
    let small = world.member("small", 1 << 20);
    world.refused(10, &["small", "too small"], &RAID5, &given(&small));
}

#[test]
fn an_unreadable_member_is_refused() {
    let world = World::new();
    let members = world.members(3);
    fs::set_permissions(world.path("m1"), fs::Permissions::from_mode(0o400)).unwrap();
    if fs::File::options().write(true).open(world.path("m1")).is_ok() {
        eprintln!("root may open everything: not checked");
        return;
    }
    world.refused(15, &["m1", "as root"], &RAID5, &members);
}

#[test]
fn unequal_members_are_refused_unless_somebody_chose_so() {
    let world = World::new();
    let mut members = world.members(2);
    members.push(world.member("large", MEMBER_BYTES * 2));
    world.refused(3, &["large", "m0 limits the array", "--size"], &RAID5, &members);
    world.twill(&[&RAID5[..], &["--size", "8M"]].concat(), &members).succeeds();
    world.twill(&[&RAID5[..], &["--force"]].concat(), &members).succeeds();
}

/// RAID-0 uses all of each member, by md's newer rule unless another was asked for; --size makes them equal.
#[test]
fn raid0_takes_members_of_unequal_size() {
    let world = World::new();
    let mut members = world.members(2);
    members.push(world.member("large", MEMBER_BYTES * 2));
    let raid0 = |more: &[&str]| {
        let words = [&["create", "--level", "0", "--force", "--json"], more].concat();
        let made = world.twill(&words, &members).succeeds().json();
        let found = world.twill(&["assemble", "--json"], &members).succeeds().json();
        assert_eq!(found["arrays"][0]["size_bytes"], made["size_bytes"], "{found}");
        (made["layout"].as_str().unwrap().to_owned(), made["size_bytes"].as_u64().unwrap())
    };
    let data = MEMBER_BYTES - (1 << 20);
    let all = 3 * data + MEMBER_BYTES;
    assert_eq!(raid0(&[]), ("alternate".to_owned(), all));
    assert_eq!(raid0(&["--layout", "original"]), ("original".to_owned(), all));
    assert_eq!(raid0(&["--size", "8M"]), ("default".to_owned(), 3 * (8 << 20)));
}

#[test]
fn a_member_may_be_missing_if_the_level_allows_it() {
    let world = World::new();
    let members = world.members(3);
    let with_missing = |missing: usize| {
        let words = std::iter::repeat_n("missing".to_owned(), missing);
        members.iter().cloned().chain(words).collect::<Vec<_>>()
    };
    world.refused(5, &["missing"], &RAID5, &with_missing(2));
    let made = world.twill(&RAID5, &with_missing(1)).succeeds();
    assert!(made.stdout.contains("1 slot is empty"), "{made:?}");
    let examined = world.twill(&["examine", "--json"], &members).succeeds().json();
    assert_eq!(examined["members"][0]["superblock"]["array_state"], "AAA.");
    world.refused(5, &["every member is missing"], &["create", "--level", "1"], &["missing", "missing"]);
}

#[test]
fn files_are_made_only_if_all_is_well() {
    let world = World::new();
    let made = ["create", "--level", "5", "--create-files", "12M"];
    world.refused(4, &["/dev/null"], &made, &["a", "b", "/dev/null"]);
    world.twill(&made, &["a", "b", "c"]).succeeds();
    assert_eq!(fs::metadata(world.path("c")).unwrap().len(), 12 << 20);
    world.twill(&["assemble"], &["a", "b", "c"]).succeeds();
}

#[test]
fn a_locked_member_is_refused_even_with_force() {
    let world = World::new();
    let members = world.members(3);
    let file = fs::File::open(world.path("m1")).unwrap();
    file.lock().unwrap();
    world.refused(6, &["m1: is locked"], &RAID5, &members);
    world.refused(6, &["m1"], &[&RAID5[..], &["--force"]].concat(), &members);
}

#[test]
fn a_refusal_as_json_is_one_document() {
    let world = World::new();
    let members = world.array(3);
    let run = world.refused(3, &[], &["create", "--json", "--level", "5"], &members);
    let error = &run.json()["error"];
    assert_eq!((&error["kind"], &error["exit_code"]), (&"needs-force".into(), &3.into()));
    assert_eq!(error["problems"][2]["member"], "m2");
    assert!(error["problems"][2]["help"].is_string());
}

#[test]
fn spares_that_cannot_help_are_refused() {
    let world = World::new();
    let members = world.members(4);
    let create = |arguments: &[&'static str]| [&["create"], arguments].concat();
    world.refused(10, &["which leaves none for the array"], &create(&["-l5", "-x", "5"]), &members);
    world.refused(10, &["which leaves none for the array"], &create(&["-l5", "-x", "4"]), &members);
    world.refused(10, &["cannot help a RAID-0"], &create(&["-l0", "-x", "1"]), &members);
    world.refused(2, &["-1 is not in 0..=1920"], &create(&["-l5", "-x", "-1"]), &members);
    let run = world.twill(&create(&["-l5", "-x", "1", "--name", "one"]), &members).succeeds();
    assert!(run.stdout.contains("over 3 members") && run.stdout.contains(", 1 spare\n"), "{run:?}");
    world.twill(&["create", "-l0", "--force", "--name", "none"], &members[..2]).succeeds();
    let server = world.serve(&[], &members[..2]);
    let run = server.twill(&["add", "m3", "--force"]);
    assert!(run.code == 10 && run.stderr.contains("cannot help a RAID-0"), "{run:?}");
    server.stop();
}
