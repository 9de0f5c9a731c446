//! One flipped bit on one member, anywhere in the header, a record or the footer of a segment: a check names the member and
//! the zone, and where the level has redundancy left nothing that is read changes, now or at the next start.

use std::rc::Rc;

use engine::log::port::LogPort;
use engine::log::recover::decide::is_void;
use engine::log::recover::scan::{RecordFound, read_footer, scan_column, scan_zone};
use engine::log::segment::SegmentState;
use engine::mismatch::BlockPlace;
use engine::volume::Space;
use layout::zoned::{Carrier, DataOffset, MapEntryBytes, ZonePlace};

use super::array::Array;
use super::check::mismatches;
use super::drive::SimZones;
use super::machine::Machine;
use super::medium::{BLOCK, Survival};
use super::workload::{self, read_all};
use crate::pages;
use crate::random::Random;
use crate::world::World;

const TAIL: usize = 40;

/// What a block is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Header,
    /// The first block of a record: in band its descriptor.
    First,
    Record,
    Footer,
}

#[derive(Clone, Copy, Debug)]
struct Target {
    slot: usize,
    zone: u32,
    block: u32,
    part: Part,
}

/// Flips `count` bits of what a history left, one at a time, in a world of its own.
pub(super) fn flip(machine: &Rc<Machine>, count: u64) {
    let world = World::new(Random::new(machine.world.random().next()), TAIL);
    let image = machine.cut(&world, Survival::Everything);
    if let Ok(array) = Array::start(&image, || {}) {
        if workload::serve(&array, 8) && array.stop() {
            for _ in 0..count {
                flip_one(&array);
            }
        }
        array.kill();
    }
    machine.world.counts.borrow_mut().add(&world.counts.borrow());
    if let Some(what) = world.failure() {
        let trace = world.trace_tail().join("\n    | ");
        machine.world.fail(format!("one flipped bit: {what}\n    | {trace}"));
    }
}

fn flip_one(array: &Rc<Array>) {
    let machine = &array.machine;
    if machine.world.failure().is_some() {
        return;
    }
    let port = Rc::clone(&array.sets[0].0.port);
    let Some(targets) = array.wait(async move { targets(&port).await }) else { return };
    let Some((target, has_redundancy)) = choose(machine, &targets) else { return };
    let random = machine.world.random();
    let is_record = matches!(target.part, Part::First | Part::Record);
    let beside = is_record && machine.scenario.carrier == Carrier::Oob;
    let bit = random.below((BLOCK + if beside { 64 } else { 0 }) * 8) as usize;
    let flip = || machine.drives[target.slot].medium.borrow_mut().flip(target.zone, target.block, bit);
    flip();
    machine.world.counts.borrow_mut().zoned_flips += 1;
    let what = format!("bit {bit} of {target:?}");
    is_named(array, &target, &what);
    reads(array, has_redundancy, &what);
    let next = World::new(Random::new(random.next()), TAIL);
    let again = machine.cut(&next, Survival::Everything);
    again.is_flipped.set(true);
    match Array::start(&again, || {}) {
        // Without redundancy nothing may prove that a stripe was durable which cannot be made: it is void then.
        Ok(again) if !has_redundancy => again.kill(),
        Ok(again) => {
            reads(&again, has_redundancy, &format!("{what}, started again"));
            again.kill();
        }
        Err(error) if has_redundancy && !error.contains("no space left") => {
            machine.world.fail(format!("{what}: the array does not start: {error}"));
        }
        Err(_) => {}
    }
    if let Some(failure) = next.failure() {
        machine.world.fail(failure);
    }
    flip();
}

/// Every block that something names, of segments that take no more stripes.
async fn targets(port: &LogPort<SimZones>) -> Vec<Target> {
    let mut targets = Vec::new();
    for segment in port.shared.table.all() {
        // What is emptied and could not be reset yet is nobody's: a recovery without space for its entry leaves it to reclaim.
        let is_emptied =
            port.shared.table.live(segment.slot()) == 0 && port.shared.space.needs_entry(segment.key());
        if is_emptied || !matches!(segment.state(), SegmentState::Sealed | SegmentState::Short) {
            continue;
        }
        for (column, slot, zone) in segment.zones() {
            let (Some(zone), Some(device)) = (zone, port.device(slot)) else { continue };
            let shared = &port.shared;
            let place =
                ZonePlace { set_uuid: shared.config.set_uuid, device_uuid: shared.members.uuid(slot), zone };
            let Some(found) = scan_zone(&device, &port.pool, place, slot).await else { continue };
            let header = &segment.headers[usize::from(column)];
            let footer = read_footer(&*device, &port.pool, &found, header).await;
            let held = scan_column(&*device, &port.pool, &found, header).await;
            let mut add = |block, part| targets.push(Target { slot, zone, block, part });
            add(0, Part::Header);
            let footer = footer.or(held.footer);
            // Without a footer the engine has noted which records count; if not, no block of the segment does, and it is to be emptied.
            let is_sealed = segment.state() == SegmentState::Sealed;
            let counted = segment.counted().unwrap_or_default();
            let counts = |record: &RecordFound| {
                if is_sealed || footer.is_some() {
                    return true;
                }
                counted.0.iter().any(|place| place.key(&header.shape) == record.key(header))
            };
            let names = |block: u32| {
                let Some(footer) = &footer else { return true };
                let offset = DataOffset::of_zone_block(block).expect("of the data region");
                let entry = footer.iter().flat_map(|block| &block.entries).nth(offset.0 as usize);
                entry.is_some_and(|entry| !is_void(header, offset, entry))
            };
            for record in held.records.iter().filter(|record| record.is_whole && counts(record)) {
                let blocks = record.block..record.block + record.descriptor.record_blocks(header);
                for block in blocks.filter(|block| names(*block)) {
                    add(block, if block == record.block { Part::First } else { Part::Record });
                }
            }
            if let Some(footer) = footer {
                let start = DataOffset(footer[0].data_blocks).zone_block();
                (start..start + footer.len() as u32).for_each(|block| add(block, Part::Footer));
            }
        }
    }
    targets
}

/// A block, each kind as often as another, and whether the level can do without its member.
fn choose(machine: &Machine, targets: &[Target]) -> Option<(Target, bool)> {
    let random = machine.world.random();
    let lost = machine.lost.borrow();
    let has_redundancy = lost.len() < machine.scenario.losses();
    let part = random.pick(&[Part::Header, Part::First, Part::Record, Part::Footer]);
    let is_wanted = |target: &&Target| target.part == part && !lost.contains(&target.slot);
    let wanted: Vec<Target> = targets.iter().filter(is_wanted).copied().collect();
    (!wanted.is_empty()).then(|| (random.pick(&wanted), has_redundancy))
}

fn is_named(array: &Rc<Array>, target: &Target, what: &str) {
    let found = mismatches(array);
    let zone_bytes = array.machine.scenario.zoned().zone_bytes;
    let zone = u64::from(target.zone) * zone_bytes..(u64::from(target.zone) + 1) * zone_bytes;
    let is_it =
        |place: &BlockPlace| place.member.index() == target.slot && zone.contains(&place.offset_bytes.get());
    if found.iter().flat_map(|mismatch| &mismatch.blocks).any(is_it) {
        array.machine.world.counts.borrow_mut().zoned_flips_named += 1;
    } else {
        array.machine.world.fail(format!("{what} is not named by a check: {found:?}"));
    }
}

/// With redundancy everything is right; without, a block is right or an error. With map entries of 4 bytes reads are not
/// verified.
fn reads(array: &Rc<Array>, has_redundancy: bool, what: &str) {
    if array.machine.scenario.entry == MapEntryBytes::Four {
        return;
    }
    if has_redundancy {
        read_all(array, what);
        return;
    }
    let own = Rc::clone(array);
    array.wait(async move {
        for block in 0..own.machine.scenario.logical_blocks {
            let Ok(data) = own.sets[0].read(block * BLOCK, BLOCK).await else { continue };
            let mut bytes = vec![0; BLOCK as usize];
            data.copy_to(&mut bytes);
            let found = pages::identify(&bytes, block);
            let may = found.is_some_and(|content| own.machine.oracle.borrow().may_survive(block, content));
            if !may {
                let holds = pages::describe(&bytes, block);
                own.machine.world.fail(format!("block {block} is wrong without an error: {holds}"));
            }
        }
    });
}
