//! The redo log's blocks: what was written is read back, nothing else is believed.

use layout::geometry::Level;
use layout::md_superblock::{DeviceRole, MinorVersion, NewArray, NewBitmap, NewMember, Superblock};
use layout::redo_log::{
    BLOCK_BYTES, BitmapExtent, Checksum, DOUBTS_MAX, PIECES_MAX, PieceKind, Place, RecordError, RedoArea,
    RedoHeader, RedoPiece, RedoRecord, SlotPlan, StripeRange,
};
use layout::units::{DeviceOffset, MemberOffset, Sectors, Slot, Stripe};

const PLACE: Place = Place { set_uuid: [1; 16], device_uuid: [2; 16], offset: DeviceOffset::new(256 << 10) };
const AREA: u64 = 768 << 10;

fn plan() -> SlotPlan {
    SlotPlan::new(5, AREA).unwrap()
}

fn header(doubts: Vec<StripeRange>) -> RedoHeader {
    RedoHeader {
        generation: 9,
        epoch: 4,
        in_force: true,
        retired_below: 77,
        events: 12,
        superblocks: [0xdead_beef, 0x1234_5678],
        plan: plan(),
        resync_from: Some(Stripe::new(0)),
        doubts,
    }
}

fn record(payload: &[u8]) -> RedoRecord {
    let piece = |member, offset, bytes, kind| {
        let (stripe, member) = (Stripe::new(3), Slot::new(member));
        let offset = MemberOffset::new(offset);
        RedoPiece { stripe, member, offset, bytes, kind }
    };
    let all = payload.len() as u64;
    let (half, quarter) = (all / 2, all / 4);
    RedoRecord {
        epoch: 4,
        sequence: 78,
        copies: 2,
        payload_checksum: Checksum::of(payload),
        pieces: vec![
            piece(0, 4096, half, PieceKind::Data),
            piece(2, 0, 1 << 30, PieceKind::Zeroes),
            piece(4, 4096, quarter, PieceKind::Missing),
            piece(1, 4096, 4096, PieceKind::Unlogged),
            piece(3, 8192, all - half - quarter, PieceKind::Partial),
        ],
    }
}

#[test]
fn what_is_written_is_read_back() {
    let many = (0..DOUBTS_MAX as u64).map(|i| StripeRange { first: i * 3, end: i * 3 + 2 }).collect();
    for doubts in [vec![], vec![StripeRange { first: 5, end: u64::MAX }], many] {
        let header = header(doubts);
        assert_eq!(RedoHeader::parse(&header.encode(PLACE), PLACE, AREA), Ok(header));
    }
    let payload: Vec<u8> = (0..9000u32).map(|i| i as u8).collect();
    let record = record(&payload);
    let parsed = RedoRecord::parse(&record.encode(PLACE), PLACE, plan()).unwrap();
    assert_eq!(parsed, record);
    let whole = parsed.complete(payload.clone()).unwrap();
    let writes: Vec<_> =
        whole.writes().map(|(piece, contents)| (piece.member.get(), contents.to_vec())).collect();
    assert_eq!(
        writes,
        [
            (0, payload[..4500].to_vec()),
            (2, vec![]),
            (4, payload[4500..6750].to_vec()),
            (1, vec![]),
            (3, payload[6750..].to_vec())
        ]
    );
}

/// A block's checksum after something in it was changed.
fn seal_again(block: &mut [u8]) {
    block[12..16].fill(0);
    let sum = Checksum::of(block);
    block[12..16].copy_from_slice(&sum.to_le_bytes());
}

#[test]
fn older_versions_are_read_and_newer_ones_refused() {
    let (header, record) = (header(vec![]), record(&[7; 4096]));
    for (version, expected) in [(0u32, false), (1, true), (2, true), (3, true), (4, false)] {
        let (mut headers, mut records) = (header.encode(PLACE), record.encode(PLACE));
        for block in [&mut headers, &mut records] {
            block[8..12].copy_from_slice(&version.to_le_bytes());
            seal_again(block);
        }
        let (found, refused) = (
            RedoHeader::parse(&headers, PLACE, AREA),
            Err(RecordError::Version { record: "redo log", found: version, known: 3 }),
        );
        assert_eq!(found, if expected { Ok(header.clone()) } else { refused });
        let (found, refused) = (
            RedoRecord::parse(&records, PLACE, plan()),
            Err(RecordError::Version { record: "redo log", found: version, known: 3 }),
        );
        assert_eq!(found, if expected { Ok(record.clone()) } else { refused });
    }
}

/// Every single bit of both kinds of blocks, and of a payload.
#[test]
fn every_flipped_bit_is_noticed() {
    let payload: Vec<u8> = (0..1024u32).map(|i| (i * 7) as u8).collect();
    let (header, record) = (header(vec![StripeRange { first: 1, end: 2 }]).encode(PLACE), record(&payload));
    let encoded = record.encode(PLACE);
    for bit in 0..BLOCK_BYTES * 8 {
        let flip = |block: &[u8]| {
            let mut block = block.to_vec();
            block[bit / 8] ^= 1 << (bit % 8);
            block
        };
        assert!(RedoHeader::parse(&flip(&header), PLACE, AREA).is_err(), "header bit {bit}");
        assert!(RedoRecord::parse(&flip(&encoded), PLACE, plan()).is_err(), "record bit {bit}");
        if bit < payload.len() * 8 {
            assert!(record.clone().complete(flip(&payload)).is_err(), "payload bit {bit}");
        }
    }
}

#[test]
fn torn_blocks_and_payloads_are_noticed() {
    let (old, new) =
        (header(vec![]).encode(PLACE), RedoHeader { generation: 10, ..header(vec![]) }.encode(PLACE));
    let payload = vec![5; 4096];
    for sectors in 1..8 {
        let torn = [&new[..sectors * 512], &old[sectors * 512..]].concat();
        // What differs is in the first sector.
        let whole = torn == new;
        assert_eq!(RedoHeader::parse(&torn, PLACE, AREA).is_ok(), whole);
        let torn = [&payload[..sectors * 512], &vec![6; 4096 - sectors * 512]].concat();
        assert!(matches!(record(&payload).complete(torn), Err(RecordError::Checksum { .. })));
    }
    assert_eq!(
        record(&payload).complete(vec![5; 100]),
        Err(RecordError::Truncated { found: 100, needed: 4096 })
    );
    assert_eq!(
        RedoHeader::parse(&new[..100], PLACE, AREA),
        Err(RecordError::Truncated { found: 100, needed: BLOCK_BYTES })
    );
}

#[test]
fn what_is_not_ours_is_refused_by_name() {
    let header = header(vec![]).encode(PLACE);
    for other in [
        Place { set_uuid: [9; 16], ..PLACE },
        Place { device_uuid: [9; 16], ..PLACE },
        Place { offset: DeviceOffset::new(4096), ..PLACE },
    ] {
        assert_eq!(RedoHeader::parse(&header, other, AREA), Err(RecordError::Foreign(PLACE)));
        let record = record(&[0; 512]).encode(PLACE);
        assert_eq!(RedoRecord::parse(&record, other, plan()), Err(RecordError::Foreign(PLACE)));
    }
    assert_eq!(RedoHeader::parse(&[0; BLOCK_BYTES], PLACE, AREA), Err(RecordError::Absent("redo log")));
    // A header is no record, and the other way round.
    assert_eq!(RedoRecord::parse(&header, PLACE, plan()), Err(RecordError::Absent("redo log")));
    // slots that are not in the area
    assert!(matches!(RedoHeader::parse(&header, PLACE, 64 << 10), Err(RecordError::Field { .. })));
    // more contents than a slot holds
    let large = record(&vec![0; 62 << 10]).encode(PLACE);
    assert!(matches!(RedoRecord::parse(&large, PLACE, plan()), Err(RecordError::Field { .. })));
}

fn superblock(minor: MinorVersion, data_offset: Option<u64>, bitmap: NewBitmap) -> Superblock {
    let array = NewArray {
        minor,
        chunk_bytes: 64 << 10,
        bitmap,
        data_offset: data_offset.map(|bytes| Sectors(bytes / 512)),
        ..NewArray::new([7; 16], Level::Raid5, 3)
    };
    let device = |i: u8| NewMember {
        device_bytes: 1 << 40,
        device_uuid: [i; 16],
        role: DeviceRole::Active(Slot::new(i.into())),
    };
    array.create(&[device(0), device(1), device(2)]).unwrap().superblocks.remove(0)
}

/// The log begins after everything that md keeps before the data, and ends before the data.
#[test]
fn the_area_is_between_what_md_has_and_the_data() {
    let none = BitmapExtent::Absent;
    let cases = [
        (superblock(MinorVersion::V1_2, None, NewBitmap::None), none, Some(16 << 20)),
        (superblock(MinorVersion::V1_2, Some(1 << 20), NewBitmap::None), none, Some(768 << 10)),
        (superblock(MinorVersion::V1_1, Some(1 << 20), NewBitmap::None), none, Some(768 << 10)),
        (superblock(MinorVersion::V1_0, None, NewBitmap::None), none, None),
        (superblock(MinorVersion::V1_2, Some(200 << 10), NewBitmap::None), none, None),
        (superblock(MinorVersion::V1_2, None, NewBitmap::Internal(None)), BitmapExtent::Unknown, None),
    ];
    for (superblock, bitmap, bytes) in cases {
        let area = RedoArea::of(&superblock, bitmap);
        assert_eq!(area.map(|area| area.bytes), bytes, "{superblock:?}");
        let Some(area) = area else { continue };
        assert!(area.start + area.bytes <= superblock.data_start());
        let (start, length) = superblock.bad_block_log().unwrap();
        assert!(DeviceOffset::of_sector(start) + length.bytes() <= area.start);
        assert!(superblock.offset() + 4096 <= area.start);
        let plan = SlotPlan::new(3, area.bytes).unwrap();
        let end = plan.slot_offset(area, plan.slots - 1) + u64::from(plan.slot_bytes);
        assert!(end <= area.start + area.bytes && area.header_offset(1) < plan.slot_offset(area, 0));
    }
    // A bitmap that leaves no room.
    let with_bitmap = superblock(MinorVersion::V1_2, Some(1 << 20), NewBitmap::Internal(None));
    let start = DeviceOffset::of_sector(with_bitmap.bitmap_start().unwrap());
    let area = RedoArea::of(&with_bitmap, BitmapExtent::Bytes(64 << 10)).unwrap();
    assert!(area.start >= start + (64 << 10));
    assert_eq!(RedoArea::of(&with_bitmap, BitmapExtent::Bytes(900 << 10)), None);
}

#[test]
fn slots_hold_a_block_of_every_member_or_there_are_none() {
    for members in [3, 5, 16, 64, 120, PIECES_MAX as u32] {
        for area in [300 << 10, 768 << 10, 4 << 20, 16 << 20] {
            let Some(plan) = SlotPlan::new(members, area) else { continue };
            assert!(plan.payload_bytes() >= members as usize * BLOCK_BYTES && plan.slots >= 4);
            assert_eq!(SlotPlan::checked(plan.slot_bytes, plan.slots, area), Some(plan));
        }
        assert!(SlotPlan::new(members, 16 << 20).is_some());
    }
    assert_eq!(SlotPlan::new(PIECES_MAX as u32 + 1, 16 << 20), None);
    assert_eq!(SlotPlan::new(120, 768 << 10), None);
}

#[test]
fn a_digest_tells_superblocks_apart() {
    let superblock = superblock(MinorVersion::V1_2, None, NewBitmap::None);
    let parsed = Superblock::parse(&superblock.encode(4096), MinorVersion::V1_2, 1 << 40).unwrap();
    assert_eq!(parsed.digest(), superblock.digest());
    let mut other = superblock.clone();
    other.set_events(superblock.events() + 1);
    assert_ne!(other.digest(), superblock.digest());
    let mut other = superblock.clone();
    other.set_role(2, DeviceRole::Faulty);
    assert_ne!(other.digest(), superblock.digest());
}
