//! Devices that join while the array serves: new ones, and members that were away.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use super::failure_tests::{check_all, pull, redundant, write_all};
use super::reclaim::lacking;
use super::world::*;
use crate::members::MemberState;
use crate::zone_device::memory::MemoryZones;
use crate::zone_device::{Zone, ZoneAccess, ZoneChange, ZoneDevice, ZoneState};
use layout::geometry::Level;

const NEW: [u8; 16] = [99; 16];

fn new_device(world: &World) -> MemoryZones {
    MemoryZones::new(world.devices[1].zoned().clone(), 4096, "new")
}

/// The member in slot 1 is pulled after a first version was written; some blocks are written without it. `full`: so much is
/// live that segments keep their width and leave its column out.
fn without_a_member(shape: Shape, seed: u64) -> (World, Array) {
    let world = World::new(shape, seed);
    let array = world.start().expect("a new array");
    write_all(&world, &array, 1);
    array.flush(&world).expect("a flush");
    pull(&world.devices[1]);
    array.write(&world, 0, &pattern(0, 2)).expect("a write");
    array.write(&world, 0, &pattern(0, 1)).expect("a write");
    (world, array)
}

/// Everything survives as many losses as the level says, the new member being one of those that are left.
fn survives(world: &World, array: &Array, context: &str) {
    let shared = &array.set.0.port.shared;
    let left = lacking(shared);
    assert!(left.is_empty(), "{:?} {context}: {} segments lack a column", world.shape, left.len());
    assert_eq!(shared.members.behind(), [], "{:?} {context}", world.shape);
    assert_eq!(world.saved.borrow().states[1], MemberState::InSync, "{context}: superblocks say so");
    pull(&world.devices[2]);
    if world.shape.level == Level::Raid6 {
        pull(&world.devices[3]);
    }
    check_all(world, array, 1, context);
}

#[test]
fn a_new_member_is_made_whole_from_the_others() {
    for shape in redundant() {
        let (mut world, array) = without_a_member(shape, 31);
        let device = new_device(&world);
        let adopted = array.join(&mut world, 1, device, NEW);
        assert_eq!((adopted, world.saved.borrow().uuids[1]), (0, NEW));
        survives(&world, &array, "a new member");
    }
}

/// Zones that another program left open hold nothing, and would count against the drive's limit for ever.
#[test]
fn zones_of_a_new_member_that_were_left_open_are_free() {
    let shape = Shape { access: ZoneAccess::Append, ..RAID5 };
    let (mut world, array) = without_a_member(shape, 33);
    let device = new_device(&world);
    for zone in 10..16 {
        let mut opening = Box::pin(device.change(zone, ZoneChange::Open));
        let opened = opening.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(opened, Poll::Ready(Ok(()))));
    }
    array.join(&mut world, 1, device.clone(), NEW);
    let mut reporting = device.report(10..16);
    let reported = Pin::new(&mut reporting).poll(&mut Context::from_waker(Waker::noop()));
    let Poll::Ready(Ok(zones)) = reported else { panic!("a device in memory tells at once") };
    let is_open = |zone: &&Zone| zone.state == ZoneState::ExplicitlyOpen;
    assert_eq!(zones.iter().filter(is_open).count(), 0, "{zones:?}");
    survives(&world, &array, "zones were open");
}

/// A member that was away gives the columns that it has of segments which are as they were.
#[test]
fn a_member_that_was_away_costs_what_was_written_meanwhile() {
    for shape in redundant() {
        let world = World::new(shape, 32);
        let array = world.start().expect("a new array");
        write_all(&world, &array, 1);
        array.stop(&world).expect("a stop");
        let array = world.start().expect("a start");
        // Nothing is moved while it is away: it is back before reclaim has begun.
        let port = std::rc::Rc::clone(&array.set.0.port);
        assert_eq!(port.fail(1, "it was pulled"), super::port::Blame::Member);
        let (mut world, device) = (world, port.device(1).expect("attached"));
        let adopted = array.join(&mut world, 1, (*device).clone(), [2; 16]);
        let of_it =
            |segment: &std::sync::Arc<super::segment::Segment>| segment.zones().any(|(_, slot, _)| slot == 1);
        let all = port.shared.table.all().iter().filter(|segment| of_it(segment)).count();
        assert!(adopted > 0 && adopted <= all, "{shape:?}: {adopted} of {all}");
        survives(&world, &array, "a member that was away");
    }
}

/// What a member holds of segments that are gone is emptied before it is called a member: a start would find a segment that lacks
/// nearly all of its columns.
#[test]
fn nothing_of_segments_that_are_gone_comes_back_with_a_member() {
    for shape in redundant() {
        let world = World::new(shape, 33);
        let array = world.start().expect("a new array");
        write_all(&world, &array, 1);
        array.flush(&world).expect("a flush");
        let port = std::rc::Rc::clone(&array.set.0.port);
        assert_eq!(port.fail(1, "it was pulled"), super::port::Blame::Member);
        for version in [2, 3, 1] {
            write_all(&world, &array, version); // what was written with it is moved or dies
        }
        let (mut world, device) = (world, port.device(1).expect("attached"));
        array.join(&mut world, 1, (*device).clone(), [2; 16]);
        world.cut(&array.executor, &mut Chance(7));
        let array = world.start().unwrap_or_else(|error| panic!("{shape:?}: {error}"));
        world.run(&array.executor);
        survives(&world, &array, "a start after it came back");
    }
}

/// The same at any moment of the join, with clients that write: segments are emptied meanwhile, and the power goes.
#[test]
fn nothing_of_segments_that_are_gone_comes_back_in_the_middle_of_a_join() {
    for shape in redundant() {
        for seed in 0..12 {
            let world = World::new(shape, 33 + seed);
            let array = world.start().expect("a new array");
            write_all(&world, &array, 1);
            array.flush(&world).expect("a flush");
            let port = std::rc::Rc::clone(&array.set.0.port);
            assert_eq!(port.fail(1, "it was pulled"), super::port::Blame::Member);
            if seed % 3 > 0 {
                write_all(&world, &array, 2);
            }
            let (mut world, device) = (world, port.device(1).expect("attached"));
            let joining = array.start_join(&mut world, 1, (*device).clone(), [2; 16]);
            let mut chance = Chance(seed);
            array.executor.run_ready(chance.below(400) as usize);
            for version in if seed % 2 == 0 { &[2, 3, 1][..] } else { &[1] } {
                write_all(&world, &array, *version);
            }
            drop(joining);
            world.cut(&array.executor, &mut chance);
            let array = world.start().unwrap_or_else(|error| panic!("{shape:?}, seed {seed}: {error}"));
            world.run(&array.executor);
            array.self_check();
        }
    }
}

/// A crash while a member is behind: the next start goes on, and calls nothing whole that is not.
#[test]
fn a_member_that_is_behind_is_made_whole_after_a_crash() {
    for shape in redundant() {
        for seed in 0..4 {
            let (mut world, array) = without_a_member(shape, 40 + seed);
            let device = new_device(&world);
            let joining = array.start_join(&mut world, 1, device, NEW);
            let mut chance = Chance(seed);
            array.executor.run_ready(chance.below(3000) as usize);
            drop(joining);
            world.cut(&array.executor, &mut chance);
            let is_member = world.saved.borrow().uuids[1] == NEW;
            if !is_member {
                world.absent = vec![1]; // the others do not know it yet
            }
            let array = world.start().unwrap_or_else(|error| panic!("{shape:?}: {error}"));
            world.run(&array.executor);
            check_all(&world, &array, 1, "after the crash");
            if is_member {
                survives(&world, &array, "after the crash");
            }
        }
    }
}
