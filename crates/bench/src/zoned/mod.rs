//! What a write to a zoned array costs: random writes to software zones in memory, beside the checksums, parity and copies of
//! the same stripes in a plain loop. New arrays are measured before anything is reclaimed, aged ones while reclaim works.

pub mod aged;
mod array;
mod floor;
mod plan;
pub mod starts;

use std::fmt::Write as _;

use serde::Serialize;

use self::array::ZonedMemory;
pub use self::plan::Plan;
use crate::Error;
use crate::drive::Driven;
use crate::figures::Latency;
use crate::histogram::Histogram;
use crate::machine::Machine;
use crate::operations::Operations;
use crate::setting::{Setting, Work};
use crate::shard::ShardFigures;
use crate::table::Spread;

/// What was found.
#[derive(Clone, Debug, Serialize)]
pub struct ZonedFigures {
    /// The machine.
    pub machine: Machine,
    /// What was done, in words.
    pub method: String,
    /// One for each number of shards.
    pub rows: Vec<Row>,
    /// Requests a second of the last row by those of the first.
    pub scaling: f64,
}

/// One number of shards.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Threads that serve.
    pub shards: usize,
    /// Thousands of requests a second.
    pub kiops: Spread,
    /// Processor time of the shards for each request, in nanoseconds.
    pub cpu_ns_per_op: Spread,
    /// The same of the floor.
    pub floor_ns_per_op: Spread,
    /// The floor's processor time by the run's.
    pub cpu_ratio: f64,
    /// Half of all requests took no longer, in microseconds.
    pub p50_us: Spread,
    /// 99 of 100 took no longer, in microseconds.
    pub p99_us: Spread,
    /// 999 of 1000 took no longer, in microseconds.
    pub p999_us: Spread,
    /// Bytes at the members for each byte of writes: parity, descriptors, padding, and what reclaim moves.
    pub write_amplification: Spread,
    /// Segments that reclaim emptied meanwhile.
    pub emptied_segments: Spread,
    /// Blocks that reclaim moved for each that clients wrote.
    pub moved: Spread,
    /// Blocks of the map that were read for each request.
    pub map_reads: Spread,
    /// Blocks of the map that were written for each request.
    pub map_writes: Spread,
}

/// Bytes of a block.
const BLOCK_BYTES: u64 = layout::zoned::BLOCK_BYTES as u64;

struct Run {
    kiops: f64,
    cpu_ns_per_op: f64,
    floor_ns_per_op: f64,
    latency: Latency,
    write_amplification: f64,
    emptied_segments: u64,
    moved: f64,
    map_reads: f64,
    map_writes: f64,
}

/// Measures it; `say` hears how it goes.
///
/// # Errors
/// What makes no array of memory, or a request that failed.
pub fn measure(plan: &Plan, say: &dyn Fn(&str)) -> Result<ZonedFigures, Error> {
    if !plan.array.is_memory() {
        return Err(Error::Setting("--members: all of memory, like memory:4x2G".into()));
    }
    if !plan.array.bs.is_multiple_of(BLOCK_BYTES) {
        return Err(Error::Setting(format!("--bs {}: a multiple of 4K", plan.array.bs)));
    }
    if !matches!(plan.array.rw, Work::Write | Work::RandWrite) {
        return Err(Error::Setting("--rw: write or randwrite".into()));
    }
    let machine = Machine::now();
    let memory = ZonedMemory::new(plan)?;
    for shards in &plan.shards {
        let setting = Setting { shards: *shards, ..plan.array.clone() };
        setting.check_requests(memory.plan().logical_blocks * BLOCK_BYTES)?;
    }
    let mut runs: Vec<Vec<Run>> = plan.shards.iter().map(|_| Vec::new()).collect();
    for round in 1..=plan.runs.max(1) {
        for (shards, runs) in plan.shards.iter().zip(&mut runs) {
            say(&format!("round {round} of {}: {shards} shards", plan.runs.max(1)));
            let setting = Setting { shards: *shards, seed: round as u64, ..plan.array.clone() };
            runs.push(run(&memory, plan, &setting)?);
        }
    }
    let rows: Vec<Row> = plan.shards.iter().zip(&runs).map(|(shards, runs)| Row::of(*shards, runs)).collect();
    let median = |row: Option<&Row>| row.map_or(f64::NAN, |row| row.kiops.median);
    let scaling = median(rows.last()) / median(rows.first());
    Ok(ZonedFigures { machine, method: method(plan, &memory), rows, scaling })
}

fn run(memory: &ZonedMemory, plan: &Plan, setting: &Setting) -> Result<Run, Error> {
    let array = memory.start(setting, plan.map_limits)?;
    if plan.aged > 0 {
        array.age(setting, plan.aged)?;
    }
    let memory_of_map = &array.zoned.shared.memory;
    let (before, read, written) =
        (array.zoned.shared.space.totals(), memory_of_map.read(), memory_of_map.written());
    let driven = Driven { volumes: array.zoned.volumes(), shards: &array.shards, replay: None, verify: None };
    let shards = driven.drive(setting)?;
    let after = array.zoned.shared.space.totals();
    let emptied_segments = after.emptied_segments - before.emptied_segments;
    let user_blocks = after.user_blocks - before.user_blocks;
    let moved = (after.moved_blocks - before.moved_blocks) as f64 / user_blocks.max(1) as f64;
    let map = (memory_of_map.read() - read, memory_of_map.written() - written);
    let floor_ns_per_op = floor::measure(memory, &array, setting)?;
    let run = Run::of(&shards, floor_ns_per_op, emptied_segments, moved, map);
    array.stop()?;
    Ok(run)
}

impl Run {
    fn of(
        shards: &[ShardFigures],
        floor_ns_per_op: f64,
        emptied_segments: u64,
        moved: f64,
        (read, written_map): (u64, u64),
    ) -> Self {
        let mut requests = Operations::default();
        let mut latency = Histogram::default();
        let (mut kiops, mut cpu_ns, mut written) = (0.0, 0, 0);
        for shard in shards {
            let wall_ns = (shard.end.wall_ns - shard.start.wall_ns).max(1);
            kiops += shard.requests.count() as f64 * 1e6 / wall_ns as f64;
            cpu_ns += shard.end.cpu_ns - shard.start.cpu_ns;
            written += shard.end.counts.member_write_bytes - shard.start.counts.member_write_bytes;
            requests += shard.requests;
            latency.merge(&shard.latency);
        }
        Run {
            kiops,
            cpu_ns_per_op: cpu_ns as f64 / requests.count().max(1) as f64,
            floor_ns_per_op,
            latency: Latency::of(&latency),
            write_amplification: written as f64 / requests.write_bytes.max(1) as f64,
            emptied_segments,
            moved,
            map_reads: read as f64 / requests.count().max(1) as f64,
            map_writes: written_map as f64 / requests.count().max(1) as f64,
        }
    }
}

impl Row {
    fn of(shards: usize, runs: &[Run]) -> Self {
        let spread = |of: &dyn Fn(&Run) -> f64| Spread::of(runs.iter().map(of).collect());
        let us = |of: fn(&Latency) -> u64| spread(&|run| of(&run.latency) as f64 / 1e3);
        let cpu_ns_per_op = spread(&|run| run.cpu_ns_per_op);
        let floor_ns_per_op = spread(&|run| run.floor_ns_per_op);
        Row {
            shards,
            kiops: spread(&|run| run.kiops),
            cpu_ns_per_op,
            floor_ns_per_op,
            cpu_ratio: floor_ns_per_op.median / cpu_ns_per_op.median.max(1e-9),
            p50_us: us(|latency| latency.p50),
            p99_us: us(|latency| latency.p99),
            p999_us: us(|latency| latency.p999),
            write_amplification: spread(&|run| run.write_amplification),
            emptied_segments: spread(&|run| run.emptied_segments as f64),
            moved: spread(&|run| run.moved),
            map_reads: spread(&|run| run.map_reads),
            map_writes: spread(&|run| run.map_writes),
        }
    }
}

fn method(plan: &Plan, memory: &ZonedMemory) -> String {
    let Setting { members, level, rw, bs, iodepth, runtime, .. } = &plan.array;
    format!(
        "A zoned array of level {level} over {} in software zones of {} MiB, records of {} and {} blocks, {} MiB for clients. \
         {rw:?} of {} KiB, {iodepth} in flight on each shard, {runtime} s after {}; {} rounds, the median counts (least to \
         greatest). The floor is the checksums, parity and copies of the same stripes in a plain loop on the same cores.",
        members.join(" "),
        plan.zone_bytes >> 20,
        memory.plan().small_blocks,
        memory.plan().large_blocks,
        memory.plan().logical_blocks >> 8,
        bs >> 10,
        match plan.aged {
            0 => "it was made".to_owned(),
            times =>
                format!("the array was filled and {times} times as much was written again in the same way"),
        },
        plan.runs.max(1),
    )
}

impl ZonedFigures {
    /// A table in Markdown.
    pub fn words(&self) -> String {
        let Machine { cpu, cores, kernel, load_before, .. } = &self.machine;
        let mut text = format!(
            "{}\n\n{cpu}, {cores} cores, Linux {kernel}, load before {load_before}.\n\n",
            self.method
        );
        text += "| shards | k requests/s | CPU ns a request | floor ns | floor/CPU | p50 us | p99 us | p99.9 us | written/byte | \
                 segments emptied | map blocks read, written a request |\n";
        text += "|---|---|---|---|---|---|---|---|---|---|---|\n";
        for row in &self.rows {
            let with = |spread: &Spread, digits: usize| {
                let Spread { median, least, greatest } = spread;
                format!("{median:.digits$} ({least:.digits$} to {greatest:.digits$})")
            };
            let _infallible = writeln!(
                text,
                "| {} | {} | {} | {:.0} | {:.2} | {:.0} | {} | {:.0} | {:.2} | {:.0} | {:.3}, {:.3} |",
                row.shards,
                with(&row.kiops, 0),
                with(&row.cpu_ns_per_op, 0),
                row.floor_ns_per_op.median,
                row.cpu_ratio,
                row.p50_us.median,
                with(&row.p99_us, 0),
                row.p999_us.median,
                row.write_amplification.median,
                row.emptied_segments.median,
                row.map_reads.median,
                row.map_writes.median
            );
        }
        if self.rows.len() > 1 {
            let (first, last) = (self.rows[0].shards, self.rows[self.rows.len() - 1].shards);
            let _infallible =
                writeln!(text, "\n{last} shards do {:.2} times what {first} does.", self.scaling);
        }
        text
    }
}
