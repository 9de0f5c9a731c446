//! The experiments: which runs, which plots of them, and what the paper found.

use std::path::Path;

use super::claims::{self, Claim};
use super::lab::{Case, Lab};
use super::measured::Measured;
use super::plots::{Plot, View, distinct};
use crate::Error;
use crate::figures::Figures;
use crate::setting::Work;

/// An experiment of the paper.
pub(super) struct Experiment {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    /// What is run, and how this differs from the paper.
    pub(super) note: &'static str,
    pub(super) cases: fn(&Lab) -> Vec<Case>,
    pub(super) plots: &'static [Plot],
    /// What the paper found, beside what is found here.
    pub(super) claims: &'static [Claim],
}

impl Experiment {
    /// Draws all plots; returns their files' names and captions.
    pub(super) fn draw(&self, folder: &Path, measured: &[Measured]) -> Result<Vec<(String, String)>, Error> {
        let mut files = Vec::new();
        for panel in distinct(measured.iter().map(|measured| &measured.panel)) {
            let of_panel: Vec<&Measured> =
                measured.iter().filter(|measured| measured.panel == panel).collect();
            for plot in self.plots {
                let file = format!("{}-{}.svg", self.name, files.len() + 1);
                let part = if panel.is_empty() { String::new() } else { format!("{panel}, ") };
                let caption = format!("{}: {part}{}", self.title, plot.what());
                plot.draw(&folder.join(&file), &caption, &of_panel)?;
                files.push((file, caption));
            }
        }
        Ok(files)
    }
}

fn gbps(figures: &Figures) -> f64 {
    figures.bytes_per_s / 1e9
}

fn by_floor(figures: &Figures) -> f64 {
    figures.roofline.map_or(f64::NAN, |roofline| roofline.cpu_ratio)
}

fn read(figures: &Figures) -> f64 {
    figures.amplification.read
}

const SHARDS: &str = "shards, 32 requests in flight on each";
const IN_FLIGHT: &str = "requests in flight on each shard";
const THROUGHPUT: Plot = Plot::Lines(View("throughput", "GB/s", SHARDS, gbps));
const RATIO: Plot = Plot::Lines(View("by the floor, processor time", "share", SHARDS, by_floor));

pub(super) const ALL: &[Experiment] = &[
    Experiment {
        name: "straid-fig10",
        title: "Write throughput against shards",
        note: "Sequential and random writes of the paper's three sizes. Where the paper has threads with one request \
               each on SSDs, here are shards on members in memory; beyond the machine's cores they share them.",
        cases: |lab| lab.scaling(&[("write", Work::Write), ("randwrite", Work::RandWrite)]),
        plots: &[THROUGHPUT, RATIO],
        claims: claims::WRITES,
    },
    Experiment {
        name: "straid-fig11",
        title: "Read throughput against shards",
        note: "As straid-fig10, reading.",
        cases: |lab| lab.scaling(&[("read", Work::Read), ("randread", Work::RandRead)]),
        plots: &[THROUGHPUT, RATIO],
        claims: claims::READS,
    },
    Experiment {
        name: "straid-fig12",
        title: "Latency of RAID-5 random writes against requests in flight",
        note: "The paper counts threads with one request each; here each shard, one on each core, has so many requests \
               in flight.",
        cases: Lab::latencies,
        plots: &[
            Plot::Lines(View("mean", "us", IN_FLIGHT, |figures| figures.lat_ns.mean / 1e3)),
            Plot::Lines(View("99th percentile", "us", IN_FLIGHT, |figures| figures.lat_ns.p99 as f64 / 1e3)),
            Plot::Lines(View("99.9th percentile", "us", IN_FLIGHT, |figures| {
                figures.lat_ns.p999 as f64 / 1e3
            })),
            Plot::Lines(View("throughput", "GB/s", IN_FLIGHT, gbps)),
        ],
        claims: claims::LATENCIES,
    },
    Experiment {
        name: "straid-fig13",
        title: "Where the time of a random write goes",
        note: "Alone: one request in flight, so that time is work; together: 32, with waiting for other requests' turns. \
               The paper shares out cycles with 64 threads.",
        cases: Lab::stages,
        plots: &[
            Plot::Stages("alone", |figures| figures.stages_alone),
            Plot::Stages("together", |figures| figures.stages),
            Plot::Bars(View("processor time of a request", "us", "level and size", |figures| {
                figures.cpu_ns_per_op / 1e3
            })),
        ],
        claims: claims::STAGES,
    },
    Experiment {
        name: "straid-fig15",
        title: "Bytes at the members of RAID-5 for each byte of requests",
        note: "The paper's bars are against md's bytes; here they are against the requests'.",
        cases: Lab::amplification,
        plots: &[
            Plot::Bars(View("written", "bytes a byte", "work and size", |figures| {
                figures.amplification.write
            })),
            Plot::Bars(View("read", "bytes a byte", "work and size", read)),
        ],
        claims: claims::AMPLIFICATION,
    },
    Experiment {
        name: "straid-fig16",
        title: "RAID-6, random writes of 64 KiB",
        note: "Full stripes with a chunk of 8 KiB, a part of one with 64 KiB; and further chunks.",
        cases: Lab::chunks,
        plots: &[
            Plot::Lines(View("throughput", "GB/s", "", gbps)),
            Plot::Lines(View("by the floor, processor time", "share", "", by_floor)),
        ],
        claims: claims::CHUNKS,
    },
    Experiment {
        name: "straid-fig18",
        title: "Traces, chunk 8 KiB",
        note: "As fast as possible, folded onto the array, 32 in flight on each core. The paper's traces are not public; \
               these are those of --traces. Throughput is the paper's figure 17.",
        cases: Lab::traces,
        plots: &[
            Plot::Latencies("distribution of latencies"),
            Plot::Bars(View("throughput", "GB/s", "trace", gbps)),
        ],
        claims: claims::TRACES,
    },
    Experiment {
        name: "straid-fig20",
        title: "Sequential RAID-5 writes with and without two-phase submission",
        note: "Writes of 64 KiB are a fifth of a stripe; those of 1 MiB are whole stripes but at their ends.",
        cases: Lab::two_phase,
        plots: &[
            Plot::Lines(View("throughput", "GB/s", IN_FLIGHT, gbps)),
            Plot::Lines(View("read at members", "bytes a byte", IN_FLIGHT, read)),
        ],
        claims: claims::TWO_PHASE,
    },
    Experiment {
        name: "straid-fig21",
        title: "Healthy and degraded RAID-5",
        note: "Slot 2 has failed. Random requests of 64 KiB and 1 MiB.",
        cases: Lab::degraded,
        plots: &[THROUGHPUT, RATIO],
        claims: claims::DEGRADED,
    },
    Experiment {
        name: "straid-table5",
        title: "Parity cache by capacity, RAID-5, chunk 8 KiB",
        note: "Random writes of 4 KiB by Zipf's law with exponent 0.99 in place of a trace that is not public; at members \
               that take 20 us for a read, one after the other, and at members in memory, where a read costs nearly \
               nothing.",
        cases: Lab::caches,
        plots: &[
            Plot::Lines(View("hit rate", "share", "capacity", |figures| figures.parity_cache.hit_rate)),
            Plot::Lines(View("read at members", "bytes a byte", "capacity", read)),
            Plot::Lines(View("throughput", "MB/s", "capacity", |figures| figures.bytes_per_s / 1e6)),
        ],
        claims: claims::CACHES,
    },
    Experiment {
        name: "scalaraid-fig5",
        title: "Writes with a bitmap against shards, by locks",
        note: "RAID-5, a bit for 64 MiB: orig has md's locks (one over all counters, eight over the stripes), hemi 128 over \
               the stripes, scala none. Full stripes in sequence as in the paper, and random writes of 4 KiB. Where the \
               paper has 33 threads on 26 cores, here are shards that share the machine's cores.",
        cases: Lab::locks,
        plots: &[
            THROUGHPUT,
            Plot::Lines(View("99.9th percentile", "us", SHARDS, |figures| figures.lat_ns.p999 as f64 / 1e3)),
            Plot::Lines(View("processor time of a request", "us", SHARDS, |figures| {
                figures.cpu_ns_per_op / 1e3
            })),
        ],
        claims: claims::LOCKS,
    },
    Experiment {
        name: "scalaraid-fig6",
        title: "The time of writes in locks, by locks",
        note: "As scalaraid-fig5: waiting for a lock and having it, by the time of the run. Where there is no lock it is \
               what the same bookkeeping takes without.",
        cases: Lab::locks,
        plots: &[
            Plot::Lines(View("counters of the bitmap", "share", SHARDS, |figures| {
                figures.locks.map_or(f64::NAN, |locks| locks.counters.share)
            })),
            Plot::Lines(View("stripes in work", "share", SHARDS, |figures| {
                figures.locks.map_or(f64::NAN, |locks| locks.stripes.share)
            })),
        ],
        claims: claims::LOCK_TIMES,
    },
];
