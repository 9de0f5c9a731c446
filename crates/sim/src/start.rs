//! What the program reads before it starts an array, and decides by the engine's own pure functions: the bitmap that it
//! starts with and what the redo log asks for. The reading is `crates/twill`'s, from simulated members.

use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use engine::array::assemble::Assembly;
use engine::array::generations::find_record;
use engine::array::redo::{MemberLog, Repair, Situation, decide, member_of, read_log};
use engine::array::start_bitmap::{self, StartBitmap};
use engine::bad_blocks::BadBlocks;
use engine::members::MemberState;
use layout::generations::GenerationsRecord;
use layout::md_bitmap::{Bitmap, BitmapSuper, PAGE_BYTES};
use layout::md_superblock::{Features, Superblock, decode_bad_blocks};
use layout::redo_log::BitmapExtent;

use crate::array::Machine;
use crate::disk::Disk;

/// Devices and superblocks of an array, by slot.
pub(crate) struct Slots<'a> {
    pub(crate) disks: &'a [Option<Rc<Disk>>],
    pub(crate) superblocks: &'a [Option<Superblock>],
}

/// The bitmap to start with, if the superblocks say that there is one.
pub(crate) fn bitmap(machine: &Machine, assembly: &Assembly, slots: &Slots<'_>) -> Option<StartBitmap> {
    let (mut found, mut room) = (Vec::new(), u64::MAX);
    for (disk, superblock) in slots.disks.iter().zip(slots.superblocks) {
        found.push(None);
        let Some((disk, superblock)) = disk.as_ref().zip(superblock.as_ref()) else { continue };
        room = room.min(superblock.bitmap_room(disk.places.size)?);
        // A member that is being rebuilt has not held everything: the others know better.
        if superblock.recovery_offset().is_none() {
            *found.last_mut().expect("pushed") = Some(read_bitmap(disk, superblock));
        }
    }
    let (geometry, resync) = (machine.geometry(), assembly.resync_from_bytes);
    start_bitmap::decide(&found, geometry, assembly.set_uuid, assembly.events, resync, room)
}

/// What a member's bad-block log lists.
pub(crate) fn bad_blocks(disk: &Disk, superblock: &Superblock) -> BadBlocks {
    let listed = superblock.features().contains(Features::BAD_BLOCKS);
    let Some((start, length)) = superblock.bad_block_log().filter(|_| listed) else {
        return BadBlocks::default();
    };
    let log = disk.read_at_once(start.bytes(), length.bytes() as usize);
    let ranges = decode_bad_blocks(&log, superblock.bad_block_shift());
    BadBlocks::from_log(&ranges.expect("a log that was written whole"), superblock.data_offset())
}

/// The record of generations that goes with a superblock of a device.
pub(crate) fn record(disk: &Disk, superblock: &Superblock) -> Option<GenerationsRecord> {
    find_record(superblock, disk.places.size, |offset, bytes| Some(disk.read_at_once(offset, bytes)))
}

fn read_bitmap(disk: &Disk, superblock: &Superblock) -> Result<Bitmap, String> {
    let start = superblock.bitmap_start().expect("an array with a bitmap").bytes();
    let (uuid, room) = (superblock.set_uuid(), superblock.bitmap_room(disk.places.size).unwrap_or(0));
    let head = disk.read_at_once(start, PAGE_BYTES);
    let needed = BitmapSuper::parse(&head, uuid, room).map_err(|error| error.to_string())?.bitmap_bytes();
    let bytes = disk.read_at_once(start, usize::try_from(needed).expect("a small bitmap"));
    Bitmap::parse(&bytes, uuid, room).map_err(|error| error.to_string())
}

/// What a crash with members missing left to do.
pub(crate) struct Found {
    pub(crate) repair: Repair,
    /// The members' bitmaps, by slot.
    pub(crate) bitmaps: Vec<BitmapExtent>,
    /// From where on parity may not agree, in bytes of the members.
    pub(crate) resync_from_bytes: Option<u64>,
}

/// Reads the members' redo logs and decides what they ask for.
pub(crate) fn redo(
    machine: &Machine,
    assembly: &Assembly,
    slots: &Slots<'_>,
    bitmap: Option<&StartBitmap>,
    force: bool,
) -> Found {
    let states = assembly.states();
    let (mut bitmaps, mut logs) = (Vec::new(), Vec::new());
    for (slot, (disk, superblock)) in (0u32..).zip(slots.disks.iter().zip(slots.superblocks)) {
        let member = disk.as_ref().zip(superblock.as_ref());
        let bitmap = member.map_or(BitmapExtent::Unknown, |(disk, superblock)| extent(disk, superblock));
        bitmaps.push(bitmap);
        let Some((disk, superblock)) = member.filter(|_| states[slot as usize] == MemberState::InSync) else {
            continue;
        };
        logs.extend(read_member(slot, superblock, bitmap, disk));
    }
    let resync_from_bytes = assembly.resync_from_bytes.filter(|_| machine.geometry().losses_survived() > 0);
    let geometry = *machine.geometry();
    let events = assembly.events;
    let situation = Situation { geometry, states: &states, events, resync_from_bytes, bitmap, force };
    let repair = decide(&situation, &logs);
    let mut resync_from_bytes = repair.resync_from_bytes(&situation);
    if machine.scenario.has_bitmap() {
        // Its bits are cleared by a resync when the array is whole again, whatever was redone.
        resync_from_bytes = assembly.resync_from_bytes;
    }
    Found { repair, bitmaps, resync_from_bytes }
}

fn read_member(slot: u32, superblock: &Superblock, bitmap: BitmapExtent, disk: &Disk) -> Option<MemberLog> {
    let member = member_of(superblock, bitmap)?;
    Some(at_once(read_log(slot, &member, async |offset, bytes| Ok(disk.read_at_once(offset, bytes)))))
}

fn extent(disk: &Disk, superblock: &Superblock) -> BitmapExtent {
    if superblock.bitmap_start().is_none() {
        return BitmapExtent::Absent;
    }
    read_bitmap(disk, superblock)
        .map_or(BitmapExtent::Unknown, |bitmap| BitmapExtent::Bytes(bitmap.superblock().bitmap_bytes()))
}

/// The result of a future that never waits.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("what is read is there at once"),
    }
}
