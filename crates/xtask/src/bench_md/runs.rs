//! The runs of `bench-md`, as they are kept.

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

/// All runs, and what they ran on.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Report {
    pub(super) kernel: String,
    pub(super) seconds: u32,
    #[serde(default)]
    pub(super) rounds: u32,
    pub(super) runs: Vec<Run>,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Run {
    pub(super) members: String,
    pub(super) level: String,
    pub(super) rw: String,
    pub(super) bs: String,
    pub(super) jobs: u32,
    pub(super) health: String,
    pub(super) bitmap: String,
    /// `md THREADS/CACHE`, twill, engine or ceiling.
    pub(super) who: String,
    #[serde(default)]
    pub(super) iops: f64,
    #[serde(default)]
    pub(super) bytes_per_s: f64,
    #[serde(default)]
    pub(super) p99_us: f64,
    pub(super) member_read_bytes: u64,
    pub(super) member_written_bytes: u64,
    /// Of requests, in the same time.
    pub(super) user_bytes: u64,
}

impl Report {
    /// The runs of another time as well.
    pub(super) fn join(mut self, other: Report) -> Result<Report> {
        if (&self.kernel, self.seconds) != (&other.kernel, other.seconds) {
            bail!(
                "runs of {} s on Linux {} and of {} s on {} are not of one table",
                self.seconds,
                self.kernel,
                other.seconds,
                other.kernel
            );
        }
        self.rounds = self.rounds.max(other.rounds);
        self.runs.extend(other.runs);
        Ok(self)
    }

    /// The runs on these kinds of members.
    pub(super) fn only(mut self, kinds: &[&str]) -> Report {
        self.runs.retain(|run| kinds.contains(&run.members.as_str()));
        self
    }
}
