//! Bitmaps that are not on every member when the first bit is wanted.

use std::rc::Rc;

use engine::members::Failing;
use layout::geometry::Level;
use layout::md_bitmap::{Bitmap, PAGE_BYTES};
use layout::units::{DeviceOffset, Slot};

use super::{BLOCKS, cut, disk, fail, finish, quiet, read, recorded, start, write};
use crate::array::Array;
use crate::scenario::{Consistency, Scenario, Support};
use crate::workload::{self, Kind};

fn with_bitmap(level: Level, members: u32) -> Rc<Array> {
    start(Scenario {
        consistency: Consistency::Bitmap(4096),
        ..quiet(level, members, Support::None, 64, 4096)
    })
}

/// What the bitmap on a member says.
fn bitmap_on(array: &Array, slot: Slot) -> (DeviceOffset, Bitmap) {
    let superblock = array.writer.superblocks().try_superblock(slot).flatten().expect("a member");
    let start = DeviceOffset::of_sector(superblock.bitmap_start().expect("an array with a bitmap"));
    let room = superblock.bitmap_room(disk(array, slot).places.size).expect("room");
    let bytes = disk(array, slot).read_at_once(start, 2 * PAGE_BYTES);
    (start, Bitmap::parse(&bytes, superblock.set_uuid(), room).expect("a bitmap"))
}

/// Another program wrote the array without keeping the bitmap.
fn make_stale(array: &Array, slot: Slot) {
    let (start, mut bitmap) = bitmap_on(array, slot);
    bitmap.superblock_mut().set_events(0);
    disk(array, slot).put(start, &bitmap.page(0, 512));
}

/// Seed 6702: the first bit was wanted before the first superblocks of a run, when no member had a bitmap that could be
/// believed: all writes failed until the next start.
#[test]
fn the_first_bits_go_to_members_that_have_no_bitmap_yet() {
    for (degraded, in_flight, stale) in (0..8).map(|case| (case & 1 > 0, case & 2 > 0, 1 + case / 4)) {
        let array = with_bitmap(Level::Raid1, 2);
        if degraded {
            fail(&array, Slot::new(1));
        }
        let own = Rc::clone(&array);
        array.spawn(
            0,
            "a write",
            async move { workload::write(&own, 0, Kind::Write, 0..BLOCKS, true).await },
        );
        if !in_flight {
            finish(&array);
        }
        while array.world.counts.borrow().blocks_durable == 0 {
            array.run(1);
        }
        Slot::first(stale)
            .filter(|slot| *slot == Slot::FIRST || !degraded)
            .for_each(|slot| make_stale(&array, slot));
        let array = cut(&array, 100);
        let far = 300 * BLOCKS / 8;
        let own = Rc::clone(&array);
        array.spawn(0, "a write", async move {
            workload::write(&own, 0, Kind::Write, far..far + 1, false).await;
            for slot in Slot::first(2).filter(|slot| *slot == Slot::FIRST || !degraded) {
                let bit = far * 512 / u64::from(bitmap_on(&own, slot).1.superblock().chunk_bytes());
                assert!(bitmap_on(&own, slot).1.is_set(bit), "acknowledged, and the bit is on each member");
            }
        });
        finish(&array);
        read(&array, 0..BLOCKS);
        read(&array, far..far + 1);
    }
}

/// The one member that is left takes no bitmap for a while, and superblocks again soon after: a superblock that is newer than the
/// bitmap beside it would have the next start take that for another program's neglect, or rely on bits that are not there.
#[test]
fn no_superblock_is_newer_than_the_bitmap_beside_it() {
    let mut lost = 0;
    for steps in 0..100 {
        let array = with_bitmap(Level::Raid1, 2);
        write(&array, 0..BLOCKS);
        let left = disk(&array, Slot::FIRST);
        left.faults.borrow_mut().no_superblocks = true;
        assert_eq!(array.shared.members.fail(Slot::new(1), "by hand"), Failing::Failed);
        (0..steps).for_each(|_| _ = array.run(1));
        left.faults.borrow_mut().no_superblocks = false;
        array.run(u64::MAX);
        lost += u32::from(!array.shared.members.is_settled());
        let candidates = recorded::candidates(&array.machine);
        let superblock = candidates[0].superblock.as_ref().expect("a member");
        let (_, bitmap) = bitmap_on(&array, Slot::FIRST);
        let (events, of_bitmap) = (superblock.events(), bitmap.superblock().events());
        assert!(
            of_bitmap >= events,
            "after {steps} steps: the superblock has {events} events, the bitmap {of_bitmap}"
        );
    }
    assert!(lost > 0, "it took the bitmap each time");
}
