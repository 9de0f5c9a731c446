//! What is not believed: any flipped bit, torn blocks, what belongs elsewhere, and values that make no sense.

use layout::zoned::{
    BlockEntry, BlockName, Carrier, Checksum, EmptiedEntry, FenceBlock, FooterBlock, MappingBlock, OobBlock,
    RecordDescriptor, RecordKind, RootBlock, SegmentHeader, Sequence, Structure, Superblock, TableBlock,
    ZeroesEntry, ZonedError,
};

use crate::samples::{self, Dice};
use crate::{SET, header_of};

type Reader = Box<dyn Fn(&[u8]) -> Result<(), ZonedError>>;

/// A structure, good bytes of it, and how it is read.
struct Case {
    structure: Structure,
    bytes: Vec<u8>,
    read: Reader,
}

/// One of each structure.
fn cases(seed: u64) -> Vec<Case> {
    let mut dice = Dice(seed);
    let mut cases = Vec::new();
    let mut case = |structure, bytes, read: Reader| cases.push(Case { structure, bytes, read });
    let (superblock, place) = samples::superblock(&mut dice);
    let read = move |bytes: &[u8]| Superblock::parse(bytes, place).map(drop);
    case(Structure::Superblock, superblock.encode(place), Box::new(read));
    let (header, place) = samples::header(&mut dice);
    let read = move |bytes: &[u8]| SegmentHeader::parse(bytes, place).map(drop);
    case(Structure::SegmentHeader, header.encode(place), Box::new(read));
    let header = header_of(&mut dice, Carrier::Inband);
    let record = samples::record(&mut dice, &header);
    let (bytes, block) = (record.encode(&header), record.block);
    let read = move |bytes: &[u8]| RecordDescriptor::parse(bytes, &header, block).map(drop);
    case(Structure::Descriptor, bytes, Box::new(read));
    let header = header_of(&mut dice, Carrier::Oob);
    let (own, block) = samples::oob(&mut dice, &header);
    let bytes = own.encode(&header).to_vec();
    let read = move |bytes: &[u8]| OobBlock::parse(bytes, &header, block).map(drop);
    case(Structure::Oob, bytes, Box::new(read));
    let (header, _) = samples::header(&mut dice);
    let (footer, block) = samples::footer(&mut dice, &header);
    let (bytes, own) = (footer.encode(&header), header.clone());
    let read = move |bytes: &[u8]| FooterBlock::parse(bytes, &own, block).map(drop);
    case(Structure::Footer, bytes, Box::new(read));
    let bytes = samples::fence(&mut dice, &header).encode(&header);
    let read = move |bytes: &[u8]| FenceBlock::parse(bytes, &header).map(drop);
    case(Structure::Fence, bytes, Box::new(read));
    let read = |bytes: &[u8]| RootBlock::parse(bytes, &SET).map(drop);
    case(Structure::Root, samples::root(&mut dice).encode(SET), Box::new(read));
    let read = |bytes: &[u8]| TableBlock::parse(bytes, &SET).map(drop);
    case(Structure::SegmentTable, samples::table(&mut dice).encode(SET), Box::new(read));
    let shape = samples::map_shape(&mut dice);
    let words: Vec<u64> = (0..9).map(|_| shape.word(samples::map_entry(&mut dice, &shape, 1, 2))).collect();
    let bytes = MappingBlock::encode(&words, &shape);
    let entry = BlockEntry::of(BlockName::Mapping(0), Sequence(1), &bytes);
    let read = move |bytes: &[u8]| MappingBlock::parse(bytes, &entry, &shape).map(drop);
    case(Structure::Mapping, bytes, Box::new(read));
    let bytes = ZeroesEntry::encode_all(&samples::zeroes(&mut dice));
    let entry = BlockEntry::of(BlockName::Zeroes, Sequence(1), &bytes);
    let read = move |bytes: &[u8]| ZeroesEntry::parse_all(bytes, &entry).map(drop);
    case(Structure::Zeroes, bytes, Box::new(read));
    let bytes = EmptiedEntry::encode_all(&samples::emptied(&mut dice));
    let entry = BlockEntry::of(BlockName::Emptied, Sequence(1), &bytes);
    let read = move |bytes: &[u8]| EmptiedEntry::parse_all(bytes, &entry).map(drop);
    case(Structure::Emptied, bytes, Box::new(read));
    cases
}

#[test]
fn every_flipped_bit_of_every_structure_is_noticed() {
    for seed in [1, 2, 3] {
        for Case { structure, bytes, read } in cases(seed) {
            assert_eq!(read(&bytes), Ok(()), "{structure}");
            for bit in 0..bytes.len() * 8 {
                let mut flipped = bytes.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert!(read(&flipped).is_err(), "{structure}, bit {bit}");
            }
        }
    }
}

/// A power cut leaves some sectors of what was written, and in the others what was there before.
#[test]
fn torn_and_short_structures_are_noticed() {
    for seed in 0..20 {
        for Case { structure, bytes, read } in cases(seed) {
            for before in [0x00, 0xff, 0x5a] {
                for sectors in 0..bytes.len() / 512 {
                    let mut torn = bytes.clone();
                    torn[sectors * 512..].fill(before);
                    if torn != bytes {
                        assert!(read(&torn).is_err(), "{structure}, {sectors} sectors");
                    }
                }
            }
            for length in [0, 1, 63, bytes.len() - 1] {
                let short = read(&bytes[..length.min(bytes.len() - 1)]);
                assert!(
                    matches!(short, Err(ZonedError::Truncated { .. })),
                    "{structure}, {length}: {short:?}"
                );
            }
            let needed = if structure == Structure::Oob { 64 } else { 4096 };
            let empty = vec![0; needed];
            let absent = match structure {
                // What is found by its entry has no magic: zeroes are other contents, or an empty list.
                Structure::Mapping | Structure::Zeroes | Structure::Emptied => continue,
                _ => Err(ZonedError::Absent { structure }),
            };
            assert_eq!(read(&empty), absent);
        }
    }
}

/// Bytes of all kinds under a good magic, with and without a right checksum.
#[test]
fn random_bytes_are_refused_or_read_and_never_panic() {
    for seed in 0..300 {
        let mut dice = Dice(seed);
        for Case { structure, mut bytes, read } in cases(seed) {
            for _ in 0..20 {
                for _ in 0..1 + dice.below(6) {
                    let at = dice.below(bytes.len() as u64) as usize;
                    let word = dice.word().to_le_bytes();
                    let width = dice.pick(&[1, 2, 4, 8]).min(bytes.len() - at);
                    bytes[at..at + width].copy_from_slice(&word[..width]);
                }
                if let Err(error) = read(&seal_again(structure, &bytes)) {
                    assert!(error.to_string().contains(&structure.to_string()), "{error}");
                }
            }
            for byte in &mut bytes {
                *byte = dice.below(256) as u8;
            }
            assert!(read(&bytes).is_err(), "{structure}");
        }
    }
}

/// The same with right checksums.
fn seal_again(structure: Structure, bytes: &[u8]) -> Vec<u8> {
    let (block, at) = match structure {
        Structure::Oob => (64, 60),
        Structure::Descriptor => (4096, 4),
        Structure::Mapping | Structure::Zeroes | Structure::Emptied => return bytes.to_vec(),
        _ => (4096, 12),
    };
    let mut bytes = bytes.to_vec();
    for block in bytes.chunks_exact_mut(block) {
        block[at..at + 4].fill(0);
        let sum = Checksum::of(block);
        block[at..at + 4].copy_from_slice(&sum.to_le_bytes());
    }
    bytes
}

/// What `read` says of `bytes` with a value changed and the checksum right.
fn forged(case: &Case, at: usize, value: &[u8]) -> String {
    let mut bytes = case.bytes.clone();
    bytes[at..at + value.len()].copy_from_slice(value);
    match (case.read)(&seal_again(case.structure, &bytes)) {
        Ok(()) => "read".into(),
        Err(error) => error.to_string(),
    }
}

#[track_caller]
fn check(case: &Case, at: usize, value: &[u8], expected: &str) {
    let found = forged(case, at, value);
    assert!(found.contains(expected), "byte {at}: {found}, not {expected}");
}

fn case_of(structure: Structure, seed: u64) -> Case {
    cases(seed).into_iter().find(|case| case.structure == structure).expect("one of each")
}

#[test]
fn superblocks_that_make_no_sense_are_refused_by_name() {
    let case = case_of(Structure::Superblock, 1);
    let check = |at, value: &[u8], expected| check(&case, at, value, expected);
    check(0, b"TwZonSg\0", "no superblock here");
    check(8, &[2], "version 2, this program knows 1");
    check(16, &[0; 1], "read");
    check(
        32,
        &[9; 16],
        "members is without 09090909:09090909:09090909:09090909, expected this member among them",
    );
    check(48, &[0xff], "set_name is");
    check(79, &[1], "set_name is");
    check(112, &[9], "zone is 9, expected");
    check(120, &[0, 1], "the array needs feature 8 (bit 8 of incompat)");
    check(128, &[0xff], "read");
    check(144, &[1], "level is 1 of");
    check(148, &[65], "of 65 columns");
    check(150, &[63], "parity is 63 columns, expected");
    check(151, &[0], "carrier is 0, expected 1 (out of band) or 2 (in band)");
    check(152, &512u32.to_le_bytes(), "block_bytes is 512 bytes, expected 4096 bytes");
    check(156, &[1, 0, 0, 0], "zone_capacity_blocks is");
    check(160, &[3, 0, 0, 0], "zone_capacity_blocks is 3 blocks, expected 4 to");
    check(164, &[2, 0, 0, 0], "zones is 2, expected at least 3");
    check(168, &[0; 8], "logical_blocks is 0 blocks, expected 1 to 2^50 blocks");
    check(186, &[0, 0], "large_blocks is 0 blocks");
    check(188, &[0, 0], "group is 0 records");
    check(190, &[0, 0], "band_blocks is 0 blocks, expected at least");
    check(192, &[0, 0], "open_large is 0 beside open_small of 0");
    check(194, &[0, 0], "table_entries is 0, expected 1 to 64");
    check(194, &[65, 0], "table_entries is 65, expected 1 to 64");
    check(196, &[99, 99], "slot is 25443, expected");
    check(198, &[2], "clean is 2, expected 0 or 1");
    check(199, &[4], "access is 4, expected 1 (append), 2 (sequential) or 3 (placed)");
    check(200, &[0xff; 8], "checkpoint_segment is segment 18446744073709551615, expected below segment");
    check(224, &[5], "map_entry_bytes is 5 bytes, expected 4 or 8 bytes");
    check(225, &[0], "map_columns is 0, expected at least the width");
    check(231, &[1], "reserve is 0x01 at byte 231, expected zeroes");
    check(255, &[1], "reserve is 0x01 at byte 255");
    check(235, &[1], "served is");
    check(88, &[0, 0, 0, 1], "epochs is");
    check(4095, &[7], "reserve is 0x07 at byte 4095");
    check(256, &[0; 16], "device_uuid is zero in row 0, expected a device");
    check(
        256 + 16,
        &[5],
        "state is 5 in row 0, expected 1 (in sync), 2 (recovering), 3 (failed) or 4 (spare)",
    );
    check(256 + 17, &[1], "flags is 0x1 in row 0");
    check(256 + 18, &[0xff, 0xff], "slot is 65535 in row 0");
    let alone = (0..).map(|seed| case_of(Structure::Superblock, seed)).find(|case| case.bytes[194] == 1);
    let alone = alone.expect("one member");
    assert!(forged(&alone, 256 + 40, &[1]).contains("reserve is 0x01 at byte 296"));
}

#[test]
fn segment_headers_that_make_no_sense_are_refused_by_name() {
    let case = case_of(Structure::SegmentHeader, 1);
    let check = |at, value: &[u8], expected| check(&case, at, value, expected);
    check(0, b"TwZonSb\0", "no segment header here");
    check(8, &[2], "version 2, this program knows 1");
    check(16, &[9; 16], "set_uuid is 09090909:09090909:09090909:09090909, expected");
    check(32, &[9; 16], "device_uuid is 09090909:09090909:09090909:09090909, expected");
    check(48, &[0; 8], "segment is 0, expected a number from 1");
    check(59, &[1], "epoch is");
    check(76, &[64], "column is 64, expected below the width");
    check(78, &[65], "of 65 columns");
    check(79, &[60], "parity is 60 columns");
    check(80, &[0], "class is 0, expected 1 (small), 2 (large), 3 (reclaim) or 4 (recovery)");
    check(81, &[0], "access is 0");
    check(82, &[3], "carrier is 3");
    check(83, &[1], "reserve is 0x01 at byte 83");
    check(84, &[0, 0], "record_blocks is 0 blocks");
    check(88, &[0, 0, 0, 0], "band_blocks is 0 blocks");
    check(92, &[0, 0, 0, 0], "data_blocks is 0 blocks");
    check(96, &[0xff, 0xff, 0xff, 0xff], "footer_blocks is 4294967295 blocks, expected");
    check(104, &[1], "level is 1 of");
    check(127, &[1], "reserve is 0x01 at byte 127");
    check(130, &[1], "reserve is 0x01 at byte 130");
    check(640, &[1], "reserve is 0x01 at byte 640");
    let first = (0..).map(|seed| samples::header(&mut Dice(seed))).find(|(header, _)| header.generation == 0);
    let (header, place) = first.expect("a first writing");
    let mut bytes = header.encode(place);
    bytes[72..76].copy_from_slice(&u32::to_le_bytes(place.zone ^ 1));
    let found = SegmentHeader::parse_anywhere(&seal_again(Structure::SegmentHeader, &bytes));
    let listed = format!("segment header: columns is zone {} at own column", place.zone);
    assert!(found.unwrap_err().to_string().starts_with(&listed), "a zone that its columns do not list");
}

/// A record that was written for another segment, column or place, or whose values contradict each other.
#[test]
fn records_of_elsewhere_are_refused_by_name() {
    let find = |is_wanted: &dyn Fn(&SegmentHeader, &samples::Record) -> bool| {
        (0..)
            .map(|seed| {
                let mut dice = Dice(seed);
                let header = header_of(&mut dice, Carrier::Inband);
                let record = samples::record(&mut dice, &header);
                (header, record)
            })
            .find(|(header, record)| is_wanted(header, record))
            .expect("such a record")
    };
    let (header, record) = find(&|header, record| {
        !header.shape.is_append()
            && record.stripe.rows > 1
            && record.kind == RecordKind::Data
            && record.descriptor_blocks(header) == 1
    });
    let bytes = record.encode(&header);
    let refused = |bytes: &[u8], header: &SegmentHeader, block| {
        RecordDescriptor::parse(bytes, header, block).unwrap_err().to_string()
    };
    let starts =
        |found: String, expected: &str| assert!(found.starts_with(expected), "{found}, not {expected}");
    let other = SegmentHeader { segment: header.segment ^ 1, ..header.clone() };
    starts(refused(&bytes, &other, record.block), "record descriptor: segment is");
    let other = SegmentHeader { tag: header.tag ^ 1, ..header.clone() };
    starts(refused(&bytes, &other, record.block), "record descriptor: tag is");
    let other = SegmentHeader { column: header.column ^ 1, ..header.clone() };
    starts(refused(&bytes, &other, record.block), "record descriptor: column is");
    starts(refused(&bytes, &header, record.block - 1), "record descriptor: place is");
    let (elsewhere, _) = (0..)
        .map(|seed| samples::header(&mut Dice(seed)))
        .find(|(other, _)| other.shape.plan().carrier == Carrier::Oob)
        .expect("a header");
    let elsewhere = refused(&bytes, &elsewhere, record.block);
    starts(elsewhere, "record descriptor: carrier is Inband, expected Oob as in the segment header");
    let outside = header.shape.footer_start();
    starts(refused(&bytes, &header, 0), "record descriptor: place is block 0 of the zone, expected 1 to");
    starts(refused(&bytes, &header, outside), "record descriptor: place is block");
    let forged = |at: usize, value: &[u8]| {
        let mut bytes = bytes.clone();
        bytes[at..at + value.len()].copy_from_slice(value);
        refused(&seal_again(Structure::Descriptor, &bytes), &header, record.block)
    };
    starts(forged(20, &[0xff; 4]), "record descriptor: stripe is 4294967295");
    starts(forged(41, &[0]), "record descriptor: rows is 0, expected rows");
    starts(forged(41, &[255]), "record descriptor: rows is 255, expected a record of at most");
    starts(forged(42, &[0]), "record descriptor: data_columns is 0");
    starts(forged(43, &[0]), "record descriptor: kind is 0");
    starts(forged(43, &[2]), "record descriptor: kind is Parity, expected that of Data");
    starts(forged(52, &[4]), "record descriptor: descriptor_blocks is 4");
    starts(forged(53, &[1]), "record descriptor: descriptor is 1");
    starts(forged(63, &[1]), "record descriptor: reserve is 0x01 at byte 63");
    starts(forged(64, &[0xf0]), "record descriptor: lba is");
    let sums = 64 + 20 * record.stripe.entries.len();
    let other = (!record.checksums[0]).to_le_bytes();
    starts(forged(sums, &other), "record descriptor: checksums is");
    // Descriptor blocks of two records, one behind the other.
    let (header, mut record) = find(&|header, record| record.descriptor_blocks(header) > 1);
    let mut mixed = record.encode(&header);
    record.stripe.sequence.0 ^= 1;
    let others = record.encode(&header);
    mixed[4096..8192].copy_from_slice(&others[4096..8192]);
    let found = refused(&mixed, &header, record.block);
    starts(found, "record descriptor: descriptor is of another record at block 1 of it");
}

#[test]
fn oob_bytes_of_elsewhere_are_refused_by_name() {
    let drawn = |seed| {
        let mut dice = Dice(seed);
        let header = header_of(&mut dice, Carrier::Oob);
        let (own, block) = samples::oob(&mut dice, &header);
        (header, own, block)
    };
    let is_wanted =
        |(header, own, _): &(SegmentHeader, OobBlock, u32)| !header.shape.is_append() && own.rows > 1;
    let (header, own, block) = (0..).map(drawn).find(is_wanted).expect("a record with rows");
    let bytes = own.encode(&header);
    let starts = |found: Result<OobBlock, ZonedError>, expected: &str| {
        let found = found.expect_err(expected).to_string();
        assert!(found.starts_with(&format!("out-of-band metadata: {expected}")), "{found}, not {expected}");
    };
    let other = SegmentHeader { segment: header.segment ^ 1, ..header.clone() };
    starts(OobBlock::parse(&bytes, &other, block), "segment_low is");
    let other = SegmentHeader { tag: header.tag ^ 1, ..header.clone() };
    starts(OobBlock::parse(&bytes, &other, block), "tag_low is");
    let other = SegmentHeader { column: header.column ^ 1, ..header.clone() };
    starts(OobBlock::parse(&bytes, &other, block), "column is");
    starts(OobBlock::parse(&bytes, &header, 0), "row is row");
    let other = header_of(&mut Dice(1), Carrier::Inband);
    starts(
        OobBlock::parse(&bytes, &other, block),
        "carrier is Oob, expected Inband as in the segment header",
    );
    let forged = |at: usize, value: &[u8]| {
        let mut bytes = bytes.to_vec();
        bytes[at..at + value.len()].copy_from_slice(value);
        OobBlock::parse(&seal_again(Structure::Oob, &bytes), &header, block)
    };
    starts(forged(24, &(own.stripe ^ 1).to_le_bytes()), "stripe is");
    starts(forged(27, &[9]), "kind is 9");
    starts(forged(52, &[0]), "rows is 0");
    starts(forged(53, &[own.rows]), "row is");
    starts(forged(54, &[1]), "reserve is 0x01 at byte 54");
}

#[test]
fn footers_and_fences_of_elsewhere_are_refused_by_name() {
    let is_wanted = |header: &SegmentHeader| !header.shape.is_append();
    let header = (0..).map(|seed| samples::header(&mut Dice(seed)).0).find(is_wanted).expect("a header");
    let (footer, block) = samples::footer(&mut Dice(1), &header);
    let bytes = footer.encode(&header);
    let starts = |found: Result<(), ZonedError>, expected: &str| {
        let found = found.expect_err(expected).to_string();
        assert!(found.starts_with(expected), "{found}, not {expected}");
    };
    let read = |header: &SegmentHeader, block| FooterBlock::parse(&bytes, header, block).map(drop);
    for (other, field) in [
        (SegmentHeader { segment: header.segment ^ 1, ..header.clone() }, "footer: segment is"),
        (SegmentHeader { tag: header.tag ^ 1, ..header.clone() }, "footer: tag is"),
        (SegmentHeader { column: header.column ^ 1, ..header.clone() }, "footer: column is"),
        (SegmentHeader { generation: header.generation + 1, ..header.clone() }, "footer: generation is"),
    ] {
        starts(read(&other, block), field);
    }
    starts(read(&header, block + 1), "footer: place is");
    let forged = |at: usize, value: &[u8]| {
        let mut bytes = bytes.clone();
        bytes[at..at + value.len()].copy_from_slice(value);
        FooterBlock::parse(&seal_again(Structure::Footer, &bytes), &header, block).map(drop)
    };
    starts(forged(44, &[0xff; 4]), "footer: index is 4294967295, expected below");
    starts(forged(48, &[0; 4]), "footer: data_blocks is 0 blocks, expected 1 to");
    starts(forged(52, &[0xff, 0xff]), "footer: count is 65535 blocks, expected");
    starts(forged(55, &[22]), "footer: entry_bytes is 22 bytes, expected 20 bytes");
    starts(forged(60, &[1]), "footer: reserve is 0x01 at byte 60");
    starts(forged(4095, &[1]), "footer: reserve is 0x01 at byte 4095");

    let fence = samples::fence(&mut Dice(3), &header).encode(&header);
    let forged = |at: usize, value: &[u8]| {
        let mut bytes = fence.clone();
        bytes[at..at + value.len()].copy_from_slice(value);
        FenceBlock::parse(&seal_again(Structure::Fence, &bytes), &header).map(drop)
    };
    let other = SegmentHeader { tag: header.tag ^ 1, ..header.clone() };
    starts(FenceBlock::parse(&fence, &other).map(drop), "fence: tag is");
    starts(forged(16, &[0xff; 8]), "fence: segment is 18446744073709551615, expected");
    starts(forged(48, &[9, 0, 9, 0]), "fence: index is 9, expected below 9");
    starts(forged(52, &[0xff, 0]), "fence: ranges is 255 ranges, expected at most 234");
    starts(forged(54, &[0]), "fence: width is 0, expected");
    starts(forged(95, &[1]), "fence: reserve is 0x01 at byte 95");
    starts(forged(96, &[0; 4]), "fence: pointers is block 0, expected block 1 to");
    let end = header.shape.footer_start() + header.shape.footer_blocks();
    assert_eq!(forged(96, &end.to_le_bytes()), Ok(()));
    starts(forged(96, &(end + 1).to_le_bytes()), "fence: pointers is block");
    starts(forged(52, &[1, 0]), "fence: ");
    let mut ranged = fence.clone();
    ranged[52..54].copy_from_slice(&[1, 0]);
    ranged[352..].fill(0);
    let forged = |at: usize, value: &[u8]| {
        let mut bytes = ranged.clone();
        bytes[356..364].copy_from_slice(&[0, 0, 0, 0, 1, 0, 0, 0]);
        bytes[364] = 1;
        bytes[at..at + value.len()].copy_from_slice(value);
        FenceBlock::parse(&seal_again(Structure::Fence, &bytes), &header).map(drop)
    };
    assert_eq!(forged(364, &[2]), Ok(()));
    starts(forged(352, &[1]), "fence: group is group 1, expected below 1");
    starts(forged(360, &[0]), "fence: count is 0 from 0 on, expected some, within");
    starts(forged(356, &[0xff; 4]), "fence: count is 1 from 4294967295 on");
    starts(forged(364, &[3]), "fence: verdict is 3, expected 1 (void) or 2 (lost)");
    starts(forged(367, &[1]), "fence: reserve is 0x01 at byte 367");
    starts(forged(368, &[1]), "fence: reserve is 0x01 at byte 368");
}

#[test]
fn checkpoints_and_lists_that_make_no_sense_are_refused_by_name() {
    let full = |structure| {
        (0..).map(|seed| case_of(structure, seed)).find(|case| case.bytes[48] > 1).expect("a full block")
    };
    for structure in [Structure::Root, Structure::SegmentTable] {
        let case = full(structure);
        check(&case, 16, &[9; 16], "set_uuid is 09090909:");
        check(&case, 40, &[0xff; 4], "index is 4294967295, expected below");
        check(&case, 48, &[0xff, 0xff], "count is 65535 entries, expected at most");
        check(&case, 50, &[0xff; 4], "written is 4294967295, expected below");
        check(&case, 63, &[1], "reserve is 0x01 at byte 63");
    }
    let table = full(Structure::SegmentTable);
    check(&table, 64, &[0; 8], "segment is 0, expected above 0, in ascending order");
    check(&table, 64 + 32, &[0; 8], "segment is 0, expected above");
    check(&table, 64 + 20, &[0xff; 4], "data_blocks is 4294967295 blocks");
    check(&table, 64 + 24, &[0xff; 4], "live_blocks is 4294967295 blocks, expected at most");
    check(&table, 64 + 28, &[4], "flags is 0x4, expected at most 0x3");
    check(&table, 64 + 29, &[65], "width is 65 columns, expected 1 to 64");

    let list = |fill: &dyn Fn(&mut Vec<u8>)| {
        let mut block = vec![0; 4096];
        fill(&mut block);
        block
    };
    let zeroes = |block: &[u8]| {
        let entry = BlockEntry::of(BlockName::Zeroes, Sequence(1), block);
        ZeroesEntry::parse_all(block, &entry).map_err(|error| error.to_string())
    };
    assert_eq!(zeroes(&list(&|_| ())), Ok(vec![]));
    let behind = zeroes(&list(&|block| block[4095] = 1));
    assert_eq!(behind, Err("zeroes block: reserve is 0x01 at byte 4095, expected zeroes".into()));
    let empty = zeroes(&list(&|block| block[0] = 5));
    assert_eq!(
        empty,
        Err("zeroes block: blocks is 0 from block 5 on, expected a range of an array's blocks".into())
    );
    let flags = zeroes(&list(&|block| block[8..13].copy_from_slice(&[1, 0, 0, 0, 2])));
    assert_eq!(flags, Err("zeroes block: flags is 0x2, expected 0 or 1 (lost)".into()));
    let block = list(&|block| block[8] = 1);
    let entry = BlockEntry::of(BlockName::Zeroes, Sequence(1), &block);
    let found = EmptiedEntry::parse_all(&block, &entry).map_err(|error| error.to_string());
    assert_eq!(found, Err("emptied block: lba is zeroes, expected emptied segments".into()));
    let entry = BlockEntry::of(BlockName::Emptied, Sequence(1), &block);
    let found = EmptiedEntry::parse_all(&block, &entry).map_err(|error| error.to_string());
    assert_eq!(found, Err("emptied block: segment is 0, expected a number from 1".into()));
}

#[test]
fn names_of_blocks_are_the_papers_where_it_has_one() {
    assert_eq!(BlockName::User(7).to_word(), 7 * 4096, "an address in bytes");
    assert_eq!(BlockName::Mapping(512).to_word(), 512 * 4096 + 1, "its lowest bit");
    assert_eq!(BlockName::Padding.to_word(), u64::MAX);
    assert_eq!(BlockName::from_word(9), None);
    assert_eq!(BlockName::from_word(u64::MAX - 1), None);
    assert_eq!(BlockName::from_word(4096 + 2), None, "zeroes have no address");
    for name in
        [BlockName::User(BlockName::LBA_MAX), BlockName::Lost(3), BlockName::Fence(1), BlockName::Zeroes]
    {
        assert_eq!(BlockName::from_word(name.to_word()), Some(name));
    }
}
