//! An array that is not served gets a bitmap, or loses the one it has: the decision, and the writes, as plain data.
//!
//! The writes come in rounds, each durable everywhere before the next begins:
//!
//! | round | what is written | what a crash in it leaves |
//! |---|---|---|
//! | 1 | the new bitmap, on every member and spare, where no superblock names it yet | an array as before |
//! | 2 | the records of generations that go with the superblocks to come, beside those in effect | an array as before |
//! | 3 | the superblocks, an event newer, which name the bitmap or none | some superblocks that name it, some that do not |
//!
//! After a crash in the third round the newest superblock decides, for md as for [`super::start`]. Either answer is right: the bitmap
//! is on all members and true, because the array is clean and nothing was written to it meanwhile. For the same reason a bitmap that
//! goes is left as it lies: no superblock names it.
//!
//! As in md nothing changes while a resync or a recovery is due (`update_array_info` in md.c). A member that superblocks call active and
//! that is not there would come back without the bitmap that the others name, and md may read it there: it has to be there. One that
//! failed is stale, and the bitmap's `events_cleared` says that it lacks more than what is marked.

use layout::generations::{GenerationsArea, GenerationsRecord};
use layout::geometry::Level;
use layout::md_bitmap::{Bitmap, BitmapSuper, PAGE_BYTES};
use layout::md_superblock::{BitmapError, BitmapSpace, DeviceRole, Superblock};
use layout::redo_log::{BitmapExtent, Place};
use layout::units::{DeviceOffset, Sectors, Slot};

use super::assemble::Verdict;
use super::start::{Inspection, MemberProblem};
use crate::members::MemberState;

/// What is wanted of the array's bitmap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BitmapChange {
    /// It gets one, with chunks of this many bytes, or as large as mdadm would choose.
    Add(Option<u32>),
    /// It has none any more.
    Remove,
}

/// Why the bitmap stays as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BitmapRefusal {
    /// There is one.
    Present,
    /// There is none.
    Absent,
    /// Level, room or chunk allow none.
    Bitmap(BitmapError),
    /// The array has a bitmap of a kind that Twill does not keep.
    Foreign(MemberProblem),
    /// Superblocks call the members in these slots active, and they are not there.
    Missing(Vec<Slot>),
    /// The member in this slot is being rebuilt or replaced.
    Rebuilding(Slot),
    /// Parity or copies may not agree, stripes are in doubt, or superblocks differ by an event, as after a crash.
    Unclean,
}

impl From<BitmapError> for BitmapRefusal {
    fn from(error: BitmapError) -> Self {
        BitmapRefusal::Bitmap(error)
    }
}

/// Bytes for a candidate's device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberWrite {
    /// Index of the candidate.
    pub candidate: usize,
    /// Where on the device.
    pub offset: DeviceOffset,
    /// What is written there.
    pub bytes: Vec<u8>,
}

/// What is to be written.
#[derive(Clone, Debug)]
pub struct BitmapPlan {
    /// The bitmap that the array has afterwards.
    pub bitmap: Option<BitmapSuper>,
    /// Rounds of writes: all of one are durable before the next begins.
    pub rounds: Vec<Vec<MemberWrite>>,
}

/// Decides what is written for `change`. The array may start, and nothing else changes its members meanwhile. `now_s` is in
/// seconds since 1970, `block_bytes` the logical block of each candidate.
///
/// # Errors
/// [`BitmapRefusal`]
///
/// # Panics
/// If the array may not start.
pub fn plan<R: Fn(usize, DeviceOffset, usize) -> Result<Vec<u8>, String>>(
    inspection: &Inspection<'_, R>,
    change: BitmapChange,
    now_s: u64,
    block_bytes: impl Fn(usize) -> usize,
) -> Result<BitmapPlan, BitmapRefusal> {
    assert_eq!(inspection.assembly.start, Ok(()), "an array that may start");
    let newest = inspection.newest().expect("an array that may start has a member");
    check_wanted(newest, change)?;
    check_at_rest(inspection, newest)?;
    let devices = devices(inspection);
    let (bitmap, distance) = match change {
        BitmapChange::Remove => (None, 0),
        BitmapChange::Add(chunk_bytes) => {
            let (bitmap, distance) = choose(inspection, &devices, chunk_bytes)?;
            (Some(bitmap), distance)
        }
    };
    let events = inspection.assembly.events.saturating_add(1);
    let bitmap = bitmap.map(|mut bitmap| {
        bitmap.set_events(events);
        // What a member that is away lacks is not marked.
        bitmap.set_events_cleared(events);
        bitmap
    });
    let mut rounds = [Vec::new(), Vec::new(), Vec::new()];
    for device in &devices {
        let mut superblock = match &bitmap {
            None => device.superblock.without_bitmap(),
            Some(_) => {
                let size_bytes = inspection.candidates[device.candidate].size_bytes;
                let named = device.superblock.with_bitmap(distance, size_bytes);
                named.map_err(|_| BitmapRefusal::Bitmap(BitmapError::NoRoom))?
            }
        };
        if device.is_member {
            // A spare does not know the newest roles: it must not be as new as those that do.
            superblock.set_events(events);
            superblock.set_utime_s(now_s);
        }
        let write = |(offset, bytes)| MemberWrite { candidate: device.candidate, offset, bytes };
        let block_bytes = block_bytes(device.candidate);
        rounds[0].extend(bitmap_writes(&superblock, bitmap.as_ref(), block_bytes).map(write));
        rounds[1].extend(device.record_write(&superblock, bitmap.as_ref()).map(write));
        rounds[2].push(write((superblock.offset(), superblock.encode(block_bytes))));
    }
    Ok(BitmapPlan { bitmap, rounds: rounds.into() })
}

fn check_wanted(newest: &Superblock, change: BitmapChange) -> Result<(), BitmapRefusal> {
    match (change, newest.bitmap_start()) {
        (BitmapChange::Add(_), _) if newest.level() == Level::Raid0 => {
            Err(BitmapError::NothingToResync.into())
        }
        (BitmapChange::Add(_), Some(_)) => Err(BitmapRefusal::Present),
        (BitmapChange::Remove, None) => Err(BitmapRefusal::Absent),
        (BitmapChange::Add(_), None) | (BitmapChange::Remove, Some(_)) => Ok(()),
    }
}

/// Whether all that the array has is there, agrees, and is not on its way.
fn check_at_rest<R: Fn(usize, DeviceOffset, usize) -> Result<Vec<u8>, String>>(
    inspection: &Inspection<'_, R>,
    newest: &Superblock,
) -> Result<(), BitmapRefusal> {
    let assembly = inspection.assembly;
    let geometry = assembly.geometry.expect("an array that may start has a geometry");
    let bitmap = inspection.bitmap(&geometry).map_err(BitmapRefusal::Foreign)?;
    let mut states = Slot::all().zip(assembly.states());
    let recovering = states.find(|(_, state)| *state == MemberState::Recovering).map(|(slot, _)| slot);
    let replaced = assembly.replacements.first().map(|(_, slot)| *slot);
    if let Some(slot) = recovering.or(replaced) {
        return Err(BitmapRefusal::Rebuilding(slot));
    }
    let is_active = |slot: &Slot| newest.roles().any(|role| role == DeviceRole::Active(*slot));
    let empty = Slot::all().zip(&assembly.slots).filter(|(_, member)| member.is_none());
    let missing: Vec<Slot> = empty.map(|(slot, _)| slot).filter(is_active).collect();
    if !missing.is_empty() {
        return Err(BitmapRefusal::Missing(missing));
    }
    let is_even = inspection.members().all(|(.., superblock)| superblock.events() == assembly.events);
    // Superblocks may say clean while the redo log has stripes in doubt, and other superblocks would make that log old.
    let repair = inspection.redo(bitmap.as_ref(), false, false).repair;
    let is_logged = !repair.records.is_empty() || !repair.doubts.is_empty() || repair.resync_from.is_some();
    match is_even && !is_logged && assembly.resync_from_bytes.is_none() {
        true => Ok(()),
        false => Err(BitmapRefusal::Unclean),
    }
}

/// A member or spare.
struct Changed<'a> {
    candidate: usize,
    superblock: &'a Superblock,
    is_member: bool,
    /// How long the bitmap is that it has now.
    extent: BitmapExtent,
    /// The record of generations in effect.
    record: Option<&'a GenerationsRecord>,
}

/// Every device that gets a superblock: members by slot, then spares.
fn devices<'a, R: Fn(usize, DeviceOffset, usize) -> Result<Vec<u8>, String>>(
    inspection: &Inspection<'a, R>,
) -> Vec<Changed<'a>> {
    let assembly = inspection.assembly;
    let members = assembly.slots.iter().flatten().map(|candidate| (*candidate, true));
    let is_spare =
        |(candidate, verdict): &(usize, Verdict)| (*verdict == Verdict::Spare).then_some((*candidate, false));
    let changed = |(candidate, is_member)| {
        let superblock = inspection.superblock(candidate)?;
        let record = inspection.candidates[candidate].generations.as_ref();
        let extent = inspection.bitmap_extent(candidate, superblock);
        Some(Changed { candidate, superblock, is_member, extent, record })
    };
    members.chain(assembly.verdicts.iter().filter_map(is_spare)).filter_map(changed).collect()
}

/// The bitmap, and its distance from the superblock in sectors: the same on all devices.
fn choose<R: Fn(usize, DeviceOffset, usize) -> Result<Vec<u8>, String>>(
    inspection: &Inspection<'_, R>,
    devices: &[Changed<'_>],
    chunk_bytes: Option<u32>,
) -> Result<(BitmapSuper, i32), BitmapRefusal> {
    let space = devices.iter().map(|device| {
        let space = BitmapSpace::of(device.superblock);
        // The record in effect stays until the superblock is another.
        match device.area().filter(|_| device.record.is_some()) {
            Some(area) => space.before(device.superblock, Sectors::from_bytes_floor(area.start.get())),
            None => space,
        }
    });
    let space = space.reduce(BitmapSpace::intersect).expect("an array has members");
    let (assembly, geometry) = (inspection.assembly, inspection.assembly.geometry);
    let geometry = geometry.expect("an array that may start has a geometry");
    Ok(space.choose(assembly.set_uuid, &geometry, chunk_bytes)?)
}

/// All bits are clear: the array is clean.
fn bitmap_writes(
    superblock: &Superblock,
    bitmap: Option<&BitmapSuper>,
    block_bytes: usize,
) -> impl Iterator<Item = (DeviceOffset, Vec<u8>)> {
    let start = superblock.bitmap_start().map(DeviceOffset::of_sector);
    let image = start.zip(bitmap).map(|(start, bitmap)| (start, Bitmap::new(bitmap.clone(), false)));
    image.into_iter().flat_map(move |(start, image)| {
        let page = |page: usize| (start + (page * PAGE_BYTES) as u64, image.page(page, block_bytes));
        (0..image.pages()).map(page).collect::<Vec<_>>()
    })
}

impl Changed<'_> {
    fn area(&self) -> Option<GenerationsArea> {
        GenerationsArea::of(self.superblock, self.extent)
    }

    /// The record of generations that goes with the new superblock, in a place that the old superblock has no use for. None where there
    /// is no such place or no record: md's rules apply to the member then.
    fn record_write(
        &self,
        new: &Superblock,
        bitmap: Option<&BitmapSuper>,
    ) -> Option<(DeviceOffset, Vec<u8>)> {
        let (record, old_area) = (self.record?, self.area()?);
        let extent = match bitmap {
            None => BitmapExtent::Absent,
            Some(bitmap) => BitmapExtent::Bytes(bitmap.bitmap_bytes()),
        };
        let area = GenerationsArea::of(new, extent)?;
        let in_effect = old_area.copy_offset(record.sequence);
        let mut sequences = [record.sequence + 1, record.sequence + 2].into_iter();
        let sequence = sequences.find(|sequence| area.copy_offset(*sequence) != in_effect)?;
        let offset = area.copy_offset(sequence);
        let record = GenerationsRecord {
            generations: record.generations.clone(),
            sequence,
            events: new.events(),
            superblock: new.digest(),
        };
        (!self.has_bitmap_at(offset)).then(|| (offset, record.encode(Place::on(new, offset))))
    }

    /// Whether the bitmap that this device has now reaches into the block at `offset`.
    fn has_bitmap_at(&self, offset: DeviceOffset) -> bool {
        let start = self.superblock.bitmap_start().map(DeviceOffset::of_sector);
        match (start, self.extent) {
            (Some(start), BitmapExtent::Bytes(bytes)) => {
                start.get() < offset.get() + PAGE_BYTES as u64 && offset.get() < start.get() + bytes
            }
            (Some(start), BitmapExtent::Unknown | BitmapExtent::Absent) => start <= offset,
            (None, _) => false,
        }
    }
}

#[cfg(test)]
#[path = "bitmap_change_tests.rs"]
mod tests;
