//! RocksDB, by its own benchmark, on a file system on the array: nbdfuse makes a file of the export, a loop device makes a block
//! device of that, and the kernel mounts ext4.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::bench_fabric::rack::{Measured, Rack, Work};
use crate::machine;

/// Programs, and the Debian package each comes in.
const NEEDS: [(&str, &str); 4] = [
    ("db_bench", "rocksdb-tools"),
    ("nbdfuse", "libnbd-bin"),
    ("losetup", "util-linux"),
    ("mkfs.ext4", "e2fsprogs"),
];
const DEVICES: [&str; 2] = ["/dev/fuse", "/dev/loop-control"];
const PATIENCE: Duration = Duration::from_secs(10);
const VALUES: u32 = 60_000;
const VALUE_BYTES: u32 = 1000;
const THREADS: u32 = 16;

/// A workload of YCSB, as near as db_bench has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Workload {
    /// Half reads, half updates.
    A,
    /// 95 of 100 reads, the others updates.
    B,
    /// Reads.
    C,
    /// Updates of what was read before.
    F,
}

/// All that are measured.
pub const WORKLOADS: [Workload; 4] = [Workload::A, Workload::B, Workload::C, Workload::F];

impl Workload {
    /// Of db_bench: its benchmark, the reads of 100 requests, and how many values a request moves.
    fn benchmark(self) -> (&'static str, u32, f64) {
        match self {
            Workload::A => ("readrandomwriterandom", 50, 1.0),
            Workload::B => ("readrandomwriterandom", 95, 1.0),
            // The benchmark of the mixes takes no 100.
            Workload::C => ("readrandom", 50, 1.0),
            Workload::F => ("updaterandom", 50, 2.0),
        }
    }
}

/// What this machine lacks.
pub fn missing() -> Option<String> {
    let packages =
        NEEDS.iter().filter(|(program, _)| !machine::on_path(program)).map(|(_, package)| *package);
    let packages: Vec<&str> = packages.collect();
    if !packages.is_empty() {
        return Some(format!("apt-get install {}", packages.join(" ")));
    }
    let device = DEVICES.into_iter().find(|device| !Path::new(device).exists())?;
    Some(format!("there is no {device}"))
}

/// Fills a new store and has clients work on it.
pub fn run(rack: &Rack<'_>, workload: Workload, seconds: u32) -> Result<Measured> {
    let store = Mounted::new(&rack.socket(), &rack.folder().join("key-value"))?;
    store.benchmark(&["--benchmarks=fillseq"])?;
    let (benchmark, reads, values) = workload.benchmark();
    let more = [
        "--use_existing_db=1".to_owned(),
        format!("--benchmarks={benchmark}"),
        format!("--readwritepercent={reads}"),
        format!("--threads={THREADS}"),
        format!("--duration={seconds}"),
    ];
    rack.measure(|| {
        let said = store.benchmark(&more.each_ref().map(|word| &**word))?;
        work_of(&said, values).with_context(|| format!("db_bench says no rate: {said}"))
    })
}

/// A file system on an export; all of it goes when this is dropped.
struct Mounted {
    folder: PathBuf,
    /// Serves the file that the loop device lies on.
    fuse: Child,
    /// The loop device, from the time when it is there.
    device: Option<String>,
}

impl Mounted {
    fn new(socket: &Path, folder: &Path) -> Result<Self> {
        let file = folder.join("file");
        std::fs::create_dir_all(&file)?;
        std::fs::create_dir_all(folder.join("mounted"))?;
        let (image, export) = (file.join("export"), socket.display().to_string());
        let mut fuse = Command::new("nbdfuse");
        fuse.arg(&image).args(["--unix", &export]).stdin(Stdio::null());
        let fuse = fuse.spawn().context("nbdfuse")?;
        let mut mounted = Mounted { folder: folder.to_owned(), fuse, device: None };
        let start = Instant::now();
        while !image.exists() {
            if start.elapsed() > PATIENCE {
                bail!("nbdfuse makes no {}", image.display());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        // Direct, so that what is read comes over the links and not from this machine's memory.
        let device =
            output(Command::new("losetup").args(["--find", "--show", "--direct-io=on"]).arg(&image))?;
        let device = mounted.device.insert(device.trim().to_owned());
        let options = "nodiscard,lazy_itable_init=1,lazy_journal_init=1";
        output(Command::new("mkfs.ext4").args(["-q", "-E", options, device]))?;
        output(Command::new("mount").arg(device).arg(folder.join("mounted")))?;
        Ok(mounted)
    }

    /// What db_bench says.
    fn benchmark(&self, words: &[&str]) -> Result<String> {
        let mut command = Command::new("db_bench");
        command.arg(format!("--db={}", self.folder.join("mounted/db").display()));
        command.args([format!("--num={VALUES}"), format!("--value_size={VALUE_BYTES}")]);
        // Little memory, so that both reads and writes reach the array.
        command.args(["--cache_size=1048576", "--write_buffer_size=8388608", "--compression_type=none"]);
        command.args(["--use_direct_reads=1", "--use_direct_io_for_flush_and_compaction=1"]);
        output(command.args(words))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let quietly = |command: &mut Command| {
            let _there_or_not = command.stderr(Stdio::null()).status();
        };
        quietly(Command::new("umount").arg(self.folder.join("mounted")));
        if let Some(device) = &self.device {
            quietly(Command::new("losetup").args(["--detach", device]));
        }
        quietly(Command::new("umount").arg(self.folder.join("file")));
        let _ended = self.fuse.kill();
        let _status = self.fuse.wait();
    }
}

fn output(command: &mut Command) -> Result<String> {
    let program = command.get_program().display().to_string();
    let output = command.output().with_context(|| program.clone())?;
    if !output.status.success() {
        bail!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Of a line like `updaterandom :  541.282 micros/op 14339 ops/sec 5.579 seconds 79992 operations; …`.
fn work_of(said: &str, values: f64) -> Option<Work> {
    let line = said.lines().find(|line| line.contains(" micros/op "))?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let before = |unit: &str| -> Option<f64> {
        let at = words.iter().position(|word| word.trim_end_matches(';') == unit)?;
        words.get(at.checked_sub(1)?)?.parse().ok()
    };
    let value_bytes = values * f64::from(VALUE_BYTES);
    Some(Work {
        bytes: before("operations")? * value_bytes,
        bytes_s: before("ops/sec")? * value_bytes,
        latency_us: before("micros/op")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_that_db_bench_says_is_found() {
        let said = "RocksDB: version\n------\nupdaterandom :     541.282 micros/op 14339 ops/sec 5.579 seconds 79992 operations;   27.9 MB/s ( updates:4999)\n";
        let work = work_of(said, 2.0).unwrap();
        assert_eq!((work.bytes, work.bytes_s, work.latency_us), (159_984_000.0, 28_678_000.0, 541.282));
        assert!(work_of("db_bench: no space\n", 1.0).is_none());
    }
}
