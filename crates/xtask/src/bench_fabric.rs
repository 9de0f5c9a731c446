//! `cargo xtask bench-fabric`: an array over targets behind links of a limited rate, with its parity made at the host and at the
//! targets in turns: throughput, and bytes at the host's network interface for each byte of its clients.
//!
//! Every target and the host has a network namespace of its own; all links go to one bridge and are shaped in both directions, so
//! that the links are the limit and not the processors.

mod links;
pub mod lost_reads;
mod rack;
mod report;
mod setting;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::machine;
use links::Links;
use rack::{Array, Rack};
use report::{Point, Report};
use setting::Setting;

const PAGE: &str = "docs/fabric.md";
const SECTION: &str = "bench-fabric";

/// Arguments of `cargo xtask bench-fabric`.
#[derive(clap::Args)]
#[command(
    after_help = "It needs root, for network namespaces. Example: a quarter of an hour, and the table goes into docs/fabric.md\n  cargo xtask bench-fabric --publish"
)]
pub struct Arguments {
    #[command(flatten)]
    setting: Setting,
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
    arguments.setting.kept.show(&report::text(&report), &root.join(PAGE), SECTION)?;
    Ok(if report.points.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn measure(root: &Path, arguments: &Arguments) -> Result<Report> {
    let twill = machine::program(root, arguments.setting.twill.as_deref())?;
    let links = Links::new(&vec![arguments.setting.rate; arguments.setting.targets], arguments.setting.rate)?;
    let mut report =
        Report { targets: arguments.setting.targets, rate_mbit: arguments.setting.rate, points: Vec::new() };
    for &level in &arguments.levels {
        for round in 0..arguments.setting.rounds {
            for fabric in ["host", "peer", "auto"] {
                let targets = arguments.setting.targets;
                let rack =
                    Rack::start(&twill, &links, Array { targets, level, fabric, reducers: "fastest" })?;
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
    let before = rack.links.host_bytes()?;
    let write = rack.fio("randwrite", size, 32, seconds, &[])?;
    let after = rack.links.host_bytes()?;
    let bytes = write["io_bytes"].as_f64().context("bytes")?;
    Ok(Point {
        level,
        mode: fabric.to_owned(),
        size: size.to_owned(),
        bytes_s: write["bw_bytes"].as_f64().context("a rate")?,
        latency_us: write["clat_ns"]["mean"].as_f64().unwrap_or(0.0) / 1e3,
        sent: (after.0 - before.0) as f64 / bytes,
        received: (after.1 - before.1) as f64 / bytes,
    })
}
