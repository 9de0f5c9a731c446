//! Every operation on real files and on memory, and what happens when members misbehave.

use super::{
    DeviceSpec, HostDevice, OpenError, OpenErrorKind, OpenOptions, SharedDevice, SpecError, parse_size,
};
use crate::ring::RingBackend;
use crate::testing::{Bench, backends, pattern};
use engine::buffer::{Buffer, Gather, Slice};
use engine::device::{Device, DeviceErrorKind};
use engine::executor::join_all;
use layout::units::DeviceOffset;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// A file of `bytes` bytes.
fn member_file(folder: &Path, bytes: u64) -> PathBuf {
    let path = folder.join("member.img");
    File::create(&path).expect("created").set_len(bytes).expect("sized");
    path
}

/// A folder on the disk of the build, where direct I/O usually works; /tmp may be memory.
fn folder() -> tempfile::TempDir {
    let program = std::env::current_exe().expect("this program");
    tempfile::tempdir_in(program.parent().expect("its folder")).expect("a folder")
}

fn open(path: &Path) -> Result<SharedDevice, OpenError> {
    DeviceSpec::Path(path.into()).open(&OpenOptions::default())
}

/// All operations against a plain model of the device.
async fn exercise(device: HostDevice, bench: Bench) {
    let unit = u64::from(device.info().logical_block_bytes);
    let mut model = vec![0u8; usize::try_from(device.info().size_bytes.min(4 * MIB)).expect("small")];
    device.write_zeroes(DeviceOffset::START, device.info().size_bytes, true).await.expect("zeroed");
    if !device.info().discard_zeroes {
        let discarded = device.discard(DeviceOffset::new(model.len() as u64), unit * 8).await;
        assert!(
            discarded.is_ok() || discarded.is_err_and(|error| error.kind == DeviceErrorKind::Unsupported)
        );
    }
    let mut random = 42u64;
    for round in 0..300u64 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let blocks = model.len() as u64 / unit;
        let start = (random >> 20) % blocks;
        let count = (1 + (random >> 50) % 64).min(blocks - start);
        let (offset, bytes) = (DeviceOffset::new(start * unit), count * unit);
        let range = offset.get() as usize..(offset + bytes).get() as usize;
        match round % 6 {
            0 | 1 => {
                let data = scattered(&pattern(random, range.len()), unit as usize);
                data.copy_to(&mut model[range]);
                device.write(offset, data, round % 4 == 0).await.expect("written");
            }
            2 => {
                let mut buffer = bench.pool.take(range.len()); // registered memory, if of a registered size
                buffer.bytes_mut().copy_from_slice(&pattern(random, range.len()));
                model[range.clone()].copy_from_slice(buffer.bytes());
                device.write(offset, buffer.freeze().into(), false).await.expect("written");
            }
            3 => {
                device.write_zeroes(offset, bytes, round % 2 == 0).await.expect("zeroed");
                model[range].fill(0);
            }
            4 if device.info().discard_zeroes => {
                device.discard(offset, bytes).await.expect("discarded");
                model[range].fill(0);
            }
            _ => device.flush().await.expect("flushed"),
        }
        let start = (random >> 33) % (blocks / 2);
        let buffer = bench.pool.take(((random >> 10) % 100 + 1) as usize * unit as usize);
        let (buffer, result) = device.read(DeviceOffset::new(start * unit), buffer).await;
        result.expect("read");
        let at = (start * unit) as usize;
        assert!(*buffer.bytes() == model[at..at + buffer.len()], "round {round} at {at}");
    }
    let size = device.info().size_bytes;
    for (offset, bytes) in
        [(size, unit), (size - unit, 2 * unit), (1, unit), (0, unit - 1), (u64::MAX - 511, unit)]
    {
        let offset = DeviceOffset::new(offset);
        let (_, result) = device.read(offset, Buffer::new(bytes as usize)).await;
        assert_eq!(result.expect_err("not a place").kind, DeviceErrorKind::Invalid);
        let data = Slice::from_bytes(&vec![1; bytes as usize]).into();
        assert_eq!(
            device.write(offset, data, false).await.expect_err("not a place").kind,
            DeviceErrorKind::Invalid
        );
        let kinds = join_all([device.discard(offset, bytes), device.write_zeroes(offset, bytes, true)]).await;
        assert!(kinds.iter().all(|kind| kind.as_ref().is_err_and(|e| e.kind == DeviceErrorKind::Invalid)));
    }
}

/// The same bytes in several pieces, none beside the next.
fn scattered(contents: &[u8], unit: usize) -> Gather {
    let pieces = contents.chunks(3 * unit).map(Slice::from_bytes);
    pieces.collect()
}

#[test]
fn files_do_everything() {
    for backend in backends() {
        let (bench, folder) = (Bench::new(backend), folder());
        let shared = open(&member_file(folder.path(), 4 * MIB)).expect("opened");
        let SharedDevice::Block(file) = &shared else { panic!("a file") };
        eprintln!("{}: direct {}, {:?}", folder.path().display(), file.is_direct(), file.info());
        bench.run(exercise(shared.attach(&bench.ring), bench.clone()));
    }
}

#[test]
fn files_without_direct_io_do_everything() {
    for backend in backends() {
        // On tmpfs zeroing without a hole is not supported: zeroes are written.
        let folder = tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| folder());
        let bench = Bench::new(backend);
        let options = OpenOptions { direct: false, ..OpenOptions::default() };
        let path = member_file(folder.path(), 4 * MIB);
        let shared = DeviceSpec::Path(path).open(&options).expect("opened");
        bench.run(exercise(shared.attach(&bench.ring), bench.clone()));
    }
}

#[test]
fn memory_does_everything() {
    let bench = Bench::new(RingBackend::Auto);
    let spec = &DeviceSpec::parse("memory:4M").expect("a device")[0];
    let shared = spec.open(&OpenOptions::default()).expect("mapped");
    bench.run(exercise(shared.attach(&bench.ring), bench.clone()));
    let SharedDevice::Memory(memory) = shared else { panic!("memory") };
    let counters = memory.counters();
    assert_eq!((counters.reads, counters.writes), (300, 150));
    assert!(counters.read_bytes >= 300 * 512 && counters.others > 100);
}

#[test]
fn null_completes_everything_and_keeps_nothing() {
    let bench = Bench::new(RingBackend::Auto);
    let spec = &DeviceSpec::parse("null:4M").expect("a device")[0];
    let shared = spec.open(&OpenOptions::default()).expect("mapped");
    let device = shared.attach(&bench.ring);
    assert!(!device.info().discard_zeroes);
    bench.run(async move {
        let offset = DeviceOffset::new(4096);
        let written = Slice::from_bytes(&pattern(3, 4096));
        device.write(offset, written.into(), false).await.expect("write");
        let (buffer, result) = device.read(offset, Buffer::from_bytes(&pattern(4, 4096))).await;
        result.expect("read");
        assert!(buffer.bytes() == &pattern(4, 4096)[..], "a read leaves its buffer as it was");
        device.discard(offset, 4096).await.expect("discard");
        device.write_zeroes(offset, 4096, true).await.expect("zeroes");
        device.flush().await.expect("flush");
        let beyond = device.read(DeviceOffset::new(4 << 20), Buffer::new(4096)).await.1;
        assert_eq!(beyond.expect_err("outside").kind, DeviceErrorKind::Invalid);
    });
    let SharedDevice::Memory(memory) = shared else { panic!("memory") };
    assert!(!memory.stores());
    assert_eq!((memory.counters().reads, memory.counters().writes, memory.counters().others), (1, 1, 3));
}

#[test]
fn reads_that_cost_time_come_one_after_the_other_with_the_newest_bytes() {
    let bench = Bench::new(RingBackend::Auto);
    let spec = &DeviceSpec::parse("memory:4M").expect("a device")[0];
    let shared = spec.open(&OpenOptions::default()).expect("mapped");
    let SharedDevice::Memory(memory) = &shared else { panic!("memory") };
    let cost = Duration::from_micros(500);
    memory.set_read_cost(cost);
    let device = shared.attach(&bench.ring);
    let start = Instant::now();
    let done = bench.run(async move {
        drop(device.read(DeviceOffset::START, Buffer::new(4096))); // takes its turn all the same
        let reads: Vec<_> =
            (0..9).map(|i| device.read(DeviceOffset::new(i * 4096), Buffer::new(4096))).collect();
        // A write does not wait for the reads before it, as on any device.
        device
            .write(DeviceOffset::new(8 * 4096), Slice::from_bytes(&pattern(3, 4096)).into(), false)
            .await
            .expect("written");
        let mut ready = Vec::new();
        for read in reads {
            let (buffer, result) = read.await;
            result.expect("read");
            ready.push((Instant::now(), buffer));
        }
        ready
    });
    for (turn, (ready, _)) in (2u32..).zip(&done) {
        assert!(*ready - start >= cost * turn, "read {turn} was early");
    }
    assert_eq!(done[8].1.bytes(), &pattern(3, 4096)[..]);
    assert_eq!(memory.counters().reads, 10);
}

#[test]
fn memory_larger_than_the_machine_costs_what_is_used() {
    let bench = Bench::new(RingBackend::Auto);
    let shared =
        DeviceSpec::Memory { bytes: 8 << 40, index: 0 }.open(&OpenOptions::default()).expect("mapped");
    let device = shared.attach(&bench.ring);
    bench.run(async move {
        let end = DeviceOffset::new(device.info().size_bytes - 4096);
        device.write(end, Slice::from_bytes(&pattern(9, 4096)).into(), true).await.expect("written");
        let (buffer, result) = device.read(end, Buffer::new(4096)).await;
        result.expect("read");
        assert!(buffer.bytes() == &pattern(9, 4096)[..]);
        device.discard(DeviceOffset::START, device.info().size_bytes).await.expect("discarded");
        let (buffer, _) = device.read(end, buffer).await;
        assert!(buffer.bytes().iter().all(|byte| *byte == 0));
    });
}

#[test]
fn a_member_cut_short_is_gone() {
    for backend in backends() {
        let (bench, folder) = (Bench::new(backend), folder());
        let path = member_file(folder.path(), 4 * MIB);
        let device = open(&path).expect("opened").attach(&bench.ring);
        // Not at a block: the last read is short before it meets the end.
        File::options().write(true).open(&path).expect("opened").set_len(MIB + 700).expect("cut");
        bench.run(async move {
            for (offset, bytes) in [(MIB - 4096, 8192), (2 * MIB, 4096), (MIB, 64 << 10)] {
                let offset = DeviceOffset::new(offset);
                let (buffer, result) = device.read(offset, Buffer::new(bytes)).await;
                let error = result.expect_err("nothing there");
                assert_eq!((error.kind, error.offset), (DeviceErrorKind::Gone, offset), "{error}");
                assert_eq!(buffer.len(), bytes);
            }
            device.read(DeviceOffset::START, Buffer::new(4096)).await.1.expect("what is left can be read");
        });
    }
}

#[test]
fn a_member_whose_name_is_gone_goes_on() {
    let (bench, folder) = (Bench::new(RingBackend::Auto), folder());
    let path = member_file(folder.path(), MIB);
    let device = open(&path).expect("opened").attach(&bench.ring);
    std::fs::remove_file(&path).expect("removed");
    bench.run(exercise(device, bench.clone()));
}

#[test]
fn a_full_file_system_is_no_space() {
    let folder = tempfile::tempdir().expect("a folder");
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=2m", "twill-test"])
        .arg(folder.path())
        .stderr(std::process::Stdio::null())
        .status();
    if !mounted.is_ok_and(|status| status.success()) {
        eprintln!("skipped: a small file system cannot be mounted here (needs root)");
        return;
    }
    for backend in backends() {
        let bench = Bench::new(backend);
        let path = member_file(folder.path(), 16 * MIB); // sparse
        let device = open(&path).expect("opened").attach(&bench.ring);
        let results = bench.run(async move {
            let data: Gather = Slice::from_bytes(&pattern(1, MIB as usize)).into();
            join_all((0..8).map(|i| device.write(DeviceOffset::new(i * MIB), data.clone(), false))).await
        });
        let full =
            results.iter().filter(|r| r.as_ref().is_err_and(|e| e.kind == DeviceErrorKind::NoSpace)).count();
        let written = results.iter().filter(|r| r.is_ok()).count();
        assert!(full >= 6 && full + written == 8, "{results:?}");
        std::fs::remove_file(path).expect("removed");
    }
    let status = std::process::Command::new("umount").arg("-l").arg(folder.path()).status();
    assert!(status.expect("umount runs").success());
}

#[test]
fn block_devices_are_members_while_nobody_else_has_them() {
    let folder = folder();
    let path = member_file(folder.path(), 8 * MIB);
    let Some(device) = LoopDevice::attach(&path) else {
        eprintln!("skipped: no loop device can be set up here (needs root and the loop driver)");
        return;
    };
    let shared = open(Path::new(&device.0)).expect("opened");
    assert_eq!(shared.info().size_bytes, 8 * MIB);
    assert_eq!(open(Path::new(&device.0)).expect_err("in use").kind, OpenErrorKind::InUse);
    for backend in backends() {
        let bench = Bench::new(backend);
        bench.run(exercise(shared.attach(&bench.ring), bench.clone()));
    }
}

struct LoopDevice(String);

impl LoopDevice {
    fn attach(path: &Path) -> Option<Self> {
        let output = std::process::Command::new("losetup").args(["-f", "--show"]).arg(path).output().ok()?;
        let name = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| LoopDevice(name.trim().to_owned()))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = std::process::Command::new("losetup").args(["-d", &self.0]).status();
    }
}

#[test]
fn refusals_say_why() {
    let folder = folder();
    let path = member_file(folder.path(), MIB);
    let kind = |path: &Path| open(path).expect_err("refused").kind;
    let first = open(&path).expect("opened");
    let twice = open(&path).expect_err("locked");
    assert_eq!(twice.kind, OpenErrorKind::InUse);
    assert!(twice.to_string().contains("in use"), "{twice}");
    let only_read = OpenOptions { read_only: true, ..OpenOptions::default() };
    let read = || DeviceSpec::Path(path.clone()).open(&only_read);
    assert_eq!(read().expect_err("another has it open for writing").kind, OpenErrorKind::InUse);
    drop(first);
    let (reader, _another) = (read().expect("free again"), read().expect("read by two"));
    assert_eq!(kind(&path), OpenErrorKind::InUse, "others read it");
    let bench = Bench::new(RingBackend::Auto);
    let device = reader.attach(&bench.ring);
    let write = bench.run(async move {
        device.write(DeviceOffset::START, Slice::from_bytes(&[1; 4096]).into(), false).await
    });
    assert_eq!(write.expect_err("read-only").kind, DeviceErrorKind::Io);
    assert_eq!(kind(&folder.path().join("nothing")), OpenErrorKind::NotFound);
    assert_eq!(kind(folder.path()), OpenErrorKind::WrongType);
    assert_eq!(kind(Path::new("/dev/null")), OpenErrorKind::WrongType);
    File::create(folder.path().join("tiny")).expect("created").set_len(100).expect("sized");
    assert_eq!(kind(&folder.path().join("tiny")), OpenErrorKind::TooSmall);
    let small = DeviceSpec::Memory { bytes: 100, index: 0 }.open(&OpenOptions::default());
    assert_eq!(small.expect_err("too small").kind, OpenErrorKind::TooSmall);
}

#[test]
fn a_lock_ends_with_the_last_operation_of_the_last_shard() {
    for backend in backends() {
        let (bench, folder) = (Bench::new(backend), folder());
        let path = member_file(folder.path(), MIB);
        let shared = open(&path).expect("opened");
        let device = shared.attach(&bench.ring);
        drop(shared);
        drop(device.write(DeviceOffset::START, Slice::from_bytes(&pattern(1, 4096)).into(), false));
        assert_eq!(open(&path).expect_err("a write is in flight").kind, OpenErrorKind::InUse);
        drop(device);
        let mut free = false;
        for _ in 0..200 {
            bench.ring.reap();
            bench.ring.wait(Some(Duration::from_millis(5)));
            free = free || open(&path).is_ok();
        }
        assert!(free, "the file is free again ({backend:?})");
        let mut bytes = vec![0; 4096];
        File::open(&path).expect("opened").read_exact_at(&mut bytes, 0).expect("read");
        assert!(bytes == pattern(1, 4096), "the dropped write ran to its end");
    }
}

#[test]
fn dropped_operations_run_on_and_return_their_memory() {
    let (bench, folder) = (Bench::new(RingBackend::Auto), folder());
    let path = member_file(folder.path(), 8 * MIB);
    let devices = [
        open(&path).expect("opened").attach(&bench.ring),
        DeviceSpec::Memory { bytes: 8 * MIB, index: 0 }
            .open(&OpenOptions::default())
            .expect("mapped")
            .attach(&bench.ring),
    ];
    let (ring, pool) = (bench.ring.clone(), bench.pool.clone());
    bench.run(async move {
        for device in devices {
            for i in 0..1000u64 {
                let mut buffer = pool.take(4096);
                buffer.bytes_mut().copy_from_slice(&pattern(i, 4096));
                drop(device.write(DeviceOffset::new(i * 4096), buffer.freeze().into(), false));
                drop(device.read(DeviceOffset::new(i * 4096), pool.take(4096)));
            }
            while ring.operations() > 1 {
                ring.sleep(Duration::from_millis(1)).await;
                if ring.operations() == 0 {
                    break;
                }
            }
            for i in 0..1000u64 {
                let (buffer, result) = device.read(DeviceOffset::new(i * 4096), pool.take(4096)).await;
                result.expect("read");
                assert!(buffer.bytes() == &pattern(i, 4096)[..], "dropped write {i} was made");
            }
        }
    });
}

#[test]
fn words_for_devices() {
    let parse = |text| DeviceSpec::parse(text);
    assert_eq!(parse("/dev/nvme0n1"), Ok(vec![DeviceSpec::Path("/dev/nvme0n1".into())]));
    assert_eq!(parse("./memory:1G"), Ok(vec![DeviceSpec::Path("./memory:1G".into())]));
    assert_eq!(parse("memory:64K"), Ok(vec![DeviceSpec::Memory { bytes: 65536, index: 0 }]));
    let six = parse("memory:6x2G").expect("six");
    assert_eq!((six.len(), six[5].to_string().as_str()), (6, "memory:5"));
    assert_eq!(six[5], DeviceSpec::Memory { bytes: 2 << 30, index: 5 });
    let two = parse("null:2x1G").expect("two");
    assert_eq!((two.len(), two[1].to_string().as_str()), (2, "null:1"));
    assert_eq!(two[1], DeviceSpec::Null { bytes: 1 << 30, index: 1 });
    for (text, error) in [
        ("memory:0x2G", "\"0\" is not a number of devices"),
        ("memory:ax2G", "\"a\" is not a number of devices"),
        ("memory:6x", "\"\" is not a size"),
        ("null:6x", "\"\" is not a size"),
        ("memory:2Q", "\"2Q\" is not a size"),
        ("memory:-1", "\"-1\" is not a size"),
        ("memory:99999999P", "too large"),
        ("", "empty"),
    ] {
        let message = parse(text).expect_err(text).to_string();
        assert!(message.contains(error), "{text}: {message}");
    }
    assert_eq!((parse_size("4096"), parse_size("2TiB"), parse_size("3k")), (Ok(4096), Ok(2 << 40), Ok(3072)));
    assert_eq!(parse_size("G"), Err(SpecError::Size { text: "G".into() }));
}
