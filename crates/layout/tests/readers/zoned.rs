//! The readers of zoned members.

use layout::zoned::{Carrier, EmptiedEntry, MapEntryBytes, MapShape, MappingBlock, ZeroesEntry};

use crate::samples::{self, Dice};
use crate::{entries, mutate};

const SEEDS: u64 = 12;

/// Without the zeroes at its end, which the entries add.
fn trimmed(block: &[u8]) -> &[u8] {
    let end = block.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
    &block[..end]
}

#[test]
fn superblocks() {
    let seed = |seed| {
        let (superblock, place) = samples::superblock(&mut Dice(seed));
        trimmed(&superblock.encode(place)).to_vec()
    };
    mutate("zoned_superblock", &(0..SEEDS).map(seed).collect::<Vec<_>>(), entries::zoned_superblock);
}

/// A header, and behind it what a zone like its own holds.
#[test]
fn segments() {
    let mut seeds = Vec::new();
    for seed in 0..SEEDS {
        let mut dice = Dice(seed);
        let (header, place) = samples::header(&mut dice);
        let block = header.encode(place);
        assert!(block[entries::HEADER_BYTES..].iter().all(|byte| *byte == 0), "an input has all of a header");
        let held = match header.shape.plan().carrier {
            Carrier::Inband => samples::record(&mut dice, &header).encode(&header),
            Carrier::Oob => samples::oob(&mut dice, &header).0.encode(&header).to_vec(),
        };
        let block = &block[..entries::HEADER_BYTES];
        seeds.push([block, trimmed(&held)].concat());
        let (footer, _) = samples::footer(&mut dice, &header);
        seeds.push([block, trimmed(&footer.encode(&header))].concat());
        seeds.push([block, trimmed(&samples::fence(&mut dice, &header).encode(&header))].concat());
    }
    for seed in &seeds {
        let (header, ..) = entries::segment_of(seed).expect("a header that is believed");
        assert!(header.shape.rows() > 0);
    }
    mutate("zoned_segment", &seeds, entries::zoned_segment);
}

#[test]
fn maps() {
    let mut seeds = Vec::new();
    for (seed, bytes) in (0..SEEDS).zip([MapEntryBytes::Four, MapEntryBytes::Eight].into_iter().cycle()) {
        let mut dice = Dice(seed);
        let columns = dice.below(16) as u8 + 1;
        let narrow = u8::from(bytes == MapEntryBytes::Four);
        let shape = MapShape::new(bytes, columns, 1000).expect("columns and blocks");
        let words: Vec<u64> =
            (0..99).map(|_| shape.word(samples::map_entry(&mut dice, &shape, columns, 1000))).collect();
        for block in [
            MappingBlock::encode(&words, &shape),
            ZeroesEntry::encode_all(&samples::zeroes(&mut dice)),
            EmptiedEntry::encode_all(&samples::emptied(&mut dice)),
            samples::root(&mut dice).encode([7; 16]),
            samples::table(&mut dice).encode([7; 16]),
        ] {
            seeds.push([&[columns, narrow][..], trimmed(&block)].concat());
        }
    }
    mutate("zoned_map", &seeds, entries::zoned_map);
}
