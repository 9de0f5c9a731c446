//! `cargo xtask bench-target`: what a target of NVMe/TCP does on one core over the loopback device, with the load on another, beside
//! other targets, and beside plain sockets that move the same bytes.
//!
//! Every target has the same load: `twill bench` with its namespace as the only member of a RAID-0, which adds a microsecond a
//! request to the load's core and nothing to the target's. A target's processor time is that of the whole machine less the
//! load's, since the kernel's own target has no process: other work of the machine counts as the target's.

mod floor;
mod row;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::figures::{Kept, median, with_range};
use crate::machine;
use row::{Row, rows};

const PAGE: &str = "docs/fabric.md";
const SECTION: &str = "bench-target";
const PORT: u16 = 24430;
const NQN: &str = "nqn.2026-11.bench:target";
const NAMESPACE: &str = "memory:512M";
const OURS: &str = "twill target";
const PLAIN: &str = "plain sockets";
/// USER_HZ: the unit of times in /proc, on every architecture that Linux has today.
const TICKS: f64 = 100.0;
/// Of the short run that says how fast a target is.
const TRIAL_REQUESTS: u64 = 2_000;
const PATIENCE: Duration = Duration::from_secs(30);

/// Arguments of `cargo xtask bench-target`.
#[derive(clap::Args)]
#[command(after_help = "Example: five minutes, and the table goes into docs/fabric.md
  cargo xtask bench-target --publish

Example: beside SPDK's target, which serves a namespace of memory on the same core
  cargo xtask bench-target --peer 'SPDK=nvme://127.0.0.1:4421/nqn.2016-06.io.spdk:cnode1'
What the peers' namespaces hold is lost.")]
pub struct Arguments {
    /// Seconds of each run, about
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Rounds, in turns within each row; medians count
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Requests in flight of 4 KiB; of 128 KiB a quarter of it
    #[arg(long, default_value_t = 64)]
    iodepth: u32,
    /// Another target, which runs already; may be repeated
    #[arg(long, value_name = "NAME=nvme://ADDRESS/NQN")]
    peer: Vec<Peer>,
    /// The core of `twill target`; a peer's is its own
    #[arg(long, default_value_t = 0)]
    target_core: usize,
    /// The core of the load
    #[arg(long, default_value_t = 1)]
    load_core: usize,
    /// What the connections have besides
    #[arg(long, value_enum, default_value_t)]
    with: Extra,
    /// The program under test; without it target/release/twill, built first
    #[arg(long)]
    twill: Option<PathBuf>,
    /// Figures of earlier runs.
    #[command(flatten)]
    kept: Kept,
}

/// What connections have besides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Extra {
    /// Nothing.
    #[default]
    Nothing,
    /// Digests of headers and data.
    Digests,
    /// TLS 1.3, by a key that no other target has: they are left out.
    Tls,
}

/// Another target.
#[derive(Clone, Debug)]
struct Peer {
    name: String,
    member: String,
}

impl FromStr for Peer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, member) = text.split_once("=nvme://").ok_or("it is NAME=nvme://ADDRESS/NQN")?;
        Ok(Peer { name: name.to_owned(), member: format!("nvme://{member}") })
    }
}

/// One run at one target.
#[derive(Serialize, Deserialize)]
struct Point {
    target: String,
    row: String,
    iops: f64,
    mb_s: f64,
    /// Processor seconds of all but the load for each GiB.
    s_per_gib: f64,
}

/// Runs it and prints the table.
pub fn run(root: &Path, arguments: &Arguments) -> Result<ExitCode> {
    let measure = || measure(root, arguments);
    arguments.kept.points(measure, |points| table(points, arguments), &root.join(PAGE), SECTION)
}

fn measure(root: &Path, arguments: &Arguments) -> Result<Vec<Point>> {
    let twill = machine::program(root, arguments.twill.as_deref())?;
    let target = Target::start(&twill, arguments)?;
    let ours = Peer { name: OURS.to_owned(), member: format!("nvme://127.0.0.1:{PORT}/{NQN}") };
    let mut points = Vec::new();
    for round in 0..arguments.rounds {
        for row in rows(arguments.iodepth) {
            let plain = floor::measure(&row, arguments.seconds, arguments.target_core, arguments.load_core)?;
            points.push(point(PLAIN, &row, plain.requests, plain.seconds, plain.server_seconds));
            let peers = arguments.peer.iter().filter(|_| arguments.with != Extra::Tls);
            for peer in [&ours].into_iter().chain(peers) {
                points.push(target.load(peer, &row, arguments)?);
            }
            let last = points.last().expect("at least ours");
            eprintln!("round {round}, {}: {:.1} thousand/s at {}", last.row, last.iops / 1000.0, last.target);
            arguments.kept.keep(&points)?;
        }
    }
    Ok(points)
}

fn point(target: &str, row: &Row, requests: u64, seconds: f64, processor_seconds: f64) -> Point {
    let bytes = requests as f64 * f64::from(row.bytes);
    Point {
        target: target.to_owned(),
        row: row.name(),
        iops: requests as f64 / seconds,
        mb_s: bytes / seconds / 1e6,
        s_per_gib: processor_seconds / (bytes / f64::from(1 << 30)),
    }
}

/// `twill target`, and what it needs.
struct Target {
    twill: PathBuf,
    folder: PathBuf,
    process: Child,
}

impl Target {
    fn start(twill: &Path, arguments: &Arguments) -> Result<Self> {
        let folder = Path::new("/dev/shm").join(format!("twill-target-{}", std::process::id()));
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let log = File::create(folder.join("target.log"))?;
        let mut command = pinned(twill, arguments.target_core, &folder);
        command.args(["target", "--shards", "1", "--listen", &format!("127.0.0.1:{PORT}")]);
        if arguments.with == Extra::Tls {
            let key = folder.join("key");
            fs::write(&key, KEY)?;
            restrict(&key)?;
            command.arg("--tls-key").arg(format!("{HOST}={}", key.display()));
        } else {
            command.arg("--allow-any");
        }
        command.arg(format!("{NAMESPACE}={NQN}")).stdout(log.try_clone()?).stderr(log);
        let process = command.spawn().context("twill target")?;
        let target = Target { twill: twill.to_owned(), folder, process };
        let (start, log) = (Instant::now(), target.folder.join("target.log"));
        while !fs::read_to_string(&log).unwrap_or_default().contains("listening at") {
            ensure!(start.elapsed() < PATIENCE, "the target does not listen: {}", fs::read_to_string(&log)?);
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(target)
    }

    /// One run. As many requests as take about the time that was asked for, by a short run before.
    fn load(&self, peer: &Peer, row: &Row, arguments: &Arguments) -> Result<Point> {
        let trial = self.requests(peer, row, arguments, TRIAL_REQUESTS)?;
        let requests = (trial["iops"].as_f64().context("a rate")? * arguments.seconds) as u64;
        let requests = requests.max(TRIAL_REQUESTS);
        let before = (busy_seconds()?, children_seconds()?);
        let figures = self.requests(peer, row, arguments, requests)?;
        let load = children_seconds()? - before.1;
        let others = (busy_seconds()? - before.0 - load).max(0.0);
        let rate = figures["iops"].as_f64().context("a rate")?;
        Ok(point(&peer.name, row, requests, requests as f64 / rate, others))
    }

    fn requests(&self, peer: &Peer, row: &Row, arguments: &Arguments, requests: u64) -> Result<Value> {
        let mut load = pinned(&self.twill, arguments.load_core, &self.folder);
        load.args(["bench", "--members", &peer.member, "--level", "0", "--force", "--json", "--no-roofline"]);
        load.args(["--rw", row.work, "--bs", &row.bytes.to_string(), "--iodepth", &row.depth.to_string()]);
        load.args(["--shards", "1", "--requests", &requests.to_string()]);
        match arguments.with {
            Extra::Nothing => {}
            Extra::Digests => drop(load.args(["--hdr-digest", "--data-digest"])),
            Extra::Tls => {
                load.args(["--hostnqn", HOST, "--tls-secret"]).arg(self.folder.join("key"));
            }
        }
        let output = load.stderr(Stdio::piped()).output().context("twill bench")?;
        if !output.status.success() {
            bail!("{}: {}", peer.member, String::from_utf8_lossy(&output.stderr));
        }
        serde_json::from_slice(&output.stdout).context("the figures of twill bench")
    }
}

/// The name of the load under TLS.
const HOST: &str = "nqn.2026-11.bench:load";
/// The key of both ends: no secret of anybody.
const KEY: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:\n";

fn restrict(key: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    Ok(fs::set_permissions(key, fs::Permissions::from_mode(0o600))?)
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ended = self.process.kill();
        let _status = self.process.wait();
        let _gone = fs::remove_dir_all(&self.folder);
    }
}

/// A program on one core.
fn pinned(program: &Path, core: usize, folder: &Path) -> Command {
    let mut command = Command::new("taskset");
    command.args(["--cpu-list", &core.to_string()]).arg(program);
    command.env("TWILL_RUNTIME_DIR", folder).env("TWILL_STATE_DIR", folder).stdin(Stdio::null());
    command
}

/// Processor time of the whole machine so far, idle time left out.
fn busy_seconds() -> Result<f64> {
    let text = fs::read_to_string("/proc/stat").context("/proc/stat")?;
    let ticks: Vec<f64> =
        text.lines().next().unwrap_or("").split_whitespace().skip(1).filter_map(|n| n.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq
    let busy: f64 = [0, 1, 2, 5, 6].iter().filter_map(|at| ticks.get(*at)).sum();
    Ok(busy / TICKS)
}

/// Processor time of this process's children that have ended.
fn children_seconds() -> Result<f64> {
    let text = fs::read_to_string("/proc/self/stat").context("/proc/self/stat")?;
    // The name may hold blanks, and ends with the last bracket.
    let fields: Vec<&str> = text.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
    // cutime and cstime, the 16th and 17th.
    let ticks = |at: usize| fields.get(at - 3).and_then(|field| field.parse::<f64>().ok()).context("a time");
    Ok((ticks(16)? + ticks(17)?) / TICKS)
}

/// The table, in Markdown.
fn table(points: &[Point], arguments: &Arguments) -> String {
    let mut targets: Vec<&str> = Vec::new();
    points.iter().for_each(|point| {
        if !targets.contains(&point.target.as_str()) {
            targets.push(&point.target);
        }
    });
    let of = |target: &str, row: &str| -> Vec<&Point> {
        points.iter().filter(|point| point.target == target && point.row == row).collect()
    };
    let mut text = format!(
        "One core for the target, one for the load, over the loopback device; {}; a namespace of memory; medians of {} runs in turns. \
         Ratios are those of {OURS} to the other's, of the same round.\n\n\
         | request, in flight | target | thousand a second | MB/s | s per GiB | rate, ratio (range) | processor time, ratio (range) |\n\
         |---|---|---|---|---|---|---|\n",
        match arguments.with {
            Extra::Nothing => "no digests",
            Extra::Digests => "digests of headers and data",
            Extra::Tls => "TLS 1.3",
        },
        of(OURS, &rows(arguments.iodepth)[0].name()).len(),
    );
    for row in rows(arguments.iodepth) {
        let ours = of(OURS, &row.name());
        for target in &targets {
            let theirs = of(target, &row.name());
            let figure = |what: fn(&Point) -> f64| median(theirs.iter().map(|point| what(point)));
            let ratio = |what: fn(&Point) -> f64| match *target == OURS {
                true => "1".to_owned(),
                false => with_range(ours.iter().zip(&theirs).map(|(a, b)| what(a) / what(b)).collect()),
            };
            text += &format!(
                "| {} | {target} | {:.1} | {:.0} | {:.3} | {} | {} |\n",
                row.name(),
                figure(|point| point.iops) / 1000.0,
                figure(|point| point.mb_s),
                figure(|point| point.s_per_gib),
                ratio(|point| point.iops),
                ratio(|point| point.s_per_gib),
            );
        }
    }
    text
}
