//! Power cuts at any moment, of the recovery too: what was flushed is there, nothing older comes back, and what was read
//! after a start stays.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::config::SUPERBLOCK_ZONES;
use super::recover::found::RecoverError;
use super::recover::scan::{HeaderFound, scan_column, scan_member};
use super::segment::SegmentState;
use super::serve_tests::shapes;
use super::world::*;
use crate::buffer::{Gather, Slice};
use crate::device::DeviceErrorKind;
use crate::error::VolumeError;
use crate::events::Event;
use crate::executor::Executor;
use crate::limits::BLOCK_BYTES;
use crate::members::MemberState;
use crate::volume::{Space, ZeroFlags};
use crate::zone_device::{ZoneAccess, ZoneState};
use layout::geometry::Level;
use layout::zoned::ZonePlace;

/// What a block may hold. Version 0 is zeroes; a version is issued once, and later ones are newer.
#[derive(Clone, Default)]
struct Block {
    /// Contents by version: whether they are zeroes.
    issued: Vec<bool>,
    /// The newest that was acknowledged.
    acknowledged: usize,
    /// The newest that must outlive a power cut.
    durable: usize,
}

/// What the array may return.
pub(super) struct Oracle {
    blocks: RefCell<Vec<Block>>,
}

impl Oracle {
    pub(super) fn new(blocks: u64) -> Rc<Self> {
        let fresh = Block { issued: vec![true], ..Block::default() };
        Rc::new(Oracle { blocks: RefCell::new(vec![fresh; blocks as usize]) })
    }

    fn issue(&self, first: u64, count: u64, zeroes: bool) -> Vec<usize> {
        let mut blocks = self.blocks.borrow_mut();
        let own = blocks[first as usize..(first + count) as usize].iter_mut();
        own.map(|block| {
            block.issued.push(zeroes);
            block.issued.len() - 1
        })
        .collect()
    }

    fn acknowledge(&self, first: u64, versions: &[usize], fua: bool) {
        for (block, version) in self.blocks.borrow_mut()[first as usize..].iter_mut().zip(versions) {
            block.acknowledged = block.acknowledged.max(*version);
            if fua {
                block.durable = block.durable.max(*version);
            }
        }
    }

    fn acknowledged(&self) -> Vec<usize> {
        self.blocks.borrow().iter().map(|block| block.acknowledged).collect()
    }

    fn flushed(&self, covered: &[usize]) {
        for (block, covered) in self.blocks.borrow_mut().iter_mut().zip(covered) {
            block.durable = block.durable.max(*covered);
        }
    }

    /// Which version a block's contents are of. The newest one of zeroes stands for all of them.
    fn version_of(&self, lba: u64, contents: &[u8], at_least: usize) -> Result<usize, String> {
        let block = &self.blocks.borrow()[lba as usize];
        let is_of = |version: &usize| match block.issued[*version] {
            true => contents.iter().all(|byte| *byte == 0),
            false => contents == pattern(lba, *version as u64),
        };
        match (at_least..block.issued.len()).rev().find(is_of) {
            Some(version) => Ok(version),
            None => {
                let found = (0..block.issued.len()).rev().find(is_of);
                Err(format!(
                    "block {lba} holds {found:?}, at least {at_least} of {} wanted",
                    block.issued.len() - 1
                ))
            }
        }
    }

    /// After a start: what is read is what the block holds from here on.
    fn settle(&self, lba: u64, contents: &[u8]) -> Result<(), String> {
        let durable = self.blocks.borrow()[lba as usize].durable;
        let version = self.version_of(lba, contents, durable)?;
        let block = &mut self.blocks.borrow_mut()[lba as usize];
        let is_zeroes = block.issued[version];
        // Versions that were lost never come back: only this one is known now.
        *block = Block { issued: block.issued.clone(), acknowledged: version, durable: version };
        let last = block.issued.len() - 1;
        if version < last {
            block.issued.push(is_zeroes);
            let own = block.issued.len() - 1;
            if !is_zeroes {
                // The contents tell the old number: give it its number back by cutting what was lost.
                block.issued.truncate(version + 1);
            } else {
                (block.acknowledged, block.durable) = (own, own);
            }
        }
        Ok(())
    }
}

/// Issues requests for as long as the array runs.
fn clients(
    array: &Array,
    oracle: &Rc<Oracle>,
    chance: &mut Chance,
    blocks: u64,
    requests: u64,
) -> Rc<Cell<u64>> {
    let failed = Rc::new(Cell::new(0));
    for _ in 0..requests {
        let set = if chance.one_in(2) { &array.set } else { &array.second };
        let (set, oracle, failed) = (Rc::clone(set), Rc::clone(oracle), Rc::clone(&failed));
        let first = chance.below(blocks);
        let count =
            (1 + if chance.one_in(3) { chance.below(30) } else { chance.below(3) }).min(blocks - first);
        let (kind, fua) = (chance.below(10), chance.one_in(6));
        let at = first * BLOCK_BYTES as u64;
        array.executor.spawn(async move {
            let result = match kind {
                0 => {
                    let covered = oracle.acknowledged();
                    let result = set.flush().await;
                    if result.is_ok() {
                        oracle.flushed(&covered);
                    }
                    result
                }
                1 => {
                    let versions = oracle.issue(first, count, true);
                    let result = set
                        .write_zeroes(at, count * BLOCK_BYTES as u64, ZeroFlags { may_unmap: true, fua })
                        .await;
                    if result.is_ok() {
                        oracle.acknowledge(first, &versions, fua);
                    }
                    result
                }
                2 | 3 => {
                    let before = oracle.acknowledged();
                    match set.read(at, count * BLOCK_BYTES as u64).await {
                        Ok(data) => {
                            let mut read = vec![0; data.len()];
                            data.copy_to(&mut read);
                            for (lba, contents) in (first..).zip(read.chunks(BLOCK_BYTES)) {
                                oracle.version_of(lba, contents, before[lba as usize]).expect("a read");
                            }
                            Ok(())
                        }
                        Err(error) => Err(error),
                    }
                }
                _ => {
                    let versions = oracle.issue(first, count, false);
                    let data: Vec<u8> = (first..)
                        .zip(&versions)
                        .flat_map(|(lba, version)| pattern(lba, *version as u64))
                        .collect();
                    let result = set.write(at, Gather::from(Slice::from_bytes(&data)), fua).await;
                    if result.is_ok() {
                        oracle.acknowledge(first, &versions, fua);
                    }
                    result
                }
            };
            match result {
                Ok(()) => {}
                Err(VolumeError::NoSpace { .. }) => failed.set(failed.get() + 1),
                Err(error) => panic!("a request failed: {error}"),
            }
        });
    }
    failed
}

/// Polls tasks in any order, and moves time on when none is ready. False if nothing is left to do.
fn step(world: &World, executor: &Executor, chance: &mut Chance, polls: u64) -> bool {
    for _ in 0..polls {
        if !executor.run_one_of(|ready| chance.below(ready as u64) as usize) && !world.advance() {
            return false;
        }
    }
    true
}

/// Starts the array, cutting the power in the recovery a few times first.
fn restart(world: &World, chance: &mut Chance) -> Result<Array, RecoverError> {
    for _ in 0..chance.below(4) {
        let executor = Executor::new(Box::new(|| {}));
        let starting = executor.spawn_with_result(world.begin(&executor));
        let polls = chance.below(400);
        if !step(world, &executor, chance, polls) || starting.try_take().is_some() {
            break; // it came to its end
        }
        world.cut(&executor, chance);
    }
    world.start()
}

fn check_all(world: &World, array: &Array, oracle: &Oracle, context: &str) {
    for lba in 0..world.shape.logical_blocks {
        let read =
            array.read(world, lba, 1).unwrap_or_else(|error| panic!("{context}: block {lba}: {error}"));
        oracle.settle(lba, &read).unwrap_or_else(|error| panic!("{context}: {error}"));
    }
}

fn crash_rounds(shape: Shape, seed: u64) {
    let mut chance = Chance(seed);
    let world = World::new(shape, chance.next());
    let oracle = Oracle::new(shape.logical_blocks);
    for device in &world.devices {
        device.shuffle(chance.next());
    }
    let mut array = world.start().expect("a new array");
    for round in 0..6 {
        let context = format!("{shape:?} seed {seed} round {round}");
        let count = chance.below(40);
        let failed = clients(&array, &oracle, &mut chance, shape.logical_blocks, count);
        let polls = chance.below(3000);
        step(&world, &array.executor, &mut chance, polls);
        if failed.get() > 0 {
            return; // the log is full: reclaim is another story
        }
        world.cut(&array.executor, &mut chance);
        array = restart(&world, &mut chance).unwrap_or_else(|error| panic!("{context}: {error}"));
        array.self_check();
        let report = array.report;
        let events = world.events.lock();
        let over =
            |event: &&Event| matches!(event, Event::MemberError { kind: DeviceErrorKind::TooManyOpen, .. });
        assert_eq!(events.iter().find(over), None, "{context}: Z-I9");
        drop(events);
        assert_eq!((report.lost_blocks, report.unknown_blocks), (0, 0), "{context}: nothing durable is lost");
        check_all(&world, &array, &oracle, &context);
    }
}

/// A member is pulled at some moment while clients write, then the power goes. It stays away, or it is back at the start, where
/// the superblocks decide whether it is stale.
fn lose_a_member(shape: Shape, seed: u64) {
    let mut chance = Chance(seed);
    let mut world = World::new(shape, chance.next());
    let oracle = Oracle::new(shape.logical_blocks);
    world.devices.iter().for_each(|device| device.shuffle(chance.next()));
    let mut array = world.start().expect("a new array");
    let losses = if shape.level == Level::Raid6 { 2 } else { 1 };
    for round in 0..losses + 1 {
        let context =
            format!("{shape:?} seed {seed} round {round}, members {:?}", world.saved.borrow().states);
        let count = 5 + chance.below(30);
        let failed = clients(&array, &oracle, &mut chance, shape.logical_blocks, count);
        let polls = chance.below(1500);
        step(&world, &array.executor, &mut chance, polls);
        let slot = chance.below(shape.members as u64) as usize;
        let states = world.saved.borrow().states.clone();
        let may_lose = round < losses && states[slot] == MemberState::InSync;
        if may_lose {
            world.devices[slot].set_fault(|_, _| Some(DeviceErrorKind::Gone));
        }
        let polls = chance.below(1500);
        step(&world, &array.executor, &mut chance, polls);
        if failed.get() > 0 {
            return;
        }
        world.cut(&array.executor, &mut chance);
        if may_lose && chance.one_in(2) {
            world.absent.push(slot);
            world.saved.borrow_mut().states[slot] = MemberState::Missing;
        }
        array = restart(&world, &mut chance).unwrap_or_else(|error| panic!("{context}: {error}"));
        array.self_check();
        check_all(&world, &array, &oracle, &context);
    }
}

#[test]
fn what_was_flushed_outlives_a_lost_member_and_a_cut() {
    let levels = [Level::Raid4, Level::Raid5, Level::Raid6, Level::Raid10];
    for shape in shapes().filter(|shape| levels.contains(&shape.level)) {
        (300..300 + 2 * seeds().end).for_each(|seed| lose_a_member(shape, seed));
    }
}

/// Seeds of each shape, unless `TWILL_LOG_SEEDS` says otherwise.
const SEEDS: u64 = 4;

#[cfg(test)]
fn seeds() -> std::ops::Range<u64> {
    let asked = std::env::var("TWILL_LOG_SEEDS").ok().and_then(|asked| asked.parse().ok());
    0..asked.unwrap_or(SEEDS)
}

#[test]
fn what_was_flushed_outlives_every_cut() {
    for shape in shapes() {
        seeds().for_each(|seed| crash_rounds(shape, seed));
    }
}

/// Z-I9: with as few open zones as `create` accepts for two shards, and cuts in recoveries, which leave more and more open.
#[test]
fn limits_of_open_zones_are_kept_over_cuts() {
    for access in [ZoneAccess::Sequential, ZoneAccess::Append] {
        let open_max = Some(super::zone_budget::wanted(4));
        let shape = Shape { access, open_max, ..RAID5 };
        (200..200 + 2 * seeds().end).for_each(|seed| crash_rounds(shape, seed));
    }
}

#[test]
fn the_hard_core_outlives_many_cuts() {
    let shape = Shape { level: Level::Raid5, access: ZoneAccess::Placed, ..RAID5 };
    (100..100 + 4 * seeds().end).for_each(|seed| crash_rounds(shape, seed));
}

/// From then on no later crash or returning member changes what counts (Z-I6).
#[test]
fn what_a_recovery_seals_has_its_footers() {
    for access in [ZoneAccess::Sequential, ZoneAccess::Append] {
        let world = World::new(Shape { access, ..RAID5 }, 1);
        let array = world.start().expect("a new array");
        (0..40).for_each(|block| array.write(&world, block, &pattern(block, 1)).expect("a write"));
        array.flush(&world).expect("a flush");
        world.cut(&array.executor, &mut Chance(3));
        let array = world.start().expect("a start");
        assert!(array.report.sealed > 0, "{access:?}");
        for (slot, device) in world.devices.iter().enumerate() {
            let device = Rc::new(device.clone());
            let place =
                ZonePlace { set_uuid: [7; 16], device_uuid: world.saved.borrow().uuids[slot], zone: 0 };
            let port = Rc::clone(&array.set.0.port);
            let footers = array.wait(&world, async move {
                let zones =
                    scan_member(&device, &port.pool, SUPERBLOCK_ZONES, place, slot).await.expect("a scan");
                let mut footers = Vec::new();
                for zone in zones.iter().filter(|zone| zone.state == ZoneState::Full) {
                    let HeaderFound::Right(header) = &zone.header else { panic!("{zone:?}") };
                    let segment = port.shared.table.get(header.slot).map(|segment| segment.state());
                    if segment != Some(SegmentState::Sealed) {
                        continue; // it is emptied instead
                    }
                    footers.push(scan_column(&*device, &port.pool, zone, header).await.footer.is_some());
                }
                footers
            });
            assert!(
                !footers.is_empty() && footers.iter().all(|is_there| *is_there),
                "{access:?} {slot}: {footers:?}"
            );
        }
    }
}
