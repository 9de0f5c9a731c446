//! Members and zones that fail, blocks that are wrong without an error, members that are missing or empty at a start.

use std::rc::Rc;

use super::open::columns_of;
use super::port::Blame;
use super::serve_tests::{ACCESSES, shapes};
use super::world::*;
use super::zone_budget::Purpose;
use crate::buffer::{Gather, Slice};
use crate::device::DeviceErrorKind;
use crate::events::Event;
use crate::limits::BLOCK_BYTES;
use crate::members::MemberState;
use crate::volume::Space;
use crate::zone_device::memory::MemoryZones;
use crate::zone_device::{ZoneAccess, ZoneDevice, ZoneState};
use layout::geometry::Level;
use layout::zoned::Class;

pub(crate) fn write_all(world: &World, array: &Array, version: u64) {
    for block in (0..world.shape.logical_blocks).step_by(8) {
        let blocks = (world.shape.logical_blocks - block).min(8);
        let data: Vec<u8> = (block..block + blocks).flat_map(|block| pattern(block, version)).collect();
        array.write(world, block, &data).unwrap_or_else(|error| panic!("{:?}: {error}", world.shape));
    }
}

pub(crate) fn check_all(world: &World, array: &Array, version: u64, context: &str) {
    for block in 0..world.shape.logical_blocks {
        let read = array.read(world, block, 1);
        let read = read.unwrap_or_else(|error| panic!("{:?} {context}: block {block}: {error}", world.shape));
        assert!(read == pattern(block, version), "{:?} {context}: block {block} is another", world.shape);
    }
}

pub(crate) fn redundant() -> impl Iterator<Item = Shape> {
    shapes().filter(|shape| shape.level != Level::Raid0)
}

pub(crate) fn pull(device: &MemoryZones) {
    device.set_fault(|_, _| Some(DeviceErrorKind::Gone));
}

/// After a member is lost new segments are narrower, and what is written then survives one more loss at once.
#[test]
fn there_are_no_degraded_writes() {
    for shape in redundant() {
        let world = World::new(shape, 5);
        let array = world.start().expect("a new array");
        write_all(&world, &array, 1);
        pull(&world.devices[1]);
        write_all(&world, &array, 2);
        check_all(&world, &array, 2, "one member lost");
        assert_eq!(
            world.saved.borrow().states[1],
            MemberState::Failed,
            "Z-I2: it is in the superblocks by now"
        );
        write_all(&world, &array, 3);
        pull(&world.devices[2]);
        check_all(&world, &array, 3, "another is lost after it");
    }
}

/// What was written before a member was lost is written anew over the others: it survives as many more losses as the level says.
#[test]
fn redundancy_is_restored_into_free_space() {
    for shape in redundant() {
        let world = World::new(shape, 15);
        let array = world.start().expect("a new array");
        write_all(&world, &array, 1);
        pull(&world.devices[1]);
        // Writes of both classes, so that no segment with the member stays open.
        let long: Vec<u8> = (0..30).flat_map(|block| pattern(block, 1)).collect();
        array.write(&world, 0, &long).expect("a long write");
        array.write(&world, 0, &pattern(0, 1)).expect("a short write");
        let left = super::reclaim::lacking(&array.set.0.port.shared);
        assert!(left.is_empty(), "{shape:?}: {} segments lack a column", left.len());
        pull(&world.devices[2]);
        if shape.level == Level::Raid6 {
            pull(&world.devices[3]);
        }
        for block in 0..shape.logical_blocks {
            let read = array.read(&world, block, 1);
            let read = read.unwrap_or_else(|error| panic!("{shape:?}: block {block}: {error}"));
            assert!(read == pattern(block, 1), "{shape:?}: block {block} is another");
        }
    }
}

/// An array without a member and without room for narrower segments: what a read lacks is made of one read of each other column for
/// blocks that lie side by side. In virtual time on a drive's times 16 KiB took four reads one after the other.
#[test]
fn blocks_side_by_side_are_made_at_once() {
    for access in ACCESSES {
        let shape = Shape { access, logical_blocks: 4000, ..RAID5 };
        let mut world = World::new(shape, 8);
        let array = world.start().expect("a new array");
        // Whole stripes of large records.
        for first in (0..shape.logical_blocks).step_by(24) {
            let blocks = first..shape.logical_blocks.min(first + 24);
            let data: Vec<u8> = blocks.flat_map(|block| pattern(block, 1)).collect();
            array.write(&world, first, &data).expect("a write");
        }
        array.stop(&world).expect("a stop");
        drop(array);
        world.absent = vec![1];
        let array = world.start().expect("a start without it");
        let reconstructed = || array.set.0.port.counters().reconstructed_reads.get();
        let (blocks, before) = (480, reconstructed());
        let read = array.read(&world, 0, blocks).expect("a read");
        let wanted: Vec<u8> = (0..blocks).flat_map(|block| pattern(block, 1)).collect();
        assert!(read == wanted, "{access:?}: a block is another");
        let (lost, made) = (blocks / 4, reconstructed() - before);
        assert!((1..=lost / 2).contains(&made), "{access:?}: {made} times for about {lost} lost blocks");
        // One block of another column that cannot be read takes no others along.
        let bad = std::rc::Rc::new(std::cell::Cell::new(true));
        let own = std::rc::Rc::clone(&bad);
        world.devices[2].set_fault(move |operation, _| {
            (operation == "read" && own.replace(false)).then_some(DeviceErrorKind::Io)
        });
        let read = array.read(&world, 0, blocks).expect("a read, one of whose member reads failed");
        assert!(read == wanted && !bad.get(), "{access:?}: after a failed read a block is another");
    }
}

#[test]
fn what_is_acknowledged_after_a_failure_outlives_a_crash_without_the_member() {
    for shape in redundant() {
        for seed in 0..4 {
            let mut world = World::new(shape, seed);
            let array = world.start().expect("a new array");
            write_all(&world, &array, 1);
            pull(&world.devices[3]);
            write_all(&world, &array, 2);
            array.flush(&world).expect("a flush");
            world.cut(&array.executor, &mut Chance(seed));
            world.absent = vec![3];
            let array = world.start().expect("a start without it");
            check_all(&world, &array, 2, "after the crash");
            write_all(&world, &array, 3);
            check_all(&world, &array, 3, "later");
        }
    }
}

/// A write that waits for a zone of a member goes on without it when the member fails: the next segment needs no zone of it.
#[test]
fn no_write_waits_for_zones_of_a_member_that_has_failed() {
    for shape in redundant().filter(|shape| shape.access != ZoneAccess::Placed) {
        let world = World::new(shape, 3);
        let array = world.start().expect("a new array");
        let port = Rc::clone(&array.set.0.port);
        while port.shared.table.take(&[1], 0, Purpose::Recovery).is_ok() {}
        let (set, data) = (Rc::clone(&array.set), Gather::from(Slice::from_bytes(&pattern(0, 1))));
        let writing = array.executor.spawn_with_result(async move { set.write(0, data, false).await });
        world.run(&array.executor);
        assert!(writing.try_take().is_none(), "{shape:?}: as many zones of the member are active as may be");
        assert_eq!(port.fail(1, "it was pulled"), Blame::Member);
        world.run(&array.executor);
        let written = writing.try_take().expect("the write ends");
        written.unwrap_or_else(|error| panic!("{shape:?}: {error}"));
        assert!(array.read(&world, 0, 1).expect("readable") == pattern(0, 1));
    }
}

/// A zone that cannot be written costs its segment, not its member.
#[test]
fn a_zone_that_fails_closes_its_segment_early() {
    for shape in shapes() {
        let world = World::new(shape, 6);
        let array = world.start().expect("a new array");
        write_all(&world, &array, 1);
        let bad = 2 + array.set.0.port.shared.table.all().len() as u32;
        let mut left = 2;
        world.devices[0].set_fault(move |name, zone| {
            let fails = (name == "append" || name == "write") && zone == bad && left > 0;
            left -= i32::from(fails);
            fails.then_some(DeviceErrorKind::Io)
        });
        for version in 2..5 {
            write_all(&world, &array, version);
        }
        check_all(&world, &array, 4, "a zone failed");
        assert_eq!(array.set.0.port.shared.members.states(), vec![MemberState::InSync; shape.members]);
        let errors =
            world.events.lock().iter().filter(|event| matches!(event, Event::MemberError { .. })).count();
        assert!(errors > 0, "{shape:?}: the zone was written");
        array.flush(&world).expect("a flush");
        world.cut(&array.executor, &mut Chance(1));
        check_all(&world, &world.start().expect("a start"), 4, "after a crash");
    }
}

#[test]
fn a_read_only_zone_does_not_fail_its_member() {
    for access in ACCESSES {
        let world = World::new(Shape { access, ..RAID5 }, 7);
        let array = world.start().expect("a new array");
        write_all(&world, &array, 1);
        let open = (2..world.shape.zones).find(|zone| world.devices[2].zone(*zone).state.is_open());
        let Some(open) = open else { continue }; // a placed device has no such state
        world.devices[2].turn(open, ZoneState::ReadOnly);
        write_all(&world, &array, 2);
        check_all(&world, &array, 2, "a zone is read-only");
        assert_eq!(array.set.0.port.shared.members.state(2), MemberState::InSync);
        array.flush(&world).expect("a flush");
        world.cut(&array.executor, &mut Chance(2));
        check_all(&world, &world.start().expect("a start"), 2, "after a crash");
    }
}

/// Z-I12: any one byte that is wrong on a member, wherever it is, changes nothing that is read; also at the next start.
#[test]
fn wrong_blocks_are_made_from_the_others() {
    for shape in redundant() {
        for clean in [false, true] {
            let world = World::new(shape, 8);
            let array = world.start().expect("a new array");
            write_all(&world, &array, 1);
            array.flush(&world).expect("a flush");
            if clean {
                array.stop(&world).expect("a stop");
            }
            let (mut chance, mut flipped) = (Chance(9), 0);
            for _ in 0..2000 {
                let member = chance.below(shape.members as u64) as usize;
                let zone = 2 + chance.below(u64::from(shape.zones) - 2) as u32;
                let at = chance.below(shape.zone_blocks * BLOCK_BYTES as u64);
                let block = || world.devices[member].peek(zone, at - at % BLOCK_BYTES as u64, BLOCK_BYTES);
                let right = block();
                world.devices[member].flip(zone, at);
                if block() == right {
                    continue; // nothing was written there
                }
                flipped += 1;
                check_all(&world, &array, 1, &format!("member {member} zone {zone} byte {at}"));
                world.devices[member].flip(zone, at);
                if flipped == 30 {
                    break;
                }
            }
            assert_eq!(flipped, 30, "{shape:?}: bytes of what was written");
            let (member, zone, block) = (chance.below(shape.members as u64) as usize, 2, chance.below(40));
            world.devices[member].flip(zone, block * BLOCK_BYTES as u64 + 100);
            world.cut(&array.executor, &mut Chance(1));
            let array = world.start().expect("a start");
            check_all(&world, &array, 1, &format!("restarted, member {member} zone {zone} block {block}"));
        }
    }
}

/// With any one member missing, or replaced by an empty one, the array starts, and nothing that is mapped is reset: the
/// released prototype erases the array there.
#[test]
fn no_start_without_a_member_resets_what_is_mapped() {
    for shape in redundant() {
        for (slot, empty) in (0..shape.members).flat_map(|slot| [(slot, false), (slot, true)]) {
            let mut world = World::new(shape, 10);
            let array = world.start().expect("a new array");
            write_all(&world, &array, 1);
            array.flush(&world).expect("a flush");
            world.cut(&array.executor, &mut Chance(slot as u64));
            let context = format!("member {slot} {}", if empty { "empty" } else { "missing" });
            if empty {
                world.devices[slot] = MemoryZones::new(world.devices[slot].zoned().clone(), 4096, "empty");
            } else {
                world.absent = vec![slot];
            }
            let array = world.start().unwrap_or_else(|error| panic!("{shape:?} {context}: {error}"));
            check_all(&world, &array, 1, &context);
            array.self_check();
            write_all(&world, &array, 2);
            check_all(&world, &array, 2, &context);
        }
    }
}

#[test]
fn a_start_with_too_few_members_is_refused_and_changes_nothing() {
    for shape in redundant().filter(|shape| matches!(shape.level, Level::Raid4 | Level::Raid5)) {
        let mut world = World::new(shape, 11);
        let array = world.start().expect("a new array");
        write_all(&world, &array, 1);
        array.flush(&world).expect("a flush");
        world.cut(&array.executor, &mut Chance(1));
        let before = world.image();
        world.absent = vec![0, 2];
        let error = world.start().err().expect("two are missing").to_string();
        assert!(error.contains("lacks 2 of its 4 columns"), "{error}");
        assert!(before == world.image(), "nothing was written");
        world.absent.clear();
        world.saved.borrow_mut().states = vec![MemberState::InSync; shape.members];
        check_all(&world, &world.start().expect("a start"), 1, "all are back");
    }
}

/// Z-I10: a log of which every segment was used many times still has room for recovery, after any number of crashes.
#[test]
fn a_log_that_is_nearly_full_starts_after_any_number_of_crashes() {
    for access in ACCESSES {
        let world = World::new(Shape { access, zones: 12, ..RAID5 }, 12);
        let mut array = world.start().expect("a new array");
        let mut version = 0;
        let mut write = |world: &World, array: &Array| {
            version += 1;
            let written = array.write(world, version % 100, &pattern(version % 100, version));
            written.unwrap_or_else(|error| panic!("{access:?} version {version}: {error}"));
            version
        };
        let mut newest = 0;
        while array.set.0.port.shared.space.totals().emptied_segments < 20 {
            newest = write(&world, &array);
        }
        for seed in 0..10 {
            array.flush(&world).expect("a flush");
            world.cut(&array.executor, &mut Chance(seed));
            array = world.start().unwrap_or_else(|error| panic!("{access:?} crash {seed}: {error}"));
            for block in 0..100 {
                let expected = (0..=newest).rev().find(|version| version % 100 == block).expect("written");
                let read = array.read(&world, block, 1).expect("a read");
                assert!(read == pattern(block, expected), "block {block} after crash {seed}");
            }
            newest = write(&world, &array);
        }
    }
}

/// Z-I16: a start never hands out the number of a segment that a run before it may have used, however short it was.
#[test]
fn segment_numbers_never_come_twice() {
    let world = World::new(RAID5, 13);
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..5 {
        let array = world.start().expect("a start");
        let before: Vec<u64> =
            array.set.0.port.shared.table.all().iter().map(|segment| segment.number()).collect();
        (0..6).for_each(|version| write_all(&world, &array, seed * 6 + version)); // more than are reserved at first
        for segment in array.set.0.port.shared.table.all() {
            let is_new = seen.insert((segment.number(), segment.headers[0].tag));
            assert!(is_new || before.contains(&segment.number()), "{} again", segment.number());
        }
        let numbers = seen.iter().map(|(number, _)| number).collect::<std::collections::BTreeSet<_>>();
        assert_eq!(numbers.len(), seen.len(), "one tag for each number");
        world.cut(&array.executor, &mut Chance(seed));
    }
}

/// Z-I7: FUA alone, with every cache lost at the cut.
#[test]
fn a_durable_write_needs_no_flush() {
    for shape in shapes() {
        let world = World::new(shape, 14);
        let array = world.start().expect("a new array");
        let set = Rc::clone(&array.set);
        let data = crate::buffer::Gather::from(crate::buffer::Slice::from_bytes(&pattern(9, 1)));
        array.write(&world, 3, &pattern(3, 1)).expect("a write that is not durable");
        array
            .wait(&world, async move { set.write(9 * BLOCK_BYTES as u64, data, true).await })
            .expect("a write");
        for device in &world.devices {
            device.cut(|_, durable, _| durable, |_| false);
        }
        array.executor.abandon();
        let array = world.start().expect("a start");
        assert!(array.read(&world, 9, 1).expect("a read") == pattern(9, 1), "{shape:?}");
    }
}

/// Section 7: what is written after a failure is fully redundant while that fits, and is redundant by one less where it does not.
#[test]
fn segments_are_narrower_while_what_is_live_fits_into_narrower_ones() {
    let config = World::new(RAID5, 1).config();
    let shape = config.shape(Class::Small, 3).expect("a shape");
    let room =
        u64::from(config.slots() - super::config::RESERVED_SEGMENTS as u32) * u64::from(shape.rows()) * 2;
    let narrow = vec![(0, true), (1, true), (3, true)];
    let left_out = vec![(0, true), (1, true), (2, false), (3, true)];
    for (live, expected) in [(0, &narrow), (room * 10 / 11, &narrow), (room, &left_out)] {
        assert_eq!(&columns_of(&config, 4, &[0, 1, 3], live), expected, "{live} of {room}");
    }
    let whole: Vec<(usize, bool)> = (0..4).map(|slot| (slot, true)).collect();
    assert_eq!(
        columns_of(&config, 4, &[0, 1, 2, 3], room * 2),
        whole,
        "without a failure nothing is left out"
    );
}

/// Of a RAID-6 of four that lost two the least that the level takes is one data column of three, of a RAID-10 of four that lost one a pair:
/// half of what the array had. A full one goes on over all of its columns.
#[test]
fn what_a_level_takes_at_least_is_no_narrower_segment_for_a_full_array() {
    for (level, in_sync) in [(Level::Raid6, &[0, 3][..]), (Level::Raid10, &[0, 1, 3])] {
        let config = World::new(Shape { level, members: 4, ..RAID5 }, 1).config();
        let narrow = if level == Level::Raid6 { 3 } else { 2 };
        let shape = config.shape(Class::Small, narrow).expect("a shape");
        let room =
            u64::from(config.slots() - super::config::RESERVED_SEGMENTS as u32) * u64::from(shape.rows());
        let columns = |live| columns_of(&config, 4, in_sync, live);
        assert_eq!(columns(room * 10 / 11).len(), usize::from(narrow), "{level:?}");
        let left_out: Vec<(usize, bool)> = (0..4).map(|slot| (slot, in_sync.contains(&slot))).collect();
        assert_eq!(columns(room), left_out, "{level:?}");
    }
}
