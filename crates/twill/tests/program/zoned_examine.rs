//! `examine` of zoned members, on images that the format's own types write.

use layout::geometry::Level;
use layout::zoned::{
    Access, ArrayPlan, BlockEntry, Carrier, Class, ColumnRole, Columns, DataOffset, Epoch, FooterBlock,
    FooterEntry, FooterPart, LogPlace, MapEntryBytes, Member, MemberState, MemberZones, RecordKind,
    SegmentColumn, SegmentHeader, SegmentPlan, SegmentShape, Sequence, StripeDescriptor, Superblock,
    ZonePlace,
};
use serde_json::Value;

use crate::world::World;

const SET: [u8; 16] = [0x5e; 16];
const DEVICE: [u8; 16] = [0xde; 16];
const BLOCK: u64 = 4096;
const ZONE_BLOCKS: u32 = 1024;
const ZONES: u32 = 7;
const EPOCH: Epoch = Epoch { number: 3, random: 0xabcd_ef01 };

fn superblock(access: Access) -> Superblock {
    let row = |slot: u16| Member {
        device_uuid: if slot == 2 { DEVICE } else { [slot as u8 + 1; 16] },
        state: if slot == 1 { MemberState::Failed } else { MemberState::InSync },
        slot: Some(slot),
        retired_zones: u32::from(slot == 0),
        events: 1,
        epoch: Some(EPOCH),
    };
    Superblock {
        set_uuid: SET,
        device_uuid: DEVICE,
        set_name: "host:log".into(),
        sequence: 1,
        epoch: EPOCH,
        served: Some(EPOCH),
        ctime_s: 1_800_000_000,
        utime_s: 1_800_000_001,
        growing: false,
        ro_compat: 0,
        compat: 0,
        plan: ArrayPlan {
            columns: Columns::new(Level::Raid5, 4).unwrap(),
            carrier: Carrier::Inband,
            logical_blocks: 2048,
            reserve_blocks: 512,
            small_blocks: 8,
            large_blocks: 32,
            group: 4,
            band_blocks: 64,
            open_small: 1,
            open_large: 1,
            map_entry: MapEntryBytes::Eight,
            map_columns: 8,
        },
        zones: MemberZones { access, zone_blocks: ZONE_BLOCKS, capacity_blocks: 1000, zones: ZONES },
        slot: 2,
        clean: false,
        checkpoint: None,
        segments_below: 2000,
        members: (0..4).map(row).collect(),
        epochs: vec![EPOCH, Epoch { number: 2, random: 5 }],
    }
}

fn at(zone: u32, block: u32) -> u64 {
    (u64::from(zone) * u64::from(ZONE_BLOCKS) + u64::from(block)) * BLOCK
}

/// Writes `count` superblocks from `first` on, one behind the other from the start of a zone of the log.
fn log(world: &World, access: Access, zone: u32, first: u64, count: u32) {
    let mut own = superblock(access);
    for block in 0..count {
        own.sequence = first + u64::from(block);
        world.write("z", at(zone, block), &own.encode(LogPlace { zone, block }));
    }
}

/// Opens a segment in a zone of the member.
fn segment(world: &World, zone: u32, segment: u64) -> SegmentHeader {
    let plan = SegmentPlan {
        columns: Columns::new(Level::Raid5, 4).unwrap(),
        access: Access::Placed,
        carrier: Carrier::Inband,
        record_blocks: 32,
        group: 0,
        band_blocks: 64,
    };
    let header = SegmentHeader {
        segment,
        tag: segment ^ 0x1234_5678,
        epoch: EPOCH,
        first_sequence: Sequence(EPOCH.first_sequence().0 + 9),
        class: Class::Large,
        shape: SegmentShape::new(plan, 1000).unwrap(),
        slot: zone,
        column: 2,
        generation: 0,
        columns: (0..4).map(|slot| SegmentColumn { slot, zone: Some(zone) }).collect(),
    };
    let place = ZonePlace { set_uuid: SET, device_uuid: DEVICE, zone };
    world.write("z", at(zone, 0), &header.encode(place));
    header
}

/// Fills the data region with records of 31 rows, `count` of them.
fn records(world: &World, header: &SegmentHeader, zone: u32, count: u32) {
    for record in 0..count {
        let offset = DataOffset(record * 32);
        let entry = BlockEntry::padding(Sequence(record.into()));
        let stripe = StripeDescriptor {
            epoch: EPOCH.random,
            stripe: offset.0,
            sequence: entry.sequence,
            durable_blocks: 0,
            rows: 31,
            entries: vec![entry; 3 * 31],
        };
        let mut bytes = vec![0; 4096];
        let kind = RecordKind::of_role(header.shape.role(header.column, offset));
        let (place, sums) = (offset.zone_block(), [entry.checksum; 31]);
        stripe.encode_into(header, kind, Some(place), &sums, &mut bytes);
        world.write("z", at(zone, place), &bytes);
    }
}

/// A footer that names `data_blocks`.
fn footer(world: &World, header: &SegmentHeader, zone: u32, data_blocks: u32) {
    let start = DataOffset(data_blocks).zone_block();
    let per_block = header.shape.entries_per_footer();
    for index in 0..header.shape.footer_blocks_of(data_blocks) {
        let entry = |offset: u32| {
            let entry = BlockEntry::padding(Sequence(1));
            let part = match header.shape.role(header.column, DataOffset(offset)) {
                ColumnRole::Data(_) => FooterPart::Named(entry),
                role => FooterPart::Coded(layout::zoned::coded::code(role, &[entry; 3])),
            };
            FooterEntry { part, stripe: 0 }
        };
        let named = index * per_block..data_blocks.min((index + 1) * per_block);
        let entries = named.map(entry).collect();
        let block = FooterBlock { epoch: EPOCH, index, data_blocks, place: Some(start + index), entries };
        world.write("z", at(zone, start + index), &block.encode(header));
    }
}

fn image() -> World {
    let world = World::new();
    world.member("z", at(ZONES, 0));
    world
}

fn examined(world: &World, arguments: &[&str], code: i32) -> Value {
    let run = world.twill(&[&["examine", "--json"], arguments].concat(), &["z"]);
    assert_eq!(run.code, code, "{run:?}");
    run.json()["members"][0].clone()
}

fn newest(world: &World) -> (u64, u64, u64) {
    let found = examined(world, &[], 0)["zoned_superblock"].clone();
    let number = |name: &str| found[name].as_u64().unwrap_or_else(|| panic!("{name} in {found}"));
    (number("events"), number("superblock_zone"), number("superblock_block"))
}

#[test]
fn a_superblock_is_described() {
    let world = image();
    log(&world, Access::Placed, 0, 1, 3);
    let text = world.twill(&["examine"], &["z"]).succeeds().stdout;
    for line in [
        "          Magic : TwZonSb",
        "        Version : 1 (zoned)",
        "     Array UUID : 5e5e5e5e:5e5e5e5e:5e5e5e5e:5e5e5e5e",
        "           Name : host:log",
        "  Creation Time : 2027-01-15T08:00:00Z",
        "     Raid Level : raid5",
        "   Raid Devices : 4",
        "        Reserve : 2 MiB",
        "          Zones : 7 of 4 MiB, of which 3.91 MiB can be written",
        "    Zone Access : placed",
        "       Metadata : inband",
        "   Large Record : 32 blocks (128K)",
        "  Open Segments : 1 small, 1 large",
        "            Map : entries of 8 bytes, 8 columns",
        "          State : active",
        "         Events : 3",
        "          Epoch : 3.abcdef01, last served 3.abcdef01",
        "     Checkpoint : none: a start reads every footer",
        "     Superblock : block 2 of zone 0",
        "    Device Slot : 2",
        "         Slot 0 : 01010101:01010101:01010101:01010101 in-sync, 1 zone retired",
        "         Slot 1 : 02020202:02020202:02020202:02020202 failed",
    ] {
        assert!(text.lines().any(|own| own == line), "{line:?} is not in\n{text}");
    }
    let found = examined(&world, &[], 0);
    assert!(found["superblock"].is_null() && found["problem"].is_null() && found.get("zones").is_none());
    assert_eq!(found["zoned_superblock"]["zone_bytes"], u64::from(ZONE_BLOCKS) * BLOCK);
    assert_eq!(found["zoned_superblock"]["members"][1]["state"], "failed");
}

/// Software zones and drives, the log anywhere in either zone, its last block torn.
#[test]
fn the_newest_superblock_is_found_wherever_the_log_stands() {
    for (access, full) in [(Access::Placed, 256), (Access::Sequential, 1000)] {
        let world = image();
        log(&world, access, 0, 1, full);
        assert_eq!(newest(&world), (u64::from(full), 0, u64::from(full) - 1), "{access:?}: a full zone");
        log(&world, access, 1, u64::from(full) + 1, 300.min(full - 1));
        let last = 300.min(u64::from(full) - 1);
        assert_eq!(newest(&world), (u64::from(full) + last, 1, last - 1), "{access:?}: the other one");
        world.damage("z", at(1, last as u32 - 1) + 99);
        assert_eq!(newest(&world), (u64::from(full) + last - 1, 1, last - 2), "{access:?}: torn");
        let found = examined(&world, &[], 0);
        assert_eq!(found["zoned_superblock"]["damaged_superblocks"], 1);
        let text = world.twill(&["examine"], &["z"]).succeeds().stdout;
        assert!(text.contains("Superblock Log : 1 damaged block; after a power cut one is normal"), "{text}");
        // Zone 0 was reset, and nothing written there yet: zone 1 is found by what it says of itself.
        world.write("z", 0, &vec![0; at(1, 0) as usize]);
        assert_eq!(newest(&world), (u64::from(full) + last - 1, 1, last - 2), "{access:?}: zone 1 alone");
    }
}

#[test]
fn segments_are_described_with_a_superblock_and_without() {
    let world = image();
    log(&world, Access::Placed, 0, 1, 2);
    let sealed = segment(&world, 2, 1001);
    footer(&world, &sealed, 2, sealed.shape.data_blocks());
    let open = segment(&world, 3, 1002);
    records(&world, &open, 3, 5);
    let short = segment(&world, 4, 1003);
    records(&world, &short, 4, 2);
    footer(&world, &short, 4, 64);
    segment(&world, 5, 1004);
    world.damage("z", at(5, 0) + 60);
    let data = sealed.shape.data_blocks();
    let lines = [
        "     Free Zones : 1".to_owned(),
        "         Zone 2 : segment 1001, large, raid5 of 4, column 2, sealed".into(),
        format!(
            "         Zone 3 : segment 1002, large, raid5 of 4, column 2, open, 5 records in 160 of {data} blocks"
        ),
        format!(
            "         Zone 4 : segment 1003, large, raid5 of 4, column 2, sealed early after 64 of {data} blocks"
        ),
        "         Zone 5 : not usable: segment header: checksum".into(),
    ];
    let check = |text: &str| {
        for line in &lines {
            assert!(text.lines().any(|own| own.starts_with(line)), "{line:?} is not in\n{text}");
        }
    };
    check(&world.twill(&["examine", "--segments"], &["z"]).succeeds().stdout);
    let found = examined(&world, &["--segments"], 0);
    assert_eq!(found["zones"]["segments"][1]["records"], 5);
    assert_eq!(found["zones"]["segments"][2]["state"], "closed-early");
    assert_eq!((&found["zones"]["damaged"][0]["zone"], &found["zones"]["free"]), (&5.into(), &1.into()));

    // Both zones of the log are gone: the headers say whose they are, and how large a zone is.
    world.write("z", 0, &vec![0xa5; at(2, 0) as usize]);
    let run = world.refused(
        11,
        &["z: has segments of a zoned array, and no usable superblock in zones 0 and 1"],
        &["examine", "--segments"],
        &["z"],
    );
    check(&run.stdout);
    let found = examined(&world, &["--segments"], 11);
    assert_eq!(found["zones"]["zone_bytes"], u64::from(ZONE_BLOCKS) * BLOCK);
    assert_eq!(found["zones"]["array_uuid"], "5e5e5e5e:5e5e5e5e:5e5e5e5e:5e5e5e5e");
    world.refused(4, &["z: has no md superblock"], &["examine"], &["z"]);
}

/// What is damaged or cut off is described or refused, and never a panic.
#[test]
fn damaged_images_are_no_crash() {
    let world = image();
    log(&world, Access::Sequential, 0, 1, 2);
    let open = segment(&world, 3, 1002);
    records(&world, &open, 3, 5);
    for bytes in [at(7, 0) - 1, at(3, 33), at(3, 1), at(2, 0), at(1, 0), 8192, 4097, 4096, 4095, 1, 0] {
        std::fs::File::options().write(true).open(world.path("z")).unwrap().set_len(bytes).unwrap();
        let run = world.twill(&["examine", "--segments"], &["z"]);
        assert!([0, 4, 11].contains(&run.code), "{bytes}: {run:?}");
        assert_eq!(run.code == 0, bytes >= 4096, "{bytes}: {run:?}");
    }
}

#[test]
fn a_zoned_member_is_not_made_another_arrays_by_mistake() {
    let world = image();
    log(&world, Access::Placed, 0, 1, 1);
    world.member("m0", at(ZONES, 0));
    world.refused(3, &["z: has a superblock of a zoned array"], &["create", "--level", "1"], &["z", "m0"]);
}
