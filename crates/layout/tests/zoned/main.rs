//! The zoned format: what was written is read back, and nothing else is believed.

mod geometry;
mod log;
mod refused;
mod samples;

use layout::geometry::Level;
use layout::zoned::coded::{self, CodedError, RowPart};
use layout::zoned::{
    BlockEntry, BlockName, BlockPlace, Carrier, Checksum, ColumnRole, EmptiedEntry, Epoch, FenceBlock,
    FooterBlock, MapEntry, MapEntryBytes, MapShape, MappingBlock, OobBlock, RecordDescriptor, RootBlock,
    SegmentHeader, Sequence, Structure, Superblock, TableBlock, ZEROES_CHECKSUM, ZeroesEntry, ZonedError,
};
use proptest::prelude::*;
use samples::Dice;

const SET: [u8; 16] = [7; 16];

/// A header whose records are in band, or not.
fn header_of(dice: &mut Dice, carrier: Carrier) -> SegmentHeader {
    loop {
        let (header, _) = samples::header(dice);
        if header.shape.plan().carrier == carrier {
            return header;
        }
    }
}

proptest! {
    #[test]
    fn superblocks_are_read_as_written(seed: u64) {
        let (superblock, place) = samples::superblock(&mut Dice(seed));
        prop_assert_eq!(Superblock::parse(&superblock.encode(place), place), Ok(superblock));
    }

    #[test]
    fn segment_headers_are_read_as_written(seed: u64) {
        let (header, place) = samples::header(&mut Dice(seed));
        let block = header.encode(place);
        prop_assert_eq!(SegmentHeader::parse(&block, place), Ok(header.clone()));
        prop_assert_eq!(SegmentHeader::parse_anywhere(&block), Ok((header, place)));
    }

    #[test]
    fn descriptors_are_read_as_written(seed: u64) {
        let mut dice = Dice(seed);
        let header = header_of(&mut dice, Carrier::Inband);
        let record = samples::record(&mut dice, &header);
        let bytes = record.encode(&header);
        let needed = RecordDescriptor::blocks_needed(&bytes, &header, record.block);
        prop_assert_eq!(needed, Ok(bytes.len() / 4096));
        let read = RecordDescriptor::parse(&bytes, &header, record.block).unwrap();
        let rows = u32::from(record.stripe.rows);
        prop_assert_eq!(read.record_blocks(&header), rows + bytes.len() as u32 / 4096);
        for row in 0..rows as usize {
            prop_assert_eq!(read.stripe.row(row), record.stripe.row(row));
        }
        let samples::Record { stripe, kind, place, checksums, .. } = record;
        prop_assert_eq!(read, RecordDescriptor { stripe, kind, place, checksums });
    }

    #[test]
    fn oob_bytes_are_read_as_written(seed: u64) {
        let mut dice = Dice(seed);
        let header = header_of(&mut dice, Carrier::Oob);
        let (own, block) = samples::oob(&mut dice, &header);
        prop_assert_eq!(OobBlock::parse(&own.encode(&header), &header, block), Ok(own));
    }

    #[test]
    fn footers_are_read_as_written(seed: u64) {
        let mut dice = Dice(seed);
        let (header, _) = samples::header(&mut dice);
        let (footer, block) = samples::footer(&mut dice, &header);
        prop_assert_eq!(FooterBlock::parse(&footer.encode(&header), &header, block), Ok(footer));
    }

    #[test]
    fn fences_are_read_as_written(seed: u64) {
        let mut dice = Dice(seed);
        let (header, _) = samples::header(&mut dice);
        let fence = samples::fence(&mut dice, &header);
        prop_assert_eq!(FenceBlock::parse(&fence.encode(&header), &header), Ok(fence));
    }

    #[test]
    fn checkpoints_are_read_as_written(seed: u64) {
        let mut dice = Dice(seed);
        let (root, table) = (samples::root(&mut dice), samples::table(&mut dice));
        prop_assert_eq!(RootBlock::parse(&root.encode(SET), &SET), Ok(root));
        prop_assert_eq!(TableBlock::parse(&table.encode(SET), &SET), Ok(table));
    }

    #[test]
    fn lists_are_read_as_written(seed: u64) {
        let mut dice = Dice(seed);
        let (zeroes, emptied) = (samples::zeroes(&mut dice), samples::emptied(&mut dice));
        let block = ZeroesEntry::encode_all(&zeroes);
        let entry = BlockEntry::of(BlockName::Zeroes, Sequence(3), &block);
        prop_assert_eq!(ZeroesEntry::parse_all(&block, &entry), Ok(zeroes));
        let block = EmptiedEntry::encode_all(&emptied);
        let entry = BlockEntry::of(BlockName::Emptied, Sequence(3), &block);
        prop_assert_eq!(EmptiedEntry::parse_all(&block, &entry), Ok(emptied));
    }

    #[test]
    fn mapping_blocks_are_read_as_written(seed: u64) {
        let mut dice = Dice(seed);
        let shape = samples::map_shape(&mut dice);
        let count = dice.below(shape.entries_per_block() + 1);
        let mut words: Vec<u64> =
            (0..count).map(|_| shape.word(samples::map_entry(&mut dice, &shape, 1, 2))).collect();
        let block = MappingBlock::encode(&words, &shape);
        let first = shape.first_of_group(dice.below(1 << 50));
        let entry = BlockEntry::of(BlockName::Mapping(first), Sequence(9), &block);
        let read = MappingBlock::parse(&block, &entry, &shape).unwrap();
        let other = BlockEntry { name: BlockName::Mapping(first + 1), ..entry };
        prop_assert!(MappingBlock::parse(&block, &other, &shape).is_err(), "no group begins there");
        words.resize(shape.entries_per_block() as usize, shape.word(MapEntry::Zeroes));
        prop_assert_eq!(read.words(), &words);
    }

    /// Any columns that the level can miss, of parity too.
    #[test]
    fn lost_entries_of_a_row_are_made_from_the_others(seed: u64) {
        let mut dice = Dice(seed);
        let columns = samples::columns(&mut dice);
        let row: Vec<BlockEntry> = (0..columns.data()).map(|_| samples::entry(&mut dice)).collect();
        let band = dice.below(1000) as u32;
        let mut parts: Vec<RowPart> = (0..columns.width())
            .map(|column| {
                let role = columns.role(column, band);
                let bytes = match role {
                    ColumnRole::Data(index) => row[usize::from(index)].to_bytes(),
                    role => coded::code(role, &row).0,
                };
                RowPart { role, bytes }
            })
            .collect();
        let losses = if columns.level() == Level::Raid10 { 1 } else { columns.parity() };
        for _ in 0..losses {
            let lost = parts.remove(dice.below(parts.len() as u64) as usize);
            prop_assert_eq!(coded::recover(Structure::Footer, columns, &parts), Ok(row.clone()), "{:?}", lost);
        }
        // One more.
        let is_data = |part: &RowPart| matches!(part.role, ColumnRole::Data(_));
        if columns.level() != Level::Raid10 && let Some(lost) = parts.iter().position(is_data) {
            parts.remove(lost);
            let found = coded::recover(Structure::Footer, columns, &parts);
            prop_assert!(matches!(found, Err(CodedError::TooFew { .. })), "{found:?}");
        }
    }

    #[test]
    fn places_are_numbered_and_found_again(seed: u64) {
        let mut dice = Dice(seed);
        let columns = dice.below(128) as u8 + 1;
        let capacity = dice.below(300_000) as u32 + 2;
        for bytes in [MapEntryBytes::Four, MapEntryBytes::Eight] {
            let shape = MapShape::new(bytes, columns, capacity).unwrap();
            for _ in 0..20 {
                let entry = samples::map_entry(&mut dice, &shape, columns, capacity);
                let word = shape.word(entry);
                prop_assert_eq!(shape.entry(word), Some(entry));
                prop_assert!(bytes == MapEntryBytes::Eight || word <= u32::MAX.into());
            }
            // Any number is an entry that has that number, or none.
            let word = dice.word() & if bytes == MapEntryBytes::Four { u64::from(u32::MAX) } else { u64::MAX };
            if let Some(entry) = shape.entry(word) {
                prop_assert_eq!(shape.word(entry), word);
            }
        }
    }
}

#[test]
fn a_place_is_its_formula() {
    let shape = MapShape::new(MapEntryBytes::Eight, 8, 1000).unwrap();
    let place = BlockPlace { slot: 5, column: 3, block: 77 };
    let word = shape.word(MapEntry::At { place, checksum: 0xab_cdef });
    assert_eq!(word, ((5 * 8 + 3) * 1000 + 77) | (0xab_cdef << 40));
    assert_eq!((shape.entries_per_block(), shape.checksum_bits()), (512, 24));
    assert_eq!(shape.first_of_group(1025), 1024);
    assert_eq!(shape.entry(0), None, "a header is no block of data");
    assert_eq!(shape.entry(u64::MAX), Some(MapEntry::Zeroes));
    assert_eq!(shape.entry(u64::MAX - 1), Some(MapEntry::Lost));
    assert_eq!(shape.entry(u64::MAX >> 24), None, "zeroes with another checksum");
    let four = MapShape::new(MapEntryBytes::Four, 4, 1 << 18).unwrap();
    // 2^32 places of 4 KiB are 16 TiB raw; the last slot has the two numbers that are no place.
    assert_eq!((four.slots_max(), four.entries_per_block(), four.checksum_bits()), (4095, 1024, 0));
    assert_eq!(four.entry(u32::MAX.into()), Some(MapEntry::Zeroes));
}

#[test]
fn a_sequence_has_the_number_of_its_epoch_and_a_counter() {
    let epoch = Epoch { number: 3, random: 0xdead_beef };
    assert_eq!(epoch.first_sequence(), Sequence(3 << 40));
    let last = Sequence((4 << 40) - 1);
    assert_eq!((last.epoch_number(), last.counter(), last.next()), (3, (1 << 40) - 1, None));
    assert_eq!(Sequence(3 << 40).next(), Some(Sequence((3 << 40) + 1)));
    assert_eq!(Sequence(u64::MAX).next(), None);
    assert_eq!((epoch.to_string(), last.to_string()), ("3.deadbeef".into(), "3/1099511627775".into()));
    assert_eq!(Epoch::NUMBER_MAX, 16_777_215);
}

#[test]
fn contents_are_held_against_their_entry() {
    let contents = vec![0x5a; 4096];
    let entry = BlockEntry::of(BlockName::User(1), Sequence(1), &contents);
    assert_eq!(entry.check_contents(&contents), Ok(()));
    let (found, expected) = (entry.checksum, ZEROES_CHECKSUM);
    let error = ZonedError::Checksum { structure: Structure::Contents, found, expected };
    assert_eq!(entry.check_contents(&[0; 4096]), Err(error));
    assert_eq!(ZEROES_CHECKSUM, Checksum::of(&[0; 4096]));
    assert_eq!(BlockEntry::padding(Sequence(4)).check_contents(&[0; 4096]), Ok(()));
}
