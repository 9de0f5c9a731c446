//! Superblocks and bitmaps that mdadm and the kernel wrote: read, compared with `mdadm --examine`, written again.

mod golden;

use golden::Golden;
use layout::geometry::Level;
use layout::md_bitmap::{BitmapSuper, sync_sectors};
use layout::md_superblock::{
    BadRange, DeviceRole, Features, MinorVersion, NewArray, NewBitmap, NewMember, Superblock,
    SuperblockError, decode_bad_blocks, display_uuid, encode_bad_blocks, superblock_0_90_offset,
};
use layout::units::{Sectors, Slot};
use layout::{Layout, md_superblock};
use proptest::prelude::*;

fn parse(golden: &Golden) -> Superblock {
    Superblock::parse(&golden.superblock, golden.minor(), golden.device_bytes)
        .unwrap_or_else(|error| panic!("{}: {error}", golden.name))
}

fn version_1() -> impl Iterator<Item = Golden> {
    Golden::all().into_iter().filter(|golden| golden.name != "refused-0.90")
}

/// The first number of a text, such as of `4096 sectors` or `- offset 8`.
fn number(text: &str) -> u64 {
    let digits: String =
        text.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("no number in {text:?}"))
}

#[test]
fn fields_are_what_mdadm_says_they_are() {
    for golden in version_1() {
        let superblock = parse(&golden);
        let name = &golden.name;
        let said = |key: &str| golden.examined(key).unwrap_or_else(|| panic!("{name}: no {key}"));
        assert_eq!(superblock.minor_version().to_string(), said("Version"), "{name}");
        assert_eq!(format!("{:#x}", superblock.features().0), said("Feature Map"), "{name}");
        assert_eq!(display_uuid(&superblock.set_uuid()), said("Array UUID"), "{name}");
        assert_eq!(display_uuid(&superblock.device_uuid()), said("Device UUID"), "{name}");
        assert_eq!(superblock.set_name(), said("Name").split("  (local").next().unwrap(), "{name}");
        assert_eq!(superblock.level().to_string(), said("Raid Level"), "{name}");
        assert_eq!(superblock.raid_disks().to_string(), said("Raid Devices").split(' ').next().unwrap());
        // mdadm leaves it out where it is 0.
        assert_eq!(superblock.data_offset().0, golden.examined("Data Offset").map_or(0, number), "{name}");
        assert_eq!(superblock.super_offset().0, number(said("Super Offset")), "{name}");
        assert_eq!(superblock.data_size().0, number(said("Avail Dev Size")), "{name}");
        if let Some(used) = golden.examined("Used Dev Size") {
            assert_eq!(superblock.size().0, number(used), "{name}");
        }
        assert_eq!(superblock.events().to_string(), said("Events"), "{name}");
        assert_eq!(format!("{:x} - correct", superblock.stored_checksum()), said("Checksum"), "{name}");
        let clean = superblock.resync_offset().is_none();
        assert_eq!(clean, said("State").starts_with("clean"), "{name}");
        check_geometry(&golden, &superblock);
        check_role(&golden, &superblock);
    }
}

fn check_geometry(golden: &Golden, superblock: &Superblock) {
    let name = &golden.name;
    if let Some(layout) = golden.examined("Layout") {
        assert_eq!(superblock.layout().to_string(), layout, "{name}");
    }
    if let Some(chunk) = golden.examined("Chunk Size") {
        assert_eq!(u64::from(superblock.chunk_bytes()) >> 10, number(chunk), "{name}");
    }
    let geometry = superblock.geometry().unwrap_or_else(|error| panic!("{name}: {error}"));
    // mdadm gives a reshaped array the size that it had, and none to RAID-0.
    let is_settled = !superblock.features().contains(Features::RESHAPE_ACTIVE);
    if let Some(size) = golden.examined("Array Size").filter(|_| is_settled) {
        assert_eq!(geometry.array_bytes() >> 10, number(size), "{name}");
    }
}

fn check_role(golden: &Golden, superblock: &Superblock) {
    let role = match superblock.role() {
        DeviceRole::Active(member) if superblock.features().contains(Features::REPLACEMENT) => {
            format!("Replacement device {member}")
        }
        DeviceRole::Active(member) => format!("Active device {member}"),
        DeviceRole::Spare => "spare".into(),
        DeviceRole::Faulty => "Faulty".into(),
        DeviceRole::Journal => "Journal".into(),
    };
    assert_eq!(role, golden.examined("Device Role").unwrap(), "{}", golden.name);
    let letter = |member| {
        let found = superblock.roles().filter(|role| *role == DeviceRole::Active(member)).count();
        ['.', 'A', 'R'][found]
    };
    let state: String = Slot::first(superblock.raid_disks()).map(letter).collect();
    assert_eq!(state, golden.examined("Array State").unwrap().split(' ').next().unwrap(), "{}", golden.name);
    if let Some(recovery) = golden.examined("Recovery Offset") {
        assert_eq!(superblock.recovery_offset().unwrap().0, number(recovery), "{}", golden.name);
    }
    if let Some(log) = golden.examined("Bad Block Log") {
        let (start, length) = superblock.bad_block_log().unwrap();
        assert_eq!(length.0 * 64, number(log), "{}", golden.name);
        let offset = start.0 as i64 - superblock.super_offset().0 as i64;
        assert!(log.contains(&format!("offset {offset} sectors")), "{}: {log}", golden.name);
    }
}

#[test]
fn what_was_read_is_written_again() {
    for golden in version_1() {
        let superblock = parse(&golden);
        let block = golden.sector_bytes;
        let encoded = superblock.encode(block);
        assert_eq!(encoded.len() % block, 0);
        assert_eq!(encoded, golden.superblock[..encoded.len()], "{}", golden.name);
    }
}

#[test]
fn features_decide_what_runs() {
    for golden in version_1() {
        let unsupported = parse(&golden).unsupported_features();
        let expected: &[&str] = match golden.name.as_str() {
            "refused-journal" | "refused-journal-device" => &["JOURNAL"],
            "refused-ppl" => &["MULTIPLE_PPLS"],
            "refused-reshape" => &["RESHAPE_ACTIVE", "NEW_OFFSET"],
            name => {
                assert!(golden.is_supported(), "{name}");
                &[]
            }
        };
        assert_eq!(unsupported, expected, "{}", golden.name);
    }
    assert_eq!(Features(0x8000_0001).unsupported(), ["unknown feature 0x80000000"]);
    assert_eq!(Features(0x103).to_string(), "BITMAP_OFFSET, RECOVERY_OFFSET, CLUSTERED");
}

#[test]
fn old_superblocks_are_refused_by_name() {
    let golden = Golden::named("refused-0.90");
    assert_eq!(superblock_0_90_offset(golden.device_bytes), Some(golden.read_at));
    let error = Superblock::parse(&golden.superblock, MinorVersion::V1_0, golden.device_bytes).unwrap_err();
    assert_eq!(error, SuperblockError::Version090);
    assert_eq!(superblock_0_90_offset(65535), None);
}

#[test]
fn bitmaps_are_what_mdadm_says_they_are() {
    let mut seen = 0;
    for golden in version_1() {
        let (Some(bytes), superblock) = (&golden.bitmap, parse(&golden)) else { continue };
        let name = &golden.name;
        let room = superblock.bitmap_room(golden.device_bytes).unwrap();
        let bitmap = BitmapSuper::parse(bytes, superblock.set_uuid(), room)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let said = |key: &str| golden.examined_bitmap(key).unwrap_or_else(|| panic!("{name}: no {key}"));
        assert_eq!(display_uuid(&bitmap.uuid()), said("UUID"), "{name}");
        assert_eq!(bitmap.events().to_string(), said("Events"), "{name}");
        assert_eq!(bitmap.events_cleared().to_string(), said("Events Cleared"), "{name}");
        assert_eq!(bitmap.sync_size().0 / 2, number(said("Sync Size")), "{name}");
        assert_eq!(bitmap.bits(), number(said("Bitmap")), "{name}");
        let (size, unit) = said("Chunksize").split_once(' ').unwrap();
        let shift = if unit == "KB" { 10 } else { 20 };
        assert_eq!(u64::from(bitmap.chunk_bytes()) >> shift, size.parse::<u64>().unwrap(), "{name}");
        bitmap.check_geometry(&superblock.geometry().unwrap()).unwrap();
        assert!(bitmap.events() <= superblock.events(), "{name}");
        assert_eq!(bitmap.encode(), bytes[..256], "{name}");
        seen += 1;
    }
    assert!(seen >= 20, "only {seen} bitmaps");
}

#[test]
fn bits_stand_for_ranges() {
    let bitmap = BitmapSuper::new([7; 16], Sectors(1000), 64 << 10);
    assert_eq!((bitmap.bits(), bitmap.bitmap_bytes()), (8, 257));
    assert_eq!(bitmap.range_of(7), 7 << 16..512_000);
    assert_eq!(bitmap.range_of(9), 512_000..512_000);
    assert_eq!((bitmap.bit_place(0), bitmap.bit_place(13)), ((256, 1), (257, 32)));
    assert!(!bitmap.is_stale(0) && bitmap.is_stale(1));
    for (version, name) in [(3u8, "host byte order"), (5, "clustered"), (6, "lockless")] {
        let mut bytes = bitmap.encode();
        bytes[4] = version;
        let error = BitmapSuper::parse(&bytes, [7; 16], 4096).unwrap_err();
        assert_eq!(error, SuperblockError::BitmapVersion { version: version.into(), name });
    }
    let too_large = BitmapSuper::parse(&bitmap.encode(), [7; 16], 256).unwrap_err();
    assert_eq!(too_large, SuperblockError::BitmapTooLarge { needed: 257, room: 256 });
}

#[test]
fn bad_blocks_are_read_and_written() {
    let golden = Golden::named("bad-blocks");
    let superblock = parse(&golden);
    assert!(superblock.features().contains(Features::BAD_BLOCKS));
    let log = golden.bad_blocks.unwrap();
    let ranges = decode_bad_blocks(&log, superblock.bad_block_shift()).unwrap();
    let range = |start, length| BadRange { start: Sectors(start), length: Sectors(length) };
    assert_eq!(ranges, [range(5000, 8), range(9000, 1)]);
    assert_eq!(encode_bad_blocks(&ranges, log.len()).unwrap(), log);
    let full = vec![range(1, 1); 513];
    let error = encode_bad_blocks(&full, 4096).unwrap_err();
    assert_eq!(error, SuperblockError::BadBlockLogFull { entries: 513, room: 512 });
    assert!(encode_bad_blocks(&[range(0, 1024)], 4096).is_err());
    assert_eq!(decode_bad_blocks(&log, 3).unwrap()[0], range(40000, 64));
}

#[test]
fn changes_are_found_again() {
    let golden = Golden::named("degraded");
    let mut superblock = parse(&golden);
    superblock.set_events(77);
    superblock.set_utime_s(1_800_000_000);
    superblock.set_resync_offset(Some(Sectors(8)));
    superblock.set_recovery_offset(Some(Sectors(4096)));
    superblock.set_role(1, DeviceRole::Active(Slot::new(1)));
    superblock.set_role(2, DeviceRole::Faulty);
    superblock.set_device(1, [3; 16]);
    superblock.set_has_bad_blocks(true);
    superblock.set_corrected_reads(5);
    let again = Superblock::parse(&superblock.encode(4096), golden.minor(), golden.device_bytes).unwrap();
    assert_eq!((again.events(), again.utime_s(), again.corrected_reads()), (77, 1_800_000_000, 5));
    assert_eq!(again.resync_offset(), Some(Sectors(8)));
    assert_eq!(again.recovery_offset(), Some(Sectors(4096)));
    assert_eq!((again.dev_number(), again.role()), (1, DeviceRole::Active(Slot::new(1))));
    assert_eq!(again.role_of(2), Some(DeviceRole::Faulty));
    assert_eq!(again.device_uuid(), [3; 16]);
    assert!(again.features().contains(Features::BAD_BLOCKS));
    superblock.set_recovery_offset(None);
    superblock.set_has_bad_blocks(false);
    assert_eq!(superblock.features(), Features::BITMAP_OFFSET);
}

#[test]
fn one_more_device_is_laid_out_like_the_others() {
    for name in ["raid5-1.0-bitmap-internal", "raid5-1.1-bitmap-none", "raid5-1.2-bitmap-internal"] {
        let golden = Golden::named(name);
        let first = parse(&golden);
        let device_bytes = golden.device_bytes + (1 << 20) + 512;
        let other = first.for_new_device(3, [5; 16], device_bytes).unwrap();
        assert_eq!((other.dev_number(), other.role()), (3, DeviceRole::Spare));
        assert_eq!((other.events(), other.size()), (first.events(), first.size()));
        assert_eq!(other.data_offset(), first.data_offset());
        assert!(other.data_size() > first.data_size());
        assert_eq!(other.bitmap_room(device_bytes), first.bitmap_room(golden.device_bytes));
        let small = first.for_new_device(3, [5; 16], golden.device_bytes - (1 << 20)).unwrap_err();
        assert!(small.to_string().contains("at least what the array uses"), "{small}");
        assert!(first.for_new_device(4000, [5; 16], device_bytes).is_err());
    }
}

/// What Twill would make of the same devices is what mdadm made, but for what is random or the time.
#[test]
fn new_arrays_are_laid_out_as_mdadm_does() {
    let made_new = |name: &str| name.starts_with("size-") || name.starts_with("raid") || name == "spare";
    let mut seen = 0;
    for golden in version_1().filter(|golden| made_new(&golden.name) && golden.name != "raid0-zones") {
        let theirs = parse(&golden);
        let bitmap_super = golden.bitmap.as_ref().map(|bytes| {
            BitmapSuper::parse(bytes, theirs.set_uuid(), theirs.bitmap_room(golden.device_bytes).unwrap())
                .unwrap()
        });
        let bitmap = match &bitmap_super {
            None => NewBitmap::None,
            Some(bitmap) if bitmap.chunk_bytes() < 64 << 20 => {
                NewBitmap::Internal(Some(bitmap.chunk_bytes()))
            }
            Some(_) => NewBitmap::Internal(None),
        };
        let array = NewArray {
            minor: golden.minor(),
            set_uuid: theirs.set_uuid(),
            name: theirs.set_name(),
            ctime_s: theirs.ctime_s(),
            level: theirs.level(),
            layout: theirs.layout(),
            chunk_bytes: theirs.chunk_bytes(),
            raid_disks: theirs.raid_disks(),
            bitmap,
            member_bytes: None,
            data_offset: None,
            clean: true,
        };
        let roles: Vec<DeviceRole> = theirs.roles().collect();
        let devices = roles.iter().filter(|role| **role != DeviceRole::Spare);
        let mut devices: Vec<NewMember> = devices
            .map(|role| NewMember { device_bytes: golden.device_bytes, device_uuid: [9; 16], role: *role })
            .collect();
        if theirs.role() == DeviceRole::Spare {
            devices.push(NewMember { role: DeviceRole::Spare, ..devices[0] });
        }
        let created = array.create(&devices).unwrap_or_else(|error| panic!("{}: {error}", golden.name));
        let mut ours = created.superblocks[theirs.dev_number() as usize].clone();
        assert_same_but_for_what_changes(&golden, &theirs, &mut ours);
        if let Some(theirs) = bitmap_super {
            let ours = created.bitmap.unwrap();
            assert_eq!(
                (ours.chunk_bytes(), ours.sync_size(), ours.daemon_sleep_s()),
                (theirs.chunk_bytes(), theirs.sync_size(), theirs.daemon_sleep_s()),
                "{}",
                golden.name
            );
        }
        seen += 1;
    }
    assert!(seen >= 30, "only {seen} superblocks");
}

fn assert_same_but_for_what_changes(golden: &Golden, theirs: &Superblock, ours: &mut Superblock) {
    ours.set_device(theirs.dev_number(), theirs.device_uuid());
    ours.set_events(theirs.events());
    ours.set_utime_s(theirs.utime_s());
    let (mut ours, mut theirs) = (ours.encode(4096), theirs.encode(4096));
    let place = |name: &str| {
        let (_, offset, size) = md_superblock::FIELDS.iter().find(|field| field.0 == name).unwrap();
        *offset..offset + size
    };
    // The kernel sets these when it writes; mdadm leaves write-mostly to the operator, and sets a layout word that
    // means nothing for RAID-0 without its feature.
    let mut changing = vec!["sb_csum", "logical_block_size", "devflags"];
    if golden.name == "raid0" {
        changing.push("layout");
    }
    for bytes in [&mut ours, &mut theirs] {
        for field in &changing {
            bytes[place(field)].fill(0);
        }
    }
    for (field, offset, size) in md_superblock::FIELDS {
        assert_eq!(ours[*offset..offset + size], theirs[*offset..offset + size], "{}: {field}", golden.name);
    }
    assert_eq!(ours, theirs, "{}: roles", golden.name);
}

#[test]
fn impossible_new_arrays_are_refused() {
    let array = NewArray {
        name: "host:x".into(),
        ctime_s: 1_700_000_000,
        chunk_bytes: 64 << 10,
        clean: false,
        ..NewArray::new([1; 16], Level::Raid5, 3)
    };
    let device = |member| NewMember {
        device_bytes: 64 << 20,
        device_uuid: [2; 16],
        role: DeviceRole::Active(Slot::new(member)),
    };
    let spare = NewMember { role: DeviceRole::Spare, ..device(0) };
    let refused = |array: &NewArray, devices: &[NewMember]| array.create(devices).unwrap_err().to_string();
    assert_eq!(refused(&array, &[device(0)]), "raid5 cannot start with these 2 members missing");
    assert!(refused(&array, &[device(0), device(0)]).contains("two devices"));
    assert!(refused(&array, &[device(0), device(3)]).contains("no member 3"));
    assert!(refused(&array, &[]).contains("no devices"));
    let small = NewMember { device_bytes: 1 << 20, ..device(2) };
    assert!(refused(&array, &[device(0), device(1), small]).contains("too small"));
    let named = NewArray { name: "x".repeat(33), ..array.clone() };
    assert!(refused(&named, &[device(0)]).contains("longer than 32"));
    let bitmap = NewArray { bitmap: NewBitmap::Internal(Some(100)), ..array.clone() };
    assert!(refused(&bitmap, &[device(0), device(1)]).contains("bitmap chunk"));
    let degraded = array.create(&[device(2), device(0), spare]).unwrap();
    assert_eq!(degraded.superblocks[2].dev_number(), 3);
    let roles: Vec<DeviceRole> = degraded.superblocks[0].roles().take(4).collect();
    let missing = DeviceRole::Spare;
    assert_eq!(roles, [DeviceRole::Active(Slot::new(0)), missing, DeviceRole::Active(Slot::new(2)), missing]);
    assert_eq!(degraded.superblocks[0].resync_offset(), Some(Sectors(0)));
    // Spares have numbers behind those of the members, and roles of their own.
    for (spares, roles) in [(125, 128), (126, 384)] {
        let devices: Vec<NewMember> = (0..3).map(device).chain((0..spares).map(|_| spare)).collect();
        let created = array.create(&devices).expect("room for their roles");
        assert_eq!(created.superblocks[0].roles().len(), roles, "{spares} spares");
    }
}

/// mdadm puts the bitmap where the bad-block log ends, or the other way round.
#[test]
fn a_bitmap_stands_right_behind_a_bad_block_log() {
    let golden = version_1().find(|golden| {
        let superblock = parse(golden);
        superblock.bitmap_start().is_some() && superblock.bad_block_log().is_some()
    });
    let golden = golden.expect("one with both");
    let superblock = parse(&golden);
    let (start, length) = superblock.bad_block_log().expect("a log");
    let mut bytes = golden.superblock.clone();
    let from_superblock = |at: Sectors| at.0.cast_signed() - superblock.super_offset().0.cast_signed();
    for (behind, is_right) in [(length.0, true), (length.0 - 1, false), (0, false)] {
        let offset = i32::try_from(from_superblock(start) + behind.cast_signed()).expect("close by");
        bytes[96..100].copy_from_slice(&offset.to_le_bytes());
        fix_checksum(&mut bytes);
        let read = Superblock::parse(&bytes, golden.minor(), golden.device_bytes);
        assert_eq!(read.is_ok(), is_right, "{behind}: {read:?}");
    }
}

/// A flipped bit breaks the checksum wherever it covers; elsewhere it changes nothing that is read.
#[test]
fn every_flipped_bit_is_refused_or_harmless() {
    for golden in version_1().filter(|golden| golden.superblock.len() == 4096) {
        let superblock = parse(&golden);
        let covered = 256 + superblock.roles().len() * 2;
        let mut bytes = golden.superblock.clone();
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            let parsed = Superblock::parse(&bytes, golden.minor(), golden.device_bytes);
            assert_eq!(parsed.is_err(), bit / 8 < covered, "{}: bit {bit}", golden.name);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

/// With the checksum put right, a changed field is a value to check, and none makes the parser or the accessors panic.
#[test]
fn every_flipped_bit_with_its_checksum_is_handled() {
    for golden in version_1() {
        let mut bytes = golden.superblock.clone();
        for bit in 0..512 * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            let mut changed = bytes.clone();
            fix_checksum(&mut changed);
            if let Ok(superblock) = Superblock::parse(&changed, golden.minor(), golden.device_bytes) {
                use_all(&superblock, golden.device_bytes);
            }
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

/// Found by flipping bits under a running `assemble`: a place beyond what bytes can count.
#[test]
fn places_that_no_device_has_are_refused() {
    for golden in version_1() {
        for (at, field) in [(208, "resync_offset"), (152, "recovery_offset")] {
            let mut bytes = golden.superblock.clone();
            bytes[at..at + 8].copy_from_slice(&(u64::MAX - 1).to_le_bytes());
            bytes[8] |= 2; // RECOVERY_OFFSET
            fix_checksum(&mut bytes);
            let error = Superblock::parse(&bytes, golden.minor(), golden.device_bytes).unwrap_err();
            assert!(
                matches!(error, SuperblockError::Field { field: found, .. } if found == field),
                "{error}"
            );
        }
    }
}

/// md's superblocks between the end of a recovery and the member's taking its place: they were refused, and the member with them.
#[test]
fn a_recovery_that_has_come_to_its_end_is_over() {
    for golden in version_1() {
        let mut bytes = golden.superblock.clone();
        bytes[152..160].fill(0xff);
        bytes[8] |= 2; // RECOVERY_OFFSET
        fix_checksum(&mut bytes);
        let mut superblock =
            Superblock::parse(&bytes, golden.minor(), golden.device_bytes).expect("md wrote it");
        assert_eq!(superblock.recovery_offset(), None);
        superblock.set_recovery_offset(None);
        assert!(!superblock.features().contains(Features::RECOVERY_OFFSET));
    }
}

/// md's sum, written once more from its description, as a check on the one in the crate.
fn fix_checksum(bytes: &mut [u8]) {
    let max_dev = u32::from_le_bytes(bytes[220..224].try_into().unwrap()) as usize;
    let end = (256usize.saturating_add(max_dev.saturating_mul(2))).min(bytes.len());
    bytes[216..220].fill(0);
    let mut sum = 0u64;
    for word in bytes[..end].chunks(4) {
        let mut padded = [0; 4];
        padded[..word.len()].copy_from_slice(word);
        sum += u64::from(u32::from_le_bytes(padded));
    }
    let folded = ((sum & 0xffff_ffff) + (sum >> 32)) as u32;
    bytes[216..220].copy_from_slice(&folded.to_le_bytes());
}

fn use_all(superblock: &Superblock, device_bytes: u64) {
    let _ = format!("{superblock:?} {:?}", superblock.unsupported_features());
    let _ = (superblock.layout(), superblock.role(), superblock.geometry());
    let _ = (superblock.bitmap_start(), superblock.bad_block_log(), superblock.offset());
    if let Some(room) = superblock.bitmap_room(device_bytes) {
        assert!(room >= 512 && room <= device_bytes);
    }
    let encoded = superblock.encode(512);
    let again = Superblock::parse(&encoded, superblock.minor_version(), device_bytes).unwrap();
    assert_eq!(again.encode(512), encoded);
}

#[test]
fn a_superblock_elsewhere_is_not_taken() {
    let golden = Golden::named("raid5-1.2-bitmap-none");
    let error = Superblock::parse(&golden.superblock, MinorVersion::V1_1, golden.device_bytes).unwrap_err();
    assert_eq!(error, SuperblockError::WrongPlace { written_for: 4096, found_at: 0 });
    assert_eq!(error.to_string(), "superblock was written for offset 4096 bytes, found at 0");
    let error = Superblock::parse(&golden.superblock, MinorVersion::V1_2, 16 << 20).unwrap_err();
    assert!(matches!(error, SuperblockError::DataBeyondEnd { .. }), "{error}");
    let error = Superblock::parse(&[0; 4096], MinorVersion::V1_2, 16 << 20).unwrap_err();
    assert_eq!(error.to_string(), "no md superblock: magic is 0x00000000, should be 0xa92b4efc");
    for end in 0..512 {
        let error = Superblock::parse(&golden.superblock[..end], MinorVersion::V1_2, golden.device_bytes);
        assert!(matches!(error, Err(SuperblockError::Truncated { .. })), "{end} bytes");
    }
    assert!(MinorVersion::V1_0.superblock_offset(4096).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_never_panic(
        mut bytes in prop::collection::vec(any::<u8>(), 0..4200),
        header in any::<bool>(),
        device_bytes in any::<u64>(),
    ) {
        if header && bytes.len() >= 256 {
            bytes[..8].copy_from_slice(&[0xfc, 0x4e, 0x2b, 0xa9, 1, 0, 0, 0]);
            bytes[222..224].fill(0);
            bytes[221] &= 7;
            fix_checksum(&mut bytes);
        }
        for minor in MinorVersion::PROBE_ORDER {
            let _ = Superblock::parse(&bytes, minor, device_bytes);
        }
        let _ = BitmapSuper::parse(&bytes, [0; 16], device_bytes);
        let _ = decode_bad_blocks(&bytes, bytes.first().copied().unwrap_or(0));
    }

    #[test]
    fn changed_fields_never_panic(
        at in 0usize..256,
        change in prop::collection::vec(any::<u8>(), 1..9),
        which in any::<prop::sample::Index>(),
    ) {
        let goldens: Vec<Golden> = version_1().collect();
        let golden = &goldens[which.index(goldens.len())];
        let mut bytes = golden.superblock.clone();
        let end = (at + change.len()).min(256);
        bytes[at..end].copy_from_slice(&change[..end - at]);
        fix_checksum(&mut bytes);
        if let Ok(superblock) = Superblock::parse(&bytes, golden.minor(), golden.device_bytes) {
            use_all(&superblock, golden.device_bytes);
        }
    }

    #[test]
    fn any_bitmap_that_parses_can_be_used(
        mut bytes in prop::array::uniform32(any::<u8>()),
        offset in any::<u64>(),
    ) {
        let mut bitmap = BitmapSuper::new([7; 16], Sectors(1 << 20), 4096).encode();
        bytes[28] = bytes[28].max(1);
        bitmap[24..56].copy_from_slice(&bytes);
        if let Ok(bitmap) = BitmapSuper::parse(&bitmap, [7; 16], u64::MAX) {
            let bit = bitmap.mapping().bit(offset >> bitmap.mapping().unit_shift());
            let _ = (bitmap.range_of(bit), bitmap.bit_place(bit), bitmap.bitmap_bytes(), bitmap.is_stale(offset));
            let geometry = layout::Geometry::new(Level::Raid5, Layout::LeftSymmetric, 3, 4096, 4096).unwrap();
            let matches = bitmap.check_geometry(&geometry).is_ok();
            prop_assert_eq!(matches, bitmap.sync_size() >= sync_sectors(&geometry));
        }
    }
}
