//! What is asked of each reader of on-disk bytes, whatever they are: no panic, and what it believes it can write and read
//! again. Called with mutated bytes; a fuzzer may call the same.

use layout::generations::{GenerationsArea, GenerationsRecord, RECORD_BYTES};
use layout::md_bitmap::{Bitmap, BitmapSuper};
use layout::md_superblock::{
    MinorVersion, Superblock, SuperblockError, decode_bad_blocks, encode_bad_blocks,
};
use layout::redo_log::{
    BLOCK_BYTES, BitmapExtent, Place, RecordError, RedoArea, RedoHeader, RedoRecord, SlotPlan,
};
use layout::units::DeviceOffset;
use layout::zoned;
use layout::zoned::coded::{self, RowPart};
use layout::zoned::{
    BlockEntry, BlockName, ColumnRole, DataOffset, EmptiedEntry, FenceBlock, FooterBlock, LogPlace,
    MapEntryBytes, MapShape, MappingBlock, OOB_BYTES, OobBlock, RecordDescriptor, RootBlock, SegmentHeader,
    Sequence, StripeDescriptor, Structure, TableBlock, ZeroesEntry, ZonePlace, ZonedError,
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
            assert!(area.start + area.bytes <= superblock.data_start(), "a log before the data");
        }
        if let Some(area) = GenerationsArea::of(superblock, bitmap) {
            let end = area.copy_offset(1) + RECORD_BYTES as u64;
            assert!(end <= superblock.data_start(), "a record before the data");
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
    let mut place = Place { set_uuid: [0; 16], device_uuid: [0; 16], offset: DeviceOffset::new(0) };
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
            (Some(RecordError::Foreign(own)), _) | (_, Some(RecordError::Foreign(own))) => place = own,
            (Some(RecordError::Checksum { found, expected }), _)
            | (_, Some(RecordError::Checksum { found, expected })) => {
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
    let mut place = Place { set_uuid: [0; 16], device_uuid: [0; 16], offset: DeviceOffset::new(0) };
    for _ in 0..3 {
        match GenerationsRecord::parse(&block, place) {
            Ok(record) => {
                assert_eq!(GenerationsRecord::parse(&record.encode(place), place).as_ref(), Ok(&record));
                return;
            }
            Err(RecordError::Foreign(own)) => place = own,
            Err(RecordError::Checksum { expected, .. }) => {
                block[12..16].copy_from_slice(&expected.to_le_bytes());
            }
            Err(other) => return drop(other.to_string()),
        }
    }
}

/// The bytes of a segment header that may be other than zeroes: so long is the first part of an input.
pub const HEADER_BYTES: usize = 640;

/// Fills up to whole blocks: inputs end where their zeroes begin.
fn padded(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes.resize(bytes.len().next_multiple_of(zoned::BLOCK_BYTES).max(zoned::BLOCK_BYTES), 0);
    bytes
}

/// Puts the checksum of each block of `block_bytes` right, which is at `at`: what lies behind it is to be reached.
fn sealed(bytes: &[u8], block_bytes: usize, at: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for block in bytes.chunks_exact_mut(block_bytes) {
        block[at..at + 4].fill(0);
        let sum = zoned::Checksum::of(block);
        block[at..at + 4].copy_from_slice(&sum.to_le_bytes());
    }
    bytes
}

/// Drops what was refused, once it has said why.
fn said<T>(read: Result<T, ZonedError>) -> Option<T> {
    read.map_err(|error| error.to_string()).ok()
}

/// The reader of superblocks of zoned members, with the place that they want.
pub fn zoned_superblock(bytes: &[u8]) {
    let bytes = sealed(&padded(bytes), zoned::BLOCK_BYTES, 12);
    let mut place = LogPlace { zone: 0, block: 0 };
    if let (Some(zone), Some(block)) = (bytes.get(112..116), bytes.get(116..120)) {
        let word = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four bytes"));
        place = LogPlace { zone: word(zone), block: word(block) };
    }
    let Some(superblock) = said(zoned::Superblock::parse(&bytes, place)) else { return };
    assert_eq!(zoned::Superblock::parse(&superblock.encode(place), place).as_ref(), Ok(&superblock));
    let _ = (superblock.own_member(), superblock.read_only_feature());
    let _ = zoned::superblock_log::LogCursor::new(&superblock.zones).next();
    let (map, zones) = (superblock.plan.map_entry, superblock.zones);
    let _ = MapShape::new(map, superblock.plan.map_columns, zones.capacity_blocks).map(|map| map.slots_max());
}

/// Readers of what a zone of a segment holds: a segment header, and behind it a block of the zone, which is read as each
/// structure that may be there, with right checksums.
pub fn zoned_segment(bytes: &[u8]) {
    let Some((header, place, rest)) = segment_of(bytes) else { return };
    assert_eq!(SegmentHeader::parse(&header.encode(place), place).as_ref(), Ok(&header));
    let shape = &header.shape;
    assert!(shape.rows() >= shape.rows_max() && shape.rows_max() > 0, "{shape:?}");
    let word = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().expect("four bytes"));
    let blocks = [word(36), word(56), 1, shape.footer_start()];
    let (records, starts) = (sealed(&rest, zoned::BLOCK_BYTES, 4), sealed(&rest, zoned::BLOCK_BYTES, 12));
    let beside = sealed(&rest[..OOB_BYTES], OOB_BYTES, 60);
    for block in blocks {
        if let Some(record) = said(RecordDescriptor::parse(&records, &header, block)) {
            record_believed(&record, &header, block);
        }
        if let Some(own) = said(OobBlock::parse(&beside, &header, block)) {
            assert_eq!(OobBlock::parse(&own.encode(&header), &header, block), Ok(own));
        }
        if let Some(footer) = said(FooterBlock::parse(&starts, &header, block)) {
            assert_eq!(FooterBlock::parse(&footer.encode(&header), &header, block).as_ref(), Ok(&footer));
            footer_believed(&footer, &header);
        }
    }
    if let Some(fence) = said(FenceBlock::parse(&starts, &header)) {
        assert_eq!(FenceBlock::parse(&fence.encode(&header), &header), Ok(fence));
    }
}

/// The header that an input begins with, where it belongs, and what stands behind it, filled up to whole blocks.
pub fn segment_of(bytes: &[u8]) -> Option<(SegmentHeader, ZonePlace, Vec<u8>)> {
    let (first, rest) = bytes.split_at(bytes.len().min(HEADER_BYTES));
    let first = sealed(&padded(first), zoned::BLOCK_BYTES, 12);
    let (header, place) = said(SegmentHeader::parse_anywhere(&first))?;
    Some((header, place, padded(rest)))
}

fn record_believed(record: &RecordDescriptor, header: &SegmentHeader, block: u32) {
    let needed =
        RecordDescriptor::blocks_needed(&encoded(record, header), header, block).expect("it was read");
    assert!(record.record_blocks(header) as usize == needed + usize::from(record.stripe.rows));
    let end = block + record.record_blocks(header);
    assert!(end <= header.shape.footer_start(), "a record ends in the data region");
    assert_eq!(RecordDescriptor::parse(&encoded(record, header), header, block).as_ref(), Ok(record));
}

fn encoded(record: &RecordDescriptor, header: &SegmentHeader) -> Vec<u8> {
    let RecordDescriptor { stripe, kind, place, checksums } = record;
    let blocks = record.record_blocks(header) as usize - usize::from(stripe.rows);
    let mut bytes = vec![0xa5; blocks * zoned::BLOCK_BYTES];
    StripeDescriptor::encode_into(stripe, header, *kind, *place, checksums, &mut bytes);
    bytes
}

/// What its own column says of a row, together with coded entries of the others, decodes or not, without a panic.
fn footer_believed(footer: &FooterBlock, header: &SegmentHeader) {
    let columns = header.shape.plan().columns;
    for (at, entry) in footer.entries.iter().enumerate().take(3) {
        let offset = DataOffset(footer.first(header).0 + at as u32);
        let role = header.shape.role(header.column, offset);
        let mut parts = vec![RowPart { role, bytes: entry.part.bytes() }];
        for column in (0..columns.width()).filter(|column| *column != header.column).skip(1) {
            parts.push(RowPart { role: header.shape.role(column, offset), bytes: entry.part.bytes() });
        }
        if let Ok(row) = coded::recover(Structure::Footer, columns, &parts) {
            let own = match role {
                ColumnRole::Data(index) => row[usize::from(index)].to_bytes(),
                role => coded::code(role, &row).0,
            };
            assert!(columns.parity() > 1 || own == entry.part.bytes(), "{role:?} of {row:?}");
        }
    }
}

/// Readers of the map's blocks in the log, each with the entry that it wants. The first two bytes are the map's columns and
/// whether its entries have 4 bytes.
pub fn zoned_map(bytes: &[u8]) {
    let Some((&[columns, narrow], block)) = bytes.split_first_chunk() else { return };
    let width = if narrow & 1 == 1 { MapEntryBytes::Four } else { MapEntryBytes::Eight };
    let block = &padded(block)[..zoned::BLOCK_BYTES];
    let own = |name| BlockEntry::of(name, Sequence(1), block);
    let shape = MapShape::new(width, columns.max(1), 1000).expect("columns and blocks");
    if let Some(map) = said(MappingBlock::parse(block, &own(BlockName::Mapping(0)), &shape)) {
        assert_eq!(MappingBlock::encode(map.words(), &shape), block);
        for word in map.words() {
            assert_eq!(shape.entry(*word).map(|entry| shape.word(entry)), Some(*word));
        }
    }
    if let Some(zeroes) = said(ZeroesEntry::parse_all(block, &own(BlockName::Zeroes))) {
        assert_eq!(ZeroesEntry::encode_all(&zeroes), block);
    }
    if let Some(emptied) = said(EmptiedEntry::parse_all(block, &own(BlockName::Emptied))) {
        assert_eq!(EmptiedEntry::encode_all(&emptied), block);
    }
    let block = &sealed(block, zoned::BLOCK_BYTES, 12)[..];
    let Some(set_uuid) = block.get(16..32).and_then(|bytes| bytes.first_chunk()) else { return };
    if let Some(root) = said(RootBlock::parse(block, set_uuid)) {
        assert_eq!(root.encode(*set_uuid), block);
    }
    if let Some(table) = said(TableBlock::parse(block, set_uuid)) {
        assert_eq!(table.encode(*set_uuid), block);
    }
}
