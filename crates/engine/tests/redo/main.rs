//! Power cuts of arrays with members missing, with the engine's own manager, writer and log: every block holds old or
//! new contents afterwards, what missing members held too, and nothing needs force.

mod array;
mod device;
mod world;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use array::{Array, CHUNK, DATA_OFFSET, Machine, create, run, start};
use engine::array::superblocks::Spare;
use engine::buffer::{Gather, Slice};
use engine::events::Event;
use engine::members::{Failing, MemberState};
use engine::volume::{Space as _, ZeroFlags};
use layout::geometry::Level;
use layout::redo_log::{PieceKind, WholeRecord};
use layout::units::Slot;
use world::World;

/// A power cut tears at sectors.
const BLOCK: u64 = 512;
const PAGE: u64 = 4096;

/// A version of zeroes. Each has a number of its own, or a flush could be taken for that of another one.
const ZEROES: u64 = 1 << 63;

/// Which versions of a block may be there.
#[derive(Default)]
struct Oracle {
    /// The newest that is durable for certain, and what was written since, in order; with whether it was acknowledged.
    blocks: BTreeMap<u64, Vec<(u64, bool)>>,
    busy: BTreeSet<u64>,
    last: u64,
}

impl Oracle {
    fn versions(&mut self, block: u64) -> &mut Vec<(u64, bool)> {
        self.blocks.entry(block).or_insert_with(|| vec![(ZEROES, true)])
    }

    /// The versions of these blocks that were acknowledged last: durable once a flush that starts now returns.
    fn acknowledged(&self) -> BTreeMap<u64, u64> {
        let last =
            |versions: &[(u64, bool)]| versions.iter().rev().find(|(_, acked)| *acked).map(|(v, _)| *v);
        self.blocks.iter().filter_map(|(block, versions)| Some((*block, last(versions)?))).collect()
    }

    fn durable(&mut self, upto: &BTreeMap<u64, u64>) {
        for (block, version) in upto {
            let versions = self.versions(*block);
            if let Some(at) = versions.iter().position(|(v, _)| v == version) {
                versions.drain(..at);
            }
        }
    }
}

fn contents(block: u64, version: u64) -> Vec<u8> {
    if version & ZEROES != 0 {
        return vec![0; BLOCK as usize];
    }
    let mut word = block.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ version.wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
    let mut bytes = Vec::with_capacity(BLOCK as usize);
    while bytes.len() < BLOCK as usize {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        bytes.extend_from_slice(&word.to_be_bytes());
    }
    bytes
}

/// A client: writes, zeroes, flushes, until the crash.
async fn client(array: Rc<Array>, oracle: Rc<RefCell<Oracle>>, shard: usize) {
    let volume = Rc::clone(&array.volumes[shard]);
    let blocks = array.geometry.array_bytes() / BLOCK;
    loop {
        let world = &array.world;
        if world.below(12) == 0 {
            let acknowledged = oracle.borrow().acknowledged();
            if volume.flush().await.is_ok() {
                oracle.borrow_mut().durable(&acknowledged);
            }
            continue;
        }
        let whole = array.geometry.stripe_bytes() / BLOCK;
        let (first, count) = match world.below(6) {
            0 => (world.below(blocks / whole) * whole, whole * (1 + world.below(2))),
            1 => (world.below(blocks), 1 + world.below(2 * whole)),
            2 => (world.below(blocks.min(240)), 1 + world.below(9)),
            _ => (world.below(blocks.min(240)) / 8 * 8, 8 * (1 + world.below(3))),
        };
        let end = (first + count).min(blocks);
        if (first..end).any(|block| oracle.borrow().busy.contains(&block)) {
            world.later(|| ()).await;
            continue;
        }
        oracle.borrow_mut().busy.extend(first..end);
        write(&array, &volume, &oracle, first..end).await;
        oracle.borrow_mut().busy.retain(|block| !(first..end).contains(block));
    }
}

async fn write(
    array: &Array,
    volume: &engine::array::volume::ArrayVolume<engine::in_place::InPlace<device::TestDevice>>,
    oracle: &RefCell<Oracle>,
    blocks: std::ops::Range<u64>,
) {
    let (zero, fua) = (array.world.below(8) == 0, array.world.below(4) == 0);
    let version = {
        let mut oracle = oracle.borrow_mut();
        oracle.last += 1;
        let version = if zero { ZEROES | oracle.last } else { oracle.last };
        blocks.clone().for_each(|block| oracle.versions(block).push((version, false)));
        version
    };
    let (offset, bytes) = (blocks.start * BLOCK, (blocks.end - blocks.start) * BLOCK);
    let result = match zero {
        true => volume.write_zeroes(offset, bytes, ZeroFlags { may_unmap: false, fua }).await,
        false => {
            let data: Vec<u8> = blocks.clone().flat_map(|block| contents(block, version)).collect();
            volume.write(offset, Gather::from(Slice::from_bytes(&data)), fua).await
        }
    };
    if result.is_ok() {
        let mut oracle = oracle.borrow_mut();
        for block in blocks {
            let versions = oracle.versions(block);
            versions.last_mut().expect("just written").1 = true;
            if fua {
                let last = versions.len() - 1;
                versions.drain(..last);
            }
        }
    }
}

/// Reads every block: it is one that may be there, or its stripe is in doubt. Returns the errors.
fn check(array: &Rc<Array>, oracle: &Rc<RefCell<Oracle>>, what: &str) -> u64 {
    let (own, versions) = (Rc::clone(array), Rc::clone(oracle));
    let what = what.to_string();
    let reading = array.executors[0].spawn_with_result(async move {
        let mut errors = 0;
        let mut page = vec![0; PAGE as usize];
        let mut readable = true;
        for block in 0..own.geometry.array_bytes() / BLOCK {
            if (block * BLOCK).is_multiple_of(PAGE) {
                let read = own.volumes[0].read(block * BLOCK, PAGE).await;
                readable = read.is_ok();
                match read {
                    Ok(data) => data.copy_to(&mut page),
                    Err(error) => {
                        assert!(error.to_string().contains("in doubt"), "{what}: block {block}: {error}");
                        errors += 1;
                    }
                }
            }
            if !readable {
                continue;
            }
            let at = (block * BLOCK % PAGE) as usize;
            let found = &page[at..at + BLOCK as usize];
            let mut oracle = versions.borrow_mut();
            let may_be = oracle.versions(block);
            let is = may_be.iter().rev().find(|(version, _)| contents(block, *version) == found).copied();
            let Some(is) = is else {
                let stripe = block * BLOCK / own.geometry.stripe_bytes();
                let may_be = may_be.clone();
                let is = (0..=oracle.last).find(|version| contents(block, *version) == found);
                panic!("{what}: block {block} of stripe {stripe} is {is:?}, none of {may_be:?}")
            };
            *may_be = vec![(is.0, true)];
        }
        errors
    });
    run(&array.world, &array.executors, reading)
}

/// What happened over all histories, so that a test cannot pass because nothing did.
#[derive(Debug, Default)]
struct Counts {
    crashes: u64,
    crashes_in_force: u64,
    replayed: u64,
    /// Those of them that have only what a missing chunk holds.
    of_missing_chunks: u64,
    in_doubt: u64,
    whole_again: u64,
    lost_at_the_cut: u64,
}

struct History {
    machine: Machine,
    oracle: Rc<RefCell<Oracle>>,
    level: Level,
    members: u64,
    seed: u64,
}

impl History {
    fn new(seed: u64, level: Level, members: u16) -> Self {
        let world = World::new(seed);
        let machine = create(&world, level, members, DATA_OFFSET);
        History { machine, oracle: Rc::default(), level, members: u64::from(members), seed }
    }

    fn missing(&self, array: &Array) -> u64 {
        array.shared.members.states().iter().filter(|state| **state != MemberState::InSync).count() as u64
    }

    /// The disk of the member in a slot.
    fn disk_of(&self, array: &Array, slot: Slot) -> Rc<device::Drive> {
        let superblock =
            array.manager.writer().superblocks().try_superblock(slot).flatten().expect("a member");
        Rc::clone(&self.machine.disks.borrow()[usize::from(superblock.device_uuid()[0]) - 1])
    }

    fn fail_one(&self, array: &Array) {
        let slot = Slot::new(self.machine.world.below(self.members) as u32);
        let members = &array.shared.members;
        // What the superblocks do not say yet is no redundancy.
        if members.state(slot) != MemberState::InSync || !members.is_settled() {
            return;
        }
        let disk = self.disk_of(array, slot);
        if array.shared.members.fail(slot, "the test says so") == Failing::Failed
            && self.machine.world.below(2) == 0
        {
            disk.kill(); // else it may come back with what it held
        }
    }

    fn add_spare(&self, array: &Rc<Array>) {
        let Some(superblock) = Slot::first(8)
            .find_map(|slot| array.manager.writer().superblocks().try_superblock(slot).flatten())
        else {
            return;
        };
        let mut superblock = superblock;
        let disks = &mut *self.machine.disks.borrow_mut();
        let number = disks.len() as u32; // no device had it
        superblock.set_device(number, [disks.len() as u8 + 1; 16]);
        superblock.set_role(number, layout::md_superblock::DeviceRole::Spare);
        superblock.set_recovery_offset(None);
        let disk = device::Drive::new(&self.machine.world, format!("m{}", disks.len()), array::DEVICE_BYTES);
        disk.poke(superblock.offset(), &superblock.encode(512));
        disks.push(Rc::clone(&disk));
        let device = Rc::new(device::TestDevice(disk));
        array.manager.writer().superblocks().spares().borrow_mut().push(Spare { superblock, device });
    }

    /// One life of the array, up to a power cut. Returns whether the log was in force then.
    fn live(&self, array: &Rc<Array>, counts: &mut Counts) -> bool {
        let world = &self.machine.world;
        for shard in 0..array::SHARDS {
            for _ in 0..3 {
                let (own, oracle) = (Rc::clone(array), Rc::clone(&self.oracle));
                array.executors[shard].spawn(client(own, oracle, shard));
            }
        }
        let survives = if self.level == Level::Raid6 { 2 } else { 1 };
        let mut left = 200 + world.below(6000);
        let mut was_degraded = false;
        while left > 0 {
            left -= 1;
            let (members, redo) = (&array.shared.members, &array.shared.redo);
            assert!(
                world.step(&array.executors),
                "seed {}: stuck with {:?}, settled {}, {redo:?}, {} owned, {:?}",
                self.seed,
                members.states(),
                members.is_settled(),
                array.shared.table.active(),
                array.events.lock().unwrap(),
            );
            match world.below(700) {
                0 if self.missing(array) < survives => self.fail_one(array),
                1 | 2 if self.missing(array) > 0 => self.add_spare(array),
                _ => {}
            }
            was_degraded |= array.shared.redo.in_force();
        }
        counts.whole_again += u64::from(was_degraded && self.missing(array) == 0);
        let in_force = array.shared.redo.in_force();
        array.crash();
        in_force
    }

    fn run(&self, lives: u64, counts: &mut Counts) {
        let world = &self.machine.world;
        let mut array = Rc::new(start(&self.machine, false));
        for life in 0..lives {
            let doubtful = array.shared.consistency.stripes_in_doubt(array::STRIPES) > 0;
            let in_force = self.live(&array, counts);
            let missing = self.missing(&array);
            let before = format!(
                "before {:?} settled {} {:?} {:?}",
                array.shared.members.states(),
                array.shared.members.is_settled(),
                array.shared.redo,
                array.events.lock().unwrap(),
            );
            self.machine.disks.borrow().iter().for_each(|disk| disk.cut());
            // One more may go with the power, if the level survives it.
            let survives = if self.level == Level::Raid6 { 2 } else { 1 };
            if missing < survives && array.shared.members.is_settled() && world.below(3) == 0 {
                let slot = Slot::new(world.below(self.members) as u32);
                if array.shared.members.state(slot) == MemberState::InSync {
                    self.disk_of(&array, slot).kill();
                    counts.lost_at_the_cut += 1;
                }
            }
            counts.crashes += 1;
            counts.crashes_in_force += u64::from(in_force);
            array = Rc::new(start(&self.machine, false));
            let what = format!(
                "seed {} life {life} in force {in_force} {:?}, {before}, after {:?}, redone {:?}",
                self.seed,
                array.repair.reason,
                array.shared.members.states(),
                array.repair.records.iter().map(WholeRecord::record).collect::<Vec<_>>(),
            );
            counts.replayed += array.repair.records.len() as u64;
            counts.of_missing_chunks +=
                array.repair.records.iter().filter(|record| tells_of_missing(record)).count() as u64;
            counts.in_doubt += u64::from(!array.repair.doubts.is_empty());
            if in_force && !doubtful {
                assert!(array.repair.doubts.is_empty(), "{what}: {:?}", array.repair.doubts);
            }
            let errors = check(&array, &self.oracle, &what);
            assert!(errors == 0 || array.shared.consistency.stripes_in_doubt(array::STRIPES) > 0, "{what}");
            if errors > 0 {
                return; // what was in doubt stays so
            }
        }
    }
}

fn tells_of_missing(record: &WholeRecord) -> bool {
    record.record().pieces.iter().any(|piece| piece.kind == PieceKind::Missing)
}

fn histories(level: Level, members: u16, seeds: u64) -> Counts {
    let mut counts = Counts::default();
    let (first, seeds) = match std::env::var("REDO_SEEDS").ok().and_then(|text| text.parse().ok()) {
        Some(seeds) => {
            (std::env::var("REDO_FIRST").ok().and_then(|text| text.parse().ok()).unwrap_or(0), seeds)
        }
        None => (0, seeds),
    };
    for seed in first..first + seeds {
        History::new(seed, level, members).run(6, &mut counts);
    }
    println!("{level} of {members}: {counts:?}");
    counts
}

#[test]
fn raid5_old_or_new_after_power_cuts_with_a_member_missing() {
    let counts = histories(Level::Raid5, 4, 40);
    assert!(counts.crashes_in_force > 20 && counts.replayed > 20 && counts.whole_again > 0, "{counts:?}");
    assert!(counts.of_missing_chunks > 20, "{counts:?}");
}

#[test]
fn raid6_old_or_new_after_power_cuts_with_one_and_two_missing() {
    let counts = histories(Level::Raid6, 5, 40);
    assert!(counts.crashes_in_force > 20 && counts.replayed > 20 && counts.lost_at_the_cut > 0, "{counts:?}");
    assert_eq!(counts.of_missing_chunks, 0, "another member may go with the power: all is logged");
}

#[test]
fn raid4_old_or_new_after_power_cuts_with_a_member_missing() {
    let counts = histories(Level::Raid4, 3, 20);
    assert!(counts.crashes_in_force > 5 && counts.replayed > 5, "{counts:?}");
}

/// Without room for a log the array starts all the same, says which stripes are in doubt, reads the rest, and an
/// overwrite of what was missing clears it.
#[test]
fn no_room_for_a_log_leaves_stripes_in_doubt() {
    let world = World::new(5);
    let machine = create(&world, Level::Raid5, 4, 64 << 10);
    let array = Rc::new(start(&machine, false));
    let oracle = Rc::new(RefCell::new(Oracle::default()));
    machine.disks.borrow()[1].kill();
    array.shared.members.fail(Slot::new(1), "the test says so");
    array.executors[0].spawn(client(Rc::clone(&array), Rc::clone(&oracle), 0));
    (0..3000).for_each(|_| assert!(world.step(&array.executors)));
    assert!(array.shared.redo.has_no_room());
    assert!(array.events.lock().unwrap().iter().any(|event| matches!(event, Event::RedoLogAbsent { .. })));
    array.crash();
    machine.disks.borrow().iter().for_each(|disk| disk.cut());

    let array = Rc::new(start(&machine, false));
    assert_eq!(array.shared.consistency.stripes_in_doubt(array::STRIPES), array::STRIPES);
    let lost = array::STRIPES * u64::from(CHUNK) / PAGE;
    // In each stripe the missing member has a data chunk, or P.
    let errors = check(&array, &oracle, "no room");
    assert!(errors > 0 && errors <= lost, "{errors} of {lost}");
    let (own, stripe_bytes) = (Rc::clone(&array), array.geometry.stripe_bytes());
    let overwritten = array.executors[0].spawn_with_result(async move {
        let volume = &own.volumes[0];
        let data = Gather::from(Slice::from_bytes(&vec![9; stripe_bytes as usize]));
        volume.write(2 * stripe_bytes, data, true).await.expect("an overwrite");
        volume
            .write_zeroes(5 * stripe_bytes, stripe_bytes, ZeroFlags { may_unmap: false, fua: true })
            .await
            .expect("zeroes");
        for stripe in [2, 5] {
            let read =
                volume.read(stripe * stripe_bytes, stripe_bytes).await.expect("a stripe that is whole");
            let mut bytes = vec![0; stripe_bytes as usize];
            read.copy_to(&mut bytes);
            assert!(bytes.iter().all(|byte| *byte == if stripe == 2 { 9 } else { 0 }));
        }
    });
    run(&world, &array.executors, overwritten);
    assert_eq!(array.shared.consistency.stripes_in_doubt(array::STRIPES), array::STRIPES - 2);
    array.crash();
    let array = start(&machine, true);
    assert_eq!(
        array.shared.consistency.stripes_in_doubt(array::STRIPES),
        0,
        "force takes everything as it is"
    );
    array.crash();
}

/// Writers that each do what `writes` says, while a member fails at a random moment. All of them come to their end.
fn all_writers_end(seed: u64, writers: u64, writes: impl Fn(u64) -> Vec<(u64, u64)>) {
    let world = World::new(seed);
    let machine = create(&world, Level::Raid5, 4, DATA_OFFSET);
    let array = Rc::new(start(&machine, false));
    let left = Rc::new(Cell::new(writers));
    for writer in 0..writers {
        let shard = writer as usize % array::SHARDS;
        let (own, left, writes) = (Rc::clone(&array), Rc::clone(&left), writes(writer));
        array.executors[shard].spawn(async move {
            for (offset, bytes) in writes {
                let data = Gather::from(Slice::from_bytes(&vec![writer as u8; bytes as usize]));
                own.volumes[shard].write(offset, data, false).await.expect("a write");
            }
            left.set(left.get() - 1);
        });
    }
    let failure = world.below(3000);
    let mut steps = 0;
    while left.get() > 0 {
        if steps == failure {
            machine.disks.borrow()[1].kill();
            array.shared.members.fail(Slot::new(1), "the test says so");
        }
        assert!(world.step(&array.executors));
        steps += 1;
        let redo = &array.shared.redo;
        assert!(steps < 1_000_000, "seed {seed}: {} writers have stopped, {redo:?}", left.get());
    }
    array.crash();
}

/// Leaders once waited for a slot while another leader's record had taken their own pieces along: its slot stayed
/// open, no later one could be freed, and all writes stopped.
#[test]
fn a_log_of_few_slots_never_stops() {
    let stripe_bytes = 3 * u64::from(CHUNK);
    for seed in 0..20 {
        let stripes = |writer: u64| (0..20).map(move |i| (writer * 7 + i) % array::STRIPES);
        let writes = |writer| stripes(writer).map(|stripe| (stripe * stripe_bytes, PAGE)).collect();
        all_writers_end(seed, 24 * array::SHARDS as u64, writes);
    }
}

/// The beginning of a stripe that gathers waits for owners in flight, these at the gate for the log, and the log for
/// each owner of a stripe that is not at the gate.
#[test]
fn a_stream_that_gathers_does_not_wait_for_owners_at_the_gate() {
    let part = u64::from(CHUNK);
    for seed in 0..60 {
        let stream = |writer: u64| (0..12).map(move |i| (writer * 12 + i) % (3 * array::STRIPES));
        all_writers_end(seed, 6, |writer| stream(writer).map(|i| (i * part, part)).collect());
    }
}
