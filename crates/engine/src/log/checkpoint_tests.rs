//! Checkpoints and a map larger than its memory: a start reads what came after, memory is bounded, and what cannot be used is done
//! without.

use super::checkpoint::checkpoint;
use super::config::{MapLimits, RESERVED_SEGMENTS, SUPERBLOCK_ZONES};
use super::failure_tests::{pull, redundant};
use super::open::Stream;
use super::paging::all_entries;
use super::reclaim::lacking;
use super::segment::Segment;
use super::serve_tests::shapes;
use super::world::*;
use super::zone_budget::Purpose;
use crate::device::DeviceErrorKind;
use crate::error::VolumeError;
use crate::executor::yield_now;
use crate::limits::BLOCK_BYTES;
use crate::zone_device::ZoneAccess;
use crate::zone_device::memory::MemoryZones;
use layout::geometry::Level;
use layout::zoned::{BlockName, Carrier, Class, MapEntry, MapEntryBytes, RootBlock};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

const NEVER: Option<usize> = Some(usize::MAX);

/// A shape whose groups have so few blocks that there are fifty.
fn paged(shape: Shape, groups: Option<usize>, changed: Option<usize>) -> Shape {
    Shape { map_entries: 4, map_limits: MapLimits { groups, changed }, ..shape }
}

fn fill(world: &World, array: &Array, blocks: impl Iterator<Item = u64>, version: u64) {
    for block in blocks {
        array.write(world, block, &pattern(block, version)).expect("written");
    }
}

fn holds(world: &World, array: &Array, blocks: impl Iterator<Item = u64>, version: u64) {
    for block in blocks {
        let read = array.read(world, block, 1).expect("read");
        assert_eq!(read, pattern(block, version), "{:?}: block {block}", world.shape);
    }
}

/// Holds the counts of segments against the whole map.
fn counts_are_exact(world: &World, array: &Array) {
    let port = Rc::clone(&array.set.0.port);
    let read = Rc::clone(&port);
    let entries = array.wait(world, async move { all_entries(&read).await }).expect("every group is read");
    for slot in 0..port.shared.config.slots() {
        let is_there = |entry: &MapEntry| matches!(entry, MapEntry::At { place, .. } if place.slot == slot);
        let mapped = entries.iter().filter(|(_, entry)| is_there(entry)).count();
        assert_eq!(port.shared.table.mapped(slot) as usize, mapped, "slot {slot}");
        if let Some(valid) = &port.shared.valid {
            assert_eq!(valid.count(slot), Some(mapped as u32), "bits of slot {slot}");
        }
    }
    for (block, entry) in entries {
        let bit = port.shared.valid.as_ref().zip(entry.place()).map(|(valid, place)| valid.has(place));
        assert!(bit.is_none_or(|bit| bit == Some(true)), "the bit of block {block}");
    }
}

#[test]
fn a_start_after_a_stop_reads_the_checkpoint_and_nothing_of_the_segments_before() {
    for shape in shapes() {
        let world = World::new(paged(shape, None, NEVER), 1);
        let array = world.start().expect("an empty array");
        let blocks = shape.logical_blocks;
        fill(&world, &array, 0..blocks, 1);
        fill(&world, &array, (0..blocks).step_by(3), 2);
        array.stop(&world).expect("stopped");
        let array = world.start().expect("started again");
        let report = array.report;
        assert!(report.from_checkpoint && report.checkpoint_fault.is_none(), "{report:?}");
        assert!(report.left_out > 0 && report.replayed_groups == 0, "{report:?}");
        assert_eq!(array.set.0.port.shared.map.in_memory(), 0, "nothing was needed yet");
        holds(&world, &array, (0..blocks).step_by(3), 2);
        holds(&world, &array, (0..blocks).filter(|block| block % 3 > 0), 1);
        counts_are_exact(&world, &array);
    }
}

/// What came after the checkpoint is replayed over it, deletions too, and the groups that it changed, no others.
#[test]
fn a_start_after_a_crash_replays_what_came_after_the_checkpoint() {
    for shape in shapes() {
        let world = World::new(paged(shape, None, NEVER), 1);
        let array = world.start().expect("an empty array");
        let blocks = shape.logical_blocks;
        fill(&world, &array, 0..blocks, 1);
        array.stop(&world).expect("stopped");
        let array = world.start().expect("started again");
        fill(&world, &array, 4..9, 2);
        array.flush(&world).expect("flushed");
        world.kill(&array.executor);
        let array = world.start().expect("started after a crash");
        let report = array.report;
        assert!(report.from_checkpoint && report.left_out > 0, "{report:?}");
        assert_eq!(report.replayed_groups, 2, "{report:?}");
        holds(&world, &array, 4..9, 2);
        holds(&world, &array, (0..blocks).filter(|block| !(4..9).contains(block)), 1);
        counts_are_exact(&world, &array);
    }
}

/// Checkpoints come by themselves, when as much has changed as they are to bound.
#[test]
fn what_a_crash_costs_is_bounded_by_what_may_change() {
    let world = World::new(paged(RAID5, None, Some(8)), 1);
    let array = world.start().expect("an empty array");
    for version in 1..4 {
        fill(&world, &array, 0..RAID5.logical_blocks, version);
    }
    assert!(array.set.0.port.shared.checkpoints.written() >= 15, "one for each eight groups of 150");
    array.flush(&world).expect("flushed");
    world.kill(&array.executor);
    let array = world.start().expect("started after a crash");
    assert!(array.report.from_checkpoint, "{:?}", array.report);
    assert!(array.report.replayed_groups <= 16, "{:?}", array.report);
    holds(&world, &array, 0..RAID5.logical_blocks, 3);
    counts_are_exact(&world, &array);
}

#[test]
fn memory_is_bounded_and_every_block_is_found() {
    for shape in shapes() {
        let world = World::new(paged(shape, Some(6), None), 1);
        let array = world.start().expect("an empty array");
        let shared = Rc::clone(&array.set.0.port);
        let most = || shared.shared.map.in_memory();
        for version in 1..3 {
            for block in 0..shape.logical_blocks {
                fill(&world, &array, block..block + 1, version);
                assert!(most() <= 7, "{} groups in memory", most());
            }
        }
        holds(&world, &array, 0..shape.logical_blocks, 2);
        assert!(most() <= 7 && shared.shared.memory.read() > 0 && shared.shared.memory.written() > 0);
        array.stop(&world).expect("stopped");
        let array = world.start().expect("started again, from all that was written");
        assert!(!array.report.from_checkpoint, "there are none");
        holds(&world, &array, 0..shape.logical_blocks, 2);
    }
}

/// What reclaim brings into memory is let go again, though no request waits for room.
#[test]
fn reclaim_does_not_fill_the_memory_of_the_map() {
    let shape = Shape { zones: 20, zone_blocks: 32, ..paged(RAID5, Some(8), Some(16)) };
    let world = World::new(shape, 1);
    let array = world.start().expect("an empty array");
    let shared = Rc::clone(&array.set.0.port);
    for version in 1..12 {
        fill(&world, &array, 0..shape.logical_blocks, version);
        let in_memory = shared.shared.map.in_memory();
        assert!(in_memory <= 9, "{in_memory} groups in memory");
    }
    assert!(shared.shared.space.totals().emptied_segments > 10, "it was written over and over");
    holds(&world, &array, 0..shape.logical_blocks, 11);
}

/// After a start from a checkpoint it is not known which blocks of the segments before are mapped, until all groups were looked at.
#[test]
fn valid_bits_are_known_again_after_a_start() {
    for shape in shapes() {
        let world = World::new(paged(shape, Some(6), NEVER), 1);
        let array = world.start().expect("an empty array");
        fill(&world, &array, 0..shape.logical_blocks, 1);
        fill(&world, &array, (0..shape.logical_blocks).step_by(3), 2);
        array.stop(&world).expect("stopped");
        let array = world.start().expect("started again");
        let port = Rc::clone(&array.set.0.port);
        let valid = port.shared.valid.as_ref().expect("bits, since the map is larger than its memory");
        assert!(array.report.from_checkpoint, "{:?}", array.report);
        fill(&world, &array, (0..shape.logical_blocks).step_by(5), 3);
        for _ in 0..shape.logical_blocks {
            array.wait(&world, yield_now());
        }
        assert!(valid.are_known() && port.shared.map.in_memory() <= 7);
        counts_are_exact(&world, &array);
    }
}

/// Writes every block, and then again and again a fifth of them, so that reclaim moves what is left.
fn write_over_and_over(world: &World, array: &Array) {
    let blocks = 0..world.shape.logical_blocks;
    let is_written = |block: u64, round: u64| (block * 31 + round * 17) * 7919 % 101 < 20;
    fill(world, array, blocks.clone(), 0);
    for round in 1..40 {
        fill(world, array, blocks.clone().filter(|block| is_written(*block, round)), round);
    }
    for block in blocks {
        let newest = (1..40).filter(|round| is_written(block, *round)).max().unwrap_or(0);
        holds(world, array, block..block + 1, newest);
    }
    counts_are_exact(world, array);
}

/// Mapping blocks have a segment of their own where a drive has a zone to spare (Z-I9).
#[test]
fn mapping_blocks_lie_apart_where_a_zone_can_be_spared() {
    for (open_max, lie_apart) in [(None, true), (Some(8), true), (Some(7), false)] {
        let shape = Shape { open_max, zones: 60, zone_blocks: 32, ..paged(RAID5, Some(8), None) };
        let world = World::new(shape, 1);
        let array = world.start().expect("an empty array");
        write_over_and_over(&world, &array);
        let open = array.set.0.port.shared.table.unsealed();
        let open = open.iter().filter(|segment| segment.headers[0].class == Class::Reclaim).count();
        assert_eq!(open, if lie_apart { 2 } else { 1 }, "where {open_max:?} zones may be open");
    }
}

/// Z-I10: what is let go of takes no segment that reclaim needs, or the log would be full of segments that nothing can empty.
#[test]
fn mapping_blocks_leave_reclaim_its_segments() {
    for zones in [24, 27, 30] {
        for open_max in [None, Some(7)] {
            let shape = Shape { open_max, zones, zone_blocks: 32, ..paged(RAID5, Some(8), None) };
            let world = World::new(shape, 1);
            let array = world.start().expect("an empty array");
            write_over_and_over(&world, &array);
            let totals = array.set.0.port.shared.space.totals();
            assert!(totals.moved_blocks > 500, "{totals:?}");
        }
    }
}

/// Where space is short the lists of a checkpoint may begin in the segment of mapping blocks and end in one that reclaim has had open
/// for longer, whose number is lower.
#[test]
fn a_checkpoint_is_found_wherever_its_lists_went() {
    let mirrors = Shape { level: Level::Raid10, members: 2, ..RAID5 }; // a block a row
    for checkpoints in 1..40 {
        let world = World::new(paged(mirrors, Some(8), NEVER), 1);
        let array = world.start().expect("an empty array");
        let engine = Rc::clone(&array.set.0);
        let open = async move { engine.open.current(&engine.port, Stream::Moved).await.map(drop) };
        array.wait(&world, open).expect("reclaim's segment is open first");
        fill(&world, &array, 0..mirrors.logical_blocks, 1);
        let table = &array.set.0.port.shared.table;
        while table.take(&[0, 1], RESERVED_SEGMENTS, Purpose::User).is_ok() {}
        for _ in 0..checkpoints {
            let engine = Rc::clone(&array.set.0);
            array.wait(&world, async move { checkpoint(&engine).await }).expect("written");
        }
        world.kill(&array.executor);
        let array = world.start().expect("started after a crash");
        let report = array.report;
        assert!(report.from_checkpoint, "{checkpoints} checkpoints: {report:?}");
        holds(&world, &array, 0..mirrors.logical_blocks, 1);
    }
}

/// A request may need more groups than memory has room for.
#[test]
fn a_request_over_more_groups_than_memory_has_room_for_ends() {
    let world = World::new(paged(RAID5, Some(4), Some(6)), 1);
    let array = world.start().expect("an empty array");
    let all: Vec<u8> = (0..RAID5.logical_blocks).flat_map(|block| pattern(block, 1)).collect();
    for (number, part) in all.chunks(40 * BLOCK_BYTES).enumerate() {
        array.write(&world, number as u64 * 40, part).expect("written");
    }
    assert_eq!(array.read(&world, 0, RAID5.logical_blocks).expect("read"), all);
}

/// A map of three blocks of a root, of which two are needed: the third is in no memory and in no checkpoint until something near it is
/// written, and comes after the one that does not have it.
#[test]
fn a_checkpoint_has_no_more_than_what_was_written() {
    let shape = paged(Shape { logical_blocks: 3000, ..RAID5 }, None, NEVER);
    let world = World::new(shape, 1);
    let array = world.start().expect("an empty array");
    fill(&world, &array, (0..9).chain(2990..3000), 1);
    let engine = Rc::clone(&array.set.0);
    array.wait(&world, async move { checkpoint(&engine).await }).expect("written");
    let places =
        (SUPERBLOCK_ZONES..shape.zones).flat_map(|zone| (1..shape.zone_blocks).map(move |at| (zone, at)));
    let blocks = places.flat_map(|(zone, at)| {
        world.devices.iter().map(move |device| device.peek(zone, at * BLOCK_BYTES as u64, BLOCK_BYTES))
    });
    let roots = blocks.filter_map(|bytes| RootBlock::parse(&bytes, &world.config().set_uuid).ok());
    let found: BTreeSet<u32> = roots.map(|root| root.block.index).collect();
    assert_eq!(found.into_iter().collect::<Vec<u32>>(), [0, 2]);
    fill(&world, &array, 1500..1510, 2);
    array.flush(&world).expect("flushed");
    world.kill(&array.executor);
    let array = world.start().expect("started after a crash");
    assert!(array.report.from_checkpoint && array.report.replayed_groups > 0, "{:?}", array.report);
    assert_eq!(array.set.0.port.shared.map.root_blocks_there(), 3);
    holds(&world, &array, (0..9).chain(2990..3000), 1);
    holds(&world, &array, 1500..1510, 2);
    assert_eq!(array.read(&world, 700, 1), Ok(vec![0; BLOCK_BYTES]));
    counts_are_exact(&world, &array);
    let engine = Rc::clone(&array.set.0);
    array.wait(&world, async move { checkpoint(&engine).await }).expect("written");
    world.kill(&array.executor);
    let array = world.start().expect("started again");
    assert!(array.report.from_checkpoint && array.report.replayed_groups == 0, "{:?}", array.report);
    holds(&world, &array, 1500..1510, 2);
    counts_are_exact(&world, &array);
}

/// Nothing but the checkpoint is lost with it: the log tells all that it says.
#[test]
fn a_checkpoint_that_cannot_be_read_is_done_without() {
    for wanted in [BlockName::Root(0), BlockName::SegmentTable(0), BlockName::Mapping(0)] {
        let world = World::new(paged(RAID5, None, NEVER), 1);
        let array = world.start().expect("an empty array");
        fill(&world, &array, 0..RAID5.logical_blocks, 1);
        array.stop(&world).expect("stopped");
        let array = world.start().expect("started again");
        fill(&world, &array, 0..2, 2);
        array.flush(&world).expect("flushed");
        world.kill(&array.executor);
        let rows = rows_of(&world, wanted);
        assert!(!rows.is_empty(), "{wanted:?} is somewhere");
        for (zone, at, _) in rows {
            // A row with two wrong blocks is more than its level makes again.
            world.devices.iter().for_each(|device| device.flip(zone, at + 3000));
        }
        let array = world.start().expect("started without it");
        let report = array.report;
        assert!(report.checkpoint_fault.is_some() && !report.from_checkpoint, "{wanted:?}: {report:?}");
        holds(&world, &array, 0..2, 2);
        holds(&world, &array, 2..RAID5.logical_blocks, 1);
        counts_are_exact(&world, &array);
    }
}

/// The smallest history in which it matters that a block which a recovery moves keeps its sequence: a member loses a record of a
/// checkpoint's lists, a start moves them, and the next one knows them by their sequence.
#[test]
fn a_checkpoint_whose_lists_a_recovery_moved_is_found_by_the_next_start() {
    for wanted in [BlockName::Root(0), BlockName::SegmentTable(0)] {
        let world = World::new(paged(RAID5, None, NEVER), 1);
        let array = world.start().expect("an empty array");
        fill(&world, &array, 0..RAID5.logical_blocks, 1);
        let engine = Rc::clone(&array.set.0);
        array.wait(&world, async move { checkpoint(&engine).await }).expect("written");
        world.kill(&array.executor);
        for (zone, at, member) in rows_of(&world, wanted) {
            world.devices[member].flip(zone, at + 3000);
        }
        let array = world.start().expect("started without a record of it");
        let report = array.report;
        assert!(report.from_checkpoint && report.moved_stripes > 0, "{wanted:?}: {report:?}");
        fill(&world, &array, 0..2, 2);
        array.flush(&world).expect("flushed");
        world.kill(&array.executor);
        let array = world.start().expect("started again");
        assert!(array.report.from_checkpoint, "{wanted:?}: {:?}", array.report);
        holds(&world, &array, 0..2, 2);
        holds(&world, &array, 2..RAID5.logical_blocks, 1);
        counts_are_exact(&world, &array);
    }
}

/// A start that left segments out does not know where their records are. What a member held that fails after it is made all the same, also
/// where other versions of a block are in the same segment; and what counts of them is moved, and then survives one more loss.
#[test]
fn what_a_member_held_of_segments_that_were_left_out_is_made_from_the_others() {
    for shape in redundant().filter(|shape| shape.access == ZoneAccess::Append) {
        for (entry, lost) in [(MapEntryBytes::Eight, 0), (MapEntryBytes::Four, 1), (MapEntryBytes::Eight, 2)]
        {
            let world = World::new(paged(Shape { entry, ..shape }, None, NEVER), 1);
            let array = world.start().expect("an empty array");
            let blocks = shape.logical_blocks;
            fill(&world, &array, 0..blocks, 1);
            (2..5).for_each(|version| fill(&world, &array, (0..blocks).step_by(9), version));
            array.stop(&world).expect("stopped");
            let array = world.start().expect("started again");
            let shared = Arc::clone(&array.set.0.port.shared);
            let is_unread =
                |segment: &Arc<Segment>| segment.places.is_some() && segment.places_in_memory().is_none();
            assert!(shared.table.all().iter().any(is_unread), "{:?}", array.report);
            let all_is_there = || {
                holds(&world, &array, (0..blocks).step_by(9), 4);
                holds(&world, &array, (0..blocks).filter(|block| block % 9 > 0), 1);
            };
            pull(&world.devices[lost]);
            all_is_there();
            // Writes of both classes, so that no segment with the member stays open.
            let long: Vec<u8> = (1..9).flat_map(|block| pattern(block, 1)).collect();
            array.write(&world, 1, &long).expect("a long write");
            array.write(&world, 0, &pattern(0, 4)).expect("a short write");
            assert!(lacking(&shared).is_empty(), "{:?}", world.shape);
            pull(&world.devices[3]);
            all_is_there();
            counts_are_exact(&world, &array);
        }
    }
}

/// Reads of one member fail for a while, then those of another: that the first gave no places when they were asked for says nothing
/// of whether it gives them later.
#[test]
fn members_that_cannot_be_read_for_a_while_give_their_places_afterwards() {
    for shape in redundant().filter(|shape| shape.access == ZoneAccess::Append) {
        let world = World::new(paged(shape, None, NEVER), 1);
        let array = world.start().expect("an empty array");
        let blocks = shape.logical_blocks;
        fill(&world, &array, 0..blocks, 1);
        array.stop(&world).expect("stopped");
        let array = world.start().expect("started again");
        assert!(array.report.left_out > 0, "{:?}", array.report);
        let losses = array.set.0.port.shared.config.losses_survived();
        for first in 0..shape.members {
            let blind = (0..losses).map(|next| &world.devices[(first + next) % shape.members]);
            blind.clone().for_each(|device| {
                device.set_fault(|name, _| (name == "read").then_some(DeviceErrorKind::Io));
            });
            holds(&world, &array, 0..blocks, 1);
            blind.for_each(|device| device.set_fault(|_, _| None));
        }
        assert!(
            array.set.0.port.shared.members.are_all_in_sync(),
            "reads that fail take no member out of use"
        );
    }
}

/// A footer that was damaged after a checkpoint: the records tell where they are, and what a lost column held.
#[test]
fn records_tell_their_places_where_a_footer_is_damaged() {
    for carrier in [Carrier::Inband, Carrier::Oob] {
        let shape = Shape { access: ZoneAccess::Append, carrier, ..RAID5 };
        let world = World::new(paged(shape, None, NEVER), 1);
        let array = world.start().expect("an empty array");
        let blocks = shape.logical_blocks;
        fill(&world, &array, 0..blocks, 1);
        array.stop(&world).expect("stopped");
        let all =
            (SUPERBLOCK_ZONES..shape.zones).flat_map(|zone| (1..shape.zone_blocks).map(move |at| (zone, at)));
        for (zone, block) in all {
            let at = block * BLOCK_BYTES as u64;
            if world.devices[2].peek(zone, at, 8) == b"TwZonFt\0" {
                world.devices[2].flip(zone, at + 100);
            }
        }
        let array = world.start().expect("started again");
        assert!(array.report.left_out > 0, "{:?}", array.report);
        pull(&world.devices[1]);
        holds(&world, &array, 0..blocks, 1);
        assert!(array.set.0.port.counters().reconstructed_reads.get() > 0, "member 1 had some of them");
    }
}

/// Where nothing tells which records belong together, a read of what is lost is an error that says so.
#[test]
fn what_cannot_be_told_is_an_error_and_says_why() {
    let shape = Shape { access: ZoneAccess::Append, ..RAID5 };
    let world = World::new(paged(shape, None, NEVER), 1);
    let array = world.start().expect("an empty array");
    fill(&world, &array, 0..shape.logical_blocks, 1);
    array.stop(&world).expect("stopped");
    let array = world.start().expect("started again");
    [1, 2].iter().for_each(|lost| pull(&world.devices[*lost]));
    let reads = (0..shape.logical_blocks).map(|block| (block, array.read(&world, block, 1)));
    let (right, errors): (Vec<_>, Vec<_>) = reads.partition(|(_, read)| read.is_ok());
    assert!(!right.is_empty(), "what the other members hold");
    assert!(right.iter().all(|(block, read)| read.as_ref() == Ok(&pattern(*block, 1))));
    let says_why =
        |error: &VolumeError| error.to_string().contains("it cannot be told where the records of segment");
    assert!(errors.iter().any(|(_, read)| read.as_ref().is_err_and(says_why)), "{errors:?}");
}

/// Zone, offset and member of every block with this name: the first one of each row, whose parity may be like it.
fn rows_of(world: &World, wanted: BlockName) -> Vec<(u32, u64, usize)> {
    let magic: &[u8] = match wanted {
        BlockName::Root(_) => b"TwZonRt\0",
        BlockName::SegmentTable(_) => b"TwZonTb\0",
        _ => &[],
    };
    let mut rows = Vec::new();
    for zone in SUPERBLOCK_ZONES..world.shape.zones {
        for block in 1..world.shape.zone_blocks {
            let at = block * BLOCK_BYTES as u64;
            let is_it = |device: &MemoryZones| {
                let contents = device.peek(zone, at, BLOCK_BYTES);
                match magic {
                    [] => is_mapping(&contents),
                    magic => contents.starts_with(magic),
                }
            };
            rows.extend(world.devices.iter().position(is_it).map(|member| (zone, at, member)));
        }
    }
    rows
}

/// Four entries, and zeroes behind them: all ones.
fn is_mapping(contents: &[u8]) -> bool {
    contents[32..].iter().all(|byte| *byte == 0xff) && contents[..32].iter().any(|byte| *byte != 0xff)
}
