//! A row of the table: several runs of the same work, beside their floor, plain copies and peers.

use serde::Serialize;

use super::peers::Peer;
use super::spread::Spread;
use super::works::Task;
use crate::figures::Figures;

/// Bytes a second that one core copies, in random blocks of 1 GiB (or less, if members are smaller) on huge pages.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Memcpy {
    /// Blocks of 4 KiB.
    pub blocks_4k: Spread,
    /// Blocks of 64 KiB.
    pub blocks_64k: Spread,
}

/// The runs of a row, of Twill and of each peer: operations a second, or none where it does not do such work.
pub(super) struct RowRuns<'a> {
    pub(super) task: &'static Task,
    pub(super) shards: usize,
    pub(super) ours: Vec<Figures>,
    pub(super) theirs: Vec<(&'a str, Vec<Option<f64>>)>,
}

/// One row for one number of cores.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// What is done.
    pub name: &'static str,
    /// Cores.
    pub shards: usize,
    /// Thousands of operations a second.
    pub kiops: Spread,
    /// Processor time of a request in nanoseconds.
    pub cpu_ns_per_op: Spread,
    /// Throughput by that of the floor in the same run; none where members are slower than memory.
    pub ratio: Option<Spread>,
    /// The same by processor time.
    pub cpu_ratio: Option<Spread>,
    /// Bytes of requests a second by those of plain copies of as many cores.
    pub memcpy_ratio: Spread,
    /// Bytes read at members by bytes of requests.
    pub read_amplification: f64,
    /// Bytes written at members by bytes of writes.
    pub write_amplification: f64,
    /// Share of stripe writes that found their parity in the cache.
    pub hit_rate: f64,
    /// 99 of 100 requests took no longer, in microseconds.
    pub p99_us: Spread,
    /// The peers that were run in turns and do this work.
    pub peers: Vec<Peer>,
    /// Load of the machine before the runs: greatest.
    pub load: f64,
}

impl Row {
    /// The row of these runs.
    pub(super) fn of(row: &RowRuns<'_>, memcpy: &Memcpy) -> Self {
        let RowRuns { task, shards, ours: runs, theirs } = row;
        let spread = |of: &dyn Fn(&Figures) -> f64| Spread::of(runs.iter().map(of).collect());
        let floor = |of: fn(&crate::figures::Roofline) -> f64| {
            let ratios: Option<Vec<f64>> = runs.iter().map(|run| run.roofline.as_ref().map(of)).collect();
            ratios.map(Spread::of)
        };
        let copies = match task.bs < 64 << 10 {
            true => memcpy.blocks_4k.median,
            false => memcpy.blocks_64k.median,
        };
        let ours: Vec<f64> = runs.iter().map(|run| run.iops).collect();
        Row {
            name: task.name,
            shards: *shards,
            kiops: spread(&|run| run.iops / 1e3),
            cpu_ns_per_op: spread(&|run| run.cpu_ns_per_op),
            ratio: floor(|roofline| roofline.ratio),
            cpu_ratio: floor(|roofline| roofline.cpu_ratio),
            memcpy_ratio: spread(&|run| run.bytes_per_s / (copies * *shards as f64)),
            read_amplification: spread(&|run| run.amplification.read).median,
            write_amplification: spread(&|run| run.amplification.write).median,
            hit_rate: spread(&|run| run.parity_cache.hit_rate).median,
            p99_us: spread(&|run| run.lat_ns.p99 as f64 / 1e3),
            peers: theirs.iter().filter_map(|(name, theirs)| Peer::of(name, &ours, theirs)).collect(),
            load: spread(&|run| run.machine.load_before).greatest,
        }
    }

    /// The median of the ratios to the better peer.
    pub(super) fn by_better_peer(&self) -> Option<f64> {
        self.peers.iter().map(|peer| peer.ratio.median).reduce(f64::min)
    }
}
