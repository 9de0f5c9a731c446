//! The table of figures that `docs/performance.md` quotes: the rows of work, medians of several runs, beside the floor
//! of the same run, plain copies of memory, and two peers' figures from the same kind of machine.
//!
//! The runs of a row are not made one after the other: each round makes every row once, so that whatever else the
//! machine does meets all rows. Members are made once and used by every run.

mod goals;
mod words;
mod works;

use std::path::Path;
use std::time::{Duration, Instant};

use host::device::memory::Memory;
use serde::Serialize;

use crate::Error;
use crate::array::OpenMembers;
use crate::figures::Figures;
use crate::machine::Machine;
use crate::run::run_on;
use crate::setting::Setting;
use goals::Goal;
use works::{PEERS, PEERS_MEMCPY, Task, WORKS};

/// Members of the arrays.
const MEMBERS: usize = 6;

/// Memory that plain copies walk through.
const MEMCPY_BYTES: u64 = 1 << 30;

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
    /// Further rows than those with figures to reach.
    pub all: bool,
}

/// The whole table.
#[derive(Clone, Debug, Serialize)]
pub struct Table {
    /// The machine.
    pub machine: Machine,
    /// How it was measured.
    pub method: Method,
    /// Plain copies.
    pub memcpy: Memcpy,
    /// Rows, each for one number of cores.
    pub rows: Vec<Row>,
    /// What was to be reached, as far as the rows tell.
    pub goals: Vec<Goal>,
}

/// How it was measured.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Method {
    /// Runs of each row.
    pub runs: usize,
    /// Seconds of each.
    pub runtime_s: f64,
    /// Bytes of each member.
    pub member_bytes: u64,
}

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

/// Measures every row; `say` hears how it goes.
///
/// # Errors
/// Those of a run; no row with such a name.
pub fn measure(plan: &Plan, say: &dyn Fn(&str)) -> Result<Table, Error> {
    let rows = rows_of(plan)?;
    let base = Setting {
        members: vec![format!("memory:{MEMBERS}x{}", plan.member_bytes)],
        runtime: plan.runtime,
        ramp: (plan.runtime / 5.0).min(1.0),
        ..Setting::default()
    };
    let members = OpenMembers::open(&base)?;
    let mut copies = (Vec::new(), Vec::new());
    let mut runs: Vec<Vec<Figures>> = vec![Vec::new(); rows.len()];
    for round in 1..=plan.runs.max(1) {
        let memories = members.memories().expect("members are memory");
        copies.0.push(memcpy(4 << 10, plan, &memories[0], &memories[1]));
        copies.1.push(memcpy(64 << 10, plan, &memories[0], &memories[1]));
        for ((task, shards), runs) in rows.iter().zip(&mut runs) {
            say(&format!("run {round} of {}: {}, {shards} cores", plan.runs.max(1), task.name));
            let setting = Setting { shards: *shards, seed: round as u64, ..task.setting(&base) };
            runs.push(run_on(&members, &setting)?);
        }
    }
    let memcpy = Memcpy { blocks_4k: Spread::of(copies.0), blocks_64k: Spread::of(copies.1) };
    let rows: Vec<Row> =
        rows.iter().zip(&runs).map(|((task, shards), runs)| Row::of(task, *shards, runs, &memcpy)).collect();
    let method = Method { runs: plan.runs.max(1), runtime_s: plan.runtime, member_bytes: plan.member_bytes };
    let goals = goals::of(&rows);
    Ok(Table { machine: Machine::now(), method, memcpy, rows, goals })
}

fn rows_of(plan: &Plan) -> Result<Vec<(&'static Task, usize)>, Error> {
    let is_wanted = |task: &&Task| match &plan.only {
        Some(only) => task.name.contains(only.as_str()),
        None => plan.all || task.is_goal,
    };
    let mut rows = Vec::new();
    for task in WORKS.iter().filter(is_wanted) {
        rows.extend(plan.shards.iter().filter(|shards| task.runs_on(**shards)).map(|shards| (task, *shards)));
    }
    if rows.is_empty() {
        let names: Vec<&str> = WORKS.iter().map(|task| task.name).collect();
        let only = plan.only.as_deref().unwrap_or("");
        return Err(Error::Setting(format!(
            "no row has {only:?} in its name; there are: {}",
            names.join("; ")
        )));
    }
    Ok(rows)
}

impl Row {
    fn of(task: &Task, shards: usize, runs: &[Figures], memcpy: &Memcpy) -> Self {
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
    fn by_better_peer(&self) -> Option<f64> {
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

/// Copies random blocks for a moment, half of the memory to the other half. Bytes a second.
fn memcpy(block: usize, plan: &Plan, from: &Memory, to: &Memory) -> f64 {
    let blocks = (MEMCPY_BYTES / 2).min(plan.member_bytes) / block as u64;
    let time = Duration::from_secs_f64((plan.runtime / 4.0).min(0.5));
    let (mut random, mut bytes, start) = (crate::random::Random::new(1), 0, Instant::now());
    while start.elapsed() < time {
        for _ in 0..(1 << 20) / block {
            let mut place = || random.below(blocks) * block as u64;
            from.copy_to(place(), to, place(), block);
            bytes += block;
        }
    }
    bytes as f64 / start.elapsed().as_secs_f64()
}

/// Puts a table in Markdown between two marks of a file, in place of what is there.
///
/// # Errors
/// The file cannot be read or written, or has no marks.
pub fn write_into(path: &Path, table: &Table) -> Result<(), Error> {
    let text = with_words(path, &table.words())?;
    std::fs::write(path, text).map_err(|source| Error::Io { path: path.to_path_buf(), source })
}

/// Whether [`write_into`] will find what it looks for: to be asked before minutes of measuring.
///
/// # Errors
/// The file cannot be read, or has no marks.
pub fn check_page(path: &Path) -> Result<(), Error> {
    with_words(path, "").map(drop)
}

fn with_words(path: &Path, words: &str) -> Result<String, Error> {
    let text =
        std::fs::read_to_string(path).map_err(|source| Error::Io { path: path.to_path_buf(), source })?;
    words::between_marks(&text, words).ok_or_else(|| {
        let (begin, end) = words::MARKS;
        Error::Setting(format!("{}: it has no lines {begin:?} and then {end:?}", path.display()))
    })
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
