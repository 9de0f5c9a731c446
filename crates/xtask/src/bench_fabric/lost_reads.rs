//! `cargo xtask bench-lost-reads`: reads of chunks whose member is lost, put together at the host, by any target, and by the
//! one from which they are expected first; over links of one rate, or of two.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::links::Links;
use super::rack::{Array, Measured, Rack};
use super::setting::Setting;
use crate::figures::{median, with_range};
use crate::machine;

const PAGE: &str = "docs/fabric.md";
const SECTION: &str = "bench-lost-reads";
/// Where a chunk is put together.
const PLACES: [(&str, &str, &str); 3] =
    [("host", "host", "fastest"), ("random", "peer", "random"), ("fastest", "peer", "fastest")];

/// Arguments of `cargo xtask bench-lost-reads`.
#[derive(clap::Args)]
#[command(
    after_help = "It needs root, for network namespaces. Example: two links of six at a quarter of the others' rate\n  cargo xtask bench-lost-reads --slow 2"
)]
pub struct Arguments {
    #[command(flatten)]
    setting: Setting,
    /// Members of the array, each on a target of its own
    #[arg(long, default_value_t = 6)]
    targets: usize,
    /// How many of the targets have slow links
    #[arg(long, default_value_t = 0)]
    slow: usize,
    /// Rate of the slow links, in Mbit/s
    #[arg(long, default_value_t = 50)]
    slow_rate: u32,
    /// Sizes of reads, and how many at a time
    #[arg(long, value_delimiter = ',', default_value = "128k:1,128k:4,128k:32")]
    loads: Vec<String>,
}

/// One run of fio.
#[derive(Clone, Serialize, Deserialize)]
struct Point {
    place: String,
    load: String,
    bytes_s: f64,
    /// Bytes that the host's interface received for each byte read.
    received: f64,
}

#[derive(Clone, Default, Serialize, Deserialize)]
struct Report {
    targets: usize,
    rate_mbit: u32,
    slow: usize,
    slow_mbit: u32,
    points: Vec<Point>,
}

impl Report {
    fn join(mut self, other: Report) -> Result<Report> {
        let setting = |one: &Report| (one.targets, one.rate_mbit, one.slow, one.slow_mbit);
        if setting(&self) != setting(&other) {
            bail!("the runs have other targets or rates");
        }
        self.points.extend(other.points);
        Ok(self)
    }
}

/// Runs it and prints the table.
pub fn run(root: &Path, arguments: &Arguments) -> Result<ExitCode> {
    let report = arguments.setting.kept.or_measure(Report::join, || measure(root, arguments))?;
    arguments.setting.kept.keep(&report)?;
    arguments.setting.kept.show(&text(&report), &root.join(PAGE), SECTION)?;
    Ok(if report.points.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn measure(root: &Path, arguments: &Arguments) -> Result<Report> {
    let &Arguments { targets, setting: Setting { rate, .. }, slow, slow_rate, .. } = arguments;
    let twill = machine::program(root, arguments.setting.twill.as_deref())?;
    // The member that is lost is the first; the slow ones are the last.
    let rates: Vec<u32> = (0..targets).map(|at| if at + slow < targets { rate } else { slow_rate }).collect();
    let links = Links::new(&rates, rate)?;
    let mut report = Report { targets, rate_mbit: rate, slow, slow_mbit: slow_rate, points: Vec::new() };
    for round in 0..arguments.setting.rounds {
        for (place, fabric, reducers) in PLACES {
            let rack = Rack::start(&twill, &links, Array { reducers, ..Array::new(targets, 5, fabric) })?;
            rack.fail(0)?;
            for load in &arguments.loads {
                let point = read(&rack, place, load, arguments.setting.seconds)?;
                eprintln!("{place}, {load}, round {}: {:.1} MB/s", round + 1, point.bytes_s / 1e6);
                report.points.push(point);
                arguments.setting.kept.keep(&report)?;
            }
        }
    }
    Ok(report)
}

fn read(rack: &Rack<'_>, place: &str, load: &str, seconds: u32) -> Result<Point> {
    let (size, depth) = load.split_once(':').context("a load is SIZE:DEPTH")?;
    let measured = read_lost(rack, size, depth.parse().context("a depth")?, seconds)?;
    Ok(Point {
        place: place.to_owned(),
        load: load.to_owned(),
        bytes_s: measured.work.bytes_s,
        received: measured.received,
    })
}

/// Reads nothing but chunks of the first member: left-symmetric RAID-5 of n members has every n-th data chunk there.
pub fn read_lost(rack: &Rack<'_>, size: &str, depth: u32, seconds: u32) -> Result<Measured> {
    let chunk_kib = rack.array.chunk_kib;
    let zone = format!("--zonesize={chunk_kib}K");
    let skip = format!("--zoneskip={}K", (rack.array.targets as u32 - 1) * chunk_kib);
    rack.measure(|| rack.fio("read", size, depth, seconds, &["--zonemode=strided", &zone, &skip]))
}

/// The table, in Markdown.
fn text(report: &Report) -> String {
    let mut loads: Vec<&str> = Vec::new();
    for point in &report.points {
        if !loads.contains(&&*point.load) {
            loads.push(&point.load);
        }
    }
    let slow = match report.slow {
        0 => String::new(),
        slow => format!(", {slow} of the targets' of {} Mbit/s", report.slow_mbit),
    };
    let mut text = format!(
        "Reads of lost chunks over NBD, RAID-5, {} targets, chunk 512 KiB, links of {} Mbit/s each way{slow}; medians of {} runs.\n\n\
         | size:depth | host, MB/s | random, MB/s | fastest, MB/s | fastest / random (range) | fastest, share of the host's link | bytes received, host | fastest |\n\
         |---|---|---|---|---|---|---|---|\n",
        report.targets,
        report.rate_mbit,
        loads.first().map_or(0, |load| of(report, load, "host").count()),
    );
    for load in loads {
        let rate = |place| median(of(report, load, place).map(|point| point.bytes_s)) / 1e6;
        let received = |place| median(of(report, load, place).map(|point| point.received));
        let pairs = of(report, load, "random").zip(of(report, load, "fastest"));
        let ratios = with_range(pairs.map(|(random, fastest)| fastest.bytes_s / random.bytes_s).collect());
        let share = rate("fastest") * 8.0 / f64::from(report.rate_mbit);
        text += &format!(
            "| {load} | {:.1} | {:.1} | {:.1} | {ratios} | {share:.2} | {:.2} | {:.2} |\n",
            rate("host"),
            rate("random"),
            rate("fastest"),
            received("host"),
            received("fastest"),
        );
    }
    text
}

fn of<'a>(report: &'a Report, load: &'a str, place: &'a str) -> impl Iterator<Item = &'a Point> {
    report.points.iter().filter(move |point| point.load == load && point.place == place)
}
