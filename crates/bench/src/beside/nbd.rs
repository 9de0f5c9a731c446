//! NBD over a unix socket: an array in memory beside `nbdkit memory`, which has no RAID, both loaded by fio.
//!
//! The array is served by this process, as `twill serve` does it; nbdkit is started for the comparison. Processor time
//! is that of the server: of this process, which only waits meanwhile, and of nbdkit's.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use host::export::nbd::{Address, ExportOptions, Server, ServerOptions};
use host::shard::ShardContext;

use super::fio::Job;
use super::{Beside, Run, not_started, take_turns};
use crate::Error;
use crate::array::{Array, OpenMembers, shards_failed};
use crate::clock::{process_cpu_ns, ticks_ns};
use crate::machine::Machine;
use crate::setting::Setting;

/// How long a server may take until it can be reached.
const START_LIMIT: Duration = Duration::from_secs(10);

/// What to compare.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Rounds; the median counts.
    pub runs: usize,
    /// Seconds of each run.
    pub runtime: f64,
    /// Sizes of requests.
    pub sizes: Vec<u64>,
    /// Requests in flight.
    pub iodepth: usize,
    /// fio's words for what is done.
    pub works: Vec<String>,
    /// The array that is served; `members` are six of memory.
    pub array: Setting,
    /// Bytes of both volumes that are used.
    pub bytes: u64,
}

/// Measures all of it; `say` hears how it goes.
///
/// # Errors
/// fio or nbdkit is missing or fails, or what is wrong with the array.
pub fn measure(plan: &Plan, say: &dyn Fn(&str)) -> Result<Beside, Error> {
    let folder = tempfile::tempdir().map_err(|source| Error::Io { path: std::env::temp_dir(), source })?;
    let machine = Machine::now();
    let ours = Ours::start(&plan.array, &folder.path().join("twill.sock"))?;
    let theirs = Nbdkit::start(plan.bytes, &folder.path().join("nbdkit.sock"))?;
    let size = plan.bytes.min(ours.array.geometry.array_bytes());
    for socket in [&ours.socket, &theirs.socket] {
        // Write every byte once, so that the system provides all memory before it is measured.
        fill(folder.path(), socket, size)?;
    }
    let mut pairs = Vec::new();
    for rw in &plan.works {
        for &bs in &plan.sizes {
            let work = format!("{rw} {}", words_of_size(bs));
            say(&work);
            let job = |socket: &Path| Job {
                rw,
                bs,
                iodepth: plan.iodepth,
                runtime: plan.runtime,
                ramp: 0.0, // the server's processor time is that of all operations
                target: target(socket, size),
            };
            let pair = take_turns(
                work,
                plan.runs,
                || timed(&job(&ours.socket), folder.path(), process_cpu_ns),
                || timed(&job(&theirs.socket), folder.path(), || theirs.cpu_ns()),
            )?;
            pairs.push(pair);
        }
    }
    let Setting { level, shards, parity_cache, .. } = &plan.array;
    let method = format!(
        "NBD over a unix socket, fio's nbd engine with {} requests in flight on one connection, {} runs of {} s by each in \
         turns; RAID-{level} of six members in memory, {shards} shards, {} MiB of parity cache, no crash consistency.",
        plan.iodepth,
        plan.runs,
        plan.runtime,
        parity_cache >> 20
    );
    Ok(Beside { machine, method, other: "nbdkit memory".to_string(), pairs })
}

fn words_of_size(bytes: u64) -> String {
    if bytes.is_multiple_of(1024) { format!("{}K", bytes >> 10) } else { bytes.to_string() }
}

fn target(socket: &Path, size: u64) -> Vec<OsString> {
    let mut uri = OsString::from("--uri=nbd+unix:///?socket=");
    uri.push(socket);
    vec!["--ioengine=nbd".into(), uri, format!("--size={size}").into()]
}

fn fill(folder: &Path, socket: &Path, size: u64) -> Result<(), Error> {
    let mut target = target(socket, size);
    target.push("--time_based=0".into());
    Job { rw: "write", bs: 1 << 20, iodepth: 8, runtime: 600.0, ramp: 0.0, target }.run(folder).map(drop)
}

/// One run of fio, with the processor time that a server had meanwhile.
fn timed(job: &Job<'_>, folder: &Path, cpu_ns: impl Fn() -> u64) -> Result<Run, Error> {
    let before = cpu_ns();
    let found = job.run(folder)?;
    let cpu_us = (cpu_ns() - before) as f64 / 1e3;
    Ok(Run { iops: found.iops, cpu_us_per_op: Some(cpu_us / found.operations), ceiling_iops: None })
}

/// The array, served by this process.
struct Ours {
    server: Server,
    socket: PathBuf,
    array: Array,
}

impl Ours {
    fn start(setting: &Setting, socket: &Path) -> Result<Self, Error> {
        let array = Array::start(setting, &OpenMembers::open(setting)?)?;
        let server = Server::new(array.shards.handle(), ServerOptions::default());
        let host = array.host.clone();
        let volume =
            move |context: &ShardContext| host::balance::BalancedVolume::open(host.volumes(), context, true);
        let options = ExportOptions::default();
        server.exports().add("bench", options, volume).map_err(shards_failed)?;
        server.exports().set_default(Some("bench"));
        let address = Address::Unix(socket.to_path_buf());
        server.listen(&address).map_err(|source| Error::Io { path: socket.to_path_buf(), source })?;
        Ok(Ours { server, socket: socket.to_path_buf(), array })
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        self.server.stop(Duration::from_secs(1));
    }
}

/// A running nbdkit.
struct Nbdkit {
    child: Child,
    socket: PathBuf,
}

impl Nbdkit {
    fn start(bytes: u64, socket: &Path) -> Result<Self, Error> {
        let mut command = Command::new("nbdkit");
        command.args(["--foreground", "--exit-with-parent", "--unix"]).arg(socket);
        command.arg("memory").arg(bytes.to_string()).stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.spawn().map_err(|source| not_started("nbdkit", &source))?;
        let mut nbdkit = Nbdkit { child, socket: socket.to_path_buf() };
        let start = Instant::now();
        while !socket.exists() {
            let failed = |reason: String| Err(Error::Program { name: "nbdkit", reason });
            match nbdkit.child.try_wait() {
                Ok(None) if start.elapsed() < START_LIMIT => std::thread::sleep(Duration::from_millis(5)),
                Ok(None) => return failed("it does not listen".to_string()),
                Ok(Some(status)) => return failed(format!("it ended: {status}")),
                Err(error) => return failed(error.to_string()),
            }
        }
        Ok(nbdkit)
    }

    /// Its processor time so far, from /proc.
    fn cpu_ns(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        // After the name, which may hold anything: utime and stime are the 12th and 13th words.
        let words = text.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
        words.skip(11).take(2).filter_map(|word| word.parse::<u64>().ok()).map(ticks_ns).sum()
    }
}

impl Drop for Nbdkit {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing left to do.
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}
