//! How long a start takes after the server was killed: by how much was written, with checkpoints of the map and without
//! (ZapRAID's experiment 5, crash recovery).

use std::fmt::Write as _;
use std::time::Instant;

use engine::log::config::MapLimits;
use serde::Serialize;

use super::array::ZonedMemory;
use super::{BLOCK_BYTES, Plan};
use crate::Error;
use crate::machine::Machine;
use crate::setting::Setting;
use crate::table::Spread;

/// Blocks that are written over at random before the kill.
const AGAIN: u64 = 4096;
/// Blocks of as many requests that fill as the array has [`PARTS`] at most: each of them is whole requests.
const FILL_BLOCKS: u64 = 32 * 8;
/// Parts of the array that are written.
const PARTS: [u64; 4] = [8, 4, 2, 1];

/// What was found.
#[derive(Clone, Debug, Serialize)]
pub struct Starts {
    /// The machine.
    pub machine: Machine,
    /// What was done, in words.
    pub method: String,
    /// One for each amount that was written, with checkpoints and without.
    pub rows: Vec<Row>,
}

/// One amount.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// MiB that were written before the kill.
    pub written_mib: u64,
    /// Whether checkpoints of the map were written, and used.
    pub checkpoints: bool,
    /// From the first read to the first request that is taken, in milliseconds.
    pub start_ms: Spread,
    /// MiB that the start read of all members.
    pub read_mib: Spread,
    /// Groups of the map that it read or made.
    pub groups: Spread,
}

#[derive(Clone, Copy)]
struct Run {
    start_ms: f64,
    read_mib: f64,
    groups: f64,
}

/// Measures it; `say` hears how it goes.
///
/// # Errors
/// What makes no array of memory, or a request that failed.
pub fn measure(plan: &Plan, say: &dyn Fn(&str)) -> Result<Starts, Error> {
    if !plan.array.is_memory() {
        return Err(Error::Setting("--members: all of memory, like memory:4x2G".into()));
    }
    let machine = Machine::now();
    let memory = ZonedMemory::new(plan)?;
    let blocks = memory.plan().logical_blocks / FILL_BLOCKS * FILL_BLOCKS;
    let setting = Setting { shards: 1, ..plan.array.clone() };
    let kinds = [plan.map_limits, MapLimits { changed: None, ..plan.map_limits }];
    let cases: Vec<(u64, MapLimits)> =
        PARTS.iter().flat_map(|part| kinds.map(|limits| (blocks / part, limits))).collect();
    let mut runs: Vec<Vec<Run>> = cases.iter().map(|_| Vec::new()).collect();
    for round in 1..=plan.runs.max(1) {
        for ((blocks, limits), runs) in cases.iter().zip(&mut runs) {
            let how = if limits.changed.is_some() { "with" } else { "without" };
            say(&format!(
                "round {round} of {}: {} MiB, {how} checkpoints",
                plan.runs.max(1),
                (blocks * BLOCK_BYTES) >> 20
            ));
            runs.push(run(&memory, &setting, *blocks, *limits)?);
        }
    }
    let rows =
        cases.iter().zip(&runs).map(|((blocks, limits), runs)| Row::of(*blocks, *limits, runs)).collect();
    Ok(Starts { machine, method: method(plan, &memory), rows })
}

fn run(memory: &ZonedMemory, setting: &Setting, blocks: u64, limits: MapLimits) -> Result<Run, Error> {
    // As after a kill: it stands still where it is, nothing is sealed, and no superblock says that it stopped.
    let killed = memory.start(setting, limits)?;
    killed.write(blocks, AGAIN)?;
    let read = || memory.memories().iter().map(|memory| memory.counters().read_bytes).sum::<u64>();
    let (before, began) = (read(), Instant::now());
    let array = memory.start_again(setting, limits)?;
    let start_ms = began.elapsed().as_secs_f64() * 1e3;
    let read_mib = (read() - before) as f64 / f64::from(1 << 20);
    let report = array.zoned.ask(|running| async move { *running.report() });
    let groups = report.map_err(crate::array::shards_failed)?.replayed_groups as f64;
    array.stop()?;
    _ = killed.stop(); // over what is made anew for the next run
    Ok(Run { start_ms, read_mib, groups })
}

impl Row {
    fn of(blocks: u64, limits: MapLimits, runs: &[Run]) -> Self {
        let spread = |of: fn(&Run) -> f64| Spread::of(runs.iter().map(of).collect());
        Row {
            written_mib: (blocks * BLOCK_BYTES) >> 20,
            checkpoints: limits.changed.is_some(),
            start_ms: spread(|run| run.start_ms),
            read_mib: spread(|run| run.read_mib),
            groups: spread(|run| run.groups),
        }
    }
}

fn method(plan: &Plan, memory: &ZonedMemory) -> String {
    let Setting { members, level, .. } = &plan.array;
    format!(
        "A zoned array of level {level} over {} in software zones of {} MiB, {} MiB for clients. A part of it is written in requests of \
         128 KiB, {AGAIN} blocks of that again at random, all of it is flushed, and the server ends without a stop. A checkpoint is due \
         after {} KiB of the map have changed. {} rounds in turns, the median counts (least to greatest). Members in memory: what a \
         drive would take for the reads is not in the times.",
        members.join(" "),
        plan.zone_bytes >> 20,
        memory.plan().logical_blocks >> 8,
        plan.map_limits.changed_bytes().unwrap_or(0) >> 10,
        plan.runs.max(1),
    )
}

impl Starts {
    /// A table in Markdown.
    pub fn words(&self) -> String {
        let Machine { cpu, cores, kernel, load_before, .. } = &self.machine;
        let mut text = format!(
            "{}\n\n{cpu}, {cores} cores, Linux {kernel}, load before {load_before}.\n\n",
            self.method
        );
        text +=
            "| MiB written | checkpoints | start ms | MiB read | groups replayed |\n|---|---|---|---|---|\n";
        for row in &self.rows {
            let Spread { median, least, greatest } = &row.start_ms;
            let _infallible = writeln!(
                text,
                "| {} | {} | {median:.1} ({least:.1} to {greatest:.1}) | {:.1} | {:.0} |",
                row.written_mib,
                if row.checkpoints { "yes" } else { "no" },
                row.read_mib.median,
                row.groups.median
            );
        }
        text
    }
}
