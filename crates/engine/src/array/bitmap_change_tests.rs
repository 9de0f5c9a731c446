//! Which bitmaps come and go, and what a power cut between any two of the writes leaves.

use layout::generations::{Generations, GenerationsArea, GenerationsRecord};
use layout::geometry::Layout;
use layout::md_superblock::{MinorVersion, NewArray, NewBitmap, NewMember};

use super::*;
use crate::array::assemble::{Assembly, Candidate, Filter, assemble};
use crate::array::generations::find_record;
use crate::array::start::{Assembled, Consistency, Policy};
use crate::members::load::UpdatePolicy;
use crate::stripe::locks::Locks;
use crate::stripe::redo::RedoContents;

const DEVICE_BYTES: u64 = 3 << 20;
const MEMBERS: u16 = 3;

/// The devices of an array, each with its bytes, and which of them are there.
#[derive(Clone)]
struct Disks {
    minor: MinorVersion,
    bytes: Vec<Vec<u8>>,
    there: Vec<usize>,
}

impl Disks {
    /// A clean array of three members and a spare, with records of generations where there is room.
    fn new(level: Level, minor: MinorVersion, bitmap: NewBitmap) -> Self {
        let (data_offset, layout) = (Some(Sectors(2048)), Layout::default_for(level));
        let data_offset = data_offset.filter(|_| minor != MinorVersion::V1_0);
        let chunk_bytes = if level == Level::Raid1 { 0 } else { 64 << 10 };
        let array = NewArray {
            minor,
            data_offset,
            layout,
            chunk_bytes,
            bitmap,
            member_bytes: Some(1 << 20).filter(|_| level != Level::Raid0),
            ..NewArray::new([7; 16], level, u32::from(MEMBERS))
        };
        let role = |i: u16| match i {
            MEMBERS => DeviceRole::Spare,
            slot => DeviceRole::Active(Slot::new(slot.into())),
        };
        let member =
            |i: u16| NewMember { device_bytes: DEVICE_BYTES, device_uuid: [i as u8 + 1; 16], role: role(i) };
        let devices: Vec<NewMember> = (0..=MEMBERS).map(member).collect();
        let created = array.create(&devices).expect("an array");
        let bytes = vec![vec![0; DEVICE_BYTES as usize]; devices.len()];
        let mut disks = Disks { minor, bytes, there: (0..devices.len()).collect() };
        for (device, mut superblock) in created.superblocks.into_iter().enumerate() {
            superblock.set_events(20);
            let bitmap = created.bitmap.clone().map(|mut bitmap| {
                bitmap.set_events(20);
                bitmap
            });
            for (offset, bytes) in bitmap_writes(&superblock, bitmap.as_ref(), 512) {
                disks.write(device, offset, &bytes);
            }
            disks.write(device, superblock.offset(), &superblock.encode(512));
            let extent = bitmap.map_or(BitmapExtent::Absent, |b| BitmapExtent::Bytes(b.bitmap_bytes()));
            disks.write_record(device, &superblock, extent);
        }
        disks
    }

    fn write_record(&mut self, device: usize, superblock: &Superblock, extent: BitmapExtent) {
        let Some(area) = GenerationsArea::of(superblock, extent) else { return };
        let members = (0..MEMBERS).map(|i| Some([i as u8 + 1; 16])).collect();
        let generations =
            Generations { current: 9, bitmap: 9, history: vec![8], since_events: 1, absences: 0, members };
        let (sequence, events) = (5, superblock.events());
        let record = GenerationsRecord { generations, sequence, events, superblock: superblock.digest() };
        let offset = area.copy_offset(sequence);
        self.write(device, offset, &record.encode(Place::on(superblock, offset)));
    }

    fn write(&mut self, device: usize, offset: DeviceOffset, bytes: &[u8]) {
        let at = usize::try_from(offset.get()).expect("in memory");
        self.bytes[device][at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn apply(&mut self, write: &MemberWrite) {
        self.write(self.there[write.candidate], write.offset, &write.bytes);
    }

    fn read(&self, device: usize, offset: DeviceOffset, bytes: usize) -> Result<Vec<u8>, String> {
        let at = usize::try_from(offset.get()).expect("in memory");
        self.bytes[device].get(at..at + bytes).map(<[u8]>::to_vec).ok_or_else(|| "beyond the end".to_owned())
    }

    fn superblock(&self, device: usize) -> Superblock {
        let at = self.minor.superblock_offset(DEVICE_BYTES).expect("large enough");
        let bytes = self.read(device, DeviceOffset::new(at), 4096).expect("there");
        Superblock::parse(&bytes, self.minor, DEVICE_BYTES).expect("a superblock")
    }

    fn change_superblocks(&mut self, devices: &[usize], change: impl Fn(&mut Superblock)) {
        for device in devices {
            let mut superblock = self.superblock(*device);
            change(&mut superblock);
            self.write(*device, superblock.offset(), &superblock.encode(512));
        }
    }

    fn candidates(&self) -> Vec<Candidate> {
        let candidate = |device: &usize| {
            let superblock = self.superblock(*device);
            let read = |offset, bytes| self.read(*device, offset, bytes).ok();
            let generations = find_record(&superblock, DEVICE_BYTES, read);
            let name = format!("d{device}");
            Candidate { name, size_bytes: DEVICE_BYTES, superblock: Ok(superblock), generations }
        };
        self.there.iter().map(candidate).collect()
    }

    /// Looks at what is there, as a start does.
    fn inspected<T>(
        &self,
        look: impl FnOnce(&Inspection<'_, &dyn Fn(usize, DeviceOffset, usize) -> Result<Vec<u8>, String>>) -> T,
    ) -> T {
        let candidates = self.candidates();
        let mut found = assemble(&candidates, &Filter::default());
        assert_eq!(found.arrays.len(), 1);
        let assembly: Assembly = found.arrays.remove(0);
        assert_eq!(assembly.start, Ok(()));
        let read = |candidate: usize, offset, bytes| self.read(self.there[candidate], offset, bytes);
        look(&Inspection { candidates: &candidates, assembly: &assembly, read: &read })
    }

    fn plan(&self, change: BitmapChange) -> Result<BitmapPlan, BitmapRefusal> {
        self.inspected(|inspection| plan(inspection, change, 77, |_| 512))
    }

    fn changed(mut self, change: BitmapChange) -> Self {
        let plan = self.plan(change).expect("a plan");
        plan.rounds.iter().flatten().for_each(|write| self.apply(write));
        self
    }

    /// Checks what a crash left: the array starts clean, with all members that are there, and what it has for a bitmap is true. Whether
    /// it has one.
    fn check_start(&self, when: &str) -> bool {
        self.inspected(|inspection| {
            let assembly = inspection.assembly;
            let states = assembly.states();
            let is_there = |slot: usize| self.there.contains(&slot);
            for (slot, state) in states.iter().enumerate() {
                let wanted = if is_there(slot) { MemberState::InSync } else { MemberState::Missing };
                assert_eq!(*state, wanted, "{when}: slot {slot}");
            }
            assert_eq!((assembly.resync_from_bytes, assembly.left_behind.len()), (None, 0), "{when}");
            let geometry = assembly.geometry.expect("a geometry");
            let bitmap = inspection.bitmap(&geometry).expect("md's");
            if let Some(start) = &bitmap {
                assert_eq!((start.distrust.clone(), start.image.set_bits().count()), (None, 0), "{when}");
            }
            let assembled = Assembled::read(inspection, policy()).expect("it starts");
            let has_bitmap = bitmap.is_some();
            let named = assembled.superblocks.iter().flatten().chain(assembled.spares.iter().map(|(_, s)| s));
            for superblock in named {
                assert_eq!(superblock.bitmap_start().is_some(), has_bitmap, "{when}: all follow the newest");
            }
            assert!(assembled.redo_areas().iter().flatten().count() == self.rooms(), "{when}: the redo log");
            self.check_md(inspection.newest().expect("a member"), when);
            has_bitmap
        })
    }

    /// Members with room for a redo log.
    fn rooms(&self) -> usize {
        if self.minor == MinorVersion::V1_0 { 0 } else { self.there.iter().filter(|i| **i < 3).count() }
    }

    /// md takes the place of the bitmap from the newest superblock, reads it there on any member, and believes it if it is as new as that
    /// superblock.
    fn check_md(&self, newest: &Superblock, when: &str) {
        let Some(start) = newest.bitmap_start() else { return };
        for device in self.there.iter().filter(|device| **device < usize::from(MEMBERS)) {
            let bytes = self.read(*device, DeviceOffset::of_sector(start), 4096).expect("there");
            let bitmap = Bitmap::parse(&bytes, newest.set_uuid(), 4096).expect("md refuses the array else");
            assert!(bitmap.superblock().events() >= newest.events(), "{when}: md takes it for out of date");
            assert_eq!(bitmap.set_bits().count(), 0, "{when}");
        }
    }
}

fn policy() -> Policy {
    Policy {
        read_only: false,
        force: false,
        consistency: Consistency::Marked,
        redo_log: Some(RedoContents::Lean),
        logical_block_bytes: 512,
        shards: 1,
        parity_cache_bytes: 0,
        locks: Locks::default(),
        two_phase: true,
        update_policy: UpdatePolicy::default(),
        avoid_slow: false,
    }
}

const ADD: BitmapChange = BitmapChange::Add(None);
const INTERNAL: NewBitmap = NewBitmap::Internal(Some(64 << 10));

/// A cut after any number of rounds, and within a round any of its writes may have come through, and one member may be gone with the
/// power.
#[test]
fn a_power_cut_leaves_an_array_with_a_true_bitmap_or_none() {
    for minor in [MinorVersion::V1_2, MinorVersion::V1_1, MinorVersion::V1_0] {
        for (change, before) in [(ADD, NewBitmap::None), (BitmapChange::Remove, INTERNAL)] {
            let mut disks = Disks::new(Level::Raid5, minor, before);
            let plan = disks.plan(change).expect("a plan");
            let last = plan.rounds.len() - 1;
            let mut outcomes = [0, 0];
            for (round, writes) in plan.rounds.iter().enumerate() {
                for subset in 0..1 << writes.len() {
                    let mut cut = disks.clone();
                    let through = writes.iter().enumerate().filter(|(i, _)| subset >> i & 1 == 1);
                    through.for_each(|(_, write)| cut.apply(write));
                    let when = format!("{minor} {change:?} round {round} {subset:b}");
                    let has_bitmap = cut.check_start(&when);
                    outcomes[usize::from(has_bitmap)] += 1;
                    assert!(round == last || has_bitmap == (before != NewBitmap::None), "{when}");
                    for gone in 0..usize::from(MEMBERS) {
                        cut.there = (0..cut.bytes.len()).filter(|device| *device != gone).collect();
                        cut.check_start(&format!("{when} without {gone}"));
                    }
                }
                writes.iter().for_each(|write| disks.apply(write));
            }
            assert!(outcomes.iter().all(|count| *count > 0), "{outcomes:?}");
            assert_eq!(disks.check_start("done"), change == ADD);
            let records = disks.candidates().iter().filter(|c| c.generations.is_some()).count();
            let wanted = if minor == MinorVersion::V1_0 { 0 } else { disks.bytes.len() };
            assert_eq!(records, wanted, "{minor}: every superblock has its record of generations");
        }
    }
}

/// The opposite change after a cut is refused until the array was served: members are an event apart.
#[test]
fn after_a_cut_between_superblocks_nothing_more_is_changed() {
    let mut disks = Disks::new(Level::Raid5, MinorVersion::V1_2, NewBitmap::None);
    let plan = disks.plan(ADD).expect("a plan");
    plan.rounds[..2].iter().flatten().for_each(|write| disks.apply(write));
    assert!(disks.plan(ADD).is_ok(), "no superblock names it yet: from the start again");
    disks.apply(&plan.rounds[2][0]);
    assert_eq!(disks.plan(ADD).err(), Some(BitmapRefusal::Present), "the next start completes it");
    assert_eq!(disks.plan(BitmapChange::Remove).err(), Some(BitmapRefusal::Unclean));
}

#[test]
fn what_came_goes_and_leaves_the_superblocks_as_they_were() {
    for level in [Level::Raid1, Level::Raid5, Level::Raid10] {
        let before = Disks::new(level, MinorVersion::V1_2, NewBitmap::None);
        let with = before.clone().changed(BitmapChange::Add(Some(128 << 10)));
        let (superblock, spare) = (with.superblock(1), with.superblock(usize::from(MEMBERS)));
        assert_eq!((superblock.events(), superblock.utime_s()), (21, 77));
        assert_eq!(spare.events(), 20, "a spare is no newer than it was");
        assert_eq!(superblock.bitmap_start(), Some(Sectors(16)));
        assert_eq!(spare.bitmap_start(), Some(Sectors(16)), "it has it when it takes a slot");
        let bitmap = with.plan(BitmapChange::Remove).expect("a plan").bitmap;
        assert!(bitmap.is_none());
        let after = with.changed(BitmapChange::Remove);
        for device in 0..after.bytes.len() {
            let (mut old, mut new) = (before.superblock(device), after.superblock(device));
            for superblock in [&mut old, &mut new] {
                superblock.set_events(0);
                superblock.set_utime_s(0);
            }
            assert_eq!(old.encode(512), new.encode(512), "{level}");
        }
    }
}

#[test]
fn what_is_there_or_not_there_already_is_refused() {
    let without = Disks::new(Level::Raid5, MinorVersion::V1_2, NewBitmap::None);
    assert_eq!(without.plan(BitmapChange::Remove).err(), Some(BitmapRefusal::Absent));
    let with = Disks::new(Level::Raid5, MinorVersion::V1_2, INTERNAL);
    assert_eq!(with.plan(ADD).err(), Some(BitmapRefusal::Present));
    let chunk = BitmapChange::Add(Some(100 << 10));
    assert!(matches!(without.plan(chunk), Err(BitmapRefusal::Bitmap(BitmapError::Chunk { .. }))));
    let mut striped = Disks::new(Level::Raid0, MinorVersion::V1_2, NewBitmap::None);
    striped.there.truncate(3);
    assert_eq!(striped.plan(ADD).err(), Some(BitmapRefusal::Bitmap(BitmapError::NothingToResync)));
}

/// md refuses while a resync or a recovery is due, too.
#[test]
fn an_array_that_is_not_at_rest_keeps_what_it_has() {
    for (change, before) in [(ADD, NewBitmap::None), (BitmapChange::Remove, INTERNAL)] {
        let disks = || Disks::new(Level::Raid5, MinorVersion::V1_2, before);
        let refused = |disks: &Disks| disks.plan(change).err();
        let mut dirty = disks();
        dirty.change_superblocks(&[0, 1, 2], |superblock| superblock.set_resync_offset(Some(Sectors(0))));
        assert_eq!(refused(&dirty), Some(BitmapRefusal::Unclean));
        let mut uneven = disks();
        uneven.change_superblocks(&[0, 1], |superblock| superblock.set_events(21));
        assert_eq!(refused(&uneven), Some(BitmapRefusal::Unclean));
        let mut rebuilding = disks();
        let rebuild = |superblock: &mut Superblock| superblock.set_recovery_offset(Some(Sectors(8)));
        rebuilding.change_superblocks(&[1], rebuild);
        assert_eq!(refused(&rebuilding), Some(BitmapRefusal::Rebuilding(Slot::new(1))));
    }
}

/// One that is only not named would be back in sync without the bitmap; one that failed is stale.
#[test]
fn a_member_that_would_come_back_in_sync_has_to_be_there() {
    let mut disks = Disks::new(Level::Raid5, MinorVersion::V1_2, NewBitmap::None);
    disks.there.retain(|device| *device != 2);
    assert_eq!(disks.plan(ADD).err(), Some(BitmapRefusal::Missing(vec![Slot::new(2)])));
    disks.change_superblocks(&[0, 1], |superblock| superblock.set_role(2, DeviceRole::Faulty));
    let plan = disks.plan(ADD).expect("a plan");
    let bitmap = plan.bitmap.expect("it comes");
    assert_eq!(
        (bitmap.events(), bitmap.events_cleared()),
        (21, 21),
        "the failed one lacks more than is marked"
    );
}

/// An array without a bad-block log: its records of generations stand where the largest bitmap would.
#[test]
fn the_records_of_an_array_without_a_bad_block_log_stay() {
    let mut disks = Disks::new(Level::Raid5, MinorVersion::V1_2, NewBitmap::None);
    for device in 0..disks.bytes.len() {
        let mut superblock = disks.superblock(device);
        superblock.drop_bad_block_log();
        disks.write(device, superblock.offset(), &superblock.encode(512));
        disks.write_record(device, &superblock, BitmapExtent::Absent);
    }
    let area = GenerationsArea::of(&disks.superblock(0), BitmapExtent::Absent).expect("room");
    let plan = disks.plan(BitmapChange::Add(Some(4096))).expect("a plan");
    for write in &plan.rounds[0] {
        assert!(write.offset.get() + write.bytes.len() as u64 <= area.start.get(), "{}", write.offset);
    }
    assert!(disks.changed(ADD).candidates().iter().all(|candidate| candidate.generations.is_some()));
}
