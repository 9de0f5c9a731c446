//! `cargo xtask vm bench-md`: md and Twill in turn over the same members in one machine, as a table.

mod report;
mod runs;
mod said;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::figures::Kept;
use crate::machine;
use runs::Report;

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
    #[command(flatten)]
    kept: Kept,
}

/// Runs it and prints the table.
pub fn run(root: &Path, arguments: &Arguments) -> Result<ExitCode> {
    let report = arguments.kept.or_measure(Report::join, || measure(root, arguments))?;
    let report = report.only(&arguments.kinds()?);
    arguments.kept.keep(&report)?;
    arguments.kept.show(&report::text(&report), &root.join(PAGE), SECTION)?;
    Ok(if report.runs.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn measure(root: &Path, arguments: &Arguments) -> Result<Report> {
    let twill = machine::program(root, arguments.twill.as_deref())?;
    let null_device =
        machine::build(root, &["--package", "twill-host", "--example", "ublk-null"], "examples/ublk-null")?;
    let seconds = arguments.seconds.unwrap_or(if arguments.quick { 1 } else { 3 });
    let rounds = arguments.rounds.unwrap_or(if arguments.quick { 3 } else { 5 });
    let mut report = Report { seconds, rounds, ..Report::default() };
    for kind in arguments.kinds()? {
        let mut options = vec!["--mem", "5G", "--mod", "null_blk,raid456,ublk_drv"];
        if kind == "nvme" {
            options.extend(["--nvme", "6:340M:logical_block_size=4096"]);
        }
        let variables =
            [format!("TWILL={}", twill.display()), format!("NULL_DEVICE={}", null_device.display())];
        let (seconds, rounds) = (seconds.to_string(), rounds.to_string());
        let extent = if arguments.quick { "quick" } else { "full" };
        let words = [kind, &seconds, &rounds, extent, &arguments.arrays];
        let status = machine::run_benchmark(root, &options, &variables, ("bench-md", &words), |line| {
            said::take(&mut report, line)?;
            arguments.kept.keep(&report)
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
