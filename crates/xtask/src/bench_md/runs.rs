//! The runs of `bench-md`, as they are kept.

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

/// All runs, and what they ran on.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Report {
    pub kernel: String,
    pub seconds: u32,
    #[serde(default)]
    pub rounds: u32,
    pub runs: Vec<Run>,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    pub members: String,
    pub level: String,
    pub rw: String,
    pub bs: String,
    pub jobs: u32,
    pub health: String,
    pub bitmap: String,
    /// `md THREADS/CACHE`, twill, engine or ceiling.
    pub who: String,
    #[serde(default)]
    pub iops: f64,
    #[serde(default)]
    pub bytes_per_s: f64,
    #[serde(default)]
    pub p99_us: f64,
    pub member_read_bytes: u64,
    pub member_written_bytes: u64,
    /// Of requests, in the same time.
    pub user_bytes: u64,
}

impl Report {
    /// The runs of another time as well.
    pub fn join(mut self, other: Report) -> Result<Report> {
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
    pub fn only(mut self, kinds: &[&str]) -> Report {
        self.runs.retain(|run| kinds.contains(&run.members.as_str()));
        self
    }
}
