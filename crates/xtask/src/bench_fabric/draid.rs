//! `cargo xtask bench-draid`: what the figures of the dRAID paper show, over sockets and links of a limited rate, each with parity
//! made at the host and at the targets of the same program.

mod experiments;
mod key_value;
mod load;
mod objects;
mod report;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};

use super::links::Links;
use super::rack::Rack;
use super::setting::Setting;
use crate::machine;
use experiments::{Case, EXPERIMENTS, Experiment};
use report::Point;

const PAGE: &str = "docs/draid.md";
const SECTION: &str = "draid-sockets";
const QUICK_SECONDS: u32 = 2;

/// Arguments of `cargo xtask bench-draid`.
#[derive(clap::Args)]
#[command(
    after_help = "It needs root, for network namespaces. Examples: all figures, roughly, in a quarter of an hour; two of them, exactly\n  \
                  cargo xtask bench-draid --quick\n  cargo xtask bench-draid --only fig10,fig15 --json figures.json"
)]
pub struct Arguments {
    #[command(flatten)]
    setting: Setting,
    /// Only these experiments, like fig10,fig15
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    only: Vec<String>,
    /// 2 s each, one round, fewer places on the x axis
    #[arg(long, conflicts_with_all = ["seconds", "rounds"])]
    quick: bool,
}

/// Runs it and prints the tables.
pub fn run(root: &Path, arguments: &Arguments) -> Result<ExitCode> {
    let kept = &arguments.setting.kept;
    kept.points(|| measure(root, arguments), report::text, &root.join(PAGE), SECTION)
}

fn measure(root: &Path, arguments: &Arguments) -> Result<Vec<Point>> {
    let twill = machine::program(root, arguments.setting.twill.as_deref())?;
    let mut points = Vec::new();
    for experiment in chosen(&arguments.only)? {
        if let Some(missing) = experiment.missing() {
            eprintln!("{} is left out: {missing}", experiment.name);
            continue;
        }
        experiment_points(&twill, experiment, arguments, &mut points)?;
    }
    Ok(points)
}

/// The experiments of these names; without names all.
fn chosen(names: &[String]) -> Result<Vec<&'static Experiment>> {
    if let Some(unknown) = names.iter().find(|name| EXPERIMENTS.iter().all(|one| one.name != **name)) {
        let all: Vec<&str> = EXPERIMENTS.iter().map(|one| one.name).collect();
        bail!("--only {unknown}: the experiments are {}", all.join(", "));
    }
    let wanted = |one: &&Experiment| names.is_empty() || names.iter().any(|name| name == one.name);
    Ok(EXPERIMENTS.iter().filter(wanted).collect())
}

fn experiment_points(
    twill: &Path,
    experiment: &Experiment,
    arguments: &Arguments,
    points: &mut Vec<Point>,
) -> Result<()> {
    let Setting { rate, seconds, rounds, .. } = arguments.setting;
    let (seconds, rounds) = if arguments.quick { (QUICK_SECONDS, 1) } else { (seconds, rounds) };
    let cases = experiment.cases(arguments.quick);
    let widest = cases.iter().map(|case| case.array.targets).max().unwrap_or(0);
    let links = Links::new(&vec![rate / experiment.narrower; widest], rate)?;
    for round in 1..=rounds {
        let mut rack: Option<(Rack<'_>, bool)> = None;
        for case in &cases {
            rack = rack.filter(|(rack, degraded)| rack.array == case.array && (case.degraded || !degraded));
            let (rack, degraded) = match &mut rack {
                Some(same) => same,
                none => none.insert((Rack::start(twill, &links, case.array)?, false)),
            };
            if case.degraded && !*degraded {
                rack.fail(0)?;
                *degraded = true;
            }
            let point = point(rack, experiment, case, (rate, seconds))?;
            eprintln!("{}, round {round}: {}", experiment.name, point.line());
            points.push(point);
            arguments.setting.kept.keep(points)?;
        }
    }
    Ok(())
}

fn point(
    rack: &Rack<'_>,
    experiment: &Experiment,
    case: &Case,
    (rate, seconds): (u32, u32),
) -> Result<Point> {
    let measured = case.load.run(rack, seconds)?;
    Ok(Point {
        experiment: experiment.name.to_owned(),
        panel: case.panel.clone(),
        series: case.series.clone(),
        x: case.x.clone(),
        bytes_per_s: measured.work.bytes_s,
        latency_us: measured.work.latency_us,
        sent: measured.sent,
        received: measured.received,
        rate_mbit: rate,
        seconds,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experiments_are_chosen_by_name_and_an_unknown_name_is_refused() {
        let names = |only: &[&str]| {
            let only: Vec<String> = only.iter().map(|&name| name.to_owned()).collect();
            chosen(&only).map(|all| all.iter().map(|one| one.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&[]).unwrap().len(), EXPERIMENTS.len());
        assert_eq!(names(&["fig15", "fig10"]).unwrap(), ["fig10", "fig15"]);
        assert!(names(&["fig99"]).unwrap_err().to_string().contains("fig10"));
    }
}
