//! The runs of `bench-zoned`, as they are kept.

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

/// All runs, and what they ran on.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Of the emulated machine.
    pub kernel: String,
    /// The processor that emulates it.
    pub host: String,
    pub seconds: u32,
    pub rounds: u32,
    pub quick: bool,
    /// On ordinary devices.
    pub members: Vec<Run>,
    pub cuts: Vec<Cut>,
    /// On files in file systems, on zoned devices.
    pub files: Vec<Run>,
    /// On zoned devices that take time.
    #[serde(default)]
    pub applications: Vec<Application>,
    /// By how much more than 20 us each command takes there.
    #[serde(default)]
    pub slow_by: u32,
    pub not_run: Vec<NotRun>,
}

/// One run of fio.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Of the array; `-` of files.
    pub level: String,
    /// `filled`, `aged` or `degraded`; of files `new` or `aged`.
    pub state: String,
    pub rw: String,
    pub bs: String,
    /// The program: `md`, `md-bitmap`, `md-journal`, `twill-RESERVE`; of files the file system, with `twill-LEVEL` below ext4.
    pub who: String,
    /// `THREADS/CACHE` of md, else `-`.
    pub setting: String,
    #[serde(default)]
    pub iops: f64,
    #[serde(default)]
    pub p99_us: f64,
    pub member_read_bytes: u64,
    pub member_written_bytes: u64,
    /// Of requests, in the same time.
    #[serde(default)]
    pub user_bytes: u64,
}

/// What an array did after a cut.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cut {
    pub level: String,
    pub who: String,
    /// From the start until the block device is there.
    pub serves_us: u64,
    /// From the start until every stripe is known to be redundant.
    pub clean_us: u64,
    /// Bytes at the members until then.
    pub member_read_bytes: u64,
    pub member_written_bytes: u64,
}

/// What an application had done by a file system's fsync.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Application {
    /// `sqlite-N`: so many databases, each with one client; `files`: writers that call fsync.
    pub work: String,
    /// The file system.
    pub who: String,
    /// Transactions, or writes, and how long they took all together.
    pub ended: u64,
    pub took_ms: u64,
    /// Hundredths of the processors' time.
    pub busy_percent: u32,
    pub member_read_bytes: u64,
    pub member_written_bytes: u64,
}

/// What could not run here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NotRun {
    pub what: String,
    pub reason: String,
}

impl Report {
    /// The runs of another time as well.
    pub fn join(mut self, other: Report) -> Result<Report> {
        let setting = |report: &Report| {
            (report.kernel.clone(), report.host.clone(), report.seconds, report.quick, report.slow_by)
        };
        if setting(&self) != setting(&other) {
            bail!("runs of other settings are not of one table: {:?}, {:?}", setting(&self), setting(&other));
        }
        self.rounds += other.rounds;
        self.members.extend(other.members);
        self.cuts.extend(other.cuts);
        self.files.extend(other.files);
        self.applications.extend(other.applications);
        self.not_run
            .extend(other.not_run.into_iter().filter(|one| !self.not_run.contains(one)).collect::<Vec<_>>());
        Ok(self)
    }

    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
            && self.cuts.is_empty()
            && self.files.is_empty()
            && self.applications.is_empty()
    }
}
