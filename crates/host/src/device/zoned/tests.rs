//! The kinds of zoned members that need no drive, over a real ring: the same test as for all others.

use engine::buffer::{Gather, Slice};
use engine::device::{Device, DeviceErrorKind};
use engine::zone_device::conformance::{conforms, small_zones, worn_zone_conforms};
use engine::zone_device::timing::DriveModel;
use engine::zone_device::{ZoneAccess, ZoneDevice, ZoneState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::memory::Memory;
use super::super::{DeviceSpec, OpenErrorKind, OpenOptions};
use super::memory::ZonedMemory;
use super::{HostZones, SharedZones};
use crate::ring::RingBackend;
use crate::testing::{Bench, backends};
use layout::units::DeviceOffset;

const BLOCK: u64 = 4096;

fn memory(access: ZoneAccess, metadata_bytes: u32, model: Option<(DriveModel, u32)>) -> Arc<ZonedMemory> {
    let zoned = small_zones(access, metadata_bytes);
    ZonedMemory::new(zoned, 4096, model, "zoned memory".to_owned()).expect("address space")
}

fn conform(bench: &Bench, shared: &SharedZones) {
    let device = shared.attach(&bench.ring).expect("no commands of NVMe are needed");
    let result = bench.run(async move { conforms(&device, 1).await });
    assert_eq!(result, Ok(()), "{}", shared.info().name);
}

#[test]
fn zones_in_memory_conform() {
    let bench = Bench::new(RingBackend::Auto);
    for (access, metadata_bytes) in
        [(ZoneAccess::Append, 64), (ZoneAccess::Append, 0), (ZoneAccess::Sequential, 0)]
    {
        for model in [None, Some((DriveModel::Zn540, 1)), Some((DriveModel::Femu, 2))] {
            conform(&bench, &SharedZones::Memory(memory(access, metadata_bytes, model)));
        }
    }
    for state in [ZoneState::ReadOnly, ZoneState::Offline] {
        let memory = memory(ZoneAccess::Append, 64, None);
        memory.turn(2, state);
        let device = SharedZones::Memory(memory).attach(&bench.ring).expect("no commands of NVMe are needed");
        assert_eq!(bench.run(async move { worn_zone_conforms(&device, 2, state).await }), Ok(()));
    }
}

#[test]
fn files_and_memory_cut_into_zones_conform() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("member.img");
    std::fs::File::create(&path).expect("created").set_len(5 << 20).expect("sized");
    for backend in backends() {
        let bench = Bench::new(backend);
        let file = DeviceSpec::Path(path.clone()).open(&OpenOptions::default()).expect("opened");
        let memory = Memory::new(5 << 20, "memory".to_owned()).expect("address space");
        for device in [file, memory.into()] {
            let shared = SharedZones::place(device, 1 << 20).expect("five zones");
            conform(&bench, &shared);
        }
    }
}

#[test]
fn zones_of_another_size_than_suits_a_device_are_refused() {
    let memory = Memory::new(5 << 20, "memory".to_owned()).expect("address space");
    for zone_bytes in [0, 4096, 12_000, 6 << 20] {
        let error = SharedZones::place(Arc::clone(&memory).into(), zone_bytes).expect_err("not a size");
        assert_eq!(error.kind, OpenErrorKind::TooSmall);
    }
}

#[test]
fn a_timed_drive_takes_its_time_and_no_operation_waits_for_another_kind() {
    let bench = Bench::new(RingBackend::Auto);
    // A hundred times as slow: an append takes 2.1 ms, a reset 100 ms.
    let shared = SharedZones::Memory(memory(ZoneAccess::Append, 0, Some((DriveModel::Zn540, 100))));
    let device = shared.attach(&bench.ring).expect("no commands of NVMe are needed");
    let record = || Gather::from(Slice::from_bytes(&[7; 4096]));
    let begun = Instant::now();
    let appended = device.append(0, record(), None, false);
    let handle = device.clone();
    bench.run(async move { appended.await.expect("appended") });
    let took = begun.elapsed();
    assert!((Duration::from_micros(2090)..Duration::from_millis(100)).contains(&took), "{took:?}");
    let reset = handle.reset(3);
    let begun = Instant::now();
    bench.run(async move {
        assert_eq!(handle.append(0, record(), None, false).await, Ok(4096));
        reset.await.expect("reset");
    });
    assert!(begun.elapsed() >= Duration::from_millis(100));
}

#[test]
fn a_dropped_append_is_made() {
    let bench = Bench::new(RingBackend::Auto);
    let shared = SharedZones::Memory(memory(ZoneAccess::Append, 0, None));
    let device: HostZones = shared.attach(&bench.ring).expect("no commands of NVMe are needed");
    drop(device.append(0, Slice::from_bytes(&[7; 4096]).into(), None, false));
    let handle = device.clone();
    bench.run(async move {
        handle.flush().await.expect("flushed");
        let zones = handle.report(0..1).await.expect("a report");
        assert_eq!(zones[0].pointer_bytes, Some(BLOCK));
        let (read, result) = handle.read(DeviceOffset::START, engine::buffer::Buffer::new(4096)).await;
        result.expect("read");
        assert_eq!(read.bytes(), [7; 4096]);
        let refused =
            handle.write_zeroes(DeviceOffset::START, BLOCK, true).await.expect_err("not a zoned operation");
        assert_eq!(refused.kind, DeviceErrorKind::Unsupported);
    });
}
