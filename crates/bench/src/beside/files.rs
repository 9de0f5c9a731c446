//! Files and block devices past the page cache: an array beside fio on the same members without RAID, at the same
//! depth, in the same rounds; and what the members allow for writes.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::fio::Job;
use super::{Beside, Run, take_turns};
use crate::Error;
use crate::array::OpenMembers;
use crate::machine::Machine;
use crate::random::Random;
use crate::run::run_on;
use crate::setting::{Setting, Work};

/// Written at once when members are filled.
const FILL_BYTES: usize = 1 << 20;

/// What to compare.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Rounds; the median counts.
    pub runs: usize,
    /// The array: members, level, chunk, depth, seconds of a run.
    pub array: Setting,
    /// Sizes of requests.
    pub sizes: Vec<u64>,
    /// fio's engine on the bare members: io_uring, libaio, psync.
    pub engine: String,
    /// Create missing files with this size and remove them at the end.
    pub make: Option<u64>,
}

/// Files that were created for the measurement; dropping removes them.
#[derive(Default)]
struct Made(Vec<PathBuf>);

impl Made {
    fn new(paths: &[PathBuf], bytes: u64) -> Result<Self, Error> {
        let mut made = Made::default();
        for path in paths.iter().filter(|path| !path.exists()) {
            let io = |source| Error::Io { path: path.clone(), source };
            let file = OpenOptions::new().write(true).create_new(true).open(path).map_err(io)?;
            made.0.push(path.clone());
            file.set_len(bytes).map_err(io)?;
        }
        Ok(made)
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for path in &self.0 {
            let _left_behind = std::fs::remove_file(path);
        }
    }
}

/// Measures random reads and writes of each size; `say` hears how it goes.
///
/// # Errors
/// fio is missing or fails, or what is wrong with a member or the array.
pub fn measure(plan: &Plan, say: &dyn Fn(&str)) -> Result<Beside, Error> {
    let machine = Machine::now();
    let paths = paths(&plan.array)?;
    let _made = plan.make.map(|bytes| Made::new(&paths, bytes)).transpose()?;
    let folder = tempfile::tempdir().map_err(|source| Error::Io { path: std::env::temp_dir(), source })?;
    drop(OpenMembers::open(&plan.array)?); // refuses members that hold something, unless forced
    say("filling the members");
    paths
        .iter()
        .try_for_each(|path| fill(path).map_err(|source| Error::Io { path: path.clone(), source }))?;
    // The members now hold data without parity, which a measurement of speed does not need.
    let members = OpenMembers::open(&Setting { force: true, ..plan.array.clone() })?.of_any_contents();
    let mut pairs = Vec::new();
    for (name, rw) in [("randread", Work::RandRead), ("randwrite", Work::RandWrite)] {
        for &bs in &plan.sizes {
            let setting = Setting { rw, bs, ..plan.array.clone() };
            say(&format!("{name} {}K", bs >> 10));
            let run = || {
                let figures = run_on(&members, &setting)?;
                let ceiling_iops = figures.ceiling.as_ref().map(|ceiling| ceiling.iops);
                let cpu_us_per_op = Some(figures.cpu_ns_per_op / 1e3);
                Ok(Run { iops: figures.iops, cpu_us_per_op, ceiling_iops })
            };
            // An engine that waits for each request has as many in flight as jobs.
            let depth = setting.iodepth * setting.shards;
            let (jobs, iodepth) = if is_waiting(&plan.engine) { (depth, 1) } else { (1, depth) };
            let (runtime, ramp) = (setting.runtime, setting.ramp);
            let job = Job { rw: name, bs, iodepth, runtime, ramp, target: target(plan, &paths, jobs) };
            let other = || {
                let found = job.run(folder.path())?;
                Ok(Run { iops: found.iops, ..Run::default() })
            };
            pairs.push(take_turns(format!("{name} {}K", bs >> 10), plan.runs, run, other)?);
        }
    }
    let Setting { level, shards, iodepth, runtime, .. } = &plan.array;
    let method = format!(
        "{} members past the page cache, RAID-{level}, {shards} shards with {iodepth} requests in flight each, {} runs of \
         {runtime} s by each in turns; fio has as many requests in flight on the same members without RAID. What members \
         allow is measured in the same run: their own operations by those that the plan needs for a request.",
        paths.len(),
        plan.runs
    );
    Ok(Beside { machine, method, other: format!("fio, {}", plan.engine), pairs })
}

fn paths(setting: &Setting) -> Result<Vec<PathBuf>, Error> {
    use host::device::DeviceSpec;
    let path = |spec: DeviceSpec| match spec {
        DeviceSpec::Path(path) => std::path::absolute(&path).map_err(|source| Error::Io { path, source }),
        DeviceSpec::Memory { .. } | DeviceSpec::Null { .. } | DeviceSpec::Remote(_) => Err(Error::Setting(
            "fio reaches files and block devices only: members cannot be memory".to_string(),
        )),
    };
    setting.specs()?.into_iter().map(path).collect()
}

fn is_waiting(engine: &str) -> bool {
    matches!(engine, "sync" | "psync" | "vsync" | "pvsync" | "pvsync2")
}

/// Writes a member from its start to its end, so that no read is of a hole and no write has to find room first.
pub(crate) fn fill(path: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(path)?;
    let mut left = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(0))?;
    let (mut random, mut piece) = (Random::new(left), vec![0; FILL_BYTES]);
    piece.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&random.next().to_le_bytes()));
    while left > 0 {
        let bytes = usize::try_from(left).unwrap_or(usize::MAX).min(FILL_BYTES);
        file.write_all(&piece[..bytes])?;
        left -= bytes as u64;
    }
    file.sync_all()
}

fn target(plan: &Plan, paths: &[PathBuf], jobs: usize) -> Vec<OsString> {
    // fio takes one list of names with colons between them; colons that belong to a name are escaped.
    let names: Vec<String> =
        paths.iter().map(|path| path.display().to_string().replace(':', "\\:")).collect();
    vec![
        format!("--filename={}", names.join(":")).into(),
        format!("--ioengine={}", plan.engine).into(),
        format!("--numjobs={jobs}").into(),
        "--direct=1".into(),
        "--file_service_type=random:1".into(),
        "--allow_file_create=0".into(),
    ]
}
