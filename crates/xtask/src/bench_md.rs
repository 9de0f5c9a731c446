//! `cargo xtask vm bench-md`: md and Twill in turn over the same members in one machine, as a table.

mod report;
mod said;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::{figures, section, vm};

const PAGE: &str = "docs/performance.md";
const SECTION: &str = "bench-md";

/// Arguments of `cargo xtask vm bench-md`.
#[derive(clap::Args)]
#[command(
    after_help = "Example: three quarters of an hour, and the table goes into docs/performance.md; without --quick many hours\n  cargo xtask vm bench-md --quick --publish"
)]
pub struct Arguments {
    /// null_blk, nvme, or both
    #[arg(long, default_value = "both")]
    members: String,
    /// Seconds of each run [default: 3, with --quick 1]
    #[arg(long)]
    seconds: Option<u32>,
    /// Rounds, in turns within each row; medians count [default: 5, with --quick 3]
    #[arg(long)]
    rounds: Option<u32>,
    /// Three settings of md instead of six, one job only, a bitmap only at RAID-5 on null_blk, no degraded array on NVMe
    #[arg(long)]
    quick: bool,
    /// Only arrays with these words, like `degraded` or `6 clean`
    #[arg(long, value_name = "WORDS", default_value = "")]
    arrays: String,
    /// The program under test; without it target/release/twill, built first
    #[arg(long)]
    twill: Option<PathBuf>,
    /// Write all runs here, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Run nothing; take the runs that --json wrote, with --members only those. Of several files all: one row's more rounds, or
    /// one kind of members each
    #[arg(long, value_name = "FILE", num_args = 1..)]
    from: Vec<PathBuf>,
    /// Put the table into docs/performance.md
    #[arg(long)]
    publish: bool,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Report {
    kernel: String,
    seconds: u32,
    #[serde(default)]
    rounds: u32,
    runs: Vec<Run>,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Run {
    members: String,
    level: String,
    rw: String,
    bs: String,
    jobs: u32,
    health: String,
    bitmap: String,
    /// `md THREADS/CACHE`, twill, engine or ceiling.
    who: String,
    iops: f64,
    bytes_per_s: f64,
    p99_us: f64,
    member_read_bytes: u64,
    member_written_bytes: u64,
    /// Of requests, in the same time.
    user_bytes: u64,
}

/// Runs it and prints the table.
pub fn run(root: &Path, arguments: &Arguments) -> Result<ExitCode> {
    let report = match figures::read_all(&arguments.from, Report::join)? {
        Some(report) => report.only(&arguments.kinds()?),
        None => measure(root, arguments)?,
    };
    let table = report::text(&report);
    println!("{table}");
    if let Some(path) = &arguments.json {
        figures::write(path, &report)?;
    }
    if arguments.publish {
        section::replace(&root.join(PAGE), SECTION, &table)?;
    }
    Ok(if report.runs.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn measure(root: &Path, arguments: &Arguments) -> Result<Report> {
    let twill = vm::program(root, arguments.twill.as_deref())?;
    let null_device =
        vm::build(root, &["--package", "host", "--example", "ublk-null"], "examples/ublk-null")?;
    let seconds = arguments.seconds.unwrap_or(if arguments.quick { 1 } else { 3 });
    let rounds = arguments.rounds.unwrap_or(if arguments.quick { 3 } else { 5 });
    let mut report = Report { seconds, rounds, ..Report::default() };
    for kind in arguments.kinds()? {
        let mut command = Command::new(vm::script(root, "vm"));
        command.args(["--mem", "5G", "--timeout", "43200", "--mod", "null_blk,raid456,ublk_drv"]);
        if kind == "nvme" {
            command.args(["--nvme", "6:340M:logical_block_size=4096"]);
        }
        command.args(["--", "env"]).arg(format!("TWILL={}", twill.display()));
        command.arg(format!("NULL_DEVICE={}", null_device.display()));
        command.arg("bash").arg(vm::script(root, "bench-md")).arg(kind);
        command.arg(seconds.to_string()).arg(rounds.to_string());
        command.arg(if arguments.quick { "quick" } else { "full" }).arg(&arguments.arrays);
        let status = vm::lines(&mut command, |line| {
            report.take(line)?;
            // A run that breaks off keeps what it has measured.
            arguments.json.as_ref().map_or(Ok(()), |path| figures::write(path, &report))
        })?;
        if status != 0 {
            bail!("the run with {kind} ended with status {status}");
        }
    }
    Ok(report)
}

impl Arguments {
    fn kinds(&self) -> Result<Vec<&str>> {
        match self.members.as_str() {
            "both" => Ok(vec!["null_blk", "nvme"]),
            kind @ ("null_blk" | "nvme") => Ok(vec![kind]),
            other => bail!("--members {other}: null_blk, nvme or both"),
        }
    }
}

impl Report {
    /// The runs of another time as well.
    fn join(mut self, other: Report) -> Result<Report> {
        if (&self.kernel, self.seconds) != (&other.kernel, other.seconds) {
            bail!(
                "runs of {} s on Linux {} and of {} s on {} are not of one table",
                self.seconds,
                self.kernel,
                other.seconds,
                other.kernel
            );
        }
        self.rounds = self.rounds.max(other.rounds);
        self.runs.extend(other.runs);
        Ok(self)
    }

    fn only(mut self, kinds: &[&str]) -> Report {
        self.runs.retain(|run| kinds.contains(&run.members.as_str()));
        self
    }

    fn take(&mut self, line: &str) -> Result<()> {
        let Some(json) = line.strip_prefix("JSON ") else {
            println!("{line}");
            return Ok(());
        };
        match serde_json::from_str::<said::Said>(json) {
            Ok(said) => {
                let run = said.run();
                eprintln!(
                    "{} RAID-{} {} {} x{} {} {}: {:.0}/s",
                    run.members, run.level, run.rw, run.bs, run.jobs, run.health, run.who, run.iops
                );
                self.runs.push(run);
            }
            Err(_) => {
                let machine: BTreeMap<String, String> =
                    serde_json::from_str(json).context("scripts/vm/bench-md")?;
                self.kernel = machine.get("kernel").cloned().unwrap_or_default();
            }
        }
        Ok(())
    }
}
