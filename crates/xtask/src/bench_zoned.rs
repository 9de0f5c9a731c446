//! `cargo xtask vm bench-zoned`: zoned arrays beside md, and beside file systems that know zones, in one machine, as tables.

mod report;
mod runs;
mod said;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::figures::Kept;
use crate::machine;
use runs::Report;

const PAGE: &str = "docs/zoned.md";
const SECTION: &str = "bench-zoned";
/// The emulator makes a checksum by hardware bit by bit, 40 us for 4 KiB; with tables it takes a fifth of that.
const PROCESSOR: &str = "-cpu max,-erms,-sse4.2,-pclmulqdq";

/// Arguments of `cargo xtask vm bench-zoned`.
#[derive(clap::Args)]
#[command(
    after_help = "Example: about 40 minutes, and the tables go into docs/zoned.md; without --quick many hours\n  cargo xtask vm bench-zoned --quick --publish"
)]
pub struct Arguments {
    /// What to measure: all, or one part
    #[arg(long, value_enum, default_value_t = Part::All)]
    part: Part,
    /// Seconds of each run [default: 3, with --quick 1]
    #[arg(long)]
    seconds: Option<u32>,
    /// Rounds, in turns within each row; medians count [default: 5, with --quick 3]
    #[arg(long)]
    rounds: Option<u32>,
    /// Fewer rows and fewer settings of md, cuts at RAID-5 only
    #[arg(long)]
    quick: bool,
    /// Only what the parts call so: arrays like `5 aged`, cuts of `md-journal`, file systems that are `new`,
    /// applications like `sqlite`
    #[arg(long, value_name = "WORDS", default_value = "")]
    only: String,
    /// The program under test; without it target/release/twill, built first
    #[arg(long)]
    twill: Option<PathBuf>,
    /// Commands of devices below applications take 20 us, times this
    #[arg(long, default_value_t = 250)]
    slow_by: u32,
    #[command(flatten)]
    kept: Kept,
}

#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
enum Part {
    All,
    /// md and zoned arrays on ordinary devices
    Members,
    /// How long both take after a cut
    Cuts,
    /// btrfs, F2FS and ext4 on zoned arrays, on zoned devices
    Files,
    /// SQLite, and writers that call fsync, on these, where devices take time
    Applications,
}

impl Part {
    /// The scripts that measure it, with the modules that they need; the file systems' are loaded there, so that one
    /// that the kernel lacks is not run and no other suffers.
    fn scripts(self) -> &'static [(&'static str, &'static str)] {
        const ALL: &[(&str, &str)] = &[
            ("bench-zoned-members", "null_blk,raid456,ublk_drv"),
            ("bench-zoned-cuts", "null_blk,raid456,dm_mod,ublk_drv"),
            ("bench-zoned-files", "null_blk,ext4,ublk_drv"),
            ("bench-zoned-applications", "null_blk,ext4,ublk_drv"),
        ];
        match self {
            Part::All => ALL,
            Part::Members => &ALL[..1],
            Part::Cuts => &ALL[1..2],
            Part::Files => &ALL[2..3],
            Part::Applications => &ALL[3..],
        }
    }
}

/// Runs it and prints the tables.
pub fn run(root: &Path, arguments: &Arguments) -> Result<ExitCode> {
    let report = arguments.kept.or_measure(Report::join, || measure(root, arguments))?;
    arguments.kept.keep(&report)?;
    arguments.kept.show(&report::text(&report), &root.join(PAGE), SECTION)?;
    Ok(if report.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn measure(root: &Path, arguments: &Arguments) -> Result<Report> {
    let twill = machine::program(root, arguments.twill.as_deref())?;
    let seconds = arguments.seconds.unwrap_or(if arguments.quick { 1 } else { 3 });
    let rounds = arguments.rounds.unwrap_or(if arguments.quick { 3 } else { 5 });
    let slow_by = arguments.slow_by;
    let mut report = Report {
        seconds,
        rounds,
        slow_by,
        quick: arguments.quick,
        host: machine::host(),
        ..Report::default()
    };
    for (script, modules) in arguments.part.scripts() {
        let options = ["--mem", "7G", "--mod", modules, "--qemu", PROCESSOR];
        let variables = [format!("TWILL={}", twill.display())];
        let [seconds, rounds, slow_by] = [seconds, rounds, slow_by].map(|number| number.to_string());
        let extent = if arguments.quick { "quick" } else { "full" };
        let words = [seconds.as_str(), &rounds, extent, &arguments.only, &slow_by];
        let status = machine::run_benchmark(root, &options, &variables, (script, &words), |line| {
            said::take(&mut report, line)?;
            arguments.kept.keep(&report)
        })?;
        if status != 0 {
            bail!("{script} ended with status {status}");
        }
    }
    Ok(report)
}
