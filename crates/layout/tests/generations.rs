//! The record of generations: what was written is read back, nothing else is believed, and md's own data stays as it was.

use layout::generations::{
    Generations, GenerationsArea, GenerationsRecord, HISTORY_MAX, NAMES_MAX, RECORD_BYTES, SLOTS_MAX,
};
use layout::geometry::{Layout, Level};
use layout::md_superblock::{DeviceRole, MAX_DEV, MinorVersion, NewArray, NewBitmap, NewMember, Superblock};
use layout::redo_log::{BitmapExtent, Checksum, Place, RecordError, RedoArea};
use layout::units::{DeviceOffset, Sectors, Slot};

const PLACE: Place = Place { set_uuid: [1; 16], device_uuid: [2; 16], offset: DeviceOffset::new(248 << 10) };
const DEVICE_BYTES: u64 = 1 << 40;

fn record(history: usize, slots: usize) -> GenerationsRecord {
    let member = |slot: usize| (slot % 3 != 1).then(|| [slot as u8 + 1; 16]);
    GenerationsRecord {
        generations: Generations {
            current: 0x0123_4567_89ab_cdef,
            bitmap: 77,
            history: (1..=history as u64).collect(),
            since_events: 4,
            absences: 6,
            members: (0..slots).map(member).collect(),
        },
        sequence: 9,
        events: 12,
        superblock: 0xdead_beef,
    }
}

/// A superblock of an array with three members; `data_offset` in bytes.
fn superblock(minor: MinorVersion, data_offset: Option<u64>, bitmap: NewBitmap, members: u16) -> Superblock {
    let array = NewArray {
        minor,
        set_uuid: [7; 16],
        name: "a".into(),
        ctime_s: 1,
        level: Level::Raid1,
        layout: Layout::Unset,
        chunk_bytes: 0,
        raid_disks: members.into(),
        bitmap,
        member_bytes: None,
        data_offset: data_offset.map(|bytes| Sectors(bytes / 512)),
        clean: true,
    };
    let device = |i: u16| NewMember {
        device_bytes: DEVICE_BYTES,
        device_uuid: (u128::from(i) + 1).to_le_bytes(),
        role: DeviceRole::Active(Slot::new(i.into())),
    };
    array.create(&(0..members).map(device).collect::<Vec<_>>()).expect("an array").superblocks.remove(0)
}

#[test]
fn what_is_written_is_read_back() {
    for (history, slots) in [(0, 1), (3, 4), (HISTORY_MAX, NAMES_MAX)] {
        let record = record(history, slots);
        assert_eq!(GenerationsRecord::parse(&record.encode(PLACE), PLACE), Ok(record));
    }
}

#[test]
fn every_flipped_bit_and_every_torn_block_is_noticed() {
    let old = record(3, 40).encode(PLACE);
    let mut next = record(4, 40);
    next.generations.members[39] = Some([0x55; 16]);
    let new = next.encode(PLACE);
    for bit in 0..RECORD_BYTES * 8 {
        let mut block = new.clone();
        block[bit / 8] ^= 1 << (bit % 8);
        assert!(GenerationsRecord::parse(&block, PLACE).is_err(), "bit {bit}");
    }
    for sectors in 1..8 {
        let torn = [&new[..sectors * 512], &old[sectors * 512..]].concat();
        assert_eq!(GenerationsRecord::parse(&torn, PLACE).is_ok(), torn == new, "{sectors} sectors");
    }
    let short = GenerationsRecord::parse(&new[..RECORD_BYTES - 1], PLACE);
    assert_eq!(short, Err(RecordError::Truncated { found: RECORD_BYTES - 1, needed: RECORD_BYTES }));
}

/// Changes bytes of a block and makes its checksum right again.
fn forged(record: &GenerationsRecord, at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut block = record.encode(PLACE);
    block[at..at + bytes.len()].copy_from_slice(bytes);
    block[12..16].fill(0);
    let sum = Checksum::of(&block);
    block[12..16].copy_from_slice(&sum.to_le_bytes());
    block
}

#[test]
fn what_is_not_ours_or_makes_no_sense_is_refused_by_name() {
    let record = record(2, 4);
    for other in [
        Place { set_uuid: [9; 16], ..PLACE },
        Place { device_uuid: [9; 16], ..PLACE },
        Place { offset: DeviceOffset::new(4096), ..PLACE },
    ] {
        let found = GenerationsRecord::parse(&record.encode(PLACE), other);
        assert_eq!(found, Err(RecordError::Foreign(PLACE)));
    }
    let parse = |at, bytes: &[u8]| GenerationsRecord::parse(&forged(&record, at, bytes), PLACE);
    assert_eq!(parse(0, b"TwRedoH"), Err(RecordError::Absent("record of generations")));
    assert_eq!(
        parse(8, &[2]),
        Err(RecordError::Version { record: "record of generations", found: 2, known: 1 })
    );
    let field = |at, bytes: &[u8]| match parse(at, bytes) {
        Err(RecordError::Field { field, .. }) => field,
        other => panic!("{at}: {other:?}"),
    };
    assert_eq!(field(76, &0u32.to_le_bytes()), "names");
    assert_eq!(field(76, &209u32.to_le_bytes()), "names");
    assert_eq!(field(80, &[0; 8]), "current");
    assert_eq!(field(88, &[0; 8]), "current");
    assert_eq!(field(256 + 63 * 8, &[1]), "history", "a hole before it");
    assert_eq!(field(255, &[1]), "reserve");
    assert_eq!(field(RECORD_BYTES - 1, &[1]), "reserve");
}

/// One that goes with another superblock counts as absent: md may have run the array meanwhile.
#[test]
fn only_the_record_of_the_superblock_that_is_there_counts() {
    let mut own = superblock(MinorVersion::V1_2, None, NewBitmap::None, 4);
    let area = GenerationsArea::of(&own, BitmapExtent::Absent).expect("room");
    let mut written = record(1, 4);
    let mut copies = [vec![0; RECORD_BYTES], vec![0; RECORD_BYTES]];
    for sequence in 5..9 {
        own.set_events(sequence);
        written.sequence = sequence;
        written.events = sequence;
        written.superblock = own.digest();
        let copy = &mut copies[sequence as usize % 2];
        let before = own.clone();
        *copy = written.encode(Place::on(&own, area.copy_offset(sequence)));
        // Before and after the superblock is written just one counts, and torn is as if it never was.
        let found = Generations::choose([&copies[0], &copies[1]], &own, area);
        assert_eq!(found, Ok(written.clone()));
        let mut older = before;
        older.set_events(sequence - 1);
        let found = Generations::choose([&copies[0], &copies[1]], &older, area);
        assert_eq!(found.ok().map(|record| record.sequence), (sequence > 5).then(|| sequence - 1));
    }
    // Two records of one superblock: the later one counts, whichever copy it is.
    for (sequence, copy) in [(10, 0), (11, 1)] {
        written.sequence = sequence;
        copies[copy] = written.encode(Place::on(&own, area.copy_offset(sequence)));
        let found = Generations::choose([&copies[0], &copies[1]], &own, area);
        assert_eq!(found.map(|record| record.sequence), Ok(sequence));
    }
    own.set_utime_s(99); // md writes a superblock
    let found = Generations::choose([&copies[0], &copies[1]], &own, area);
    assert!(found.is_err_and(|why| why.contains("another superblock, of event 8")), "absent");
    let none = Generations::choose([&[0; RECORD_BYTES], &[0; RECORD_BYTES]], &own, area);
    assert_eq!(none, Err("no record of generations here".into()));
}

#[test]
fn the_area_is_between_what_md_has_and_the_redo_log_or_the_data() {
    let (none, unknown) = (BitmapExtent::Absent, BitmapExtent::Unknown);
    let v1_2 = MinorVersion::V1_2;
    let with_bitmap = |offset| superblock(v1_2, Some(offset), NewBitmap::Internal(None), 3);
    let cases = [
        (superblock(v1_2, None, NewBitmap::None, 3), none, true),
        (superblock(v1_2, Some(1 << 20), NewBitmap::None, 3), none, true),
        (superblock(MinorVersion::V1_1, Some(1 << 20), NewBitmap::None, 3), none, true),
        (superblock(MinorVersion::V1_0, None, NewBitmap::None, 3), none, false),
        (superblock(v1_2, Some(260 << 10), NewBitmap::None, 3), none, true),
        (superblock(v1_2, Some(1 << 20), NewBitmap::None, SLOTS_MAX as u16), none, true),
        (superblock(v1_2, Some(1 << 20), NewBitmap::None, SLOTS_MAX as u16 + 1), none, false),
        (with_bitmap(1 << 20), unknown, false),
        (with_bitmap(1 << 20), none, false),
        (with_bitmap(1 << 20), BitmapExtent::Bytes(64 << 10), true),
        (with_bitmap(1 << 20), BitmapExtent::Bytes((1 << 20) - (12 << 10)), false),
        (with_bitmap(1 << 20), BitmapExtent::Bytes(u64::MAX), false),
        // The log takes all that is left.
        (with_bitmap(512 << 10), BitmapExtent::Bytes(200 << 10), false),
    ];
    for (superblock, bitmap, has_room) in cases {
        let area = GenerationsArea::of(&superblock, bitmap);
        assert_eq!(area.is_some(), has_room, "{bitmap:?} {superblock:?}");
        let Some(area) = area else { continue };
        let end = area.copy_offset(1) + RECORD_BYTES as u64;
        let log = RedoArea::of(&superblock, bitmap).map(|log| log.start);
        assert!(end <= log.unwrap_or(superblock.data_start()), "{superblock:?}");
        assert!(area.start >= superblock.offset() + 4096 && area.start.is_aligned(4096));
        let (start, length) = superblock.bad_block_log().expect("a bad-block log");
        assert!(DeviceOffset::of_sector(start) + length.bytes() <= area.start);
        if let (Some(start), BitmapExtent::Bytes(bytes)) = (superblock.bitmap_start(), bitmap) {
            assert!(DeviceOffset::of_sector(start) + bytes <= area.start, "not in the bitmap");
        }
    }
}

/// As md's table does when a device of a higher number comes; never over what stands behind the superblock.
#[test]
fn the_table_of_roles_grows_to_the_end_of_a_sector() {
    let own = superblock(MinorVersion::V1_2, None, NewBitmap::None, 3);
    assert_eq!(own.roles().len(), 128);
    for (number, roles) in [(127, 128), (128, 384), (383, 384), (384, 640), (1919, 1920)] {
        let grown = own.with_role_for(number, DEVICE_BYTES).expect("room");
        assert_eq!(grown.roles().len(), roles, "{number}");
        let read = Superblock::parse(&grown.encode(512), MinorVersion::V1_2, DEVICE_BYTES).expect("md's");
        assert_eq!(read.role_of(number), Some(if number < 3 { read.role() } else { DeviceRole::Spare }));
        assert_eq!(read.role(), own.role());
    }
    assert!(own.with_role_for(MAX_DEV, DEVICE_BYTES).is_err());
    // A bitmap 1 KiB after the superblock, as an old mdadm put it.
    let mut bytes = superblock(MinorVersion::V1_2, None, NewBitmap::Internal(None), 3).encode(512);
    bytes[96..100].copy_from_slice(&2u32.to_le_bytes());
    let Err(layout::md_superblock::SuperblockError::Checksum { expected, .. }) =
        Superblock::parse(&bytes, MinorVersion::V1_2, DEVICE_BYTES)
    else {
        panic!("the checksum is that of another bitmap")
    };
    bytes[216..220].copy_from_slice(&expected.to_le_bytes());
    let crowded = Superblock::parse(&bytes, MinorVersion::V1_2, DEVICE_BYTES).expect("a bitmap behind it");
    assert!(crowded.with_role_for(383, DEVICE_BYTES).is_ok(), "up to the bitmap");
    assert!(crowded.with_role_for(384, DEVICE_BYTES).is_err(), "over the bitmap");
}
