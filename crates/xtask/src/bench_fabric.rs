//! `cargo xtask bench-fabric`: an array over targets behind links of a limited rate, with its parity made at the host and at the
//! targets in turns: throughput, and bytes at the host's network interface for each byte of its clients.
//!
//! Every target and the host has a network namespace of its own; all links go to one bridge and are shaped in both directions, so
//! that the links are the limit and not the processors.

pub mod draid;
mod links;
pub mod lost_reads;
mod rack;
mod report;
mod setting;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;

use crate::machine;
use links::Links;
use rack::{Array, Rack};
use report::{Point, Report};
use setting::Setting;

const PAGE: &str = "docs/fabric.md";
const SECTION: &str = "bench-fabric";
/// With `--rate 0`.
const SECTION_UNLIMITED: &str = "bench-fabric-unlimited";

/// Arguments of `cargo xtask bench-fabric`.
#[derive(clap::Args)]
#[command(
    after_help = "It needs root, for network namespaces. Example: a quarter of an hour, and the table goes into docs/fabric.md\n  cargo xtask bench-fabric --publish"
)]
pub struct Arguments {
    #[command(flatten)]
    setting: Setting,
    /// Members of the array, each on a target of its own
    #[arg(long, default_value_t = 6)]
    targets: usize,
    /// Levels
    #[arg(long, value_delimiter = ',', default_value = "5,6")]
    levels: Vec<u32>,
    /// Sizes of random writes
    #[arg(long, value_delimiter = ',', default_value = "4k,16k,64k,128k")]
    sizes: Vec<String>,
}

/// Runs it and prints the table.
pub fn run(root: &Path, arguments: &Arguments) -> Result<ExitCode> {
    let report = arguments.setting.kept.or_measure(Report::join, || measure(root, arguments))?;
    arguments.setting.kept.keep(&report)?;
    let section = if report.rate_mbit == 0 { SECTION_UNLIMITED } else { SECTION };
    arguments.setting.kept.show(&report::text(&report), &root.join(PAGE), section)?;
    Ok(if report.points.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn measure(root: &Path, arguments: &Arguments) -> Result<Report> {
    let twill = machine::program(root, arguments.setting.twill.as_deref())?;
    let &Arguments { targets, setting: Setting { rate, .. }, .. } = arguments;
    let links = Links::new(&vec![rate; targets], rate)?;
    let mut report = Report { targets, rate_mbit: rate, points: Vec::new() };
    for &level in &arguments.levels {
        for round in 0..arguments.setting.rounds {
            for fabric in ["host", "peer", "auto"] {
                let rack = Rack::start(&twill, &links, Array::new(targets, level, fabric))?;
                for size in &arguments.sizes {
                    let point = write(&rack, level, fabric, size, arguments.setting.seconds)?;
                    eprintln!(
                        "RAID-{level}, {fabric}, {size}, round {}: {:.1} MB/s",
                        round + 1,
                        point.bytes_s / 1e6
                    );
                    report.points.push(point);
                    arguments.setting.kept.keep(&report)?;
                }
            }
        }
    }
    Ok(report)
}

/// Random writes of one size.
fn write(rack: &Rack<'_>, level: u32, fabric: &str, size: &str, seconds: u32) -> Result<Point> {
    let measured = rack.measure(|| rack.fio("randwrite", size, 32, seconds, &[]))?;
    Ok(Point {
        level,
        mode: fabric.to_owned(),
        size: size.to_owned(),
        bytes_s: measured.work.bytes_s,
        latency_us: measured.work.latency_us,
        sent: measured.sent,
        received: measured.received,
    })
}
