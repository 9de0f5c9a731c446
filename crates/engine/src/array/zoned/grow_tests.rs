//! Growing by members, with superblocks as drives have them: whatever of them is written when the power goes, the array starts, as
//! it was or with the new members, and what failed before it was a member is not missed.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;

use layout::geometry::Level;

use super::plan::PlanRefusal;
use super::running::{NotJoined, Running};
use super::start_tests::{OURS, all, create, manage, run, serve, start, superblock, without};
use crate::device::DeviceErrorKind;
use crate::log::config::SUPERBLOCK_ZONES;
use crate::log::failure_tests::{check_all, pull, write_all};
use crate::log::join::Joining;
use crate::log::world::{Array, Chance, RAID5, Shape, World};
use crate::zone_device::memory::MemoryZones;
use crate::zone_device::{ZoneAccess, ZoneDevice};

fn shapes() -> impl Iterator<Item = Shape> {
    let levels = [(Level::Raid0, 3), (Level::Raid10, 4), (Level::Raid5, 4), (Level::Raid6, 5)];
    let accesses = [ZoneAccess::Placed, ZoneAccess::Sequential, ZoneAccess::Append];
    let of = move |(level, members)| accesses.map(|access| Shape { level, members, access, ..RAID5 });
    levels.into_iter().flat_map(of)
}

fn losses(shape: Shape) -> usize {
    match shape.level {
        Level::Raid0 => 0,
        Level::Raid6 => 2,
        _ => 1,
    }
}

fn served(shape: Shape) -> (World, Array, Rc<Running<MemoryZones>>) {
    let world = World::new(shape, 5);
    create(&world, OURS);
    let (array, running) = serve(manage(&world, &all(&world), OURS).expect("a new array"));
    write_all(&world, &array, 1);
    array.flush(&world).expect("a flush");
    (world, array, running)
}

/// Grows by one member, mirrors by two, of which `prepare` sees each before it is one.
async fn grow(
    running: Rc<Running<MemoryZones>>,
    array: [Rc<crate::log::engine::LogSet<MemoryZones>>; 2],
    devices: Vec<MemoryZones>,
    prepare: impl Fn(&MemoryZones),
) -> Result<(), NotJoined> {
    let first = running.may_grow(devices.len())?;
    for (slot, device) in (first..).zip(&devices) {
        let (uuid, device) = ([100 + slot as u8; 16], Rc::new(device.clone()));
        running.port().attach(slot, Rc::clone(&device));
        running.exchange(Joining { slot, uuid, device: Rc::clone(&device) }, true).await?;
        array.iter().for_each(|set| set.0.port.attach(slot, Rc::clone(&device)));
    }
    devices.iter().for_each(prepare);
    running.grow().await?;
    for set in &array {
        set.renew().await;
    }
    Ok(())
}

fn added(world: &mut World) -> Vec<MemoryZones> {
    let count = if world.shape.level == Level::Raid10 { 2 } else { 1 };
    let device =
        |member| MemoryZones::new(world.devices[0].zoned().clone(), 4096, &format!("added {member}"));
    let devices: Vec<MemoryZones> = (0..count).map(device).collect();
    world.devices.extend(devices.iter().cloned());
    devices
}

fn sets(array: &Array) -> [Rc<crate::log::engine::LogSet<MemoryZones>>; 2] {
    [Rc::clone(&array.set), Rc::clone(&array.second)]
}

#[test]
fn superblocks_give_a_grown_array_its_members_and_its_size() {
    for shape in shapes() {
        let (mut world, array, running) = served(shape);
        let before = superblock(&world, &world.devices[0]).expect("a superblock");
        let devices = added(&mut world);
        let width = world.devices.len();
        run(&world, &array.executor, grow(running, sets(&array), devices, |_| {})).expect("it grows");
        world.kill(&array.executor);
        drop(array);
        for device in &world.devices {
            let said = superblock(&world, device).expect("a superblock");
            assert_eq!((said.members.len(), said.growing), (width, false), "{shape:?}");
            let (plan, old) = (&said.plan, &before.plan);
            assert_eq!(usize::from(plan.columns.width()), width, "{shape:?}");
            let share = |plan: &layout::zoned::ArrayPlan| {
                plan.logical_blocks * 1000 / (plan.logical_blocks + plan.reserve_blocks)
            };
            assert!(plan.logical_blocks > old.logical_blocks, "{shape:?}: {plan:?}");
            assert!(share(plan).abs_diff(share(old)) <= 5, "{shape:?}: {plan:?} of {old:?}");
        }
        let array = start(&world, &all(&world), OURS).unwrap_or_else(|error| panic!("{shape:?}: {error:?}"));
        check_all(&world, &array, 1, "with all members");
        let shown = array.set.0.port.shared.map.blocks();
        assert!(shown > before.plan.logical_blocks, "{shape:?}: {shown} blocks");
        (0..losses(shape)).for_each(|member| pull(&world.devices[width - 1 - member]));
        check_all(&world, &array, 1, "with as many lost as may be, of the new ones");
    }
}

/// Power cuts at any moment. Without the new members it starts as long as the level can do without them.
#[test]
fn a_cut_while_members_are_listed_leaves_an_array_that_starts() {
    for shape in shapes() {
        for seed in 0..12 {
            let (mut world, array, running) = served(shape);
            let devices = added(&mut world);
            let growing = array.executor.spawn_with_result(grow(running, sets(&array), devices, |_| {}));
            let mut chance = Chance(seed);
            let most = if seed % 2 == 0 { 400 } else { 4000 };
            array.executor.run_ready(chance.below(most) as usize);
            drop(growing);
            world.cut(&array.executor, &mut chance);
            drop(array);
            let context = format!("{shape:?}, seed {seed}");
            let array =
                start(&world, &all(&world), OURS).unwrap_or_else(|error| panic!("{context}: {error:?}"));
            write_all(&world, &array, 1);
            check_all(&world, &array, 1, "after a cut");
            let width = array.set.0.port.shared.members.width();
            assert!([shape.members, world.devices.len()].contains(&width), "{context}: {width} members");
            array.flush(&world).expect("a flush");
            world.kill(&array.executor);
            drop(array);
            if width > shape.members && losses(shape) > 0 {
                let drives = without(&world, &[width - 1]);
                let array =
                    start(&world, &drives, OURS).unwrap_or_else(|error| panic!("{context}: {error:?}"));
                check_all(&world, &array, 1, "without a new member");
            }
        }
    }
}

/// A device whose first superblock cannot be written is no member: nothing else has changed, also where no member can be missed. No
/// other superblock ever listed it: a RAID-0 with one that lists a member which does not know of it would not start.
#[test]
fn a_device_that_takes_no_superblock_is_not_added() {
    for shape in shapes() {
        let (mut world, array, running) = served(shape);
        let devices = added(&mut world);
        let refuse = |device: &MemoryZones| {
            device.set_fault(|name, zone| {
                (zone < SUPERBLOCK_ZONES && name != "read" && name != "report zones")
                    .then_some(DeviceErrorKind::Io)
            });
        };
        let written = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&written);
        world.devices[0].set_fault(move |name, zone| {
            let is_written = zone < SUPERBLOCK_ZONES && name != "read" && name != "report zones";
            count.fetch_add(usize::from(is_written), SeqCst);
            None
        });
        let grown = run(&world, &array.executor, grow(Rc::clone(&running), sets(&array), devices, refuse));
        world.devices[0].set_fault(|_, _| None);
        assert_eq!(written.load(SeqCst), 1, "{shape:?}: one that lists it no more");
        assert!(matches!(grown, Err(NotJoined::NotAdded)), "{shape:?}: {grown:?}");
        let shared = running.shared();
        assert!(shared.members.are_all_in_sync() && !shared.members.is_read_only(), "{shape:?}");
        write_all(&world, &array, 1);
        world.devices.truncate(shape.members);
        let said = superblock(&world, &world.devices[0]).expect("a superblock");
        assert_eq!((said.members.len(), said.growing), (shape.members, false), "{shape:?}");
        // Another one is taken.
        let devices = added(&mut world);
        run(&world, &array.executor, grow(running, sets(&array), devices, |_| {})).expect("it grows");
        check_all(&world, &array, 1, "after another came");
        world.kill(&array.executor);
        drop(array);
        let array = start(&world, &all(&world), OURS).unwrap_or_else(|error| panic!("{shape:?}: {error:?}"));
        check_all(&world, &array, 1, "after a start");
    }
}

/// The power goes when the first of two new members has its superblock and the second has not: the array has the members that it had,
/// and all of them. Were it grown, the second would be missing, and a loss that the level can bear would be used up.
#[test]
fn a_superblock_on_some_of_the_new_members_adds_none() {
    for access in [ZoneAccess::Placed, ZoneAccess::Sequential, ZoneAccess::Append] {
        for (level, members) in [(Level::Raid0, 3), (Level::Raid10, 4), (Level::Raid5, 4), (Level::Raid6, 5)]
        {
            let shape = Shape { level, members, access, ..RAID5 };
            let (mut world, array, running) = served(shape);
            let mut devices = added(&mut world);
            if devices.len() == 1 {
                devices.extend(added(&mut world));
            }
            // From the moment at which the second is to be written, nothing is.
            let is_off = Rc::new(Cell::new(false));
            let (off, drives) = (Rc::clone(&is_off), world.devices.clone());
            let prepare = move |_: &MemoryZones| {
                for (slot, drive) in drives.iter().enumerate() {
                    let (off, is_last) = (Rc::clone(&off), slot == members + 1);
                    drive.set_fault(move |name, zone| {
                        let is_written = zone < SUPERBLOCK_ZONES && name != "read" && name != "report zones";
                        off.set(off.get() || (is_written && is_last));
                        off.get().then_some(DeviceErrorKind::Gone)
                    });
                }
            };
            let growing = array.executor.spawn_with_result(grow(running, sets(&array), devices, prepare));
            while !is_off.get() {
                assert_ne!(array.executor.run_ready(1), 0, "{shape:?}: it ends before");
            }
            world.devices.iter().for_each(|drive| drive.set_fault(|_, _| None));
            drop(growing);
            world.kill(&array.executor);
            drop(array);
            assert!(superblock(&world, &world.devices[members]).is_some(), "{shape:?}: the first has one");
            let array =
                start(&world, &all(&world), OURS).unwrap_or_else(|error| panic!("{shape:?}: {error:?}"));
            let all_members = &array.set.0.port.shared.members;
            assert_eq!((all_members.width(), all_members.are_all_whole()), (members, true), "{shape:?}");
            check_all(&world, &array, 1, "as it was");
        }
    }
}

#[test]
fn an_array_says_why_it_does_not_grow() {
    let (_world, _array, running) = served(RAID5);
    let refused = |count| running.may_grow(count).expect_err("it does not");
    assert!(matches!(refused(5), NotJoined::Plan(PlanRefusal::TooManyMembers { most: 8 })));
    running.may_grow(4).expect("twice as many");
    assert!(matches!(refused(1), NotJoined::Another));
    running.give_up();
    assert_eq!(running.may_grow(1).expect("one more"), 4);
    let (world, array, running) = served(Shape { level: Level::Raid10, ..RAID5 });
    assert!(matches!(running.may_grow(1), Err(NotJoined::Plan(PlanRefusal::NoPair))));
    pull(&world.devices[1]);
    write_all(&world, &array, 2);
    assert!(matches!(running.may_grow(2), Err(NotJoined::NotWhole)));
}
