//! The records of generations that a running array's superblocks go with, written by the superblock writer.
//!
//! Before a superblock is written the record that goes with it is durable in the copy that does not go with the superblock
//! on disk. The sequence says which copy that is, and moves on only once the superblock is on disk: a record whose superblock
//! was not written is overwritten. A member whose record cannot be written has none, and md's rules apply to it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use layout::generations::{Generations, GenerationsArea, GenerationsRecord};
use layout::md_superblock::Superblock;
use layout::redo_log::{BitmapExtent, Place};

use super::generations::{DeviceUuid, FoundGenerations, go_on};
use crate::buffer::{Gather, Slice};
use crate::device::Device;
use crate::executor::join_all;
use layout::units::DeviceOffset;

/// A record to be written before its superblock.
struct RecordWrite {
    offset: DeviceOffset,
    bytes: Vec<u8>,
}

impl RecordWrite {
    fn start<D: Device>(&self, device: &D) -> D::Done {
        device.write(self.offset, Gather::from(Slice::from_bytes(&self.bytes)), true)
    }
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

    /// A random number that is not 0.
    pub(super) fn new_id(&self) -> u64 {
        std::iter::repeat_with(&self.new_id).find(|id| *id != 0).expect("it goes on")
    }

    /// Superblocks with the event count `events` come next, on these devices: first by slot, then those that are to replace
    /// members. Where no member has room for a record there are no generations.
    pub(super) fn follow(
        &self,
        devices: &[Option<&Superblock>],
        is_whole: bool,
        events: u64,
        bitmap: BitmapExtent,
        absences: u64,
    ) {
        self.bitmap.set(bitmap);
        let members: Vec<Option<DeviceUuid>> =
            devices.iter().map(|device| device.map(Superblock::device_uuid)).collect();
        let has_room = |superblock: &&Superblock| {
            GenerationsArea::of(superblock, bitmap_of(superblock, bitmap)).is_some()
        };
        let before = self.now.take();
        if devices.iter().flatten().any(has_room) {
            let now = go_on(before.as_ref(), &members, is_whole, events, || self.new_id());
            self.now.replace(Some(Generations { absences, ..now }));
        }
    }

    /// The records that go with these superblocks are durable when it returns. A member whose
    /// record cannot be written has none: md's rules apply to it then.
    pub(super) async fn write_before<'a, D: Device>(
        &self,
        superblocks: impl Iterator<Item = (&'a Superblock, &'a D)>,
    ) {
        let start = |(superblock, device): (&Superblock, &D)| Some(self.before(superblock)?.start(device));
        let started: Vec<D::Done> = superblocks.filter_map(start).collect();
        let _ = join_all(started).await;
    }

    fn before(&self, superblock: &Superblock) -> Option<RecordWrite> {
        let in_effect = self.in_effect.borrow().get(&superblock.device_uuid()).copied().unwrap_or(0);
        let generations = self.now.borrow().clone()?;
        let record = record_of(superblock, generations, in_effect + 1);
        write_of(superblock, &record, self.bitmap.get())
    }

    /// The same for the superblock of a device that returns and is not a member yet: its record keeps its contents. `bitmap` is
    /// how long the array's is: no superblocks may have been written in this run.
    pub(super) async fn write_own<D: Device>(
        &self,
        superblock: &Superblock,
        own: &GenerationsRecord,
        bitmap: BitmapExtent,
        device: &D,
    ) {
        self.in_effect.borrow_mut().insert(superblock.device_uuid(), own.sequence);
        let record = record_of(superblock, own.generations.clone(), own.sequence + 1);
        if let Some(write) = write_of(superblock, &record, bitmap) {
            let _ = write.start(device).await;
        }
    }

    /// A superblock is on disk, with the record that was written before it.
    pub(super) fn superblock_written(&self, superblock: &Superblock) {
        *self.in_effect.borrow_mut().entry(superblock.device_uuid()).or_insert(0) += 1;
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
    let offset = area.copy_offset(record.sequence);
    Some(RecordWrite { offset, bytes: record.encode(Place::on(superblock, offset)) })
}

/// `bitmap` is how long the array's is.
fn bitmap_of(superblock: &Superblock, bitmap: BitmapExtent) -> BitmapExtent {
    match superblock.bitmap_start() {
        None => BitmapExtent::Absent,
        Some(_) => bitmap,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use layout::geometry::{Layout, Level};
    use layout::md_superblock::{DeviceRole, MinorVersion, NewArray, NewBitmap, NewMember};
    use layout::units::Slot;

    const DEVICE_BYTES: u64 = 64 << 20;

    fn superblocks(minor: MinorVersion) -> Vec<Superblock> {
        let array = NewArray {
            minor,
            set_uuid: [7; 16],
            name: "records".into(),
            ctime_s: 1,
            level: Level::Raid1,
            layout: Layout::Unset,
            chunk_bytes: 0,
            raid_disks: 2,
            bitmap: NewBitmap::None,
            member_bytes: Some(8 << 20),
            data_offset: None,
            clean: true,
        };
        let device = |i: u16| NewMember {
            device_bytes: DEVICE_BYTES,
            device_uuid: [i as u8 + 1; 16],
            role: DeviceRole::Active(Slot::new(i.into())),
        };
        array.create(&[device(0), device(1)]).expect("an array").superblocks
    }

    fn records() -> GenerationRecords {
        let id = Cell::new(0);
        GenerationRecords::new(&FoundGenerations::default(), Box::new(move || id.replace(id.get() + 1)))
    }

    /// A crash before, in or after the write of the record, and before or after that of the superblock: the record that goes
    /// with the superblock on disk is there. Records whose superblocks were never written leave it alone, however many.
    #[test]
    fn the_record_of_the_superblock_on_disk_is_never_written_over() {
        let (records, mut own) = (records(), superblocks(MinorVersion::V1_2));
        let mut disk = vec![0; 1 << 20];
        let on_disk = |disk: &[u8], superblock: &Superblock| {
            let read =
                |offset: DeviceOffset, bytes: usize| Some(disk[offset.get() as usize..][..bytes].to_vec());
            super::super::generations::find_record(superblock, DEVICE_BYTES, read)
        };
        for events in 1..6 {
            let before = own[0].clone();
            let known = on_disk(&disk, &before);
            assert_eq!(known.is_some(), events > 1);
            for attempt in 0..3 {
                own[0].set_events(events);
                own[0].set_utime_s(attempt);
                let devices = [Some(&own[0]), Some(&own[1])];
                records.follow(&devices, true, events, BitmapExtent::Unknown, 0);
                let write = records.before(&own[0]).expect("room");
                disk[write.offset.get() as usize..][..write.bytes.len()].copy_from_slice(&write.bytes);
                assert_eq!(on_disk(&disk, &before), known, "{events} {attempt}");
            }
            let now = on_disk(&disk, &own[0]).expect("a record");
            assert_eq!((now.events, now.generations), (events, records.now().expect("generations")));
            records.superblock_written(&own[0]);
        }
    }

    #[test]
    fn without_room_there_are_no_generations() {
        let (records, own) = (records(), superblocks(MinorVersion::V1_0));
        records.follow(&[Some(&own[0]), Some(&own[1])], true, 1, BitmapExtent::Unknown, 0);
        assert_eq!((records.now(), records.before(&own[0]).is_some()), (None, false));
    }
}
