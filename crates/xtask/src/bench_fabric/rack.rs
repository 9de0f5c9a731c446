//! An array over targets in network namespaces, and a host that serves it.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::links::{Links, address};

/// Files on a disk would make its writing back part of the figures.
const MEMBER: &str = "memory:256M";
/// On a machine with other work, ten targets and a host have taken longer than 20 s.
const PATIENCE: Duration = Duration::from_secs(60);

/// Targets, and a host that serves the array of their drives.
pub struct Rack<'a> {
    pub links: &'a Links,
    folder: PathBuf,
    processes: Vec<Child>,
    pub array: Array,
}

/// The array that is served.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Array {
    /// Members, each on a target of its own.
    pub targets: usize,
    pub level: u32,
    pub chunk_kib: u32,
    /// Where parity is made: `host`, `peer` or `auto`.
    pub fabric: &'static str,
    /// Which target puts a lost chunk together.
    pub reducers: &'static str,
    /// Whether writes are logged while a member is missing.
    pub redo_log: bool,
}

impl Array {
    /// An array as it comes without options of chunk, reducers or log.
    pub fn new(targets: usize, level: u32, fabric: &'static str) -> Self {
        Array { targets, level, chunk_kib: 512, fabric, reducers: "fastest", redo_log: true }
    }
}

/// Which half of the processors a program runs on.
#[derive(Clone, Copy)]
enum Side {
    /// The host and its clients.
    Host,
    Targets,
}

/// What clients of the array did.
pub struct Work {
    pub bytes: f64,
    pub bytes_s: f64,
    /// The mean over all requests.
    pub latency_us: f64,
}

/// What clients did, and what it cost at the host's interface.
pub struct Measured {
    pub work: Work,
    /// Bytes at the host's interface for each byte of the clients, Ethernet headers and acknowledgements included.
    pub sent: f64,
    pub received: f64,
}

impl<'a> Rack<'a> {
    pub fn start(twill: &Path, links: &'a Links, array: Array) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("twill-fabric-{}", std::process::id()));
        let _left = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder)?;
        let mut rack = Rack { links, folder, processes: Vec::new(), array };
        let mut members = Vec::new();
        let port = links.port();
        for index in 0..array.targets {
            let nqn = format!("nqn.2026-11.bench:drive{index}");
            let address = address(index);
            let mut target =
                rack.command(twill, Side::Targets, &links.target(index), &format!("target{index}"))?;
            target.args(["target", "--reservations-new", "--insecure", "--allow-any", "--shards", "1"]);
            target.args(["--listen", &format!("{address}:{port}")]);
            target.args(["--peer-hostnqn", &format!("nqn.2026-11.bench:target{index}")]);
            target.arg(format!("{MEMBER}={nqn}"));
            rack.processes.push(target.spawn().context("twill target")?);
            members.push(format!("nvme://{address}:{port}/{nqn}"));
        }
        rack.create(twill, &members)?;
        let mut serve = rack.command(twill, Side::Host, &links.host(), "host")?;
        serve.args(["serve", "--fabric", array.fabric, "--reducers", array.reducers, "--shards", "1"]);
        serve.args((!array.redo_log).then_some("--no-redo-log"));
        serve.arg("--unix").arg(rack.socket());
        serve.arg("--control").arg(rack.folder.join("control")).args(&members);
        rack.processes.push(serve.spawn().context("twill serve")?);
        rack.wait_until_ready()?;
        Ok(rack)
    }

    fn create(&self, twill: &Path, members: &[String]) -> Result<()> {
        let start = Instant::now();
        loop {
            let mut create = self.command(twill, Side::Host, &self.links.host(), "host")?;
            create.args(["create", "--name", "bench", "--level", &self.array.level.to_string()]);
            create.args(["--assume-clean", "--chunk", &format!("{}K", self.array.chunk_kib)]).args(members);
            if create.status()?.success() {
                return Ok(());
            }
            if start.elapsed() > PATIENCE {
                bail!("the array cannot be created:\n{}", self.last_words());
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// The last lines that the host and each target have logged: the files go with the rack.
    fn last_words(&self) -> String {
        const LINES: usize = 3;
        let targets = (0..self.array.targets).map(|index| format!("target{index}"));
        let last = |name: String| {
            let log = std::fs::read_to_string(self.folder.join(format!("{name}.log"))).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            format!("{name}: {}", lines[lines.len().saturating_sub(LINES)..].join(" | "))
        };
        targets.chain(["host".to_owned()]).map(last).collect::<Vec<_>>().join("\n")
    }

    /// The export is there, and with `peer` every target is attached and reaches the others.
    fn wait_until_ready(&self) -> Result<()> {
        let start = Instant::now();
        while !self.is_ready() {
            if start.elapsed() > PATIENCE {
                bail!("the array is not served:\n{}", self.last_words());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    fn is_ready(&self) -> bool {
        let Ok(status) = self.status() else { return false };
        let members = status["members"].as_array().map_or(&[][..], Vec::as_slice);
        let ready =
            |member: &Value| self.array.fabric == "host" || member["remote"]["unreached_targets"] == 0;
        !members.is_empty() && members.iter().all(ready) && self.socket().exists()
    }

    pub fn status(&self) -> Result<Value> {
        let twill = self.folder.join("twill");
        let output = Command::new(twill)
            .args(["status", "--json", "--control"])
            .arg(self.folder.join("control"))
            .stderr(Stdio::null())
            .output()?;
        let whole: Value = serde_json::from_slice(&output.stdout)?;
        Ok(whole["arrays"][0].clone())
    }

    /// Takes a member out of use.
    pub fn fail(&self, slot: usize) -> Result<()> {
        let control = self.folder.join("control");
        let mut fail = Command::new(self.folder.join("twill"));
        let status = fail
            .args(["fail", &slot.to_string(), "--control"])
            .arg(control)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()?;
        if !status.success() {
            bail!("member {slot} cannot be failed");
        }
        Ok(())
    }

    /// Where NBD is served.
    pub fn socket(&self) -> PathBuf {
        self.folder.join("nbd")
    }

    /// A folder that goes when the rack does.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Counts bytes at the host's interface while clients work.
    pub fn measure(&self, work: impl FnOnce() -> Result<Work>) -> Result<Measured> {
        let before = self.links.host_bytes()?;
        let work = work()?;
        let after = self.links.host_bytes()?;
        let sent = (after.0 - before.0) as f64 / work.bytes;
        Ok(Measured { sent, received: (after.1 - before.1) as f64 / work.bytes, work })
    }

    /// A job of fio over NBD.
    pub fn fio(&self, rw: &str, size: &str, depth: u32, seconds: u32, more: &[&str]) -> Result<Work> {
        let uri = format!("nbd+unix:///?socket={}", self.socket().display());
        let output = self
            .placed("fio", Side::Host)
            // Other places in each run: a run of large requests has too few to be a fair sample.
            .args(["--name=w", "--ioengine=nbd", "--time_based", "--output-format=json", "--size=100%"])
            .arg("--randrepeat=0")
            .args([format!("--uri={uri}"), format!("--bs={size}"), format!("--runtime={seconds}")])
            .args([format!("--rw={rw}"), format!("--iodepth={depth}")])
            .args(more)
            .output()
            .context("fio, which apt has")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let json = text.find('{').map_or("", |start| &text[start..]);
        let report: Value = serde_json::from_str(json).context("what fio says")?;
        let work = work_of(&report["jobs"][0]);
        if work.bytes == 0.0 {
            bail!("fio has moved nothing: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(work)
    }

    /// A program on its side's share of the processors, where these decide the figures: on two of them the scheduler's choice of
    /// neighbours, which a run keeps to its end, was worth 22 or 33 MB/s.
    fn placed(&self, program: &str, side: Side) -> Command {
        let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        if self.links.are_limited() || processors < 2 {
            return Command::new(program);
        }
        let half = processors / 2;
        let share = match side {
            Side::Host => format!("0-{}", half - 1),
            Side::Targets => format!("{half}-{}", processors - 1),
        };
        let mut command = Command::new("taskset");
        command.args(["--cpu-list", &share, program]);
        command
    }

    fn command(&self, twill: &Path, side: Side, namespace: &str, name: &str) -> Result<Command> {
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
        let mut command = self.placed("ip", side);
        // Its processes go with this one, whatever ends it.
        command
            .args(["netns", "exec", namespace, "setpriv", "--pdeathsig", "KILL"])
            .arg(&link)
            .env("TWILL_STATE_DIR", state);
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

/// Reads and writes of a job of fio together.
fn work_of(job: &Value) -> Work {
    let sum = |what: fn(&Value) -> f64| what(&job["read"]) + what(&job["write"]);
    let requests = |way: &Value| way["total_ios"].as_f64().unwrap_or(0.0);
    let waited_ns = |way: &Value| {
        way["clat_ns"]["mean"].as_f64().unwrap_or(0.0) * way["total_ios"].as_f64().unwrap_or(0.0)
    };
    Work {
        bytes: sum(|way| way["io_bytes"].as_f64().unwrap_or(0.0)),
        bytes_s: sum(|way| way["bw_bytes"].as_f64().unwrap_or(0.0)),
        latency_us: sum(waited_ns) / sum(requests) / 1e3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_of_a_job_are_added_and_each_request_counts_once() {
        let way = |bytes: u32, requests: u32, mean_ns: u32| {
            let clat = serde_json::json!({ "mean": mean_ns });
            serde_json::json!({ "io_bytes": bytes, "bw_bytes": bytes / 2, "total_ios": requests, "clat_ns": clat })
        };
        let work = work_of(&serde_json::json!({ "read": way(300, 3, 1000), "write": way(100, 1, 5000) }));
        assert_eq!((work.bytes, work.bytes_s, work.latency_us), (400.0, 200.0, 2.0));
    }
}
