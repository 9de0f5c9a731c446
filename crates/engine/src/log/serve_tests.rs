//! Reads return what was written, over every level and kind of member, also after clean stops and after failures.

use super::world::*;
use crate::limits::BLOCK_BYTES;
use crate::volume::{Space, ZeroFlags};
use crate::zone_device::ZoneAccess;
use layout::geometry::Level;
use layout::zoned::Carrier;
use std::rc::Rc;

pub(super) const ACCESSES: [ZoneAccess; 3] = [ZoneAccess::Placed, ZoneAccess::Sequential, ZoneAccess::Append];

pub(super) fn shapes() -> impl Iterator<Item = Shape> {
    let levels =
        [(Level::Raid0, 3), (Level::Raid10, 4), (Level::Raid4, 4), (Level::Raid5, 4), (Level::Raid6, 5)];
    let carriers = [Carrier::Inband, Carrier::Oob];
    let kinds = ACCESSES.into_iter().flat_map(move |access| carriers.map(|carrier| (access, carrier)));
    let kinds =
        kinds.filter(|(access, carrier)| *carrier == Carrier::Inband || *access == ZoneAccess::Append);
    kinds.flat_map(move |(access, carrier)| {
        levels.map(|(level, members)| Shape { level, members, access, carrier, ..RAID5 })
    })
}

fn fill(world: &World, array: &Array, version: u64) {
    for block in (0..world.shape.logical_blocks).step_by(5) {
        let blocks = (world.shape.logical_blocks - block).min(if block % 2 == 0 { 1 } else { 13 });
        let data: Vec<u8> = (block..block + blocks).flat_map(|block| pattern(block, version)).collect();
        array.write(world, block, &data).expect("a write");
    }
}

fn expected(block: u64, version: u64) -> Vec<u8> {
    // A block is covered by a long write that began before it, or by its own short one.
    let is_covered = (0..13).any(|back| block >= back && (block - back) % 10 == 5);
    if is_covered || block.is_multiple_of(10) { pattern(block, version) } else { vec![0; BLOCK_BYTES] }
}

fn check(world: &World, array: &Array, version: u64) {
    for block in 0..world.shape.logical_blocks {
        let read = array
            .read(world, block, 1)
            .unwrap_or_else(|error| panic!("{:?} block {block}: {error}", world.shape));
        assert!(read == expected(block, version), "{:?} block {block}", world.shape);
    }
    let all = array.read(world, 0, world.shape.logical_blocks).expect("a long read");
    for (block, read) in (0..).zip(all.chunks(BLOCK_BYTES)) {
        assert!(read == expected(block, version), "{:?} block {block} of a long read", world.shape);
    }
}

#[test]
fn what_was_written_is_read_and_outlives_a_clean_stop() {
    for shape in shapes() {
        let world = World::new(shape, 1);
        let array = world.start().expect("a new array");
        fill(&world, &array, 1);
        check(&world, &array, 1);
        fill(&world, &array, 2);
        check(&world, &array, 2);
        array.self_check();
        array.stop(&world).expect("a stop");
        let array = world.start().expect("a start");
        check(&world, &array, 2);
        array.self_check();
        assert_eq!(array.report.lost_blocks + array.report.void_stripes, 0, "{shape:?}");
    }
}

#[test]
fn zeroes_and_discards_read_as_zeroes_and_outlive_a_crash() {
    for access in ACCESSES {
        let world = World::new(Shape { access, ..RAID5 }, 2);
        let array = world.start().expect("a new array");
        fill(&world, &array, 1);
        let set = Rc::clone(&array.set);
        array
            .wait(&world, async move {
                set.write_zeroes(4096 * 3, 4096 * 100, ZeroFlags { may_unmap: true, fua: true }).await
            })
            .expect("zeroes");
        array.write(&world, 50, &pattern(50, 9)).expect("a write");
        array.flush(&world).expect("a flush");
        let look = |array: &Array| {
            for block in 3..103 {
                let read = array.read(&world, block, 1).expect("a read");
                let wanted = if block == 50 { pattern(50, 9) } else { vec![0; BLOCK_BYTES] };
                assert!(read == wanted, "{access:?} block {block}");
            }
            assert!(array.read(&world, 105, 1).expect("a read") == pattern(105, 1));
        };
        look(&array);
        world.cut(&array.executor, &mut Chance(3));
        look(&world.start().expect("a start"));
    }
}
