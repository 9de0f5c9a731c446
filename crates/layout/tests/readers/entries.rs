//! What is asked of each reader of on-disk bytes, whatever they are: no panic, and what it believes it can write and read
//! again. Called with mutated bytes; a fuzzer may call the same.

use layout::generations::{GenerationsArea, GenerationsError, GenerationsRecord, RECORD_BYTES};
use layout::md_bitmap::{Bitmap, BitmapSuper};
use layout::md_superblock::{
    MinorVersion, Superblock, SuperblockError, decode_bad_blocks, encode_bad_blocks,
};
use layout::redo_log::{
    BLOCK_BYTES, BitmapExtent, Place, RedoArea, RedoError, RedoHeader, RedoRecord, SlotPlan,
};

/// Devices that superblocks are read from: small, odd, huge.
const DEVICES: [u64; 4] = [64 << 10, (1 << 20) + 512, 1 << 40, u64::MAX];

/// Readers of superblocks. A sum that is wrong is put right first: what lies behind it is to be reached.
pub fn superblock(bytes: &[u8]) {
    for minor in [MinorVersion::V1_0, MinorVersion::V1_1, MinorVersion::V1_2] {
        for device_bytes in DEVICES {
            let found = match Superblock::parse(bytes, minor, device_bytes) {
                Err(SuperblockError::Checksum { expected, .. }) => {
                    let mut bytes = bytes.to_vec();
                    bytes[216..220].copy_from_slice(&expected.to_le_bytes());
                    Superblock::parse(&bytes, minor, device_bytes)
                }
                other => other,
            };
            match found {
                Ok(superblock) => believed(&superblock, minor, device_bytes),
                Err(error) => drop(error.to_string()),
            }
        }
    }
}

fn believed(superblock: &Superblock, minor: MinorVersion, device_bytes: u64) {
    for block_bytes in [512, 4096] {
        let again = Superblock::parse(&superblock.encode(block_bytes), minor, device_bytes);
        assert_eq!(
            again.map(|again| again.digest()),
            Ok(superblock.digest()),
            "what is written is read again"
        );
    }
    let _ = (superblock.bitmap_start(), superblock.bitmap_room(device_bytes), superblock.bad_block_log());
    let _ = (superblock.roles().count(), superblock.recovery_offset(), superblock.dev_number());
    for bitmap in [BitmapExtent::Absent, BitmapExtent::Unknown, BitmapExtent::Bytes(u64::MAX)] {
        if let Some(area) = RedoArea::of(superblock, bitmap) {
            assert!(
                area.start_bytes + area.bytes <= superblock.data_offset().bytes(),
                "a log before the data"
            );
        }
        if let Some(area) = GenerationsArea::of(superblock, bitmap) {
            let end = area.copy_offset(1) + RECORD_BYTES as u64;
            assert!(end <= superblock.data_offset().bytes(), "a record before the data");
        }
    }
    let _ = superblock.for_new_device(0, [1; 16], device_bytes).map_err(|error| error.to_string());
    let number = u32::try_from(superblock.roles().len()).expect("a few roles");
    if let Ok(grown) = superblock.with_role_for(number, device_bytes) {
        let again = Superblock::parse(&grown.encode(512), minor, device_bytes);
        assert_eq!(again.map(|again| again.digest()), Ok(grown.digest()), "with more roles");
    }
}

/// Readers of a bitmap's superblock and of its bits.
pub fn bitmap(bytes: &[u8]) {
    let mut uuid = [0; 16];
    if let Some(own) = bytes.get(8..24) {
        uuid.copy_from_slice(own);
    }
    for room_bytes in [0, 4096, 128 << 10, u64::MAX] {
        if let Ok(superblock) = BitmapSuper::parse(bytes, uuid, room_bytes) {
            let again = BitmapSuper::parse(&superblock.encode(), uuid, room_bytes);
            assert_eq!(again.map(|again| again.encode()), Ok(superblock.encode()));
            assert!(superblock.bitmap_bytes() <= room_bytes);
        }
        let Ok(bitmap) = Bitmap::parse(bytes, uuid, room_bytes) else { continue };
        let bits = bitmap.superblock().bits();
        assert!(bitmap.set_bits().all(|bit| bit < bits && bitmap.is_set(bit)));
        let pages: usize = (0..bitmap.pages()).map(|page| bitmap.page(page, 512).len()).sum();
        assert!(pages as u64 >= bitmap.superblock().bitmap_bytes());
    }
}

/// The reader of bad-block logs. The first byte is the superblock's shift.
pub fn bad_blocks(bytes: &[u8]) {
    let Some((&shift, log)) = bytes.split_first() else { return };
    let Ok(ranges) = decode_bad_blocks(log, shift) else { return };
    if let Ok(written) = encode_bad_blocks(&ranges, log.len().next_multiple_of(8)) {
        assert_eq!(decode_bad_blocks(&written, 0), Ok(ranges));
    }
}

/// Readers of the redo log's headers and records, with the place and the sum that they want.
pub fn redo_log(bytes: &[u8]) {
    let mut block = bytes[..bytes.len().min(BLOCK_BYTES)].to_vec();
    block.resize(BLOCK_BYTES, 0);
    let mut place = Place { set_uuid: [0; 16], device_uuid: [0; 16], offset_bytes: 0 };
    let plan = SlotPlan { slot_bytes: 64 << 10, slots: 4 };
    for _ in 0..3 {
        let header = RedoHeader::parse(&block, place, 16 << 20);
        if let Ok(header) = &header {
            assert_eq!(RedoHeader::parse(&header.encode(place), place, 16 << 20).as_ref(), Ok(header));
        }
        let record = RedoRecord::parse(&block, place, plan);
        if let Ok(record) = &record {
            let again = RedoRecord::parse(&record.encode(place), place, plan);
            assert_eq!(again.as_ref(), Ok(record));
            assert!(record.payload_bytes() <= plan.payload_bytes(), "a payload fits in its slot");
            let _ =
                record.clone().complete(vec![0; record.payload_bytes()]).map(|whole| whole.writes().count());
        }
        match (header.err(), record.err()) {
            (Some(RedoError::Foreign(own)), _) | (_, Some(RedoError::Foreign(own))) => place = own,
            (Some(RedoError::Checksum { found, expected }), _)
            | (_, Some(RedoError::Checksum { found, expected })) => {
                let at = block.windows(4).position(|word| word == found.to_le_bytes()).expect("it was found");
                block[at..at + 4].copy_from_slice(&expected.to_le_bytes());
            }
            _ => return,
        }
    }
}

/// The reader of records of generations, with the place and the sum that they want.
pub fn generations(bytes: &[u8]) {
    let mut block = bytes[..bytes.len().min(RECORD_BYTES)].to_vec();
    block.resize(RECORD_BYTES, 0);
    let mut place = Place { set_uuid: [0; 16], device_uuid: [0; 16], offset_bytes: 0 };
    for _ in 0..3 {
        match GenerationsRecord::parse(&block, place) {
            Ok(record) => {
                assert_eq!(GenerationsRecord::parse(&record.encode(place), place).as_ref(), Ok(&record));
                return;
            }
            Err(GenerationsError::Foreign(own)) => place = own,
            Err(GenerationsError::Checksum { expected, .. }) => {
                block[12..16].copy_from_slice(&expected.to_le_bytes());
            }
            Err(other) => return drop(other.to_string()),
        }
    }
}
