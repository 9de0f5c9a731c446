//! `cargo xtask bench-machine`: one array as two disks of one machine, by vhost-user-blk and by QEMU's NBD client, in turns.
//!
//! The machine is emulated, so that its own processor is most of what is measured: the ratio of a row is a lower bound of what
//! a machine with KVM sees.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::figures::{Kept, median, with_range};
use crate::machine::{self, JSON};

const PAGE: &str = "docs/virtual-machines.md";
const SECTION: &str = "bench-machine";
const MEMBERS: usize = 4;
const MEMBER_BYTES: u64 = 256 << 20;
const PATIENCE: Duration = Duration::from_secs(20);

/// Arguments of `cargo xtask bench-machine`.
#[derive(clap::Args)]
#[command(
    after_help = "Example: five minutes, and the table goes into docs/virtual-machines.md\n  cargo xtask bench-machine --publish"
)]
pub struct Arguments {
    /// Seconds of each run
    #[arg(long, default_value_t = 3)]
    seconds: u32,
    /// Rounds, in turns within each row; medians count
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// The program under test; without it target/release/twill, built first
    #[arg(long)]
    twill: Option<PathBuf>,
    /// Figures of earlier runs.
    #[command(flatten)]
    kept: Kept,
}

/// One run of fio in the machine.
#[derive(Serialize, Deserialize)]
struct Point {
    /// `vhost-user` or `nbd`.
    disk: String,
    /// `randread` or `randwrite`.
    work: String,
    size: String,
    iops: f64,
    p99_us: f64,
}

/// Runs it and prints the table.
pub fn run(root: &Path, arguments: &Arguments) -> Result<ExitCode> {
    let measure = || measure(root, arguments);
    arguments.kept.points(measure, table, &root.join(PAGE), SECTION)
}

fn measure(root: &Path, arguments: &Arguments) -> Result<Vec<Point>> {
    if let Some(reason) = machine::unavailable(root) {
        bail!("{reason}");
    }
    let twill = machine::program(root, arguments.twill.as_deref())?;
    let served = Served::start(&twill)?;
    let memory = "-object memory-backend-memfd,id=shared,size=1G,share=on -machine memory-backend=shared";
    let disks = format!(
        "-chardev socket,id=disk,path={} -device vhost-user-blk-pci,chardev=disk,num-queues=2 \
         -blockdev driver=nbd,node-name=nbd,server.type=unix,server.path={},cache.direct=on,discard=unmap \
         -device virtio-blk-pci,drive=nbd,num-queues=2",
        served.folder.join("machine").display(),
        served.folder.join("nbd").display(),
    );
    let mut command = Command::new(machine::script(root, "vm"));
    command.args(["--mem", "1G", "--mod", "virtio_blk", "--timeout", "3000"]);
    command.args(["--qemu", &format!("{memory} {disks}"), "--", &in_machine(arguments)]);
    let mut points = Vec::new();
    let status = machine::lines(command.current_dir(root), |line| {
        match line.strip_prefix(JSON) {
            Some(json) => {
                let point: Point = serde_json::from_str(json).with_context(|| line.to_owned())?;
                eprintln!("{} {} by {}: {:.0} a second", point.work, point.size, point.disk, point.iops);
                points.push(point);
                arguments.kept.keep(&points)?;
            }
            None => eprintln!("{line}"),
        }
        Ok(())
    })?;
    if status != 0 {
        bail!("the machine ended with status {status}");
    }
    Ok(points)
}

/// What the machine runs: /dev/vda is the array by vhost-user, /dev/vdb by NBD.
fn in_machine(arguments: &Arguments) -> String {
    let Arguments { seconds, rounds, .. } = arguments;
    let job = format!(
        "fio --name=job --filename=$device --direct=1 --ioengine=libaio --rw=$work --bs=$size --iodepth=32 --time_based \
         --runtime={seconds} --size=100% --randrepeat=0 --output-format=json"
    );
    let told = r#".jobs[0] | (if $work == "randread" then .read else .write end) |
        { disk: $disk, work: $work, size: $size, iops: .iops, p99_us: (.clat_ns.percentile["99.000000"] / 1000) }"#;
    format!(
        "set -euo pipefail; for _ in {{1..50}}; do [[ -b /dev/vdb ]] && break; sleep 0.2; done
         for round in {{1..{rounds}}}; do for work in randread randwrite; do for size in 4k 128k; do
             for pair in vhost-user:/dev/vda nbd:/dev/vdb; do
                 disk=${{pair%%:*}} device=${{pair#*:}}
                 {job} | jq -c --arg disk $disk --arg work $work --arg size $size '{told}' | sed 's/^/{JSON}/'
             done
         done; done; done"
    )
}

/// An array in memory that is served at two sockets.
struct Served {
    folder: PathBuf,
    server: Child,
}

impl Served {
    fn start(twill: &Path) -> Result<Self> {
        let folder = Path::new("/dev/shm").join(format!("twill-machine-{}", std::process::id()));
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let members: Vec<PathBuf> = (0..MEMBERS).map(|index| folder.join(format!("m{index}"))).collect();
        for member in &members {
            File::create(member)?.set_len(MEMBER_BYTES)?;
        }
        let log = File::create(folder.join("log"))?;
        let command = |words: &[&str]| {
            let mut command = Command::new(twill);
            command.args(words).args(&members).env("TWILL_STATE_DIR", &folder).current_dir(&folder);
            command.stdin(Stdio::null()).stdout(Stdio::null());
            command
        };
        let create = ["create", "--level", "5", "--chunk", "64K", "--name", "bench", "--assume-clean"];
        if !command(&create).status().context("twill create")?.success() {
            bail!("the array cannot be created");
        }
        let serve =
            ["serve", "--shards", "1", "--unix", "nbd", "--vhost-user", "machine", "--control", "control"];
        let server = command(&serve).stderr(log).spawn().context("twill serve")?;
        let served = Served { folder, server };
        let start = Instant::now();
        while !["nbd", "machine"].iter().all(|socket| served.folder.join(socket).exists()) {
            if start.elapsed() > PATIENCE {
                bail!("not served: {}", fs::read_to_string(served.folder.join("log")).unwrap_or_default());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(served)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ended = self.server.kill();
        let _status = self.server.wait();
        let _gone = fs::remove_dir_all(&self.folder);
    }
}

/// The table, in Markdown.
fn table(points: &[Point]) -> String {
    let of = |disk: &str, work: &str, size: &str| -> Vec<&Point> {
        points
            .iter()
            .filter(|point| (&*point.disk, &*point.work, &*point.size) == (disk, work, size))
            .collect()
    };
    let mut text = format!(
        "RAID-5 of {MEMBERS} members in memory, chunk 64 KiB, one shard, depth 32, in a machine of QEMU without KVM; medians of {} runs.\n\n\
         | work | vhost-user-blk, IOPS | NBD, IOPS | ratio (range) | vhost-user-blk, 99 % within | NBD, 99 % within |\n\
         |---|---|---|---|---|---|\n",
        of("nbd", "randread", "4k").len(),
    );
    for work in ["randread", "randwrite"] {
        for size in ["4k", "128k"] {
            let (ours, nbd) = (of("vhost-user", work, size), of("nbd", work, size));
            let iops = |points: &[&Point]| median(points.iter().map(|point| point.iops));
            let p99_ms = |points: &[&Point]| median(points.iter().map(|point| point.p99_us)) / 1000.0;
            let ratios = ours.iter().zip(&nbd).map(|(ours, nbd)| ours.iops / nbd.iops).collect();
            text += &format!(
                "| {work} {size} | {:.0} | {:.0} | {} | {:.1} ms | {:.1} ms |\n",
                iops(&ours),
                iops(&nbd),
                with_range(ratios),
                p99_ms(&ours),
                p99_ms(&nbd),
            );
        }
    }
    text
}
