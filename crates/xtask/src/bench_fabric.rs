//! `cargo xtask bench-fabric`: an array over targets behind links of a limited rate, with its parity made at the host and at the
//! targets in turns: throughput, and bytes at the host's network interface for each byte of its clients.
//!
//! Every target and the host has a network namespace of its own; all links go to one bridge and are shaped in both directions, so
//! that the links are the limit and not the processors.

mod links;
mod report;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::figures::Kept;
use crate::machine;
use links::{Links, address};
use report::{Point, Report};

const PAGE: &str = "docs/fabric.md";
const SECTION: &str = "bench-fabric";
const MEMBER_BYTES: u64 = 256 << 20;
const PATIENCE: Duration = Duration::from_secs(20);

/// Arguments of `cargo xtask bench-fabric`.
#[derive(clap::Args)]
#[command(
    after_help = "It needs root, for network namespaces. Example: a quarter of an hour, and the table goes into docs/fabric.md\n  cargo xtask bench-fabric --publish"
)]
pub struct Arguments {
    /// Members of the array, each on a target of its own
    #[arg(long, default_value_t = 6)]
    targets: usize,
    /// Rate of each link, each way, in Mbit/s; 0 is no limit
    #[arg(long, default_value_t = 200)]
    rate: u32,
    /// Levels
    #[arg(long, value_delimiter = ',', default_value = "5,6")]
    levels: Vec<u32>,
    /// Sizes of random writes
    #[arg(long, value_delimiter = ',', default_value = "4k,16k,64k,128k")]
    sizes: Vec<String>,
    /// Seconds of each run
    #[arg(long, default_value_t = 5)]
    seconds: u32,
    /// Rounds, in turns within each row; medians count
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// The program under test; without it target/release/twill, built first
    #[arg(long)]
    twill: Option<PathBuf>,
    #[command(flatten)]
    kept: Kept,
}

/// Runs it and prints the table.
pub fn run(root: &Path, arguments: &Arguments) -> Result<ExitCode> {
    let report = arguments.kept.or_measure(Report::join, || measure(root, arguments))?;
    arguments.kept.keep(&report)?;
    arguments.kept.show(&report::text(&report), &root.join(PAGE), SECTION)?;
    Ok(if report.points.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn measure(root: &Path, arguments: &Arguments) -> Result<Report> {
    let twill = machine::program(root, arguments.twill.as_deref())?;
    let links = Links::new(arguments.targets, arguments.rate)?;
    let mut report = Report { targets: arguments.targets, rate_mbit: arguments.rate, points: Vec::new() };
    for &level in &arguments.levels {
        for round in 0..arguments.rounds {
            for mode in ["host", "peer", "auto"] {
                let rack = Rack::start(&twill, &links, arguments, level, mode)?;
                for size in &arguments.sizes {
                    let point = rack.write(size, arguments.seconds)?;
                    eprintln!(
                        "RAID-{level}, {mode}, {size}, round {}: {:.1} MB/s",
                        round + 1,
                        point.bytes_s / 1e6
                    );
                    report.points.push(point);
                    arguments.kept.keep(&report)?;
                }
            }
        }
    }
    Ok(report)
}

/// Targets, and a host that serves the array of their drives.
struct Rack<'a> {
    links: &'a Links,
    folder: PathBuf,
    processes: Vec<Child>,
    level: u32,
    mode: &'static str,
}

impl<'a> Rack<'a> {
    fn start(
        twill: &Path,
        links: &'a Links,
        arguments: &Arguments,
        level: u32,
        mode: &'static str,
    ) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("twill-fabric-{}", std::process::id()));
        let _left = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder)?;
        let mut rack = Rack { links, folder, processes: Vec::new(), level, mode };
        let mut members = Vec::new();
        for index in 0..arguments.targets {
            let file = rack.folder.join(format!("drive{index}"));
            std::fs::File::create(&file)?.set_len(MEMBER_BYTES)?;
            let nqn = format!("nqn.2026-11.bench:drive{index}");
            let address = address(index);
            let mut target = rack.command(twill, &links.target(index), &format!("target{index}"))?;
            target.args(["target", "--reservations-new", "--insecure", "--allow-any", "--shards", "1"]);
            target.args(["--listen", &format!("{address}:4420")]);
            target.args(["--peer-hostnqn", &format!("nqn.2026-11.bench:target{index}")]);
            target.arg(format!("{}={nqn}", file.display()));
            rack.processes.push(target.spawn().context("twill target")?);
            members.push(format!("nvme://{address}:4420/{nqn}"));
        }
        rack.create(twill, &members)?;
        let mut serve = rack.command(twill, &links.host(), "host")?;
        serve.args(["serve", "--fabric", mode, "--shards", "1", "--unix"]).arg(rack.folder.join("nbd"));
        serve.arg("--control").arg(rack.folder.join("control")).args(&members);
        rack.processes.push(serve.spawn().context("twill serve")?);
        rack.wait_until_ready()?;
        Ok(rack)
    }

    fn create(&self, twill: &Path, members: &[String]) -> Result<()> {
        let start = Instant::now();
        loop {
            let mut create = self.command(twill, &self.links.host(), "host")?;
            create.args(["create", "--level", &self.level.to_string(), "--chunk", "512K", "--name", "bench"]);
            create.args(["--assume-clean"]).args(members);
            if create.status()?.success() {
                return Ok(());
            }
            if start.elapsed() > PATIENCE {
                let said = std::fs::read_to_string(self.folder.join("host.log")).unwrap_or_default();
                bail!("the array cannot be created: {said}");
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// The export is there, and with `peer` every target is attached and reaches the others.
    fn wait_until_ready(&self) -> Result<()> {
        let start = Instant::now();
        while !self.is_ready() {
            if start.elapsed() > PATIENCE {
                bail!("the array is not served: see {}", self.folder.join("host.log").display());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    fn is_ready(&self) -> bool {
        let Ok(status) = self.status() else { return false };
        let members = status["members"].as_array().map_or(&[][..], Vec::as_slice);
        let ready = |member: &Value| self.mode == "host" || member["remote"]["unreached_targets"] == 0;
        !members.is_empty() && members.iter().all(ready) && self.folder.join("nbd").exists()
    }

    fn status(&self) -> Result<Value> {
        let twill = self.folder.join("twill");
        let output = Command::new(twill)
            .args(["status", "--json", "--control"])
            .arg(self.folder.join("control"))
            .stderr(Stdio::null())
            .output()?;
        let whole: Value = serde_json::from_slice(&output.stdout)?;
        Ok(whole["arrays"][0].clone())
    }

    /// Random writes of one size.
    fn write(&self, size: &str, seconds: u32) -> Result<Point> {
        let before = self.links.host_bytes()?;
        let uri = format!("nbd+unix:///?socket={}", self.folder.join("nbd").display());
        let output = Command::new("fio")
            .args(["--name=w", "--ioengine=nbd", "--rw=randwrite", "--time_based", "--output-format=json"])
            .args([format!("--uri={uri}"), format!("--bs={size}"), format!("--runtime={seconds}")])
            .args(["--iodepth=32", "--size=100%"])
            .output()
            .context("fio, which apt has")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let json = text.find('{').map_or("", |start| &text[start..]);
        let report: Value = serde_json::from_str(json).context("what fio says")?;
        let write = &report["jobs"][0]["write"];
        let bytes = write["io_bytes"].as_f64().filter(|bytes| *bytes > 0.0).context("fio wrote nothing")?;
        let after = self.links.host_bytes()?;
        Ok(Point {
            level: self.level,
            mode: self.mode.to_owned(),
            size: size.to_owned(),
            bytes_s: write["bw_bytes"].as_f64().context("a rate")?,
            latency_us: write["clat_ns"]["mean"].as_f64().unwrap_or(0.0) / 1e3,
            sent: (after.0 - before.0) as f64 / bytes,
            received: (after.1 - before.1) as f64 / bytes,
        })
    }

    fn command(&self, twill: &Path, namespace: &str, name: &str) -> Result<Command> {
        let link = self.folder.join("twill");
        if !link.exists() {
            std::os::unix::fs::symlink(twill.canonicalize()?, &link)?;
        }
        let state = self.folder.join(format!("state-{name}"));
        std::fs::create_dir_all(&state)?;
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.folder.join(format!("{name}.log")))?;
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace]).arg(&link).env("TWILL_STATE_DIR", state);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        Ok(command)
    }
}

impl Drop for Rack<'_> {
    fn drop(&mut self) {
        // The host first: its members are released, and nothing waits for a target that is gone.
        for process in self.processes.iter_mut().rev() {
            let _ended = process.kill();
            let _status = process.wait();
        }
        let _gone = std::fs::remove_dir_all(&self.folder);
    }
}
