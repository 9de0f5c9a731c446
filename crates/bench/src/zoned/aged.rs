//! Arrays that are written over and over: what reclaim costs by how much room is reserved (ZapRAID's experiment 8), and what a map
//! costs that has half of the memory that it needs (experiment 9). Both with the papers' four workloads.

use std::fmt::Write as _;

use engine::log::config::MapLimits;
use serde::Serialize;

use super::array::ZonedMemory;
use super::{Plan, run};
use crate::Error;
use crate::machine::Machine;
use crate::setting::{Setting, Skew, Work};
use crate::table::Spread;

/// What is varied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Varied {
    /// Room for what is overwritten.
    Reserve,
    /// Memory for the map.
    MapMemory,
}

/// Hundredths of the array's size.
const RESERVES: [u32; 4] = [20, 25, 50, 100];
/// Parts of the map, of which memory has room for one.
const MAP_PARTS: [u64; 3] = [1, 2, 4];
/// Blocks of a group of the map, of entries of 8 bytes.
const GROUP_BLOCKS: u64 = 512;

/// A workload of the paper, and by how much half of the map slows it there.
struct Load {
    name: &'static str,
    rw: Work,
    bs: u64,
    skew: Skew,
    paper_percent: f64,
}

const LOADS: [Load; 4] = [
    Load {
        name: "4 KiB random",
        rw: Work::RandWrite,
        bs: 4 << 10,
        skew: Skew::Uniform,
        paper_percent: -59.2,
    },
    Load {
        name: "64 KiB random",
        rw: Work::RandWrite,
        bs: 64 << 10,
        skew: Skew::Uniform,
        paper_percent: -16.8,
    },
    Load {
        name: "64 KiB skewed (Zipf, 0.99)",
        rw: Work::RandWrite,
        bs: 64 << 10,
        skew: Skew::Zipf(0.99),
        paper_percent: -4.0,
    },
    Load {
        name: "64 KiB sequential",
        rw: Work::Write,
        bs: 64 << 10,
        skew: Skew::Uniform,
        paper_percent: -3.6,
    },
];

/// What was found.
#[derive(Clone, Debug, Serialize)]
pub struct Aged {
    /// The machine.
    pub machine: Machine,
    /// What was done, in words.
    pub method: String,
    /// What is varied, as the head of a column.
    pub varied: &'static str,
    /// One for each workload and value.
    pub rows: Vec<Row>,
}

/// One workload at one value.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The workload.
    pub workload: &'static str,
    /// The reserve, or the part of the map.
    pub value: String,
    /// MiB that clients wrote in a second.
    pub mib_s: Spread,
    /// How much that is above the first value's of the same round, in percent.
    pub change_percent: Spread,
    /// What the paper has for that.
    pub paper_percent: Option<f64>,
    /// Blocks that were written for each that clients wrote, those that were moved included, mapping blocks not.
    pub write_amplification: Spread,
    /// 99 of 100 requests took no longer, in microseconds.
    pub p99_us: Spread,
    /// Blocks of the map that were read for each request.
    pub map_reads: Spread,
    /// Blocks of the map that were written for each request.
    pub map_writes: Spread,
}

/// Measures it; `say` hears how it goes.
///
/// # Errors
/// What makes no array of memory, or a request that failed.
pub fn measure(plan: &Plan, varied: Varied, say: &dyn Fn(&str)) -> Result<Aged, Error> {
    if !plan.array.is_memory() {
        return Err(Error::Setting("--members: all of memory, like memory:4x2G".into()));
    }
    let (machine, rounds, values) = (Machine::now(), plan.runs.max(1), varied.values());
    let mut memory: Option<ZonedMemory> = None;
    let mut runs: Vec<[Vec<super::Run>; LOADS.len()]> = values.iter().map(|_| Default::default()).collect();
    for round in 1..=rounds {
        for (value, runs) in values.iter().zip(&mut runs) {
            let plan = value.plan(plan);
            if varied == Varied::Reserve {
                memory = None; // each reserve makes an array of another size
            }
            let memory = match &mut memory {
                Some(memory) => memory,
                none => none.insert(ZonedMemory::new(&plan)?),
            };
            let plan = Plan { map_limits: value.map_limits(&plan, memory), ..plan };
            for (load, runs) in LOADS.iter().zip(runs) {
                say(&format!(
                    "round {round} of {rounds}: {} {}, {}",
                    varied.name(),
                    value.words(),
                    load.name
                ));
                let (rw, bs, skew) = (load.rw, load.bs, load.skew);
                let setting = Setting { rw, bs, skew, seed: round as u64, ..plan.array.clone() };
                runs.push(run(memory, &plan, &setting)?);
            }
        }
    }
    let mut rows = Vec::new();
    for (at, load) in LOADS.iter().enumerate() {
        let of_values = values.iter().zip(&runs);
        rows.extend(of_values.map(|(value, own)| Row::of(load, *value, &own[at], &runs[0][at])));
    }
    Ok(Aged { machine, method: method(plan), varied: varied.name(), rows })
}

/// A value of what is varied.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Value {
    /// Hundredths of the array's size.
    Reserve(u32),
    /// Memory has room for one of so many parts.
    MapPart(u64),
}

impl Varied {
    fn name(self) -> &'static str {
        match self {
            Varied::Reserve => "reserve",
            Varied::MapMemory => "map in memory",
        }
    }

    fn values(self) -> Vec<Value> {
        match self {
            Varied::Reserve => RESERVES.map(Value::Reserve).to_vec(),
            Varied::MapMemory => MAP_PARTS.map(Value::MapPart).to_vec(),
        }
    }
}

impl Value {
    fn plan(self, plan: &Plan) -> Plan {
        match self {
            Value::Reserve(reserve_percent) => Plan { reserve_percent, ..plan.clone() },
            Value::MapPart(_) => plan.clone(),
        }
    }

    fn map_limits(self, plan: &Plan, memory: &ZonedMemory) -> MapLimits {
        let groups = match self {
            Value::Reserve(_) | Value::MapPart(1) => None,
            Value::MapPart(part) => Some(memory.plan().logical_blocks.div_ceil(GROUP_BLOCKS) / part),
        };
        let groups = groups.map(|groups| usize::try_from(groups).unwrap_or(usize::MAX));
        MapLimits { groups, ..plan.map_limits }
    }

    fn words(self) -> String {
        match self {
            Value::Reserve(percent) => format!("{percent} %"),
            Value::MapPart(1) => "all".to_owned(),
            Value::MapPart(part) => format!("1/{part}"),
        }
    }
}

impl Row {
    fn of(load: &Load, value: Value, runs: &[super::Run], first: &[super::Run]) -> Self {
        let spread = |of: &dyn Fn(&super::Run) -> f64| Spread::of(runs.iter().map(of).collect());
        let mib = load.bs as f64 * 1e3 / f64::from(1 << 20);
        let change = |(own, first): (&super::Run, &super::Run)| (own.kiops / first.kiops - 1.0) * 100.0;
        Row {
            workload: load.name,
            value: value.words(),
            mib_s: spread(&|run| run.kiops * mib),
            change_percent: Spread::of(runs.iter().zip(first).map(change).collect()),
            paper_percent: (value == Value::MapPart(2)).then_some(load.paper_percent),
            write_amplification: spread(&|run| 1.0 + run.moved),
            p99_us: spread(&|run| run.latency.p99 as f64 / 1e3),
            map_reads: spread(&|run| run.map_reads),
            map_writes: spread(&|run| run.map_writes),
        }
    }
}

fn method(plan: &Plan) -> String {
    let Setting { members, level, iodepth, runtime, shards, .. } = &plan.array;
    format!(
        "A zoned array of level {level} over {} in software zones of {} MiB, {shards} shards, {iodepth} requests in flight on each, {runtime} s \
         after the array was filled and {} times as much was written again in the same way; {} rounds, the median counts (least to \
         greatest). Members in memory: a drive would take longer for what is written, and the same for all values.",
        members.join(" "),
        plan.zone_bytes >> 20,
        plan.aged,
        plan.runs.max(1),
    )
}

impl Aged {
    /// A table in Markdown.
    pub fn words(&self) -> String {
        let Machine { cpu, cores, kernel, load_before, .. } = &self.machine;
        let mut text = format!(
            "{}\n\n{cpu}, {cores} cores, Linux {kernel}, load before {load_before}.\n\n",
            self.method
        );
        let _infallible = writeln!(
            text,
            "| workload | {} | MiB/s | beside the first | paper | write amplification | p99 us | map blocks read, written a request |\n\
             |---|---|---|---|---|---|---|---|",
            self.varied
        );
        for row in &self.rows {
            let Spread { median, least, greatest } = &row.mib_s;
            let change = &row.change_percent;
            let _infallible = writeln!(
                text,
                "| {} | {} | {median:.0} ({least:.0} to {greatest:.0}) | {:+.1} % ({:+.1} to {:+.1}) | {} | {:.2} | {:.0} | {:.3}, {:.3} |",
                row.workload,
                row.value,
                change.median,
                change.least,
                change.greatest,
                row.paper_percent.map_or_else(String::new, |percent| format!("{percent:+.1} %")),
                row.write_amplification.median,
                row.p99_us.median,
                row.map_reads.median,
                row.map_writes.median
            );
        }
        text
    }
}
