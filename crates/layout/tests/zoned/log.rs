//! The superblock log: after any number of superblocks, and a power cut at any moment of one more, the newest is found.

use layout::zoned::superblock_log::{
    LOG_TAIL_BLOCKS, LogCursor, LogStep, LogZone, PLACED_LOG_BLOCKS, blocks_to_read, log_blocks, newest,
};
use layout::zoned::{Access, LogPlace, Superblock, ZonedError};

use crate::samples::{self, Dice};

/// The two zones of a member.
#[derive(Clone)]
struct Zones {
    blocks: [Vec<Vec<u8>>; 2],
    has_pointer: bool,
}

impl Zones {
    fn write(&mut self, place: LogPlace, bytes: Vec<u8>) {
        let zone = &mut self.blocks[place.zone as usize];
        let block = place.block as usize;
        assert!(
            block <= zone.len() && (!self.has_pointer || block == zone.len()),
            "{place:?} off the pointer"
        );
        if block == zone.len() { zone.push(bytes) } else { zone[block] = bytes }
    }

    fn reset(&mut self, zone: u32) {
        if self.has_pointer {
            self.blocks[zone as usize].clear();
        }
    }

    fn read(&self) -> Option<(Superblock, LogCursor)> {
        newest([0, 1].map(|zone: u32| {
            let blocks = &self.blocks[zone as usize];
            let written = self.has_pointer.then_some(blocks.len() as u32);
            let read = |block: u32| {
                let bytes = blocks.get(block as usize).map_or(&[] as &[u8], |bytes| bytes);
                (block, Superblock::parse(bytes, LogPlace { zone, block }))
            };
            let blocks = blocks_to_read(written).map(read).collect();
            LogZone { written_blocks: written.unwrap_or(0), blocks }
        }))
    }
}

fn superblock(access: Access) -> Superblock {
    let (mut superblock, _) = samples::superblock(&mut Dice(5));
    superblock.sequence = 0;
    superblock.zones.access = access;
    superblock.zones.capacity_blocks = u32::from(superblock.plan.large_blocks) + 2 + 5;
    superblock.zones.zone_blocks = superblock.zones.capacity_blocks + 3;
    superblock
}

#[test]
fn the_newest_is_found_after_a_cut_at_any_moment() {
    for access in [Access::Append, Access::Sequential, Access::Placed] {
        let mut own = superblock(access);
        let mut zones = Zones { blocks: [vec![], vec![]], has_pointer: access != Access::Placed };
        assert!(zones.read().is_none(), "an empty log");
        let mut cursor = LogCursor::new(&own.zones);
        let rounds = u64::from(log_blocks(&own.zones)) * 5;
        let mut changes = 0;
        for sequence in 1..=rounds {
            own.sequence = sequence;
            let before = zones.clone();
            let place = match cursor.next() {
                LogStep::Append(place) => place,
                LogStep::Change(place) => {
                    changes += 1;
                    zones.reset(place.zone);
                    expect(&zones, sequence - 1, "after the reset");
                    place
                }
            };
            let whole = own.encode(place);
            for torn_bytes in [1, 512, 2048, 4095] {
                let mut torn = if place.block == 0 { zones.clone() } else { before.clone() };
                let mut bytes = whole.clone();
                bytes[torn_bytes..].fill(0xee);
                torn.write(place, bytes);
                expect(&torn, sequence - 1, "torn");
            }
            zones.write(place, whole);
            cursor.wrote(place);
            let (found, at) = zones.read().expect("superblocks");
            assert_eq!((found, at), (own.clone(), cursor), "{access:?} {sequence}");
        }
        assert!(changes >= 4, "{changes} changes");
    }
}

fn expect(zones: &Zones, sequence: u64, when: &str) {
    let found = zones.read().map_or(0, |(superblock, _)| superblock.sequence);
    assert_eq!(found, sequence, "{when}");
}

/// On a zone with a write pointer the log goes on behind a torn block, on software zones over it.
#[test]
fn the_log_goes_on_after_torn_blocks() {
    for (access, next) in [(Access::Sequential, 4), (Access::Placed, 3)] {
        let own = superblock(access);
        let mut zones = Zones { blocks: [vec![], vec![]], has_pointer: access != Access::Placed };
        for block in 0..3 {
            zones.write(LogPlace { zone: 0, block }, own.encode(LogPlace { zone: 0, block }));
        }
        zones.write(LogPlace { zone: 0, block: 3 }, vec![0xee; 4096]);
        let (_, cursor) = zones.read().expect("superblocks");
        assert_eq!(cursor.next(), LogStep::Append(LogPlace { zone: 0, block: next }));
    }
}

#[test]
fn a_bad_tail_is_looked_through() {
    let own = superblock(Access::Append);
    let place = LogPlace { zone: 1, block: 0 };
    let mut zones = Zones { blocks: [vec![], vec![own.encode(place)]], has_pointer: true };
    for _ in 1..LOG_TAIL_BLOCKS {
        zones.blocks[1].push(vec![0xee; 4096]);
        assert_eq!(zones.read().map(|(superblock, _)| superblock), Some(own.clone()));
    }
    zones.blocks[1].push(vec![0xee; 4096]);
    assert!(zones.read().is_none());
    assert_eq!(blocks_to_read(Some(4)), 0..4);
    assert_eq!(blocks_to_read(None), 0..PLACED_LOG_BLOCKS);
}

#[test]
fn a_superblock_is_refused_at_another_place() {
    let own = superblock(Access::Placed);
    let block = own.encode(LogPlace { zone: 0, block: 3 });
    let found = Superblock::parse(&block, LogPlace { zone: 0, block: 4 });
    assert!(matches!(found, Err(ZonedError::Foreign { field: "block", .. })), "{found:?}");
    let found = Superblock::parse(&block, LogPlace { zone: 1, block: 3 });
    assert!(matches!(found, Err(ZonedError::Foreign { field: "zone", .. })), "{found:?}");
}
