//! The table of figures that `docs/performance.md` quotes: the rows of work, medians of several runs, beside the floor
//! of the same run, plain copies of memory, and whatever peers the caller names, in turns.
//!
//! The runs of a row are not made one after the other: each round makes every row once, so that whatever else the
//! machine does meets all rows. Members are made once and used by every run.

mod goals;
mod peers;
mod plan;
mod rows;
mod spread;
mod words;
mod works;

use std::path::Path;
use std::time::{Duration, Instant};

use host::device::memory::Memory;

use crate::Error;
use crate::array::OpenMembers;
use crate::machine::Machine;
use crate::run::run_on;
use crate::setting::Setting;
use rows::RowRuns;
use works::{MEMBERS, Task, WORKS};

pub use goals::Goal;
pub use peers::{Peer, PeerCommand};
pub use plan::{Method, Plan};
pub use rows::{Memcpy, Row};
pub use spread::Spread;
pub use words::Table;

/// Memory that plain copies walk through.
const MEMCPY_BYTES: u64 = 1 << 30;

/// Measures every row; `say` hears how it goes.
///
/// # Errors
/// Those of a run; no row with such a name.
pub fn measure(plan: &Plan, say: &dyn Fn(&str)) -> Result<Table, Error> {
    let rows = rows_of(plan)?;
    let method = Method { runs: plan.method.runs.max(1), ..plan.method };
    let base = Setting {
        members: vec![format!("memory:{MEMBERS}x{}", method.member_bytes)],
        runtime: method.runtime_s,
        ramp: (method.runtime_s / 5.0).min(1.0),
        ..Setting::default()
    };
    let members = OpenMembers::open(&base)?;
    let mut copies = (Vec::new(), Vec::new());
    let of_row = |(task, shards): &(&'static Task, usize)| RowRuns {
        task,
        shards: *shards,
        ours: Vec::new(),
        theirs: plan.peers.iter().map(|peer| (peer.name.as_str(), Vec::new())).collect(),
    };
    let mut runs: Vec<RowRuns<'_>> = rows.iter().map(of_row).collect();
    for round in 1..=method.runs {
        let memories = members.memories().expect("members are memory");
        copies.0.push(memcpy(4 << 10, &method, &memories[0], &memories[1]));
        copies.1.push(memcpy(64 << 10, &method, &memories[0], &memories[1]));
        for row in &mut runs {
            let RowRuns { task, shards, ours, theirs } = row;
            say(&format!("run {round} of {}: {}, {shards} cores", method.runs, task.name));
            let setting = Setting { shards: *shards, seed: round as u64, ..task.setting(&base) };
            // They take turns in going first, too.
            let own_first = round % 2 == 1;
            if own_first {
                ours.push(run_on(&members, &setting)?);
            }
            for (peer, (_, theirs)) in plan.peers.iter().zip(theirs) {
                theirs.push(peer.run(task, &setting, method.member_bytes)?);
            }
            if !own_first {
                ours.push(run_on(&members, &setting)?);
            }
        }
    }
    let memcpy = Memcpy { blocks_4k: Spread::of(copies.0), blocks_64k: Spread::of(copies.1) };
    let rows: Vec<Row> = runs.iter().map(|runs| Row::of(runs, &memcpy)).collect();
    let goals = goals::of(&rows);
    Ok(Table { machine: Machine::now(), method, memcpy, peers: plan.peers.clone(), rows, goals })
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

/// Copies random blocks for a moment, half of the memory to the other half. Bytes a second.
fn memcpy(block: usize, method: &Method, from: &Memory, to: &Memory) -> f64 {
    let blocks = (MEMCPY_BYTES / 2).min(method.member_bytes) / block as u64;
    let time = Duration::from_secs_f64((method.runtime_s / 4.0).min(0.5));
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
