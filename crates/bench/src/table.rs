//! The table of figures that `docs/performance.md` quotes: the rows of work, medians of several runs, beside the floor
//! of the same run, plain copies of memory, and two peers' figures from the same kind of machine.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::Error;
use crate::machine::Machine;
use crate::run::run;
use crate::setting::{Setting, Work};

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Runs of each row.
    pub runs: usize,
    /// Seconds of each run.
    pub runtime: f64,
    /// Bytes of each of six members.
    pub member_bytes: u64,
    /// Numbers of cores.
    pub shards: Vec<usize>,
    /// Only rows whose name holds this.
    pub only: Option<String>,
}

/// The whole table.
#[derive(Clone, Debug, Serialize)]
pub struct Table {
    /// The machine.
    pub machine: Machine,
    /// Plain copies.
    pub memcpy: Memcpy,
    /// Rows, each for one number of cores.
    pub rows: Vec<Row>,
}

/// Bytes a second that one core copies over 1 GiB of memory.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Memcpy {
    /// In random blocks of 4 KiB.
    pub blocks_4k: f64,
    /// In random blocks of 64 KiB.
    pub blocks_64k: f64,
}

/// One row for one number of cores.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// What is done.
    pub name: &'static str,
    /// Cores.
    pub shards: usize,
    /// Thousands of operations a second: median, least and greatest of the runs.
    pub kiops: Spread,
    /// Processor time of a request in nanoseconds.
    pub cpu_ns_per_op: Spread,
    /// Throughput by that of the floor in the same run.
    pub ratio: Spread,
    /// The same by processor time.
    pub cpu_ratio: Spread,
    /// Bytes of requests a second by those of plain copies of the same cores.
    pub memcpy_ratio: f64,
    /// Bytes read at members by bytes of requests.
    pub read_amplification: f64,
    /// 99 of 100 requests took no longer, in microseconds.
    pub p99_us: Spread,
    /// The better peer, thousands of operations a second.
    pub peer_kiops: Option<f64>,
    /// Load of the machine before the runs, this program's own not included: greatest.
    pub load: f64,
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

struct Task {
    name: &'static str,
    level: &'static str,
    rw: Work,
    bs: u64,
    two_phase: bool,
    /// The better peer on 1 and on 2 cores.
    peer: [Option<f64>; 2],
}

const fn work(name: &'static str, level: &'static str, rw: Work, kib: u64, peer: [Option<f64>; 2]) -> Task {
    Task { name, level, rw, bs: kib << 10, two_phase: true, peer }
}

const fn both(one: f64, two: f64) -> [Option<f64>; 2] {
    [Some(one), Some(two)]
}

/// The rows, and the better of two user-space peers on two cores of an AVX-512 Xeon with six members in memory.
const WORKS: [Task; 16] = [
    work("RAID-5 randwrite 4K", "5", Work::RandWrite, 4, both(696.0, 1107.0)),
    work("RAID-5 randwrite 64K", "5", Work::RandWrite, 64, both(90.0, 115.0)),
    work("RAID-5 write 320K", "5", Work::Write, 320, both(74.0, 138.0)),
    work("RAID-5 randwrite 320K", "5", Work::RandWrite, 320, both(73.0, 137.0)),
    work("RAID-5 randread 4K", "5", Work::RandRead, 4, both(2294.0, 4487.0)),
    work("RAID-5 randread 64K", "5", Work::RandRead, 64, both(449.0, 885.0)),
    work("RAID-5 randread 320K", "5", Work::RandRead, 320, both(90.0, 161.0)),
    work("RAID-6 randwrite 4K", "6", Work::RandWrite, 4, both(294.0, 558.0)),
    work("RAID-6 randwrite 64K", "6", Work::RandWrite, 64, both(38.0, 70.0)),
    work("RAID-6 write 256K", "6", Work::Write, 256, both(30.0, 57.0)),
    work("RAID-6 randwrite 256K", "6", Work::RandWrite, 256, [None; 2]),
    work("RAID-5 write 4K", "5", Work::Write, 4, [None; 2]),
    work("RAID-5 write 64K", "5", Work::Write, 64, [None; 2]),
    Task { two_phase: false, ..work("RAID-5 write 64K, two-phase off", "5", Work::Write, 64, [None; 2]) },
    work("RAID-0 randread 4K", "0", Work::RandRead, 4, [None; 2]),
    work("RAID-0 randwrite 4K", "0", Work::RandWrite, 4, [None; 2]),
];

/// Measures every row; `say` hears how it goes.
///
/// # Errors
/// Those of a run.
pub fn measure(plan: &Plan, say: &dyn Fn(&str)) -> Result<Table, Error> {
    let memcpy = Memcpy { blocks_4k: memcpy(4 << 10, plan), blocks_64k: memcpy(64 << 10, plan) };
    let mut rows = Vec::new();
    for work in &WORKS {
        if plan.only.as_ref().is_some_and(|only| !work.name.contains(only.as_str())) {
            continue;
        }
        for &shards in &plan.shards {
            say(&format!("{}, {shards} cores", work.name));
            rows.push(row(plan, work, shards, &memcpy)?);
        }
    }
    Ok(Table { machine: Machine::now(), memcpy, rows })
}

fn row(plan: &Plan, work: &Task, shards: usize, memcpy: &Memcpy) -> Result<Row, Error> {
    let setting = |seed| Setting {
        members: vec![format!("memory:6x{}", plan.member_bytes)],
        level: work.level.to_string(),
        rw: work.rw,
        bs: work.bs,
        two_phase: work.two_phase,
        shards,
        runtime: plan.runtime,
        ramp: (plan.runtime / 4.0).min(1.0),
        seed,
        ..Setting::default()
    };
    let runs =
        (1..=plan.runs.max(1) as u64).map(|seed| run(&setting(seed))).collect::<Result<Vec<_>, _>>()?;
    let spread = |of: &dyn Fn(&crate::figures::Figures) -> f64| Spread::of(runs.iter().map(of).collect());
    let floor = |figures: &crate::figures::Figures| figures.roofline.expect("members are memory");
    let copies = if work.bs < 64 << 10 { memcpy.blocks_4k } else { memcpy.blocks_64k };
    let kiops = spread(&|figures| figures.iops / 1e3);
    Ok(Row {
        name: work.name,
        shards,
        kiops,
        cpu_ns_per_op: spread(&|figures| figures.cpu_ns_per_op),
        ratio: spread(&|figures| floor(figures).ratio),
        cpu_ratio: spread(&|figures| floor(figures).cpu_ratio),
        memcpy_ratio: kiops.median * 1e3 * work.bs as f64 / (copies * shards as f64),
        read_amplification: spread(&|figures| figures.amplification.read).median,
        p99_us: spread(&|figures| figures.lat_ns.p99 as f64 / 1e3),
        peer_kiops: work.peer.get(shards.wrapping_sub(1)).copied().flatten(),
        load: spread(&|figures| figures.machine.load_before).greatest,
    })
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let median =
            if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 };
        Spread { median, least: values[0], greatest: values[values.len() - 1] }
    }
}

/// Copies random blocks from one area of at most a GiB to another for a moment.
fn memcpy(block: usize, plan: &Plan) -> f64 {
    let area = usize::try_from(plan.member_bytes).unwrap_or(usize::MAX).min(1 << 30);
    let time = Duration::from_secs_f64(plan.runtime.min(0.7));
    let (from, mut to) = (vec![1u8; area], vec![2u8; area]);
    let (mut random, mut bytes, start) = (crate::random::Random::new(1), 0, Instant::now());
    while start.elapsed() < time {
        for _ in 0..(1 << 20) / block {
            let mut place = || random.below((area / block) as u64) as usize * block;
            let (source, target) = (place(), place());
            to[target..target + block].copy_from_slice(&from[source..source + block]);
            bytes += block;
        }
    }
    std::hint::black_box(&to);
    bytes as f64 / start.elapsed().as_secs_f64()
}

impl Table {
    /// The table in Markdown.
    pub fn words(&self) -> String {
        let mut text = String::new();
        let Machine { cpu, cores, kernel, parity_kernel, .. } = &self.machine;
        let Memcpy { blocks_4k, blocks_64k } = self.memcpy;
        let _infallible = writeln!(
            text,
            "{cpu}, {cores} cores, Linux {kernel}, parity by {parity_kernel}; one core copies 4 KiB blocks of 1 GiB at \
             {:.1} GB/s, 64 KiB blocks at {:.1} GB/s.\n",
            blocks_4k / 1e9,
            blocks_64k / 1e9
        );
        text.push_str("| work | cores | kIOPS (least to greatest) | better peer | by peer | by floor | by floor, CPU time | by memcpy | CPU ns/op | read amp. | p99 us | load |\n");
        text.push_str("|---|---|---|---|---|---|---|---|---|---|---|---|\n");
        for row in &self.rows {
            let Spread { median, least, greatest } = row.kiops;
            let peer = row.peer_kiops.map_or_else(|| "-".to_string(), |peer| format!("{peer:.0}"));
            let by_peer =
                row.peer_kiops.map_or_else(|| "-".to_string(), |peer| format!("{:.2}", median / peer));
            let _infallible = writeln!(
                text,
                "| {} | {} | {median:.0} ({least:.0} to {greatest:.0}) | {peer} | {by_peer} | {:.2} ({:.2} to {:.2}) | {:.2} | {:.2} | {:.0} | {:.3} | {:.0} | {:.1} |",
                row.name,
                row.shards,
                row.ratio.median,
                row.ratio.least,
                row.ratio.greatest,
                row.cpu_ratio.median,
                row.memcpy_ratio,
                row.cpu_ns_per_op.median,
                row.read_amplification,
                row.p99_us.median,
                row.load
            );
        }
        text
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
