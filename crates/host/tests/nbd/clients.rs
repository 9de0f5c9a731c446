//! The clients people use: libnbd's tools, QEMU's, fio. A program that is not installed skips its test.

use crate::memory::Memory;
use crate::serving::{MIB, Serving, have, run};
use host::export::nbd::{Address, ExportOptions, ServerOptions};
use serde_json::Value;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;

fn json(text: &str) -> Value {
    // fio puts remarks in front.
    serde_json::from_str(&text[text.find(['{', '[']).unwrap_or(0)..]).expect("JSON")
}

#[test]
fn nbdinfo_describes_an_export() {
    if !have("nbdinfo") {
        return;
    }
    let serving = Serving::start();
    for name in ["data", ""] {
        let info = json(&run("nbdinfo", &["--json", &serving.uri(name)]));
        assert_eq!((&info["protocol"], &info["structured"]), (&"newstyle-fixed".into(), &true.into()));
        let export = &info["exports"][0];
        assert_eq!(export["export-size"], 64 * MIB);
        assert_eq!(export["description"], "for tests");
        assert_eq!(export["contexts"][0], "base:allocation");
        for able in ["flush", "fua", "multi_conn", "trim", "zero", "df", "cache", "fast_zero"] {
            assert_eq!(export[format!("can_{able}")], true, "{able}");
        }
        assert_eq!(export["is_read_only"], false);
        let sizes =
            ["minimum", "preferred", "maximum"].map(|which| export[format!("block_size_{which}")].clone());
        assert_eq!(sizes, [512, 65536, 32 * MIB].map(Value::from));
    }
}

#[test]
fn nbdinfo_lists_and_maps() {
    if !have("nbdinfo") {
        return;
    }
    let serving = Serving::start();
    let logs = Arc::new(Memory::new(MIB, 4096));
    let options = ExportOptions { read_only: true, ..ExportOptions::default() };
    serving.server.exports().add("logs", options, Memory::opener(&logs)).expect("a new name");
    let list = json(&run("nbdinfo", &["--json", "--list", &serving.uri("")]));
    let names: Vec<_> =
        list["exports"].as_array().expect("a list").iter().map(|one| &one["export-name"]).collect();
    assert_eq!(names, ["data", "logs"]);
    assert_eq!(list["exports"][1]["is_read_only"], true);
    assert_eq!(list["exports"][1]["block_size_minimum"], 4096);
    let map = json(&run("nbdinfo", &["--json", "--map", &serving.uri("data")]));
    let extents: Vec<_> =
        map.as_array().expect("a list").iter().map(|extent| extent["type"].clone()).collect();
    assert!(extents.iter().all(|kind| *kind == 0), "all allocated: {map}");
    let length: u64 =
        map.as_array().expect("a list").iter().filter_map(|extent| extent["length"].as_u64()).sum();
    assert_eq!(length, 64 * MIB as u64);
    // Two exports and no default: the empty name finds none, until one is chosen.
    let refused = Command::new("nbdinfo").arg(serving.uri("")).output().expect("nbdinfo starts");
    assert!(!refused.status.success());
    serving.server.exports().set_default(Some("logs"));
    assert_eq!(run("nbdinfo", &["--size", &serving.uri("")]).trim(), "1048576");
}

#[test]
fn nbdcopy_out_and_in() {
    if !have("nbdcopy") {
        return;
    }
    let serving = Serving::start();
    let file = serving.folder.path().join("image");
    let path = file.to_str().expect("a plain path");
    run("nbdcopy", &[&serving.uri("data"), path]);
    let image = std::fs::read(&file).expect("the copy");
    assert!(image == serving.memory.contents(), "out: the same bytes");
    let turned: Vec<u8> = image.iter().map(|byte| !byte).collect();
    std::fs::write(&file, &turned).expect("an image");
    run("nbdcopy", &["--flush", path, &serving.uri("data")]);
    assert!(turned == serving.memory.contents(), "in: the same bytes");
    assert!(serving.memory.flushes.load(Ordering::Relaxed) > 0);
    serving.wait_until_idle();
    let export = &serving.server.status().exports[0];
    assert!(export.connections_total > 2, "several connections, as multi-conn allows");
    assert_eq!(export.totals.read_bytes, 64 * MIB as u64);
}

#[test]
fn qemu_img_converts_and_compares() {
    if !have("qemu-img") {
        return;
    }
    let serving = Serving::start();
    let uri = serving.uri("data");
    let info = json(&run("qemu-img", &["info", "--output=json", &uri]));
    assert_eq!(info["virtual-size"], 64 * MIB);
    let file = serving.folder.path().join("image.qcow2");
    let path = file.to_str().expect("a plain path");
    run("qemu-img", &["convert", "-O", "qcow2", &uri, path]);
    run("qemu-img", &["compare", path, &uri]);
    let target = Serving::of(Memory::new(64 * MIB, 4096), ServerOptions::default());
    run("qemu-img", &["convert", "-n", "-W", "-O", "raw", path, &target.uri("data")]);
    run("qemu-img", &["compare", "-f", "raw", "-F", "qcow2", &target.uri("data"), path]);
    assert!(serving.memory.contents() == target.memory.contents(), "the same bytes");
}

#[test]
fn qemu_io_zeroes_discards_and_forces() {
    if !have("qemu-io") {
        return;
    }
    let serving = Serving::of(Memory::new(64 * MIB, 4096), ServerOptions::default());
    let commands = [
        "write -P 0xaa 0 1M",
        "write -f -P 0xbb 4k 4k",
        "write -P 0xcc 65636 100",
        "write -z 128k 64k",
        "write -z -u 256k 64k",
        "discard 512k 64k",
        "flush",
        "read -P 0xaa 0 4k",
        "read -P 0xbb 4k 4k",
        "read -P 0xcc 65636 100",
        "read -P 0xaa 65736 1000",
        "read -P 0 128k 64k",
        "read -P 0 256k 64k",
        "aio_write -P 0xdd 2M 33M",
        "aio_flush",
        "read -P 0xdd 2M 33M",
    ];
    let uri = serving.uri("data");
    let mut arguments = vec!["-f", "raw"];
    commands.iter().for_each(|command| arguments.extend(["-c", command]));
    arguments.push(&uri);
    let text = run("qemu-io", &arguments);
    assert!(!text.contains("failed") && !text.contains("error"), "{text}");
    let memory = &serving.memory;
    let counts =
        [&memory.fua_writes, &memory.holes, &memory.flushes].map(|count| count.load(Ordering::Relaxed));
    assert!(counts[0] >= 1 && counts[1] == 1 && counts[2] >= 1, "{counts:?}");
}

/// Requests that libnbd does not send unless its checks are off.
const CORNER_CASES: &str = r#"
import errno
h.set_strict_mode(0)
h.set_handshake_flags(3)
h.add_meta_context("base:allocation")
h.connect_uri(URI)

def fails(number, call, *arguments):
    try:
        call(*arguments)
    except nbd.Error as error:
        assert error.errnum == number, (call, arguments, error)
    else:
        raise AssertionError((call, arguments))

size = h.get_size()
block = bytearray(4096)
fails(errno.EINVAL, h.pread, 512, 1)
fails(errno.EINVAL, h.pread, 511, 0)
fails(errno.EINVAL, h.pread, 512, size)
fails(errno.EINVAL, h.pread, 33 << 20, 0)
fails(errno.EINVAL, h.pread, 512, 0, nbd.CMD_FLAG_REQ_ONE)
fails(errno.ENOSPC, h.pwrite, block, size)
fails(errno.ENOSPC, h.pwrite, block, size - 512)
fails(errno.EINVAL, h.pwrite, block, 100)
fails(errno.EINVAL, h.pwrite, bytearray(40 << 20), 0)
fails(errno.EINVAL, h.trim, 512, size)
fails(errno.ENOSPC, h.zero, 512, size)
fails(errno.ENOTSUP, h.zero, 512, 0, nbd.CMD_FLAG_FAST_ZERO)
fails(errno.EINVAL, h.block_status, 512, size, lambda *_: 0)
h.pwrite(b"x" * 4096, 4096, nbd.CMD_FLAG_FUA)
h.zero(512, 4608, nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FUA)
assert h.pread(4096, 4096, nbd.CMD_FLAG_FUA) == b"x" * 512 + bytes(512) + b"x" * 3072
h.trim(4096, 0, nbd.CMD_FLAG_FUA)
h.cache(4096, 0)
h.flush()
extents = []
h.block_status(size, 0, lambda context, offset, entries, error: extents.append((context, offset, entries)) or 0)
assert extents == [("base:allocation", 0, [size, 0])], extents
chunks = []
data = h.pread_structured(1 << 20, 0, lambda data, offset, status, error: chunks.append((len(data), offset, status)) or 0, nbd.CMD_FLAG_DF)
assert chunks == [(1 << 20, 0, nbd.READ_DATA)], chunks
assert h.aio_is_ready()
h.shutdown()
"#;

#[test]
fn nbdsh_tries_the_corners() {
    let import = |python: &&str| {
        Command::new(python).args(["-c", "import nbd"]).output().is_ok_and(|o| o.status.success())
    };
    // The distribution's bindings are in the distribution's Python, which may not be the first one.
    let Some(python) = ["python3", "/usr/bin/python3"].into_iter().find(import) else {
        eprintln!("skipped: no Python with libnbd's bindings");
        return;
    };
    let serving = Serving::start();
    let script = format!("URI = {:?}\n{CORNER_CASES}", serving.uri("data"));
    run(python, &["-m", "nbd", "-c", &script]);
    serving.wait_until_idle();
}

#[test]
fn fio_verifies_what_four_jobs_write() {
    if !have("fio") || !run("fio", &["--enghelp"]).lines().any(|line| line.trim() == "nbd") {
        return;
    }
    let serving = Serving::start();
    let Ok(tcp) = serving.server.listen(&Address::Tcp("127.0.0.1:0".parse().expect("an address"))) else {
        panic!("a free port")
    };
    for uri in [serving.uri("data"), tcp.to_string()] {
        let uri = format!("--uri={uri}");
        let fixed = [
            "--name=verify",
            "--ioengine=nbd",
            &uri,
            "--rw=randwrite",
            "--bsrange=4k-1m",
            "--iodepth=32",
            "--numjobs=4",
        ];
        let verified = [
            "--verify=crc32c",
            "--verify_fatal=1",
            "--verify_state_save=0",
            "--size=16m",
            "--offset_increment=16m",
        ];
        run("fio", &[fixed.as_slice(), &verified, &["--loops=3"]].concat());
    }
    serving.wait_until_idle();
    assert_eq!(serving.server.status().exports[0].totals.errors, 0);
}

/// A program that ends with the test.
struct Running(std::process::Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Processor time of a process so far, in hundredths of a second.
fn ticks(process: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("the process runs");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("a name").split_whitespace().collect();
    [11, 12].map(|field: usize| fields[field].parse::<f64>().expect("a number")).iter().sum()
}

/// Figures beside `nbdkit memory`, on the same machine in the same minute. Run by hand:
/// `cargo test --release -p twill-host --test nbd -- --ignored --nocapture beside_nbdkit`.
#[test]
#[ignore = "takes a minute and prints figures"]
fn beside_nbdkit() {
    if !have("fio") || !have("nbdkit") {
        return;
    }
    let serving = Serving::start();
    let theirs = serving.folder.path().join("nbdkit");
    let path = theirs.to_str().expect("a plain path");
    let nbdkit = Command::new("nbdkit").args(["-f", "-U", path, "memory", "64M"]).spawn();
    let nbdkit = Running(nbdkit.expect("nbdkit starts"));
    std::thread::sleep(std::time::Duration::from_millis(500));
    let sides = [
        ("twill", serving.uri("data"), std::process::id()),
        ("nbdkit", format!("nbd+unix:///?socket={path}"), nbdkit.0.id()),
    ];
    run("nbdcopy", &[&sides[0].1, &sides[1].1]);
    for (mode, block) in
        [("randread", "4k"), ("randread", "128k"), ("randwrite", "4k"), ("randwrite", "128k")]
    {
        for (name, uri, process) in sides.iter().chain(&sides) {
            let (rw, bs, uri) = (format!("--rw={mode}"), format!("--bs={block}"), format!("--uri={uri}"));
            let before = ticks(*process);
            let report = json(&run(
                "fio",
                &[
                    "--name=x",
                    "--ioengine=nbd",
                    &uri,
                    &rw,
                    &bs,
                    "--iodepth=32",
                    "--size=64m",
                    "--time_based",
                    "--runtime=4",
                    "--output-format=json",
                ],
            ));
            let side = &report["jobs"][0][&mode[4..]];
            let (rate, count) = (side["iops"].as_f64(), side["total_ios"].as_f64());
            let processor_us = (ticks(*process) - before) * 1e4 / count.expect("a number");
            let rate = rate.expect("a number");
            println!(
                "{mode} {block} {name:6}: {rate:8.0} a second, {processor_us:6.2} us of the server's processor each"
            );
        }
    }
}
