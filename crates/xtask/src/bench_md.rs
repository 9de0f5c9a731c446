//! `cargo xtask vm bench-md`: md and Twill in turn over the same members in one machine, as a table.

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
    after_help = "Example: twenty minutes, and the table goes into docs/performance.md; without --quick some hours\n  cargo xtask vm bench-md --quick --publish"
)]
pub struct Arguments {
    /// null_blk, nvme, or both
    #[arg(long, default_value = "both")]
    members: String,
    /// Seconds of each run [default: 3, with --quick 1]
    #[arg(long)]
    seconds: Option<u32>,
    /// Three settings of md instead of six, one job only, a bitmap only at RAID-5 on null_blk, no degraded array on NVMe
    #[arg(long)]
    quick: bool,
    /// The program under test; without it target/release/twill, built first
    #[arg(long)]
    twill: Option<PathBuf>,
    /// Write all runs here, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Run nothing; take the runs that --json wrote
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Put the table into docs/performance.md
    #[arg(long)]
    publish: bool,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Report {
    kernel: String,
    seconds: u32,
    runs: Vec<Run>,
}

/// What the script in the machine says of one run.
#[derive(Clone, Debug, Serialize, Deserialize)]
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
    operations: u64,
}

/// Runs it and prints the table.
pub fn run(root: &Path, arguments: &Arguments) -> Result<ExitCode> {
    let report = match &arguments.from {
        Some(path) => figures::read(path)?,
        None => measure(root, arguments)?,
    };
    let table = text(&report);
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
    let kinds: &[&str] = match arguments.members.as_str() {
        "both" => &["null_blk", "nvme"],
        "null_blk" => &["null_blk"],
        "nvme" => &["nvme"],
        other => bail!("--members {other}: null_blk, nvme or both"),
    };
    let seconds = arguments.seconds.unwrap_or(if arguments.quick { 1 } else { 3 });
    let mut report = Report { seconds, ..Report::default() };
    for kind in kinds {
        let mut command = Command::new(vm::script(root, "vm"));
        command.args(["--mem", "5G", "--timeout", "43200", "--mod", "null_blk,raid456,ublk_drv"]);
        if *kind == "nvme" {
            command.args(["--nvme", "6:340M:logical_block_size=4096"]);
        }
        command.args(["--", "env"]).arg(format!("TWILL={}", twill.display()));
        command.arg(format!("NULL_DEVICE={}", null_device.display()));
        command.arg("bash").arg(vm::script(root, "bench-md")).arg(kind).arg(seconds.to_string());
        command.arg(if arguments.quick { "quick" } else { "full" });
        let status = vm::lines(&mut command, |line| report.take(line))?;
        if status != 0 {
            bail!("the run with {kind} ended with status {status}");
        }
    }
    Ok(report)
}

impl Report {
    fn take(&mut self, line: &str) -> Result<()> {
        let Some(json) = line.strip_prefix("JSON ") else {
            println!("{line}");
            return Ok(());
        };
        match serde_json::from_str::<Run>(json) {
            Ok(run) => {
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

const NOTES: &str = "\
`cargo xtask vm bench-md --publish` writes this section (`--quick`: fewer settings of md and fewer rows; `--json` for all
runs). Six members (RAID-5 5+1, RAID-6 4+2, chunk 64 KiB) are cut in three: md, `twill serve --ublk` and `twill bench` in
process have a third of each and take turns row by row in one machine under QEMU without KVM, where everything is slow and
equally so. fio with io_uring, depth 32 a job. *best*: the best of `group_thread_count`/`stripe_cache_size` for that row.
*ceiling*: a ublk device with nothing behind it at the same request size, through the same export. *r+w*: bytes read and
written at the members by bytes of requests, from `/sys/block/*/stat`, ramp included. *p99* in microseconds.
";

fn text(report: &Report) -> String {
    let mut text = format!("{NOTES}\nLinux {}, {} s a run.\n", report.kernel, report.seconds);
    let head = "| RAID | work | jobs | array | md default | md best | twill | twill/best | ceiling | twill/ceiling | engine | engine/best | p99 md | p99 twill | r+w md | r+w twill |";
    let mut members = "";
    for row in report.runs.iter().filter(|run| run.who == "twill") {
        if row.members != members {
            members = &row.members;
            text += &format!("\nMembers: {members}\n\n{head}\n{}|\n", "|---".repeat(16));
        }
        text += &line(report, row);
    }
    text
}

/// One row: everything that ran under the same conditions as this run of Twill.
fn line(report: &Report, twill: &Run) -> String {
    let work = |run: &&Run| {
        run.members == twill.members && run.rw == twill.rw && run.bs == twill.bs && run.jobs == twill.jobs
    };
    let same = |run: &&Run| {
        work(run) && run.level == twill.level && run.health == twill.health && run.bitmap == twill.bitmap
    };
    let md = || report.runs.iter().filter(same).filter(|run| run.who.starts_with("md "));
    let best = md().max_by(|a, b| a.iops.total_cmp(&b.iops));
    let default = md().find(|run| run.who == "md 0/256");
    let engine = report.runs.iter().filter(same).find(|run| run.who == "engine");
    let ceiling = report.runs.iter().filter(work).find(|run| run.who == "ceiling");
    let figure = |run: Option<&Run>| run.map_or("-".into(), |run| format!("{:.0}", run.iops));
    let ratio = |a: Option<&Run>, b: Option<&Run>| match (a, b) {
        (Some(a), Some(b)) if b.iops > 0.0 => format!("{:.2}", a.iops / b.iops),
        _ => "-".into(),
    };
    let p99 = |run: Option<&Run>| run.map_or("-".into(), |run| format!("{:.0}", run.p99_us));
    let array = match (twill.health.as_str(), twill.bitmap.as_str()) {
        (health, "none") => health.to_owned(),
        (health, _) => format!("{health}, bitmap"),
    };
    let setting = best.map_or(String::new(), |run| format!(" ({})", run.who.trim_start_matches("md ")));
    let cells = [
        twill.level.clone(),
        format!("{} {}", twill.rw, twill.bs),
        twill.jobs.to_string(),
        array,
        figure(default),
        figure(best) + &setting,
        figure(Some(twill)),
        ratio(Some(twill), best),
        figure(ceiling),
        ratio(Some(twill), ceiling),
        figure(engine),
        ratio(engine, best),
        p99(best),
        p99(Some(twill)),
        amplification(best),
        amplification(Some(twill)),
    ];
    format!("| {} |\n", cells.join(" | "))
}

/// Bytes at the members by bytes of requests.
fn amplification(run: Option<&Run>) -> String {
    let Some(run) = run.filter(|run| run.operations > 0 && run.iops > 0.0) else { return "-".into() };
    let user = run.operations as f64 * run.bytes_per_s / run.iops;
    format!("{:.2}+{:.2}", run.member_read_bytes as f64 / user, run.member_written_bytes as f64 / user)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(who: &str, iops: f64) -> Run {
        let of_array = who != "ceiling";
        let word = |word: &str| if of_array { word.to_owned() } else { "-".to_owned() };
        Run {
            members: "null_blk".into(),
            level: word("5"),
            rw: "randwrite".into(),
            bs: "4k".into(),
            jobs: 1,
            health: word("clean"),
            bitmap: word("none"),
            who: who.into(),
            iops,
            bytes_per_s: iops * 4096.0,
            p99_us: 7.0,
            member_read_bytes: 2 * 4096 * 10,
            member_written_bytes: 2 * 4096 * 10,
            operations: 10,
        }
    }

    #[test]
    fn a_row_compares_with_the_best_of_md_and_with_the_ceiling() {
        let runs = vec![
            one("ceiling", 400.0),
            one("md 0/256", 50.0),
            one("twill", 200.0),
            one("md 4/256", 100.0),
            one("engine", 300.0),
        ];
        let report = Report { kernel: "7".into(), seconds: 1, runs };
        let text = text(&report);
        let row = "| 5 | randwrite 4k | 1 | clean | 50 | 100 (4/256) | 200 | 2.00 | 400 | 0.50 | 300 | 3.00 | 7 | 7 | 2.00+2.00 | 2.00+2.00 |";
        assert!(text.contains(row), "{text}");
        let other = Run { health: "degraded".into(), ..one("md 2/256", 999.0) };
        let report = Report { runs: [report.runs, vec![other]].concat(), ..Report::default() };
        assert!(super::text(&report).contains("| 100 (4/256) |"), "a degraded run is another row's");
    }
}
