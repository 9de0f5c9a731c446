//! Zones that a start finds in any state that a drive may have put them into: closed, full, read-only, offline. In drives that are
//! written in order and in those that choose the places.

use super::config::SUPERBLOCK_ZONES;
use super::failure_tests::{check_all, pull, redundant, write_all};
use super::reclaim::lacking;
use super::world::*;
use crate::events::Event;
use crate::members::MemberState;
use crate::zone_device::{ZoneAccess, ZoneState};
use layout::geometry::Level;

fn shapes() -> impl Iterator<Item = Shape> {
    redundant().filter(|shape| shape.access != ZoneAccess::Placed)
}

/// An array that was killed when everything was durable, with open segments beside sealed ones.
fn killed(shape: Shape) -> World {
    let world = World::new(shape, 21);
    let array = world.start().expect("a new array");
    write_all(&world, &array, 1);
    array.write(&world, 0, &pattern(0, 1)).expect("a short write");
    array.flush(&world).expect("a flush");
    world.kill(&array.executor);
    for state in [ZoneState::Full, ZoneState::ImplicitlyOpen] {
        assert!(used(&world, 1).iter().any(|zone| world.devices[1].zone(*zone).state == state), "{state:?}");
    }
    world
}

/// Zones of a member that hold something, behind its superblock log.
fn used(world: &World, member: usize) -> Vec<u32> {
    let device = &world.devices[member];
    let is_used = |zone: &u32| device.zone(*zone).pointer_bytes != Some(0);
    (SUPERBLOCK_ZONES..world.shape.zones).filter(is_used).collect()
}

/// Whether the drive of member 1 may turn a zone into a state by itself: only an open one is closed or finished.
fn may_turn(world: &World, zone: u32, state: ZoneState) -> bool {
    let is_worn = matches!(state, ZoneState::ReadOnly | ZoneState::Offline);
    is_worn || world.devices[1].zone(zone).state.is_open()
}

/// A start over zones that were turned: nothing that is read tells of them, no member fails for them, and what was written before
/// survives as many losses as the level says.
fn starts_right(make: impl Fn() -> World, context: &str) {
    let start = |world: &World, context: &str| {
        let array = world.start().unwrap_or_else(|error| panic!("{:?} {context}: {error}", world.shape));
        assert_eq!((array.report.lost_blocks, array.report.unknown_blocks), (0, 0), "{context}");
        array.self_check();
        array
    };
    let world = make();
    let array = start(&world, context);
    check_all(&world, &array, 1, context);
    let shared = &array.set.0.port.shared;
    assert_eq!(lacking(shared).len(), 0, "{:?} {context}: segments lack a column", world.shape);
    pull(&world.devices[2]);
    if world.shape.level == Level::Raid6 {
        pull(&world.devices[3]);
    }
    check_all(&world, &array, 1, &format!("{context}, and a member is lost"));
    // It goes on as any other: all of it is written anew, and the next start finds that.
    let world = make();
    let array = start(&world, context);
    write_all(&world, &array, 2);
    array.flush(&world).expect("a flush");
    world.kill(&array.executor);
    let array = start(&world, context);
    check_all(&world, &array, 2, &format!("{context}, again"));
    let states = array.set.0.port.shared.members.states();
    assert_eq!(states, vec![MemberState::InSync; world.shape.members], "{:?} {context}", world.shape);
}

const STATES: [ZoneState; 4] = [ZoneState::Closed, ZoneState::Full, ZoneState::ReadOnly, ZoneState::Offline];

#[test]
fn one_zone_in_each_state() {
    for shape in shapes() {
        for zone in used(&killed(shape), 1) {
            for state in STATES.into_iter().filter(|state| may_turn(&killed(shape), zone, *state)) {
                let make = || {
                    let world = killed(shape);
                    world.devices[1].turn(zone, state);
                    world
                };
                starts_right(make, &format!("zone {zone} is {state:?}"));
            }
        }
    }
}

#[test]
fn all_that_a_member_holds_in_each_state() {
    for shape in shapes() {
        for state in STATES {
            let make = || {
                let world = killed(shape);
                let turned = used(&world, 1).into_iter().filter(|zone| may_turn(&world, *zone, state));
                turned.for_each(|zone| world.devices[1].turn(zone, state));
                world
            };
            starts_right(make, &format!("every zone that holds something is {state:?}"));
        }
    }
}

/// Zones that wore out while nothing was in them. They are not used, and are no damage.
#[test]
fn free_zones_that_wore_out() {
    for shape in shapes() {
        for state in [ZoneState::ReadOnly, ZoneState::Offline] {
            let make = || {
                let world = killed(shape);
                let used = used(&world, 1);
                let free = (SUPERBLOCK_ZONES..shape.zones).filter(|zone| !used.contains(zone));
                free.step_by(2).for_each(|zone| world.devices[1].turn(zone, state));
                world
            };
            let context = format!("every other free zone is {state:?}");
            starts_right(make, &context);
            let world = make();
            world.start().unwrap_or_else(|error| panic!("{shape:?} {context}: {error}"));
            let events = world.events.lock();
            let is_damage = |event: &&Event| matches!(event, Event::LogDamaged { .. });
            assert_eq!(events.iter().find(is_damage), None, "{shape:?} {context}");
        }
    }
}

/// The zone of each column of a segment, which the headers name: all columns of one that was written in order are in zones of one
/// number here, since each member gave its lowest free one.
#[test]
fn more_zones_of_a_segment_offline_than_the_level_survives() {
    for shape in shapes().filter(|shape| matches!(shape.level, Level::Raid5 | Level::Raid6)) {
        let survives = if shape.level == Level::Raid6 { 2 } else { 1 };
        for zone in used(&killed(shape), 1) {
            let world = killed(shape);
            (1..=survives).for_each(|member| world.devices[member].turn(zone, ZoneState::Offline));
            let array = world.start().unwrap_or_else(|error| panic!("{shape:?} zone {zone}: {error}"));
            check_all(&world, &array, 1, "as many as it survives");

            let world = killed(shape);
            (0..=survives).for_each(|member| world.devices[member].turn(zone, ZoneState::Offline));
            let before = world.image();
            let refused = world.start().err().map(|error| error.to_string());
            let says = format!("lacks {} of its {} columns", survives + 1, shape.members);
            assert!(
                refused.as_ref().is_some_and(|refused| refused.contains(&says)),
                "{shape:?} {zone}: {refused:?}"
            );
            assert!(before == world.image(), "{shape:?}: a refused start changed a zone");
        }
    }
}
