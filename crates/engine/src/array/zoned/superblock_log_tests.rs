//! The superblock log through power cuts, torn blocks and failed writes, on every kind of member.

use super::super::assemble_tests::new_array;
use super::*;
use crate::executor::Executor;
use crate::zone_device::ZonedInfo;
use crate::zone_device::memory::MemoryZones;
use layout::geometry::Level;
use std::cell::Cell;
use std::rc::Rc;

const ZONE_BLOCKS: u64 = 8;

fn device(access: ZoneAccess, logical_block_bytes: u32) -> MemoryZones {
    let zoned = ZonedInfo {
        access,
        zones: 4,
        zone_bytes: ZONE_BLOCKS * BLOCK,
        capacity_bytes: ZONE_BLOCKS * BLOCK,
        record_bytes_max: 1 << 20,
        metadata_bytes: 0,
        open_max: None,
        active_max: None,
    };
    MemoryZones::new(zoned, logical_block_bytes, "member")
}

/// A superblock with this sequence, for zones as small as these.
fn superblock(device: &MemoryZones, sequence: u64) -> Superblock {
    let mut superblock = new_array(Level::Raid5, 4).superblock(0);
    superblock.sequence = sequence;
    let (plan, zones) = (&mut superblock.plan, &mut superblock.zones);
    (plan.small_blocks, plan.large_blocks, plan.band_blocks, plan.group) = (2, 2, 2, 1);
    zones.access = super::super::plan::access_of(device.zoned().access);
    (zones.zone_blocks, zones.capacity_blocks, zones.zones) = (ZONE_BLOCKS as u32, ZONE_BLOCKS as u32, 4);
    superblock
}

fn run<T: 'static>(future: impl Future<Output = T> + 'static) -> T {
    let executor = Executor::new(Box::new(|| {}));
    let result = executor.spawn_with_result(future);
    executor.run_ready(usize::MAX);
    result.try_take().expect("nothing waits")
}

const KINDS: [(ZoneAccess, u32); 4] = [
    (ZoneAccess::Append, 4096),
    (ZoneAccess::Sequential, 4096),
    (ZoneAccess::Sequential, 512),
    (ZoneAccess::Placed, 4096),
];

/// Z-I11, with a power cut after every superblock: nothing of what was not flushed survives, and the log goes on from there.
#[test]
fn every_superblock_survives_a_cut_and_zones_take_turns() {
    for (access, unit) in KINDS {
        let device = device(access, unit);
        let pool = Pool::new(1 << 20);
        let zones = superblock(&device, 1).zones;
        let (emptied, buffers) = (device.clone(), Arc::clone(&pool));
        run(async move { empty_log(&emptied, &buffers, &zones).await }).expect("emptied");
        let mut log = MemberLog::new(&zones);
        for sequence in 1..=5 * ZONE_BLOCKS {
            let (on, buffers, next) = (device.clone(), Arc::clone(&pool), superblock(&device, sequence));
            let (written, back) = run(async move {
                let written = log.write(&on, &buffers, &next).await;
                (written, log)
            });
            written.expect("written");
            log = back;
            device.cut(|_, durable, _| durable, |_| false);
            let (on, buffers) = (device.clone(), Arc::clone(&pool));
            let (found, read) =
                run(async move { MemberLog::read(&on, &buffers).await }).expect("read").expect("there");
            assert_eq!(found.sequence, sequence, "{access:?} {unit}");
            assert_eq!(read.cursor.next(), log.cursor.next(), "{access:?} {unit}: it goes on where it was");
            // Every other time the log that a new start read goes on.
            if sequence % 2 == 0 {
                log = read;
            }
        }
    }
}

/// A power cut inside a superblock leaves any part of it: the one before it counts, and the log goes on behind the torn one.
#[test]
fn a_torn_superblock_leaves_the_one_before_it() {
    for (access, unit) in KINDS {
        for torn_bytes in (0..=BLOCK).step_by(unit as usize) {
            let device = device(access, unit);
            let pool = Pool::new(1 << 20);
            let zones = superblock(&device, 1).zones;
            let mut log = MemberLog::new(&zones);
            let (on, buffers) = (device.clone(), Arc::clone(&pool));
            let block = superblock(&device, 2).encode(LogPlace { zone: 0, block: 1 });
            let read = run(async move {
                log.write(&on, &buffers, &superblock(&on, 1)).await.expect("written");
                if torn_bytes > 0 {
                    let mut torn = block;
                    torn[100] ^= 1;
                    let part = Buffer::from_bytes(&torn[..torn_bytes as usize]).freeze();
                    on.write_at(ZoneOffset::new(0, BLOCK), part.into(), None, true)
                        .await
                        .expect("a part of it");
                }
                let (found, mut log) = MemberLog::read(&on, &buffers).await.expect("read").expect("there");
                assert_eq!(found.sequence, 1);
                log.write(&on, &buffers, &superblock(&on, 3)).await.expect("it goes on");
                MemberLog::read(&on, &buffers).await.expect("read").expect("there").0.sequence
            });
            assert_eq!(read, 3, "{access:?} {unit}, {torn_bytes} bytes of the torn one");
        }
    }
}

/// A write that fails, before or after it moved the pointer, is made again at the next place that there is.
#[test]
fn a_superblock_that_could_not_be_written_is_written_again() {
    for (access, unit) in KINDS {
        let device = device(access, unit);
        let pool = Pool::new(1 << 20);
        let zones = superblock(&device, 1).zones;
        let mut log = MemberLog::new(&zones);
        let fails = Rc::new(Cell::new(false));
        let once = Rc::clone(&fails);
        device.set_fault(move |operation, _| {
            (operation == "write" && once.take()).then_some(DeviceErrorKind::Io)
        });
        let (on, buffers) = (device.clone(), Arc::clone(&pool));
        let sequence = run(async move {
            for sequence in 1..=3 * ZONE_BLOCKS {
                fails.set(sequence % 3 == 2);
                log.write(&on, &buffers, &superblock(&on, sequence)).await.expect("written at last");
            }
            MemberLog::read(&on, &buffers).await.expect("read").expect("there").0.sequence
        });
        assert_eq!(sequence, 3 * ZONE_BLOCKS, "{access:?} {unit}");
    }
}
