//! The readers of on-disk bytes on thousands of mutations of good ones.

mod entries;
mod mutations;
#[allow(dead_code)]
#[path = "../zoned/samples.rs"]
mod samples;
mod zoned;

use layout::generations::{Generations, GenerationsRecord};
use layout::geometry::Level;
use layout::md_bitmap::Bitmap;
use layout::md_superblock::{BadRange, DeviceRole, MinorVersion, NewArray, NewMember, encode_bad_blocks};
use layout::redo_log::{
    Checksum, PieceKind, Place, RedoHeader, RedoPiece, RedoRecord, SlotPlan, StripeRange,
};
use layout::units::{DeviceOffset, MemberOffset, Sectors, Slot, Stripe};

use mutations::mutate;

const PLACE: Place = Place { set_uuid: [7; 16], device_uuid: [9; 16], offset: DeviceOffset::new(65536) };

/// Superblocks and bitmap of a new array.
fn created(minor: MinorVersion, level: Level, device_bytes: u64) -> (Vec<u8>, Vec<u8>) {
    let array = NewArray {
        minor,
        name: "readers".into(),
        ctime_s: 1,
        chunk_bytes: if level == Level::Raid1 { 0 } else { 64 << 10 },
        data_offset: (minor == MinorVersion::V1_0).then_some(Sectors(0)),
        ..NewArray::new([7; 16], level, 4)
    };
    let member = |slot: u8| NewMember {
        device_bytes,
        device_uuid: [slot; 16],
        role: DeviceRole::Active(Slot::new(slot.into())),
    };
    let created = array.create(&(0..4).map(member).collect::<Vec<_>>()).expect("an array");
    let bitmap = Bitmap::new(created.bitmap.expect("a bitmap"), true);
    let pages = (0..bitmap.pages()).flat_map(|page| bitmap.page(page, 512)).collect();
    (created.superblocks[0].encode(4096), pages)
}

#[test]
fn superblocks() {
    let seeds: Vec<Vec<u8>> = [MinorVersion::V1_0, MinorVersion::V1_1, MinorVersion::V1_2]
        .into_iter()
        .flat_map(|minor| [Level::Raid1, Level::Raid6].map(|level| created(minor, level, 1 << 40).0))
        .collect();
    mutate("superblock", &seeds, entries::superblock);
}

#[test]
fn bitmaps() {
    let seeds = [Level::Raid1, Level::Raid6, Level::Raid10]
        .map(|level| created(MinorVersion::V1_2, level, 1 << 40).1);
    mutate("bitmap", &seeds, entries::bitmap);
}

#[test]
fn bad_block_logs() {
    let range = |start, length| BadRange { start: Sectors(start), length: Sectors(length) };
    let log =
        encode_bad_blocks(&[range(8, 8), range(1 << 20, 512), range(1 << 40, 1)], 4096).expect("it fits");
    mutate("bad_blocks", &[[vec![0], log.clone()].concat(), [vec![3], log].concat()], entries::bad_blocks);
}

#[test]
fn redo_logs() {
    let header = RedoHeader {
        generation: 5,
        epoch: 2,
        in_force: true,
        retired_below: 17,
        events: 99,
        superblocks: [1, 2],
        plan: SlotPlan { slot_bytes: 64 << 10, slots: 32 },
        resync_from: Some(Stripe::new(6)),
        doubts: vec![StripeRange { first: 3, end: 5 }, StripeRange { first: 9, end: u64::MAX }],
    };
    let piece = |member, kind| RedoPiece {
        stripe: Stripe::new(4),
        member,
        offset: MemberOffset::new(262_144),
        bytes: 8192,
        kind,
    };
    let record = RedoRecord {
        epoch: 2,
        sequence: 18,
        copies: 2,
        payload_checksum: Checksum::of(&[0; 16384]),
        pieces: vec![
            piece(Slot::new(0), PieceKind::Data),
            piece(Slot::new(3), PieceKind::Zeroes),
            piece(Slot::new(2), PieceKind::Missing),
            piece(Slot::new(1), PieceKind::Unlogged),
        ],
    };
    mutate("redo_log", &[header.encode(PLACE), record.encode(PLACE)], entries::redo_log);
}

#[test]
fn generations() {
    let generations = Generations {
        current: 11,
        bitmap: 3,
        history: vec![5, 3, 2],
        since_events: 8,
        absences: 12,
        members: vec![Some([1; 16]), None, Some([3; 16]), Some([4; 16])],
    };
    let record = GenerationsRecord { generations, sequence: 6, events: 99, superblock: 0x1234_5678 };
    let mut first = record.clone();
    first.generations.history.clear();
    mutate("generations", &[record.encode(PLACE), first.encode(PLACE)], entries::generations);
}
