//! Members that are added while the array serves: new segments are over all of them, older ones are rewritten, at every level and
//! kind of member, with clients that write, and with a crash at any moment.

use super::config::MapLimits;
use super::failure_tests::{check_all, pull, write_all};
use super::reclaim::narrow;
use super::serve_tests::shapes;
use super::world::{Array, Chance, RAID5, Shape, World};
use crate::events::Event;
use crate::zone_device::ZoneDevice;
use crate::zone_device::memory::MemoryZones;
use layout::geometry::Level;

/// Devices for an array to grow by: mirrors grow by pairs.
fn added(world: &World) -> Vec<(MemoryZones, [u8; 16])> {
    let count = if world.shape.level == Level::Raid10 { 2 } else { 1 };
    let device = |member: u8| {
        let zoned = world.devices[0].zoned().clone();
        (MemoryZones::new(zoned, 4096, &format!("added {member}")), [90 + member; 16])
    };
    (0..count).map(device).collect()
}

/// Every segment is over all members, superblocks say so, and what is there survives what the level survives.
fn has_grown(world: &World, array: &Array, context: &str) {
    let (shared, shape) = (&array.set.0.port.shared, &world.shape);
    let width = shared.members.width();
    assert_eq!(width, world.devices.len(), "{shape:?} {context}");
    let narrower = shared.table.all().iter().filter(|segment| segment.headers.len() < width).count();
    assert_eq!(narrower, 0, "{shape:?} {context}: segments are narrower than the array");
    assert!(!shared.members.is_growing() && !world.saved.borrow().growing, "{shape:?} {context}");
    check_all(world, array, 1, context);
    array.self_check();
    for member in [1, 4].iter().take(shared.config.losses_survived()) {
        pull(&world.devices[*member]);
    }
    check_all(world, array, 1, context);
}

fn grow(world: &mut World, array: &Array) {
    let added = added(world);
    let growing = array.start_grow(world, added);
    world.run(&array.executor);
    assert_eq!(growing.try_take(), Some(true));
}

#[test]
fn segments_are_rewritten_over_all_members() {
    for shape in shapes() {
        let mut world = World::new(shape, 61);
        let array = world.start().expect("a new array");
        write_all(&world, &array, 1);
        array.flush(&world).expect("a flush");
        grow(&mut world, &array);
        let events = world.events.lock().clone();
        assert!(events.iter().any(|event| matches!(event, Event::GrowthStarted { .. })), "{events:?}");
        has_grown(&world, &array, "after it has grown");
    }
}

/// The size that clients see is greater from the next start on: a checkpoint of the smaller map is one of the larger map's.
#[test]
fn a_grown_array_starts_with_a_larger_map() {
    for changed in [None, Some(8)] {
        for groups in [None, Some(4)] {
            for shape in shapes() {
                let map_limits = MapLimits { groups, changed };
                let mut world = World::new(Shape { map_limits, map_entries: 16, ..shape }, 62);
                let array = world.start().expect("a new array");
                write_all(&world, &array, 1);
                grow(&mut world, &array);
                array.stop(&world).expect("a stop");
                world.shape.logical_blocks += world.shape.logical_blocks / 3;
                let array = world.start().unwrap_or_else(|error| panic!("{shape:?}: {error}"));
                let is_used = array.report.from_checkpoint;
                assert_eq!(is_used, changed.is_some(), "{shape:?}: {:?}", array.report.checkpoint_fault);
                let last = world.shape.logical_blocks - 1;
                assert_eq!(array.read(&world, last, 1).expect("a read"), vec![0; 4096], "{shape:?}");
                write_all(&world, &array, 1);
                has_grown(&world, &array, "after a start");
            }
        }
    }
}

/// Clients write while it grows, and what they write survives.
#[test]
fn clients_write_while_an_array_grows() {
    for shape in shapes() {
        for seed in 0..4 {
            let mut world = World::new(shape, 63 + seed);
            let array = world.start().expect("a new array");
            write_all(&world, &array, 1);
            let mut chance = Chance(seed);
            let added = added(&world);
            let growing = array.start_grow(&mut world, added);
            array.executor.run_ready(chance.below(600) as usize);
            for version in [2, 3, 1] {
                write_all(&world, &array, version);
            }
            assert_eq!(growing.try_take(), Some(true));
            has_grown(&world, &array, "with clients");
        }
    }
}

/// A power cut at any moment: either the array has its new members and goes on growing, or it is as it was.
#[test]
fn a_crash_in_the_middle_of_growing_loses_nothing() {
    for shape in shapes() {
        for seed in 0..8 {
            let mut world = World::new(shape, 64 + seed);
            let array = world.start().expect("a new array");
            write_all(&world, &array, 1);
            array.flush(&world).expect("a flush");
            let mut chance = Chance(seed);
            let added = added(&world);
            let growing = array.start_grow(&mut world, added);
            array.executor.run_ready(chance.below(4000) as usize);
            drop(growing);
            world.cut(&array.executor, &mut chance);
            let members = world.saved.borrow().uuids.len();
            world.devices.truncate(members);
            let array = world.start().unwrap_or_else(|error| panic!("{shape:?}, seed {seed}: {error}"));
            world.run(&array.executor);
            write_all(&world, &array, 1); // closes what is open and narrow, if it goes on
            array.set.0.port.shared.space.want();
            world.run(&array.executor);
            has_grown(&world, &array, "after the crash");
        }
    }
}

/// A member that fails while the array grows is not waited for: what is written is as redundant as the level says, and growing goes on
/// when another has its place.
#[test]
fn a_member_that_fails_meanwhile_stops_growing_until_it_is_made_whole() {
    for shape in super::failure_tests::redundant() {
        let mut world = World::new(shape, 65);
        let array = world.start().expect("a new array");
        write_all(&world, &array, 1);
        let added = added(&world);
        let growing = array.start_grow(&mut world, added);
        let shared = std::sync::Arc::clone(&array.set.0.port.shared);
        while !shared.members.is_growing() {
            array.executor.run_ready(1);
        }
        pull(&world.devices[0]);
        write_all(&world, &array, 2);
        write_all(&world, &array, 1);
        drop(growing);
        assert!(shared.members.is_growing(), "{shape:?}");
        assert!(narrow(&shared).is_empty(), "{shape:?}: no segment is rewritten into one that is no wider");
        check_all(&world, &array, 1, "a member failed");
        let device = MemoryZones::new(world.devices[1].zoned().clone(), 4096, "another");
        array.join(&mut world, 0, device, [80; 16]);
        world.run(&array.executor);
        has_grown(&world, &array, "after another came");
    }
}

/// Nearly full, with the reserve of a quarter: there is always a segment to rewrite into.
#[test]
fn a_full_array_grows() {
    for shape in [RAID5, Shape { level: Level::Raid6, ..RAID5 }, Shape { level: Level::Raid0, ..RAID5 }] {
        let shape = super::reclaim_tests::with_reserve(shape, 25);
        let mut world = World::new(shape, 66);
        let array = world.start().expect("a new array");
        write_all(&world, &array, 2);
        write_all(&world, &array, 1);
        grow(&mut world, &array);
        has_grown(&world, &array, "a full array");
    }
}
