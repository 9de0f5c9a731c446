//! Reads return what was written, over every level and kind of member, also after clean stops and after failures.

use super::config::{Appends, OpenCounts};
use super::world::*;
use crate::buffer::{Gather, Slice};
use crate::executor::join_all;
use crate::limits::BLOCK_BYTES;
use crate::volume::{Space, ZeroFlags};
use crate::zone_device::ZoneAccess;
use layout::geometry::Level;
use layout::zoned::{Carrier, Class};
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

/// Z8: how many segments are open, and which of them drives choose places in. Writes are in turn, and all of them come back.
#[test]
fn several_segments_are_open_and_appends_go_where_they_are_to() {
    use Appends::{IfAlone, Only};
    // Small and large segments, the rule, and how many of each are appended to.
    for (small, large, appends, appended) in [
        (1, 1, IfAlone, [1, 0]),
        (2, 2, IfAlone, [0, 0]),
        (2, 1, Only, [2, 1]),
        (0, 2, IfAlone, [0, 0]),
        (2, 0, IfAlone, [0, 0]),
    ] {
        for carrier in [Carrier::Inband, Carrier::Oob] {
            let open = OpenCounts { small, large, appends };
            let world =
                World::new(Shape { access: ZoneAccess::Append, carrier, open, zones: 60, ..RAID5 }, 7);
            let array = world.start().expect("a new array");
            fill(&world, &array, 1);
            let writes = (0..80).map(|number| {
                let (set, block) = (Rc::clone(&array.set), number % 20);
                let data = Gather::from(Slice::from_bytes(&pattern(10 * block, 1)));
                array.executor.spawn_with_result(async move {
                    set.write(10 * block * BLOCK_BYTES as u64, data, false).await
                })
            });
            let writes = join_all(writes.collect::<Vec<_>>());
            for written in array.wait(&world, writes) {
                written.expect("a write");
            }
            let segments = array.set.0.port.shared.table.unsealed();
            for (class, count, appended) in
                [(Class::Small, small, appended[0]), (Class::Large, large, appended[1])]
            {
                let of_class = segments.iter().filter(|segment| segment.headers[0].class == class);
                let (all, by_drives) = of_class.fold((0, 0), |(all, by_drives), segment| {
                    (all + 1, by_drives + u8::from(segment.groups.is_some()))
                });
                assert_eq!((all, by_drives), (count, appended), "{class:?} of {open:?}, {carrier:?}");
            }
            check(&world, &array, 1);
            array.stop(&world).expect("a stop");
            check(&world, &world.start().expect("a start"), 1);
        }
    }
}
