//! An array over targets in network namespaces, and a host that serves it.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::links::{Links, address};

/// Of the array; fio takes the same word.
pub const CHUNK: &str = "512K";
const MEMBER_BYTES: u64 = 256 << 20;
const PATIENCE: Duration = Duration::from_secs(20);

/// Targets, and a host that serves the array of their drives.
pub struct Rack<'a> {
    pub links: &'a Links,
    folder: PathBuf,
    processes: Vec<Child>,
    array: Array,
}

/// The array that is served.
#[derive(Clone, Copy)]
pub struct Array {
    /// Members, each on a target of its own.
    pub targets: usize,
    pub level: u32,
    /// Where parity is made: `host`, `peer` or `auto`.
    pub fabric: &'static str,
    /// Which target puts a lost chunk together.
    pub reducers: &'static str,
}

impl<'a> Rack<'a> {
    pub fn start(twill: &Path, links: &'a Links, array: Array) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("twill-fabric-{}", std::process::id()));
        let _left = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder)?;
        let mut rack = Rack { links, folder, processes: Vec::new(), array };
        let mut members = Vec::new();
        for index in 0..array.targets {
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
        serve.args(["serve", "--fabric", array.fabric, "--reducers", array.reducers, "--shards", "1"]);
        serve.arg("--unix").arg(rack.folder.join("nbd"));
        serve.arg("--control").arg(rack.folder.join("control")).args(&members);
        rack.processes.push(serve.spawn().context("twill serve")?);
        rack.wait_until_ready()?;
        Ok(rack)
    }

    fn create(&self, twill: &Path, members: &[String]) -> Result<()> {
        let start = Instant::now();
        loop {
            let mut create = self.command(twill, &self.links.host(), "host")?;
            create.args([
                "create",
                "--level",
                &self.array.level.to_string(),
                "--chunk",
                CHUNK,
                "--name",
                "bench",
            ]);
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
        let ready =
            |member: &Value| self.array.fabric == "host" || member["remote"]["unreached_targets"] == 0;
        !members.is_empty() && members.iter().all(ready) && self.folder.join("nbd").exists()
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
            .stderr(Stdio::null())
            .status()?;
        if !status.success() {
            bail!("member {slot} cannot be failed");
        }
        Ok(())
    }

    /// What fio says of a job over NBD.
    pub fn fio(&self, rw: &str, size: &str, depth: u32, seconds: u32, more: &[&str]) -> Result<Value> {
        let uri = format!("nbd+unix:///?socket={}", self.folder.join("nbd").display());
        let output = Command::new("fio")
            .args(["--name=w", "--ioengine=nbd", "--time_based", "--output-format=json", "--size=100%"])
            .args([format!("--uri={uri}"), format!("--bs={size}"), format!("--runtime={seconds}")])
            .args([format!("--rw={rw}"), format!("--iodepth={depth}")])
            .args(more)
            .output()
            .context("fio, which apt has")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let json = text.find('{').map_or("", |start| &text[start..]);
        let mut report: Value = serde_json::from_str(json).context("what fio says")?;
        let way = if rw.ends_with("write") { "write" } else { "read" };
        let job = report["jobs"][0][way].take();
        if job["io_bytes"].as_f64().is_none_or(|bytes| bytes == 0.0) {
            bail!("fio has moved nothing: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(job)
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
