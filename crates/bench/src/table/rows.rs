//! A row of the table: several runs of the same work, beside their floor, plain copies and the peers.

use serde::Serialize;

use super::works::{PEERS, PEERS_MEMCPY, Task};
use crate::figures::Figures;

/// Bytes a second that one core copies, in random blocks of 1 GiB (or less, if members are smaller) on huge pages.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Memcpy {
    /// Blocks of 4 KiB.
    pub blocks_4k: Spread,
    /// Blocks of 64 KiB.
    pub blocks_64k: Spread,
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
    /// The peers that do this work.
    pub peers: Vec<Peer>,
    /// Load of the machine before the runs: greatest.
    pub load: f64,
}

/// A peer's figure for a row.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Peer {
    /// Which one.
    pub name: &'static str,
    /// Thousands of operations a second on its machine.
    pub kiops: f64,
    /// The same by the speed of plain copies of this machine and that one.
    pub scaled_kiops: f64,
    /// The median of the row by that.
    pub ratio: f64,
}

/// Several runs of the same.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Spread {
    /// Half of the runs are below.
    pub median: f64,
    /// Least.
    pub least: f64,
    /// Greatest.
    pub greatest: f64,
}

impl Row {
    /// The row of these runs.
    pub(super) fn of(task: &Task, shards: usize, runs: &[Figures], memcpy: &Memcpy) -> Self {
        let spread = |of: &dyn Fn(&Figures) -> f64| Spread::of(runs.iter().map(of).collect());
        let floor = |of: fn(&crate::figures::Roofline) -> f64| {
            let ratios: Option<Vec<f64>> = runs.iter().map(|run| run.roofline.as_ref().map(of)).collect();
            ratios.map(Spread::of)
        };
        let (copies, peers_copies) = match task.bs < 64 << 10 {
            true => (memcpy.blocks_4k.median, PEERS_MEMCPY.0),
            false => (memcpy.blocks_64k.median, PEERS_MEMCPY.1),
        };
        let kiops = spread(&|run| run.iops / 1e3);
        let peer = |(name, kiops_there): (&'static str, Option<f64>)| {
            let scaled_kiops = kiops_there? * copies / peers_copies;
            Some(Peer { name, kiops: kiops_there?, scaled_kiops, ratio: kiops.median / scaled_kiops })
        };
        Row {
            name: task.name,
            shards,
            kiops,
            cpu_ns_per_op: spread(&|run| run.cpu_ns_per_op),
            ratio: floor(|roofline| roofline.ratio),
            cpu_ratio: floor(|roofline| roofline.cpu_ratio),
            memcpy_ratio: spread(&|run| run.bytes_per_s / (copies * shards as f64)),
            read_amplification: spread(&|run| run.amplification.read).median,
            write_amplification: spread(&|run| run.amplification.write).median,
            hit_rate: spread(&|run| run.parity_cache.hit_rate).median,
            p99_us: spread(&|run| run.lat_ns.p99 as f64 / 1e3),
            peers: PEERS.into_iter().zip(task.peers(shards)).filter_map(peer).collect(),
            load: spread(&|run| run.machine.load_before).greatest,
        }
    }

    /// The median by the better peer's scaled figure.
    pub(super) fn by_better_peer(&self) -> Option<f64> {
        self.peers.iter().map(|peer| peer.ratio).reduce(f64::min)
    }
}

impl Spread {
    pub(crate) fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let median =
            if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 };
        Spread { median, least: values[0], greatest: values[values.len() - 1] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_and_even_counts() {
        assert_eq!(Spread::of(vec![3.0, 1.0, 2.0]).median, 2.0);
        assert_eq!(Spread::of(vec![4.0, 1.0, 2.0, 3.0]).median, 2.5);
    }
}
