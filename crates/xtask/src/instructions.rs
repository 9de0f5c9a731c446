//! `cargo xtask instructions`: how many instructions a request takes, counted by callgrind and held by a ratchet.
//!
//! The benchmark serves the same requests each time on members that copy nothing, once few and once many of them. What the longer
//! run executes more, divided by its further requests, is what one request takes: start and end cancel out. A count does not
//! depend on how busy the machine is.

mod callgrind;
mod listed;
mod rows;
mod stages;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;

use listed::{Listed, Verdict};
use rows::{ROWS, Row};
use stages::Stage;

/// What is counted: crates/bench/examples.
const PROGRAM: &str = "requests";

/// What `cargo xtask instructions` was asked to do.
#[derive(clap::Args)]
pub struct Arguments {
    /// Only rows whose name holds this
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// One object with all figures
    #[arg(long)]
    json: bool,
    /// Leave callgrind's files here, for callgrind_annotate
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,
    /// Lower crates/xtask/instructions.toml to today's counts; it never grows
    #[arg(long)]
    update_ratchet: bool,
    /// With --update-ratchet: also enter new rows, and counts that have grown. Say why in the commit
    #[arg(long, requires = "update_ratchet")]
    admit: bool,
}

/// What was counted.
#[derive(Serialize)]
struct Counted {
    valgrind: String,
    compiler: String,
    /// By how much a row may exceed its entry in the ratchet.
    growth_percent_max: f64,
    rows: Vec<CountedRow>,
}

/// A kind of request.
#[derive(Serialize)]
struct CountedRow {
    name: &'static str,
    /// All that one request takes.
    instructions: f64,
    /// Where they are spent.
    stages: BTreeMap<Stage, f64>,
    verdict: Verdict,
}

/// Counts; fails if a row has grown.
pub fn run(root: &Path, arguments: &Arguments) -> Result<ExitCode> {
    let rows: Vec<&Row> = ROWS.iter().filter(|row| row.name.contains(&arguments.only)).collect();
    if rows.is_empty() {
        let names: Vec<&str> = ROWS.iter().map(|row| row.name).collect();
        bail!("no row's name holds {:?}; the rows are: {}", arguments.only, names.join(", "));
    }
    ensure!(has_avx2(), "the counts are of x86-64 with AVX2, which this machine has not");
    let valgrind = first_line("valgrind", "valgrind is missing: apt-get install valgrind")?;
    let compiler = first_line("rustc", "rustc is missing")?;
    let program = build(root)?;
    let kept;
    let folder = match &arguments.keep {
        Some(folder) => {
            std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
            folder.clone()
        }
        None => {
            kept = tempfile::tempdir().context("a folder for callgrind's files")?;
            kept.path().to_owned()
        }
    };
    let mut listed = Listed::read(root)?;
    let growth_percent_max = listed.growth_percent_max(&compiler);
    let mut counted = Counted { valgrind, compiler, growth_percent_max, rows: Vec::new() };
    for row in rows {
        let stages = count(&program, row, &folder).with_context(|| row.name.to_owned())?;
        let instructions = stages.values().sum();
        let verdict = listed.judge(row.name, instructions, growth_percent_max);
        let row = CountedRow { name: row.name, instructions, stages, verdict };
        if !arguments.json {
            print!("{}", row.words());
        }
        counted.rows.push(row);
    }
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&counted)?);
    }
    if arguments.update_ratchet {
        let counts = counted.rows.iter().map(|row| (row.name, row.instructions));
        listed.update(counts, &counted.compiler, arguments.admit);
        listed.write(root)?;
        return Ok(ExitCode::SUCCESS);
    }
    let fails = counted.rows.iter().any(|row| row.verdict.is_failure());
    Ok(if fails { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

impl CountedRow {
    /// Two lines: the count with its verdict, and the stages.
    fn words(&self) -> String {
        let stages: Vec<String> = self
            .stages
            .iter()
            .filter(|(_, count)| **count >= 0.5)
            .map(|(stage, count)| format!("{} {count:.0}", stage.name()))
            .collect();
        format!(
            "{:32} {:8.0}  {}\n    {}\n",
            self.name,
            self.instructions,
            self.verdict.words(),
            stages.join(", ")
        )
    }
}

/// Whether the program will use AVX2 under valgrind, which has no AVX-512: with other kernels a count is another one.
fn has_avx2() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("avx2");
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

/// What a program says of its version.
fn first_line(program: &str, help: &'static str) -> Result<String> {
    let output = Command::new(program).arg("--version").output().context(help)?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned())
}

/// A release, for nothing else is representative: without one codegen unit a read of 4 KiB executes 2.5 times as much, since its
/// futures are copied from one to the next.
fn build(root: &Path) -> Result<PathBuf> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root).args([
        "build",
        "--quiet",
        "--package",
        "twill-bench",
        "--example",
        PROGRAM,
        "--release",
    ]);
    ensure!(cargo.status().context("cargo build")?.success(), "the build has failed");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    Ok(root.join(target).join("release").join("examples").join(PROGRAM))
}

/// Instructions of one request, by stage.
fn count(program: &Path, row: &Row, folder: &Path) -> Result<BTreeMap<Stage, f64>> {
    let (short, long) = row.requests();
    let few = run_counted(program, row, short, folder)?;
    let many = run_counted(program, row, long, folder)?;
    let further = (long - short) as f64;
    let of = |counts: &BTreeMap<Stage, u64>, stage: &Stage| *counts.get(stage).unwrap_or(&0) as f64;
    Ok(many.keys().map(|stage| (*stage, (of(&many, stage) - of(&few, stage)) / further)).collect())
}

/// The instructions that a run of `requests` requests executes, by stage.
fn run_counted(program: &Path, row: &Row, requests: u64, folder: &Path) -> Result<BTreeMap<Stage, u64>> {
    let file = folder.join(format!("{}.{requests}", row.name.replace([' ', ','], "-")));
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--quiet", "--error-exitcode=3"]);
    valgrind.arg(format!("--callgrind-out-file={}", file.display()));
    valgrind.arg(program).arg(requests.to_string()).args(row.words());
    let output = valgrind.stdin(Stdio::null()).output().context("valgrind")?;
    if !output.status.success() {
        bail!("{valgrind:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let counts = callgrind::by_file(&text).with_context(|| file.display().to_string())?;
    let mut stages = BTreeMap::new();
    for (path, count) in counts {
        *stages.entry(Stage::of(&path)).or_default() += count;
    }
    Ok(stages)
}
