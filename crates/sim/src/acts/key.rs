//! What tells a state from others: what is on the devices and what they may hold, without the numbers that were drawn.
//!
//! Event counts are told by their order, ids of generations by where they were first seen. What is equal but for these is
//! equal, and of devices that are alike it makes no difference which one an act is about.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use layout::md_bitmap::{PAGE_BYTES, SUPER_BYTES};
use layout::md_superblock::{DeviceRole, Superblock};

use super::run::{Run, superblock};
use super::site::{CHUNK, Site, cells};
use crate::disk::Disk;
use crate::start::record;
use layout::units::{ArrayOffset, DeviceOffset};

/// Event counts that are further apart are as good as far apart.
const EVENTS_APART_MAX: u64 = 3;

/// A state of an array that is not running.
pub(super) fn of_site(site: &Site) -> u64 {
    let disks = site.machine.all_disks.borrow();
    let superblocks: Vec<Option<Superblock>> =
        disks.iter().map(|disk| superblock(&site.machine, disk)).collect();
    let mut key = Key::new(superblocks.iter().flatten());
    for (disk, own) in disks.iter().zip(&superblocks) {
        key.add_device(site, disk, own.as_ref());
    }
    for (at, disk) in disks.iter().enumerate() {
        let head = site.lineage.head(disk.number);
        head.is_some().hash(&mut key.hasher);
        let Some(head) = head else { continue };
        (0..4).for_each(|cell| site.lineage.may_hold(head, cell).hash(&mut key.hasher));
        for other in disks.iter().skip(at + 1).filter_map(|other| site.lineage.head(other.number)) {
            let stands = (site.lineage.leads_to(head, other), site.lineage.leads_to(other, head));
            let wrote = (site.lineage.wrote_without(head, other), site.lineage.wrote_without(other, head));
            (stands, wrote).hash(&mut key.hasher);
        }
    }
    let doubts = site.doubts(false);
    doubts.iter().for_each(|range| (range.first, range.end).hash(&mut key.hasher));
    key.hasher.finish()
}

/// A state of an array that runs and has nothing left to do.
pub(super) fn of_run(run: &Run) -> u64 {
    let mut hasher = DefaultHasher::new();
    of_site(&run.site).hash(&mut hasher);
    format!("{:?}", run.array.shared.members.states()).hash(&mut hasher);
    let doubts = run.array.shared.consistency.doubt_ranges(usize::MAX);
    doubts.iter().for_each(|range| (range.first, range.end).hash(&mut hasher));
    let numbers = |disk: &Option<std::rc::Rc<Disk>>| disk.as_ref().map(|disk| disk.number);
    let used: Vec<Option<u32>> = run.site.machine.disks.borrow().iter().map(numbers).collect();
    used.hash(&mut hasher);
    (0..4).for_each(|cell| run.site.lineage.may_hold(run.head, cell).hash(&mut hasher));
    hasher.finish()
}

/// What an act at a device depends on, except which one it is: devices with one likeness are alike.
pub(super) fn likeness(site: &Site, disk: &Disk) -> u64 {
    let mut hasher = DefaultHasher::new();
    let own = superblock(&site.machine, disk);
    let said = own.as_ref().map(|own| (own.events(), own.recovery_offset(), own.is_replacement()));
    format!("{said:?}").hash(&mut hasher);
    let roles = own.iter().flat_map(Superblock::roles).filter(|role| matches!(role, DeviceRole::Active(_)));
    roles.count().hash(&mut hasher);
    told_of_each_other(site, own.as_ref()).hash(&mut hasher);
    contents(site, disk).hash(&mut hasher);
    site.lineage.head(disk.number).hash(&mut hasher);
    if site.machine.geometry().parity_chunks() > 0 || !is_mirror(site) {
        disk.number.hash(&mut hasher); // chunks have places of their own
    }
    if let (true, Some(DeviceRole::Active(slot))) = (is_mirror(site), own.as_ref().map(Superblock::role)) {
        let copies = site.machine.geometry().copies(ArrayOffset::START, u64::from(CHUNK)).places.len();
        (slot.index() / copies).hash(&mut hasher); // of RAID-10 the members with the same copies
    }
    hasher.finish()
}

/// What the superblocks of all devices say of this one's number, and this one of theirs, in no order.
fn told_of_each_other(site: &Site, own: Option<&Superblock>) -> Vec<[u8; 2]> {
    let kind = |by: Option<&Superblock>, of: Option<&Superblock>| match by.zip(of) {
        None => 0,
        Some((by, of)) => match by.role_of(of.dev_number()) {
            Some(DeviceRole::Active(_)) => 1,
            Some(DeviceRole::Faulty) => 2,
            Some(DeviceRole::Spare | DeviceRole::Journal) | None => 3,
        },
    };
    let disks = site.machine.all_disks.borrow();
    let others = disks.iter().map(|disk| superblock(&site.machine, disk));
    let mut told: Vec<[u8; 2]> =
        others.map(|other| [kind(other.as_ref(), own), kind(own, other.as_ref())]).collect();
    told.sort_unstable();
    told
}

fn is_mirror(site: &Site) -> bool {
    !site.machine.geometry().level().is_striped()
}

/// The blocks of a device that may differ in a history.
fn contents(site: &Site, disk: &Disk) -> u64 {
    let geometry = site.machine.geometry();
    let (mut hasher, mut block) = (DefaultHasher::new(), vec![0; CHUNK as usize]);
    let places = cells(geometry).into_iter().map(|offset| match geometry.level().is_striped() {
        true => geometry.member_offset(geometry.locate(ArrayOffset::new(offset)).stripe),
        false => geometry.copies(ArrayOffset::new(offset), u64::from(CHUNK)).places[0].member_offset,
    });
    for at in places {
        disk.peek(at.get(), &mut block);
        block.hash(&mut hasher);
    }
    hasher.finish()
}

struct Key {
    hasher: DefaultHasher,
    events: Vec<u64>,
    ids: Vec<u64>,
}

impl Key {
    fn new<'a>(superblocks: impl Iterator<Item = &'a Superblock>) -> Self {
        let mut events: Vec<u64> = superblocks.map(Superblock::events).collect();
        events.sort_unstable();
        events.dedup();
        Key { hasher: DefaultHasher::new(), events, ids: Vec::new() }
    }

    fn add_device(&mut self, site: &Site, disk: &Disk, own: Option<&Superblock>) {
        contents(site, disk).hash(&mut self.hasher);
        own.is_some().hash(&mut self.hasher);
        let Some(own) = own else { return };
        self.add_events(own.events());
        (own.dev_number(), own.recovers_by_bitmap(), own.is_replacement()).hash(&mut self.hasher);
        let words = format!("{:?} {:?} {:?}", own.role(), own.recovery_offset(), own.resync_offset());
        words.hash(&mut self.hasher);
        own.roles().for_each(|role| format!("{role:?}").hash(&mut self.hasher));
        self.add_bitmap(disk, own);
        let told = record(disk, own);
        told.is_some().hash(&mut self.hasher);
        let Some(told) = told.map(|record| record.generations) else { return };
        for id in [told.current, told.bitmap].into_iter().chain(told.history.iter().copied()) {
            self.add_id(id);
        }
        told.members.hash(&mut self.hasher);
        self.add_events(told.since_events);
    }

    fn add_bitmap(&mut self, disk: &Disk, own: &Superblock) {
        let Some(start) = own.bitmap_start() else { return };
        let page = disk.read_at_once(DeviceOffset::of_sector(start), PAGE_BYTES);
        page[SUPER_BYTES..].hash(&mut self.hasher);
        let word = |at: usize| u64::from_le_bytes(page[at..at + 8].try_into().expect("eight bytes"));
        // `events` and `events_cleared` of md's bitmap.
        self.add_events(word(24));
        self.add_events(word(32));
    }

    fn add_events(&mut self, events: u64) {
        let below = self.events.windows(2).take_while(|pair| pair[1] <= events);
        let mut steps: u64 = below.map(|pair| (pair[1] - pair[0]).min(EVENTS_APART_MAX)).sum();
        let nearest = self.events.iter().rev().find(|known| **known <= events);
        steps = steps * (EVENTS_APART_MAX + 1)
            + nearest.map_or(EVENTS_APART_MAX, |known| (events - known).min(EVENTS_APART_MAX));
        steps.hash(&mut self.hasher);
    }

    fn add_id(&mut self, id: u64) {
        let at = self.ids.iter().position(|known| *known == id).unwrap_or_else(|| {
            self.ids.push(id);
            self.ids.len() - 1
        });
        at.hash(&mut self.hasher);
    }
}
