//! The runs of each experiment: six members in memory, and what the paper varies.

use std::path::{Path, PathBuf};

use engine::stripe::locks::Locks;

use super::plan::{Extent, Plan};
use crate::Error;
use crate::setting::{Consistency, Setting, Skew, Work};
use layout::units::Slot;

/// Members of every array.
const MEMBERS: usize = 6;

/// The paper's sizes of requests.
const SIZES: [(&str, u64); 3] = [("4K", 4 << 10), ("64K", 64 << 10), ("1M", 1 << 20)];

/// What runs are made on.
pub(super) struct Lab {
    extent: Extent,
    member_bytes: u64,
    runtime: f64,
    /// 1, 2, 4, 8, and on as far as there are cores.
    shards: Vec<usize>,
    cores: usize,
    traces: Vec<PathBuf>,
}

/// One run to be made.
pub(super) struct Case {
    /// Which of several plots it belongs to; empty where there is one.
    pub(super) panel: String,
    pub(super) series: String,
    pub(super) x: String,
    pub(super) setting: Setting,
}

impl Lab {
    pub(super) fn new(plan: &Plan, extent: Extent) -> Result<Self, Error> {
        let (runtime, member_bytes) = match extent {
            Extent::Quick => (0.4, 512 << 20),
            Extent::Full => (5.0, 2 << 30),
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let shards = std::iter::successors(Some(1), |shards| Some(shards * 2))
            .take_while(|shards| *shards <= cores.max(8));
        Ok(Lab {
            extent,
            member_bytes: plan.member_bytes.unwrap_or(member_bytes),
            runtime: plan.runtime.unwrap_or(runtime),
            shards: shards.collect(),
            cores,
            traces: traces_in(plan.traces.as_deref())?,
        })
    }

    pub(super) fn words(&self) -> String {
        let mib = self.member_bytes >> 20;
        format!(
            "six members of {mib} MiB in memory, {} s a run, no crash consistency unless it is said",
            self.runtime
        )
    }

    fn setting(&self, level: u32, rw: Work, bs: u64) -> Setting {
        Setting {
            level: level.to_string(),
            rw,
            bs,
            runtime: self.runtime,
            ramp: self.runtime / 4.0,
            ..self.members()
        }
    }

    /// The members of every run.
    pub(super) fn members(&self) -> Setting {
        Setting { members: vec![format!("memory:{MEMBERS}x{}", self.member_bytes)], ..Setting::default() }
    }

    /// Throughput against shards: a panel for each size, a series for each level and work.
    pub(super) fn scaling(&self, works: &[(&str, Work)]) -> Vec<Case> {
        let mut cases = Vec::new();
        for (size, bs) in SIZES {
            for level in [5, 6] {
                for (name, rw) in works {
                    for &shards in &self.shards {
                        let setting = Setting { shards, ..self.setting(level, *rw, bs) };
                        cases.push(Case::new(size, format!("RAID-{level} {name}"), &shards, setting));
                    }
                }
            }
        }
        cases
    }

    pub(super) fn latencies(&self) -> Vec<Case> {
        let depths: &[usize] = match self.extent {
            Extent::Quick => &[1, 8, 64, 512],
            Extent::Full => &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512],
        };
        let mut cases = Vec::new();
        for (name, bs) in SIZES {
            for &iodepth in depths {
                let shards = self.cores;
                let setting = Setting { iodepth, shards, ..self.setting(5, Work::RandWrite, bs) };
                cases.push(Case::new("", format!("randwrite {name}"), &iodepth, setting));
            }
        }
        cases
    }

    pub(super) fn stages(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for level in [5, 6] {
            let full = u64::from(6 - (level - 4)) * (64 << 10);
            for (name, bs) in [("4K", 4 << 10), ("64K", 64 << 10), ("full", full)] {
                let setting = self.setting(level, Work::RandWrite, bs);
                cases.push(Case::new("", "randwrite".to_string(), &format!("RAID-{level} {name}"), setting));
            }
        }
        cases
    }

    pub(super) fn amplification(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for (work, rw) in [("write", Work::Write), ("randwrite", Work::RandWrite)] {
            for (size, bs) in SIZES {
                for iodepth in [1, 64] {
                    let setting = Setting { iodepth, ..self.setting(5, rw, bs) };
                    cases.push(Case::new(
                        "",
                        format!("{iodepth} in flight"),
                        &format!("{work} {size}"),
                        setting,
                    ));
                }
            }
        }
        cases
    }

    /// The paper's panel, chunks of 8 and 64 KiB against shards, and all chunks.
    pub(super) fn chunks(&self) -> Vec<Case> {
        let setting = |kib: u64, shards: usize| {
            let setting = self.setting(6, Work::RandWrite, 64 << 10);
            Setting { chunk: kib << 10, shards, ..setting }
        };
        let mut cases = Vec::new();
        for (series, kib) in [("full stripes: chunk 8K", 8), ("partial stripes: chunk 64K", 64)] {
            for &shards in &self.shards {
                cases.push(Case::new("by shards", series.to_string(), &shards, setting(kib, shards)));
            }
        }
        for shards in [1, self.cores.max(2)] {
            for kib in [4, 8, 16, 32, 64, 128, 256, 512] {
                let series = format!("{shards} shards");
                cases.push(Case::new("by chunk", series, &format!("{kib}K"), setting(kib, shards)));
            }
        }
        cases
    }

    /// A panel for each level.
    pub(super) fn traces(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for level in [5, 6] {
            for trace in &self.traces {
                let name = trace.file_name().unwrap_or_default().to_string_lossy();
                let name = name.trim_end_matches(".zst").trim_end_matches(".csv").to_string();
                let setting = self.setting(level, Work::RandRw, 4 << 10);
                let (shards, trace) = (self.cores, Some(trace.clone()));
                let setting = Setting { chunk: 8 << 10, shards, trace, ..setting };
                cases.push(Case::new(&format!("RAID-{level}"), "Twill".into(), &name, setting));
            }
        }
        cases
    }

    pub(super) fn two_phase(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for (size, bs) in [("64K", 64 << 10), ("1M", 1 << 20)] {
            for (name, two_phase) in [("with", true), ("without", false)] {
                for iodepth in [1, 4, 16, 64] {
                    let setting = Setting { two_phase, iodepth, ..self.setting(5, Work::Write, bs) };
                    cases.push(Case::new("", format!("{size} {name}"), &iodepth, setting));
                }
            }
        }
        cases
    }

    /// The paper runs a trace that is not public, four fifths of it small writes: here places follow Zipf's law.
    pub(super) fn caches(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for (series, member_read_us) in [("reads take 20 us", 20), ("members in memory", 0)] {
            for mib in [0u64, 4, 16, 64, 256] {
                let (skew, parity_cache) = (Skew::Zipf(0.99), mib << 20);
                let setting = self.setting(5, Work::RandWrite, 4 << 10);
                let setting = Setting { chunk: 8 << 10, skew, parity_cache, member_read_us, ..setting };
                cases.push(Case::new("", series.to_string(), &format!("{mib}M"), setting));
            }
        }
        cases
    }

    pub(super) fn degraded(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for (work, rw) in [("randread", Work::RandRead), ("randwrite", Work::RandWrite)] {
            for (size, bs) in [("64K", 64 << 10), ("1M", 1 << 20)] {
                for (health, fail) in [("healthy", vec![]), ("degraded", vec![Slot::new(2)])] {
                    for &shards in &self.shards {
                        let setting = Setting { fail: fail.clone(), shards, ..self.setting(5, rw, bs) };
                        cases.push(Case::new(work, format!("{size} {health}"), &shards, setting));
                    }
                }
            }
        }
        cases
    }
}

impl Lab {
    /// The three kinds of locks against shards, writing with a bitmap: a panel for each work.
    pub(super) fn locks(&self) -> Vec<Case> {
        let works = [("full stripes", Work::Write, 320 << 10), ("4K", Work::RandWrite, 4 << 10)];
        let mut cases = Vec::new();
        for (panel, rw, bs) in works {
            for &shards in &self.shards {
                for bitmap_locks in Locks::ALL {
                    let setting = Setting { shards, bitmap_locks, ..self.setting(5, rw, bs) };
                    let setting = Setting { consistency: Consistency::Bitmap, roofline: false, ..setting };
                    cases.push(Case::new(panel, bitmap_locks.to_string(), &shards, setting));
                }
            }
        }
        cases
    }
}

impl Case {
    fn new(panel: &str, series: String, x: &dyn std::fmt::Display, setting: Setting) -> Self {
        Case { panel: panel.to_string(), series, x: x.to_string(), setting }
    }
}

/// Traces of a folder, by name.
pub(super) fn traces_in(folder: Option<&Path>) -> Result<Vec<PathBuf>, Error> {
    let Some(folder) = folder else { return Ok(Vec::new()) };
    let io = |source| Error::Io { path: folder.to_path_buf(), source };
    let mut traces = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(io)? {
        let path = entry.map_err(io)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_string();
        if name.ends_with(".csv.zst") || (name.ends_with(".csv") && !name.starts_with("stats_")) {
            traces.push(path);
        }
    }
    traces.sort();
    Ok(traces)
}
