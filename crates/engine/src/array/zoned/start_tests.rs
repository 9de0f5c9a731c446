//! Whole starts, from the members' superblocks on, on every kind of drive: with members missing, empty, in another order, of
//! another array, stale, behind. What is read is right, or the start is refused and no zone of any drive has changed: neither
//! what it holds, nor its state, nor its pointer. What is not taken is never written.

use std::rc::Rc;
use std::sync::Arc;

use layout::geometry::Level;
use layout::zoned::Superblock;

use super::assemble::{ZonedCandidate, ZonedRefusal, assemble_zoned};
use super::assemble_tests::wanted;
use super::plan::{DeviceZones, NewZonedArray, plan};
use super::running::Running;
use super::start::{Opened, StartError, Surroundings};
use super::superblock_log::MemberLog;
use crate::array::assemble::Verdict;
use crate::buffer::Pool;
use crate::counters::Counters;
use crate::device::DeviceErrorKind;
use crate::executor::Executor;
use crate::log::config::SUPERBLOCK_ZONES;
use crate::log::engine::LogSet;
use crate::log::failure_tests::{check_all, pull, redundant, write_all};
use crate::log::join::Joining;
use crate::log::port::{LogPlatform, LogPort};
use crate::log::recover::found::RecoverError;
use crate::log::world::{Array, Shape, World};
use crate::zone_device::memory::MemoryZones;
use crate::zone_device::{ZoneChange, ZoneDevice};

pub(super) const OURS: [u8; 16] = [7; 16];
const THEIRS: [u8; 16] = [8; 16];

fn shapes() -> impl Iterator<Item = Shape> {
    redundant().filter(|shape| matches!(shape.level, Level::Raid5 | Level::Raid6))
}

fn losses(shape: Shape) -> usize {
    if shape.level == Level::Raid6 { 2 } else { 1 }
}

/// An array that was started, before its shards serve it: nothing is moved yet.
pub(super) struct Managed {
    executor: Executor,
    running: Rc<Running<MemoryZones>>,
    devices: Vec<Option<Rc<MemoryZones>>>,
}

/// Runs until nothing is left to do.
pub(super) fn run<T: 'static>(
    world: &World,
    executor: &Executor,
    future: impl Future<Output = T> + 'static,
) -> T {
    let handle = executor.spawn_with_result(future);
    world.run(executor);
    handle.try_take().expect("it ends")
}

/// Writes the first superblocks of an array over these drives.
pub(super) fn create(world: &World, set_uuid: [u8; 16]) {
    let zones = |device: &MemoryZones| DeviceZones {
        name: "a drive".to_owned(),
        logical_block_bytes: 4096,
        zoned: device.zoned().clone(),
    };
    let devices: Vec<DeviceZones> = world.devices.iter().map(zones).collect();
    let width = world.devices.len() as u8;
    let (plan, zones) = plan(&wanted(world.shape.level, width), &devices).expect("a plan");
    let new = NewZonedArray {
        set_uuid,
        name: "test".to_owned(),
        devices: (1..=width).map(|member| [set_uuid[0] ^ member << 4; 16]).collect(),
        plan,
        zones,
        now_unix_s: 1,
        random: 99,
    };
    for (slot, device) in world.devices.iter().enumerate() {
        let (device, superblock) = (device.clone(), new.superblock(slot));
        let written = async move {
            let mut log = MemberLog::new(&superblock.zones);
            log.write(&device, &Pool::new(1 << 20), &superblock).await
        };
        run(world, &Executor::new(Box::new(|| {})), written).expect("a new member");
    }
}

/// The superblock that a drive's write pointers lead to.
pub(super) fn superblock(world: &World, device: &MemoryZones) -> Option<Superblock> {
    let device = device.clone();
    let read = async move { MemberLog::read(&device, &Pool::new(1 << 20)).await };
    let read = run(world, &Executor::new(Box::new(|| {})), read).expect("readable");
    read.map(|(superblock, _)| superblock)
}

/// Why there is no start.
#[derive(Debug)]
pub(super) enum Refused {
    Assembly(ZonedRefusal),
    Start(StartError),
}

/// Starts the array with this identity from drives in any order, and serves it.
pub(super) fn start(world: &World, drives: &[&MemoryZones], set_uuid: [u8; 16]) -> Result<Array, Refused> {
    Ok(serve(manage(world, drives, set_uuid)?).0)
}

/// Serves an array on two shards.
pub(super) fn serve(managed: Managed) -> (Array, Rc<Running<MemoryZones>>) {
    let Managed { executor, running, devices } = managed;
    let port = running.port();
    let shard = |shard| {
        let (executor, pool, platform) =
            (executor.clone(), Arc::clone(&port.pool), Rc::clone(&port.platform));
        let shared = Arc::clone(running.shared());
        Rc::new(LogSet::serve(LogPort::new(shared, shard, executor, pool, platform, devices.clone())))
    };
    let array = Array { set: shard(0), second: shard(1), report: *running.report(), executor };
    (array, running)
}

/// As [`start`], and no shard serves it yet.
pub(super) fn manage(world: &World, drives: &[&MemoryZones], set_uuid: [u8; 16]) -> Result<Managed, Refused> {
    let members: Vec<(&MemoryZones, Superblock)> =
        drives.iter().filter_map(|drive| Some((*drive, superblock(world, drive)?))).collect();
    let candidate = |(index, (_, superblock)): (usize, &(&MemoryZones, Superblock))| ZonedCandidate {
        name: format!("drive {index}"),
        superblock: superblock.clone(),
    };
    let candidates: Vec<ZonedCandidate> = members.iter().enumerate().map(candidate).collect();
    let arrays = assemble_zoned(&candidates, false).into_iter();
    let assembly = arrays.into_iter().find(|array| array.speaker.set_uuid == set_uuid).expect("the array");
    assembly.start.clone().map_err(Refused::Assembly)?;
    let device = |index: &Option<usize>| Some(Rc::new(members[(*index)?].0.clone()));
    let devices: Vec<Option<Rc<MemoryZones>>> = assembly.slots.iter().map(device).collect();
    let chosen: Vec<Option<Superblock>> =
        assembly.slots.iter().map(|index| Some(members[(*index)?].1.clone())).collect();
    let (executor, pool) = (Executor::new(Box::new(|| {})), Pool::new(1 << 20));
    let platform: Rc<dyn LogPlatform> = Rc::new(Rc::clone(&world.platform));
    let around = Surroundings {
        executor: executor.clone(),
        pool: Arc::clone(&pool),
        platform: Rc::clone(&platform),
        clock: Rc::new(|| 1),
        counters: vec![Counters::default(), Counters::default()].into(),
        events: Box::new(|_| {}),
    };
    let (opened, buffers) = (devices.clone(), Arc::clone(&pool));
    let starting = async move {
        let opened = Opened::read(assembly, opened, &chosen, &buffers).await?;
        opened.start(around).await
    };
    let running = run(world, &executor, starting).map_err(Refused::Start)?;
    Ok(Managed { executor, running: Rc::new(running), devices })
}

/// An array that was killed when everything was durable, with open segments beside sealed ones.
fn killed(shape: Shape, set_uuid: [u8; 16], version: u64) -> World {
    let world = World::new(shape, set_uuid[0].into());
    create(&world, set_uuid);
    let started = start(&world, &all(&world), set_uuid).expect("a new array");
    write_all(&world, &started, version);
    started.flush(&world).expect("a flush");
    world.kill(&started.executor);
    world
}

pub(super) fn all(world: &World) -> Vec<&MemoryZones> {
    world.devices.iter().collect()
}

pub(super) fn without<'a>(world: &'a World, slots: &[usize]) -> Vec<&'a MemoryZones> {
    let drives = world.devices.iter().enumerate();
    drives.filter(|(slot, _)| !slots.contains(slot)).map(|(_, drive)| drive).collect()
}

/// It starts, everything is right, also with as many members lost as are left to lose, and after writes and another start.
fn serves(world: &World, drives: &[&MemoryZones], lost: usize, context: &str) {
    let shape = world.shape;
    for version in 1..=2 {
        let started = start(world, drives, OURS);
        let started = started.unwrap_or_else(|refused| panic!("{shape:?} {context}: {refused:?}"));
        check_all(world, &started, version, context);
        started.self_check();
        write_all(world, &started, 2);
        check_all(world, &started, 2, context);
        if version == 2 {
            let in_sync = started.set.0.port.shared.members.in_sync();
            in_sync.iter().take(losses(shape) - lost).for_each(|slot| pull(&world.devices[*slot]));
            check_all(world, &started, 2, &format!("{context}, as many lost as may be"));
        } else {
            started.flush(world).expect("a flush");
        }
        world.kill(&started.executor);
    }
}

#[test]
fn each_member_missing_or_empty_or_in_another_place() {
    for shape in shapes() {
        for slot in 0..shape.members {
            let world = killed(shape, OURS, 1);
            serves(&world, &without(&world, &[slot]), 1, &format!("member {slot} is missing"));

            let world = killed(shape, OURS, 1);
            let empty = MemoryZones::new(world.devices[slot].zoned().clone(), 4096, "empty");
            let before = empty.image();
            let drives = without(&world, &[slot]).into_iter().chain([&empty]).collect::<Vec<_>>();
            serves(&world, &drives, 1, &format!("member {slot} is empty"));
            assert!(before == empty.image(), "{shape:?}: the empty drive was written");

            let world = killed(shape, OURS, 1);
            let mut drives = all(&world);
            drives.rotate_left(slot);
            serves(&world, &drives, 0, &format!("{slot} places further"));
        }
    }
}

#[test]
fn a_drive_of_another_array() {
    for shape in shapes() {
        for slot in [0, shape.members - 1] {
            let (world, other) = (killed(shape, OURS, 1), killed(shape, THEIRS, 9));
            let before = other.image();
            let mut drives = all(&world);
            drives[slot] = &other.devices[slot];
            serves(&world, &drives, 1, &format!("the drive in slot {slot} is another array's"));
            assert!(before == other.image(), "{shape:?}: a drive of another array was written");
            let started = start(&other, &all(&other), THEIRS).expect("it is as it was");
            check_all(&other, &started, 9, "the other array");
        }
    }
}

/// A copy of a member of before an epoch that the others served with it or without it.
#[test]
fn a_stale_member() {
    for shape in shapes() {
        for was_there in [false, true] {
            let world = killed(shape, OURS, 1);
            let copy = world.devices[1].copy();
            let present = if was_there { all(&world) } else { without(&world, &[1]) };
            let started = start(&world, &present, OURS).expect("a start");
            (2..5).chain([1]).for_each(|version| write_all(&world, &started, version));
            started.flush(&world).expect("a flush");
            world.kill(&started.executor);
            let mut drives = all(&world);
            drives[1] = &copy;
            let (before, context) = (copy.image(), format!("{shape:?}, with it {was_there}"));
            assert_stale(&world, &drives, &context);

            let gone = if losses(shape) == 2 { vec![0, 2] } else { vec![0] };
            let few: Vec<&MemoryZones> = drives
                .iter()
                .enumerate()
                .filter(|(slot, _)| !gone.contains(slot))
                .map(|(_, drive)| *drive)
                .collect();
            let others = world.image();
            match start(&world, &few, OURS).map(drop) {
                Err(Refused::Assembly(ZonedRefusal::NotEnoughMembers { in_sync: 2, needed: 3, .. })) => {}
                other => panic!("{context}: {other:?}"),
            }
            assert!(others == world.image(), "{context}: a refused start changed a zone");
            serves(&world, &drives, 1, &context);
            assert!(before == copy.image(), "{context}: a stale member was written");
        }
    }
}

/// The drive in place 1 is refused as stale.
fn assert_stale(world: &World, drives: &[&MemoryZones], context: &str) {
    let candidate = |(index, drive): (usize, &&MemoryZones)| ZonedCandidate {
        name: format!("drive {index}"),
        superblock: superblock(world, drive).expect("a superblock"),
    };
    let candidates: Vec<ZonedCandidate> = drives.iter().enumerate().map(candidate).collect();
    let assembly = &assemble_zoned(&candidates, false)[0];
    let verdict = assembly.verdicts.iter().find(|(index, _)| *index == 1).map(|(_, verdict)| verdict);
    let is_stale =
        |verdict: &&Verdict| matches!(verdict, Verdict::Refused { reason } if reason.starts_with("stale: "));
    assert!(verdict.is_some_and(|verdict| is_stale(&verdict)), "{context}: {verdict:?}");
}

#[test]
fn too_few_members_are_refused_and_change_nothing() {
    for shape in shapes() {
        let world = killed(shape, OURS, 1);
        let before = world.image();
        let gone: Vec<usize> = (0..=losses(shape)).collect();
        match start(&world, &without(&world, &gone), OURS).map(drop) {
            Err(Refused::Assembly(ZonedRefusal::NotEnoughMembers { in_sync: 2, needed: 3, .. })) => {}
            other => panic!("{shape:?}: {other:?}"),
        }
        assert!(before == world.image(), "{shape:?}: a refused start changed a zone");
        serves(&world, &all(&world), 0, "all are back");
    }
}

/// Superblocks call a new member recovering until it lacks nothing: before that the array cannot lose as many others. Only what the
/// zones hold tells so.
#[test]
fn a_member_that_is_behind_and_others_missing_are_refused_and_change_nothing() {
    for shape in shapes() {
        let mut world = killed(shape, OURS, 1);
        let managed = manage(&world, &without(&world, &[1]), OURS).expect("a start");
        let device = MemoryZones::new(world.devices[1].zoned().clone(), 4096, "new");
        world.devices[1] = device.clone();
        let running = managed.running;
        let joining = async move {
            let slot = running.may_join(None).expect("a slot is free");
            let joining = Joining { slot, uuid: [99; 16], device: Rc::new(device) };
            running.exchange(joining, true).await.expect("it joins");
            running.join().await.expect("superblocks");
        };
        run(&world, &managed.executor, joining);
        world.kill(&managed.executor);
        let missing = if losses(shape) == 2 { vec![2, 3] } else { vec![2] };
        let before = world.image();
        match start(&world, &without(&world, &missing), OURS).map(drop) {
            Err(Refused::Start(StartError::Recover(RecoverError::TooFewColumns { .. }))) => {}
            other => panic!("{shape:?}: {other:?}"),
        }
        assert!(before == world.image(), "{shape:?}: a refused start changed a zone");
        serves(&world, &all(&world), 0, "all are back");
    }
}

/// A member on which the epoch cannot be begun takes no part, whatever was read of it before; where it is needed nothing is served.
#[test]
fn a_member_that_takes_no_superblock() {
    for shape in shapes() {
        let refuse = |world: &World| {
            world.devices[1].set_fault(|name, zone| {
                (zone < SUPERBLOCK_ZONES && name != "read" && name != "report zones")
                    .then_some(DeviceErrorKind::Io)
            });
        };
        let world = killed(shape, OURS, 1);
        refuse(&world);
        serves(&world, &all(&world), 1, "member 1 takes no superblock");
        let world = killed(shape, OURS, 1);
        let missing = if losses(shape) == 2 { vec![2, 3] } else { vec![2] };
        refuse(&world);
        match start(&world, &without(&world, &missing), OURS).map(drop) {
            Err(Refused::Start(StartError::NotBegun { slot: 1, .. })) => {}
            other => panic!("{shape:?}: {other:?}"),
        }
        world.devices[1].set_fault(|_, _| None);
        serves(&world, &all(&world), 0, "all are there again");
    }
}

/// What was chosen by its contents is asked again by its write pointers, before anything is written.
#[test]
fn a_member_that_is_not_what_it_was_chosen_for() {
    for shape in shapes() {
        let refused = |world: &World, chosen: &[Option<Superblock>], drives: &[MemoryZones]| {
            let (chosen, speaker) = (chosen.to_vec(), chosen[0].clone().expect("a superblock"));
            let candidates: Vec<ZonedCandidate> = chosen
                .iter()
                .flatten()
                .map(|superblock| ZonedCandidate {
                    name: "a drive".to_owned(),
                    superblock: superblock.clone(),
                })
                .collect();
            let assembly = assemble_zoned(&candidates, false).remove(0);
            assert_eq!(assembly.speaker.set_uuid, speaker.set_uuid);
            let devices = drives.iter().map(|drive| Some(Rc::new(drive.clone()))).collect();
            let before: Vec<_> = drives.iter().map(MemoryZones::image).collect();
            let read =
                async move { Opened::read(assembly, devices, &chosen, &Pool::new(1 << 20)).await.map(drop) };
            let refused = run(world, &Executor::new(Box::new(|| {})), read).expect_err("it is another");
            assert!(
                before == drives.iter().map(MemoryZones::image).collect::<Vec<_>>(),
                "{shape:?}: {refused}"
            );
            refused
        };
        let world = killed(shape, OURS, 1);
        let chosen: Vec<_> = world.devices.iter().map(|drive| superblock(&world, drive)).collect();
        // Served elsewhere since.
        let drives: Vec<MemoryZones> = world.devices.iter().map(MemoryZones::copy).collect();
        let started = start(&world, &all(&world), OURS).expect("a start");
        world.kill(&started.executor);
        assert_eq!(refused(&world, &chosen, &world.devices), StartError::Changed { slot: 0 });
        // Its zones are smaller.
        let mut smaller = drives.clone();
        let mut zoned = drives[2].zoned().clone();
        zoned.capacity_bytes -= 4096;
        smaller[2] = MemoryZones::new(zoned, 4096, "smaller");
        assert!(matches!(refused(&world, &chosen, &smaller), StartError::OtherZones { slot: 2, .. }));
        // Its log was reset; what it held may still be read there.
        for zone in 0..2 {
            let reset = drives[1].change(zone, ZoneChange::Reset);
            run(&world, &Executor::new(Box::new(|| {})), reset).expect("a reset");
        }
        if world.devices[1].zone(0).pointer_bytes.is_some() || drives[1].zone(0).pointer_bytes == Some(0) {
            assert_eq!(refused(&world, &chosen, &drives), StartError::NoSuperblock { slot: 1 });
        }
    }
}
