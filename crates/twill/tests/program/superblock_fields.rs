//! Every field and flag of md's superblock: what Twill does with it is a row of the table in docs/formats.md, and a row here.

use layout::md_superblock;

use crate::world::World;

/// Where the superblock of a member is, metadata 1.2.
const AT: u64 = 4096;

impl World {
    /// Changes a number of the superblock at 4 KiB, little-endian, and mends the checksum.
    fn set_field(&self, member: &str, offset: u64, bytes: usize, value: u64) {
        self.write(member, AT + offset, &value.to_le_bytes()[..bytes]);
        if (216..220).contains(&offset) {
            return;
        }
        let word = |at: u64| u32::from_le_bytes(self.bytes(member, AT + at, 4).try_into().expect("a word"));
        let roles = u64::from(word(220)).min(1920);
        self.write(member, AT + 216, &[0; 4]);
        let end = 256 + roles * 2;
        let mut sum: u64 = (0..end / 4).map(|at| u64::from(word(at * 4))).sum();
        if end % 4 == 2 {
            let half = self.bytes(member, AT + end - 2, 2);
            sum += u64::from(u16::from_le_bytes([half[0], half[1]]));
        }
        let checksum = ((sum & 0xffff_ffff) + (sum >> 32)) as u32;
        self.write(member, AT + 216, &checksum.to_le_bytes());
    }
}

#[derive(Clone, Copy, PartialEq)]
enum At {
    /// In the superblock of each member.
    All,
    /// In that of the second member.
    One,
}
use At::{All, One};

/// Field, its offset and length, a value, where it is set; the exit code of `assemble` and words that it says.
type Row = (&'static str, u64, usize, u64, At, i32, &'static str);

const ROWS: &[Row] = &[
    ("magic", 0, 4, 1, One, 0, "m1: not taken"),
    ("major_version", 4, 4, 2, One, 0, "version 2"),
    ("feature_map: RESHAPE_ACTIVE", 8, 4, 4, All, 12, "RESHAPE_ACTIVE"),
    ("feature_map: RESHAPE_BACKWARDS", 8, 4, 32, All, 12, "RESHAPE_BACKWARDS"),
    ("feature_map: NEW_OFFSET", 8, 4, 64, All, 12, "NEW_OFFSET"),
    ("feature_map: CLUSTERED", 8, 4, 256, All, 12, "CLUSTERED"),
    ("feature_map: JOURNAL", 8, 4, 512, All, 12, "JOURNAL"),
    ("feature_map: PPL", 8, 4, 1024, All, 12, "PPL"),
    ("feature_map: MULTIPLE_PPLS", 8, 4, 2048, All, 12, "MULTIPLE_PPLS"),
    ("feature_map: unknown", 8, 4, 1 << 20, All, 12, "unknown feature 0x100000"),
    ("pad0", 12, 4, 1, One, 0, "padding pad0 is not zero"),
    ("set_uuid", 16, 4, 7, One, 5, "m1"),
    ("set_name", 32, 4, 0x1b5b_4a32, All, 0, "\\u{1b}"),
    ("ctime", 64, 8, 0, All, 0, "would start\n"),
    ("level", 72, 4, 99, One, 0, "m1: not taken"),
    ("layout", 76, 4, 77, One, 0, "m1: not taken"),
    ("size", 80, 8, 0, One, 0, "size is 0 sectors, should be 1 to data_size, "),
    ("chunksize", 88, 4, 3, One, 0, "chunksize is 3 sectors, should be a power of two"),
    ("raid_disks", 92, 4, 0, One, 0, "raid_disks is 0"),
    ("bitmap_offset", 96, 4, 8, All, 0, "would start\n"),
    ("new_level", 100, 4, 6, All, 0, "would start\n"),
    ("reshape_position", 104, 8, 4096, All, 0, "would start\n"),
    ("delta_disks", 112, 4, 1, All, 0, "would start\n"),
    ("new_layout", 116, 4, 1, All, 0, "would start\n"),
    ("new_chunk", 120, 4, 8, All, 0, "would start\n"),
    ("new_offset", 124, 4, 8, All, 0, "would start\n"),
    ("data_offset", 128, 8, 0, One, 0, "sector"),
    ("data_size", 136, 8, 1 << 40, One, 0, "m1: not taken: has 12 MiB, needs 512.00 TiB"),
    ("super_offset", 144, 8, 16, One, 0, "written for"),
    ("recovery_offset", 152, 8, 8, All, 0, "would start\n"),
    ("dev_number", 160, 4, 4000, One, 0, "dev_number is 4000"),
    ("cnt_corrected_read", 164, 4, 5, All, 0, "would start\n"),
    ("device_uuid", 168, 8, 7, One, 0, "would start\n"),
    ("devflags: write-mostly", 184, 1, 1, All, 0, "would start\n"),
    ("devflags: failfast", 184, 1, 2, All, 0, "would start\n"),
    ("devflags: others", 184, 1, 0xfc, All, 0, "would start\n"),
    ("bblog_shift", 185, 1, 40, One, 0, "bblog_shift is 40"),
    ("bblog_size", 186, 2, 60_000, One, 0, "lies over"),
    ("bblog_offset", 188, 4, 0, One, 0, "would start\n"),
    ("utime", 192, 8, 1, All, 0, "would start\n"),
    ("events", 200, 8, 10, One, 5, "m0: not taken"),
    ("resync_offset", 208, 8, 0, All, 0, "resync"),
    ("sb_csum", 216, 4, 1, One, 0, "checksum"),
    ("max_dev", 220, 4, 5000, One, 0, "5000 roles"),
    ("logical_block_size", 224, 4, 4096, All, 0, "would start\n"),
    ("logical_block_size", 224, 4, 100, One, 0, "logical_block_size is 100"),
    ("logical_block_size", 224, 4, 1 << 20, One, 0, "512 to 65536 bytes"),
    ("pad3", 228, 4, 1, One, 0, "padding pad3 is not zero"),
];

#[test]
fn every_field_does_what_its_row_says() {
    let world = World::new();
    let members = world.array(4);
    let before: Vec<Vec<u8>> = members.iter().map(|member| world.bytes(member, AT, 4096)).collect();
    let mut wrong = Vec::new();
    for (field, offset, bytes, value, at, code, says) in ROWS {
        for member in members.iter().filter(|member| *at == All || *member == "m1") {
            world.set_field(member, *offset, *bytes, *value);
        }
        let run = world.twill(&["assemble", "--explain"], &members);
        if run.code != *code || !(run.stdout + &run.stderr).contains(says) {
            let run = world.twill(&["assemble", "--explain"], &members);
            wrong.push(format!("{field} = {value}: {run:#?}"));
        }
        members.iter().zip(&before).for_each(|(member, bytes)| world.write(member, AT, bytes));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_field_and_flag_has_its_rows() {
    let page = include_str!("../../../../docs/formats.md");
    let (_, table) = page.split_once("### What md and Twill do with each field").expect("the section");
    let table = table.split("\n## ").next().expect("its end").split("\n### ").next().expect("its end");
    for (name, ..) in md_superblock::FIELDS {
        assert!(table.contains(&format!("| `{name}` |")), "{name} has no row in docs/formats.md");
        let is_tried = |row: &&Row| row.0 == *name || row.0.split(':').next() == Some(*name);
        assert!(ROWS.iter().any(|row| is_tried(&row)), "{name} has no row in this test");
    }
}

#[test]
fn the_recorded_block_is_the_least_that_clients_may_address() {
    let world = World::new();
    let members = world.array(3);
    for member in &members {
        world.set_field(member, 224, 4, 4096);
        world.set_field(member, 184, 1, 3);
        world.set_field(member, 164, 4, 5);
    }
    let examined = world.twill(&["examine"], &members[..1]).succeeds().stdout;
    for words in ["Logical Block : 4096 bytes", "Flags : write-mostly failfast", "Corrected : 5 reads"] {
        assert!(examined.contains(words), "{words}: {examined}");
    }
    let server = world.serve(&[], &members);
    assert_eq!(server.status()["logical_block_bytes"], 4096);
    let detail = server.twill(&["detail"]).succeeds().stdout;
    assert!(detail.contains("Logical Block : 4096 bytes"), "{detail}");
    assert!(detail.contains("active sync writemostly failfast"), "{detail}");
    let mut client = world.client();
    assert_eq!(client.write(512, &[7; 512], 0).expect("served"), 22, "EINVAL: less than a block");
    assert_eq!(client.write(4096, &[7; 4096], 0).expect("served"), 0);
    drop(client);
    server.stop();
    assert_eq!(world.bytes("m0", AT + 224, 4), [0, 16, 0, 0], "kept");
    assert_eq!(world.bytes("m0", AT + 184, 1), [3], "kept");
}

/// Both copies are whole, but for a block that each has of its own: what is read says where.
#[test]
fn a_write_mostly_member_of_a_mirror_is_read_only_if_no_other_can_be() {
    let world = World::new();
    let members = world.array_of("1", 2);
    let examined = world.twill(&["examine", "--json", "m0"], &[] as &[&str]).succeeds().json();
    let data = examined["members"][0]["superblock"]["data_offset_bytes"].as_u64().expect("a number");
    for (member, byte) in members.iter().zip([1, 2]) {
        world.write(member, data, &[byte; 4096]);
    }
    let first_byte = |write_mostly: &str, members: &[String]| {
        for (member, flags) in [("m0", 0), ("m1", 0), (write_mostly, 3)] {
            world.set_field(member, 184, 1, flags);
        }
        let server = world.serve(&[], members);
        let read = world.client().read(0, 4096).expect("served").expect("readable")[0];
        let detail = server.twill(&["detail"]).succeeds().stdout;
        assert!(detail.contains("writemostly failfast"), "{detail}");
        server.stop();
        read
    };
    assert_eq!(first_byte("m0", &members), 2);
    assert_eq!(first_byte("m1", &members), 1);
    assert_eq!(first_byte("m1", &members[1..]), 2, "no other is there");
}
