//! The experiments: which runs, and which plots of them.

use std::path::{Path, PathBuf};

use super::charts;
use super::{Extent, Measured, Plan};
use crate::Error;
use crate::figures::{Figures, Shares};
use crate::setting::{Setting, Skew, Work};

/// What runs are made on.
pub(super) struct Lab {
    extent: Extent,
    member_bytes: u64,
    runtime: f64,
    /// 1, 2, 4, … as many as there are cores.
    shards: Vec<usize>,
    traces: Vec<PathBuf>,
}

/// One run to be made.
pub(super) struct Case {
    pub(super) series: String,
    pub(super) x: String,
    pub(super) setting: Setting,
}

/// An experiment of the paper.
pub(super) struct Experiment {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    /// What the paper found, and how this differs.
    pub(super) note: &'static str,
    pub(super) cases: fn(&Lab) -> Vec<Case>,
    plots: &'static [Plot],
}

/// How figures become a plot.
enum Plot {
    /// A line for each series.
    Lines(&'static str, &'static str, fn(&Figures) -> f64),
    /// Bars side by side.
    Bars(&'static str, &'static str, fn(&Figures) -> f64),
    /// A bar for each run, cut into the stages of a write.
    Stages(&'static str, fn(&Figures) -> Option<Shares>),
    /// The distribution of latencies, a line for each run.
    Latencies(&'static str),
}

fn gbps(figures: &Figures) -> f64 {
    figures.bytes_per_s / 1e9
}

const THROUGHPUT: Plot = Plot::Lines("throughput", "GB/s", gbps);
const RATIO: Plot = Plot::Lines("share of the roofline, by processor time", "share", |figures| {
    figures.roofline.map_or(0.0, |roofline| roofline.cpu_ratio)
});

pub(super) const ALL: &[Experiment] = &[
    Experiment {
        name: "straid-fig10",
        title: "Write throughput against shards",
        note: "The paper: 2.0 GB/s at 4 KiB and 6.0 GB/s at 64 KiB with 64 threads on six SSDs. Here members are memory, \
               32 requests are in flight on each shard, and a full stripe is what the level's data chunks hold.",
        cases: |lab| lab.scaling(&[("write", Work::Write), ("randwrite", Work::RandWrite)]),
        plots: &[THROUGHPUT, RATIO],
    },
    Experiment {
        name: "straid-fig11",
        title: "Read throughput against shards",
        note: "The paper: StRAID and md differ by less than 5 %.",
        cases: |lab| lab.scaling(&[("read", Work::Read), ("randread", Work::RandRead)]),
        plots: &[THROUGHPUT, RATIO],
    },
    Experiment {
        name: "straid-fig12",
        title: "Average and tail latency of RAID-5 writes against requests in flight",
        note: "The paper counts threads with one request each; here each shard has so many requests in flight.",
        cases: Lab::latencies,
        plots: &[
            Plot::Lines("mean latency", "us", |figures| figures.lat_ns.mean / 1e3),
            Plot::Lines("99th percentile", "us", |figures| figures.lat_ns.p99 as f64 / 1e3),
            Plot::Lines("99.9th percentile", "us", |figures| figures.lat_ns.p999 as f64 / 1e3),
        ],
    },
    Experiment {
        name: "straid-fig13",
        title: "Where the time of a random write goes",
        note: "The paper: XOR and I/O are 76 % of a partial write's processor time, 85 % of a full stripe's. Alone: one \
               request in flight, so that time is work; together: with waiting for other requests' turns.",
        cases: Lab::stages,
        plots: &[
            Plot::Stages("alone", |figures| figures.stages_alone),
            Plot::Stages("together", |figures| figures.stages),
            Plot::Bars("processor time of a request", "us", |figures| figures.cpu_ns_per_op / 1e3),
        ],
    },
    Experiment {
        name: "straid-fig15",
        title: "Bytes written to and read from members, by bytes of requests",
        note: "The paper: sequential writes read 13.7 % of what is written with 64 threads, md 1.1 %.",
        cases: Lab::amplification,
        plots: &[
            Plot::Bars("read at members", "bytes a byte", |figures| figures.amplification.read),
            Plot::Bars("written at members", "bytes a byte", |figures| figures.amplification.write),
        ],
    },
    Experiment {
        name: "straid-fig16",
        title: "RAID-6, random writes of 64 KiB, by chunk",
        note: "The paper: an 8 KiB chunk makes 64 KiB partial writes nearly full stripes, 1.9 times the throughput.",
        cases: Lab::chunks,
        plots: &[THROUGHPUT, RATIO],
    },
    Experiment {
        name: "straid-fig18",
        title: "Latency distribution on traces, 8 KiB chunk",
        note: "As fast as possible, folded onto the array. The paper's traces are not public; these are what --traces \
               has.",
        cases: Lab::traces,
        plots: &[Plot::Latencies("latency"), Plot::Bars("throughput (the paper's figure 17)", "GB/s", gbps)],
    },
    Experiment {
        name: "straid-fig20",
        title: "Sequential writes with and without two-phase submission",
        note: "The paper: 3.5 times at 64 KiB with 64 threads, under 4 % at full stripes.",
        cases: Lab::two_phase,
        plots: &[
            THROUGHPUT,
            Plot::Lines("read at members", "bytes a byte", |figures| figures.amplification.read),
        ],
    },
    Experiment {
        name: "straid-table5",
        title: "Parity cache: hit rate, reads and throughput by capacity",
        note: "The paper: 39 % hits at 4 MiB, 55 % and 16 % more throughput at 64 MiB. Members in memory read for nearly \
               nothing: here the saving shows in bytes read.",
        cases: Lab::caches,
        plots: &[
            Plot::Lines("hit rate", "share", |figures| figures.parity_cache.hit_rate),
            Plot::Lines("read at members", "bytes a byte", |figures| figures.amplification.read),
            THROUGHPUT,
        ],
    },
    Experiment {
        name: "straid-fig21",
        title: "Healthy and degraded RAID-5",
        note: "The paper: degraded reads as md's, degraded writes 50 to 70 % faster than md's.",
        cases: Lab::degraded,
        plots: &[THROUGHPUT, RATIO],
    },
];

impl Lab {
    pub(super) fn new(plan: &Plan) -> Result<Self, Error> {
        let (runtime, member_bytes) = match plan.extent {
            Extent::Quick => (0.4, 512 << 20),
            Extent::Full => (5.0, 2 << 30),
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let shards =
            std::iter::successors(Some(1), |shards| Some(shards * 2)).take_while(|shards| *shards <= cores);
        Ok(Lab {
            extent: plan.extent,
            member_bytes: plan.member_bytes.unwrap_or(member_bytes),
            runtime: plan.runtime.unwrap_or(runtime),
            shards: shards.collect(),
            traces: traces_in(plan.traces.as_deref())?,
        })
    }

    pub(super) fn words(&self) -> String {
        let mib = self.member_bytes >> 20;
        format!("six members of {mib} MiB in memory, {} s a run, no crash consistency", self.runtime)
    }

    fn setting(&self, level: u32, rw: Work, bs: u64) -> Setting {
        Setting {
            members: vec![format!("memory:6x{}", self.member_bytes)],
            level: level.to_string(),
            rw,
            bs,
            runtime: self.runtime,
            ramp: self.runtime / 4.0,
            ..Setting::default()
        }
    }

    fn most_shards(&self) -> usize {
        self.shards.last().copied().unwrap_or(1)
    }

    fn scaling(&self, works: &[(&str, Work)]) -> Vec<Case> {
        let mut cases = Vec::new();
        for level in [5, 6] {
            let full = u64::from(6 - (level - 4)) * (64 << 10);
            for (size, bs) in [("4K", 4 << 10), ("64K", 64 << 10), ("full stripe", full)] {
                for (name, rw) in works {
                    for &shards in &self.shards {
                        let setting = Setting { shards, ..self.setting(level, *rw, bs) };
                        cases.push(Case::new(format!("RAID-{level} {name} {size}"), &shards, setting));
                    }
                }
            }
        }
        cases
    }

    fn latencies(&self) -> Vec<Case> {
        let depths: &[usize] = match self.extent {
            Extent::Quick => &[1, 8, 64, 512],
            Extent::Full => &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512],
        };
        let mut cases = Vec::new();
        for (name, bs) in [("4K", 4 << 10), ("64K", 64 << 10), ("320K", 320 << 10)] {
            for &iodepth in depths {
                let shards = self.most_shards();
                let setting = Setting { iodepth, shards, ..self.setting(5, Work::RandWrite, bs) };
                cases.push(Case::new(format!("randwrite {name}"), &iodepth, setting));
            }
        }
        cases
    }

    fn stages(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for level in [5, 6] {
            let full = u64::from(6 - (level - 4)) * (64 << 10);
            for (name, bs) in [("4K", 4 << 10), ("64K", 64 << 10), ("full", full)] {
                let setting = self.setting(level, Work::RandWrite, bs);
                cases.push(Case::new("randwrite".to_string(), &format!("RAID-{level} {name}"), setting));
            }
        }
        cases
    }

    fn amplification(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for (work, rw) in [("write", Work::Write), ("randwrite", Work::RandWrite)] {
            for (size, bs) in [("4K", 4 << 10), ("64K", 64 << 10), ("320K", 320 << 10)] {
                for iodepth in [1, 64] {
                    let setting = Setting { iodepth, ..self.setting(5, rw, bs) };
                    cases.push(Case::new(format!("{iodepth} in flight"), &format!("{work} {size}"), setting));
                }
            }
        }
        cases
    }

    fn chunks(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for &shards in &self.shards {
            for kib in [4, 8, 16, 32, 64, 128, 256, 512] {
                let setting = self.setting(6, Work::RandWrite, 64 << 10);
                let setting = Setting { chunk: kib << 10, shards, ..setting };
                cases.push(Case::new(format!("{shards} shards"), &format!("{kib}K"), setting));
            }
        }
        cases
    }

    fn traces(&self) -> Vec<Case> {
        let case = |trace: &PathBuf| {
            let name = trace.file_name().unwrap_or_default().to_string_lossy();
            let name = name.trim_end_matches(".zst").trim_end_matches(".csv").to_string();
            let setting = self.setting(5, Work::RandRw, 4 << 10);
            let shards = self.most_shards();
            Case::new(
                "RAID-5".into(),
                &name,
                Setting { chunk: 8 << 10, shards, trace: Some(trace.clone()), ..setting },
            )
        };
        self.traces.iter().map(case).collect()
    }

    fn two_phase(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for (size, bs) in [("64K", 64 << 10), ("1M", 1 << 20)] {
            for (name, two_phase) in [("with", true), ("without", false)] {
                for iodepth in [1, 4, 16, 64] {
                    let setting = Setting { two_phase, iodepth, ..self.setting(5, Work::Write, bs) };
                    cases.push(Case::new(format!("{size} {name}"), &iodepth, setting));
                }
            }
        }
        cases
    }

    fn caches(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for mib in [0u64, 4, 16, 64, 256] {
            let setting = self.setting(5, Work::RandWrite, 4 << 10);
            let skew = Skew::Zipf(0.99);
            let setting = Setting { chunk: 8 << 10, skew, parity_cache: mib << 20, ..setting };
            cases.push(Case::new("zipf 0.99, 4K".to_string(), &format!("{mib}M"), setting));
        }
        cases
    }

    fn degraded(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for (work, rw) in [("randread", Work::RandRead), ("randwrite", Work::RandWrite)] {
            for (size, bs) in [("64K", 64 << 10), ("1M", 1 << 20)] {
                for (health, fail) in [("healthy", vec![]), ("degraded", vec![2])] {
                    for &shards in &self.shards {
                        let setting = Setting { fail: fail.clone(), shards, ..self.setting(5, rw, bs) };
                        cases.push(Case::new(format!("{work} {size} {health}"), &shards, setting));
                    }
                }
            }
        }
        cases
    }
}

impl Case {
    fn new(series: String, x: &dyn std::fmt::Display, setting: Setting) -> Self {
        Case { series, x: x.to_string(), setting }
    }
}

impl Experiment {
    /// Draws the plots; returns their files' names.
    pub(super) fn draw(&self, folder: &Path, measured: &[Measured]) -> Result<Vec<String>, Error> {
        let mut files = Vec::new();
        if measured.is_empty() {
            return Ok(files);
        }
        for (number, plot) in self.plots.iter().enumerate() {
            let file = format!("{}-{}.svg", self.name, number + 1);
            plot.draw(&folder.join(&file), self, measured)?;
            files.push(file);
        }
        Ok(files)
    }
}

impl Plot {
    fn draw(&self, path: &Path, experiment: &Experiment, measured: &[Measured]) -> Result<(), Error> {
        let xs = distinct(measured.iter().map(|measured| &measured.x));
        let title = |what: &str| format!("{}: {what}", experiment.title);
        let series = |of: fn(&Figures) -> f64| -> Vec<(String, Vec<f64>)> {
            let of_one = |name: &String| {
                let find = |x: &String| measured.iter().find(|m| m.series == *name && m.x == *x);
                xs.iter().map(|x| find(x).map_or(f64::NAN, |measured| of(&measured.figures))).collect()
            };
            let names = distinct(measured.iter().map(|measured| &measured.series));
            names.iter().map(|name| (name.clone(), of_one(name))).collect()
        };
        match self {
            Plot::Lines(what, unit, of) => charts::lines(path, &title(what), unit, &xs, &series(*of)),
            Plot::Bars(what, unit, of) => charts::bars(path, &title(what), unit, &xs, &series(*of)),
            Plot::Stages(what, of) => {
                let shares: Vec<Shares> =
                    measured.iter().filter_map(|measured| of(&measured.figures)).collect();
                charts::stacked(path, &title(what), &xs, &stage_parts(&shares))
            }
            Plot::Latencies(what) => {
                let curve = |measured: &Measured| {
                    let points = measured.figures.lat_curve.iter();
                    (measured.x.clone(), points.map(|(ns, share)| (*ns as f64 / 1e3, *share)).collect())
                };
                charts::distributions(path, &title(what), &measured.iter().map(curve).collect::<Vec<_>>())
            }
        }
    }
}

fn stage_parts(shares: &[Shares]) -> Vec<(String, Vec<f64>)> {
    type Part = (&'static str, fn(&Shares) -> f64);
    const PARTS: [Part; 6] = [
        ("claim", |shares| shares.claim),
        ("wait", |shares| shares.wait),
        ("pre-read", |shares| shares.pre_read),
        ("parity", |shares| shares.parity),
        ("write", |shares| shares.write),
        ("complete", |shares| shares.complete),
    ];
    PARTS.iter().map(|(name, of)| ((*name).to_string(), shares.iter().map(of).collect())).collect()
}

fn distinct<'a>(names: impl Iterator<Item = &'a String>) -> Vec<String> {
    let mut distinct: Vec<String> = Vec::new();
    for name in names {
        if !distinct.contains(name) {
            distinct.push(name.clone());
        }
    }
    distinct
}

/// Traces of a folder, by name.
fn traces_in(folder: Option<&Path>) -> Result<Vec<PathBuf>, Error> {
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
