//! `cargo xtask vm power-cuts`: tests/vm/power-cuts.sh with as many cuts as are asked for, counted in docs/power-cuts.md.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::figures::Kept;
use crate::machine;

const SCRIPT: &str = "tests/vm/power-cuts.sh";
const PAGE: &str = "docs/power-cuts.md";
const SECTION: &str = "power-cuts";
/// Kinds of arrays: Twill's with md's format, zoned ones in zones of software, md's own.
const KINDS: [&str; 3] = ["twill", "zoned", "md"];

/// Arguments of `cargo xtask vm power-cuts`.
#[derive(clap::Args)]
#[command(
    after_help = "Example: what docs/power-cuts.md says\n  cargo xtask vm power-cuts --cuts 200 --publish"
)]
pub struct Arguments {
    /// Cuts of each kind of array, one after the other on the same one
    #[arg(long, default_value_t = 10)]
    cuts: u32,
    /// First seed
    #[arg(long, default_value_t = 1)]
    seed: u32,
    /// Only this kind of array
    #[arg(long, value_parser = KINDS)]
    who: Option<String>,
    /// The program under test; without it target/release/twill, built first
    #[arg(long)]
    twill: Option<PathBuf>,
    #[command(flatten)]
    kept: Kept,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Report {
    kernel: String,
    cuts: Vec<Cut>,
    /// How the runs ended that did not reach their last cut.
    failures: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Cut {
    who: String,
    seed: u32,
    /// `N of M unflushed writes lost or torn`.
    lost: String,
    /// Files that had to be there.
    files: u64,
    /// Transactions of the database that had to be there.
    rows: u64,
}

#[derive(Deserialize)]
struct Machine {
    kernel: String,
}

/// Runs the cuts of each, one after the other.
pub fn run(root: &Path, arguments: &Arguments) -> Result<ExitCode> {
    let report = arguments.kept.or_measure(Report::join, || cut(root, arguments))?;
    arguments.kept.keep(&report)?;
    arguments.kept.show(&text(&report), &root.join(PAGE), SECTION)?;
    Ok(if report.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn cut(root: &Path, arguments: &Arguments) -> Result<Report> {
    let twill = machine::program(root, arguments.twill.as_deref())?;
    let mut report = Report::default();
    let is_wanted = |who: &&str| arguments.who.as_ref().is_none_or(|wanted| wanted == who);
    for who in KINDS.into_iter().filter(is_wanted) {
        let words = [who.to_owned(), arguments.cuts.to_string(), arguments.seed.to_string()];
        let (status, last) =
            machine::run_script(root, (SCRIPT, &words), &twill, &[], &format!("{who}: "), |json| {
                report.take(json)?;
                arguments.kept.keep(&report)
            })?;
        if status != 0 {
            report.failures.push(format!("{who}: status {status}: {last}"));
        }
    }
    Ok(report)
}

impl Report {
    /// The cuts of another time as well.
    fn join(mut self, other: Report) -> Result<Report> {
        if self.kernel != other.kernel {
            bail!("cuts on Linux {} and {} are not of one table", self.kernel, other.kernel);
        }
        self.cuts.extend(other.cuts);
        self.failures.extend(other.failures);
        Ok(self)
    }

    fn take(&mut self, json: &str) -> Result<()> {
        match serde_json::from_str(json) {
            Ok(cut) => self.cuts.push(cut),
            Err(_) => self.kernel = serde_json::from_str::<Machine>(json).context(SCRIPT)?.kernel,
        }
        Ok(())
    }
}

fn text(report: &Report) -> String {
    let mut text = format!("Linux {}.\n\n", report.kernel);
    text += "| array of | cuts | unflushed writes at the cuts | lost or torn of them | flushed files checked | committed rows checked | failures |\n|---|---|---|---|---|---|---|\n";
    for who in KINDS {
        let cuts: Vec<&Cut> = report.cuts.iter().filter(|cut| cut.who == who).collect();
        let numbers = |cut: &&Cut| -> (u64, u64) {
            let mut words = cut.lost.split(' ').filter_map(|word| word.parse().ok());
            (words.next().unwrap_or(0), words.next().unwrap_or(0))
        };
        let (lost, unflushed) =
            cuts.iter().map(numbers).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        let files: u64 = cuts.iter().map(|cut| cut.files).sum();
        let rows: u64 = cuts.iter().map(|cut| cut.rows).sum();
        let failures = report.failures.iter().filter(|failure| failure.starts_with(who)).count();
        if !cuts.is_empty() || failures > 0 {
            text += &format!(
                "| {who} | {} | {unflushed} | {lost} | {files} | {rows} | {failures} |\n",
                cuts.len()
            );
        }
    }
    for failure in &report.failures {
        text += &format!("\nFailed: {failure}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_are_summed_for_each_and_a_failure_is_said() {
        let mut report = Report::default();
        report.take(r#"{"kernel": "7.2"}"#).unwrap();
        for seed in [1, 2] {
            report.take(&format!(r#"{{"who": "twill", "seed": {seed}, "lost": "3 of 10 unflushed writes lost or torn", "files": 5, "rows": 4}}"#)).unwrap();
        }
        let other =
            Report { kernel: "7.2".into(), cuts: Vec::new(), failures: vec!["md: status 1: e2fsck".into()] };
        let report = report.join(other).unwrap();
        let text = text(&report);
        assert!(
            text.contains("| twill | 2 | 20 | 6 | 10 | 8 | 0 |\n| md | 0 | 0 | 0 | 0 | 0 | 1 |"),
            "{text}"
        );
        assert!(text.contains("Failed: md: status 1: e2fsck"));
    }
}
