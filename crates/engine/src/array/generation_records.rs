//! The records of generations that a running array's superblocks go with, kept by the keeper of the superblocks.
//!
//! Before a superblock is written the record that goes with it is durable in the copy that does not go with the superblock
//! on disk. That copy is known by its sequence, which counts only when the superblock is on disk, too: a record that was written
//! for a superblock that was not is written over. A record that cannot be written is none, and md's rules count.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use layout::generations::{Generations, GenerationsArea, GenerationsRecord, place};
use layout::md_superblock::Superblock;
use layout::redo_log::BitmapExtent;

use super::generations::{DeviceUuid, FoundGenerations, go_on};

/// A record to be written before its superblock.
#[derive(Clone, Debug)]
pub(super) struct RecordWrite {
    pub(super) offset_bytes: u64,
    pub(super) bytes: Vec<u8>,
}

/// What the records of an array say.
pub(super) struct GenerationRecords {
    now: RefCell<Option<Generations>>,
    /// Sequence of the record that goes with the superblock on each device.
    in_effect: RefCell<BTreeMap<DeviceUuid, u64>>,
    /// How long the bitmap is on each member.
    bitmap: Cell<BitmapExtent>,
    new_id: Box<dyn Fn() -> u64>,
}

impl GenerationRecords {
    pub(super) fn new(found: &FoundGenerations, new_id: Box<dyn Fn() -> u64>) -> Self {
        GenerationRecords {
            now: RefCell::new(found.now.clone()),
            in_effect: RefCell::new(found.sequences.iter().copied().collect()),
            bitmap: Cell::new(BitmapExtent::Absent),
            new_id,
        }
    }

    /// What superblocks were last written with, and are next.
    pub(super) fn now(&self) -> Option<Generations> {
        self.now.borrow().clone()
    }

    /// Superblocks with the event count `events` come next, on these devices: first by slot, then those that are to replace
    /// members. Where no member has room for a record there are no generations.
    pub(super) fn follow(
        &self,
        devices: &[Option<&Superblock>],
        is_whole: bool,
        events: u64,
        bitmap: BitmapExtent,
    ) {
        self.bitmap.set(bitmap);
        let members: Vec<Option<DeviceUuid>> =
            devices.iter().map(|device| device.map(Superblock::device_uuid)).collect();
        let has_room = |superblock: &&Superblock| {
            GenerationsArea::of(superblock, bitmap_of(superblock, bitmap)).is_some()
        };
        let before = self.now.take();
        if devices.iter().flatten().any(has_room) {
            let new_id = || std::iter::repeat_with(&self.new_id).find(|id| *id != 0).expect("it goes on");
            self.now.replace(Some(go_on(before.as_ref(), &members, is_whole, events, new_id)));
        }
    }

    /// The record to be written before this superblock.
    pub(super) fn before(&self, superblock: &Superblock) -> Option<RecordWrite> {
        let in_effect = self.in_effect.borrow().get(&superblock.device_uuid()).copied().unwrap_or(0);
        let generations = self.now.borrow().clone()?;
        let record = record_of(superblock, generations, in_effect + 1);
        write_of(superblock, &record, self.bitmap.get())
    }

    /// A superblock is on disk, with the record that was written before it.
    pub(super) fn superblock_written(&self, superblock: &Superblock) {
        *self.in_effect.borrow_mut().entry(superblock.device_uuid()).or_insert(0) += 1;
    }

    /// The record to be written before a superblock of a device that returns: it says what that device's own record said.
    pub(super) fn before_own(&self, superblock: &Superblock, own: &GenerationsRecord) -> Option<RecordWrite> {
        let record = record_of(superblock, own.generations.clone(), own.sequence + 1);
        self.in_effect.borrow_mut().insert(superblock.device_uuid(), own.sequence);
        write_of(superblock, &record, self.bitmap.get())
    }
}

fn record_of(superblock: &Superblock, generations: Generations, sequence: u64) -> GenerationsRecord {
    let (events, superblock) = (superblock.events(), superblock.digest());
    GenerationsRecord { generations, sequence, events, superblock }
}

fn write_of(
    superblock: &Superblock,
    record: &GenerationsRecord,
    bitmap: BitmapExtent,
) -> Option<RecordWrite> {
    let area = GenerationsArea::of(superblock, bitmap_of(superblock, bitmap))?;
    let offset_bytes = area.copy_offset(record.sequence);
    Some(RecordWrite { offset_bytes, bytes: record.encode(place(superblock, offset_bytes)) })
}

/// `bitmap` is how long the array's is.
fn bitmap_of(superblock: &Superblock, bitmap: BitmapExtent) -> BitmapExtent {
    match superblock.bitmap_start() {
        None => BitmapExtent::Absent,
        Some(_) => bitmap,
    }
}
