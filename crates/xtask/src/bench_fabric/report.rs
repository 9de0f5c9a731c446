//! What a run of the benchmark measured, and its table.

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use crate::figures::{median, with_range};

/// One run of fio.
#[derive(Clone, Serialize, Deserialize)]
pub struct Point {
    pub level: u32,
    /// Where parity is made: `host`, `peer` or `auto`.
    pub mode: String,
    pub size: String,
    pub bytes_s: f64,
    pub latency_us: f64,
    /// Bytes at the host's interface for each byte written, Ethernet headers and acknowledgements included.
    pub sent: f64,
    pub received: f64,
}

/// All runs.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct Report {
    pub targets: usize,
    pub rate_mbit: u32,
    pub points: Vec<Point>,
}

impl Report {
    /// Two runs of one setting as one.
    pub fn join(mut self, other: Report) -> Result<Report> {
        if (self.targets, self.rate_mbit) != (other.targets, other.rate_mbit) {
            bail!("the runs have other targets or rates");
        }
        self.points.extend(other.points);
        Ok(self)
    }

    fn of<'a>(&'a self, level: u32, size: &'a str, mode: &'a str) -> impl Iterator<Item = &'a Point> {
        let wanted = move |point: &&Point| point.level == level && point.size == size && point.mode == mode;
        self.points.iter().filter(wanted)
    }
}

/// The table, in Markdown.
pub fn text(report: &Report) -> String {
    let mut rows: Vec<(u32, &str)> = Vec::new();
    for point in &report.points {
        let row = (point.level, point.size.as_str());
        if !rows.contains(&row) {
            rows.push(row);
        }
    }
    let mut text = format!(
        "Random writes over NBD, depth 32, {} targets, chunk 512 KiB, links {}; medians of {} runs.\n\n\
         | level, size | host, MB/s | peer, MB/s | peer / host (range) | auto / the better (range) | host, bytes sent / received | peer, bytes sent / received |\n\
         |---|---|---|---|---|---|---|\n",
        report.targets,
        match report.rate_mbit {
            0 => "without a limit".to_owned(),
            rate => format!("of {rate} Mbit/s each way"),
        },
        rows.first().map_or(0, |(level, size)| report.of(*level, size, "host").count()),
    );
    for (level, size) in rows {
        let median_of = |mode, what: fn(&Point) -> f64| median(report.of(level, size, mode).map(what));
        let rate = |mode| median_of(mode, |point| point.bytes_s / 1e6);
        let rates = |mode| report.of(level, size, mode).map(|point| point.bytes_s);
        let pairs = || rates("host").zip(rates("peer"));
        let ratios = with_range(pairs().map(|(host, peer)| peer / host).collect());
        let better = pairs().zip(rates("auto")).map(|((host, peer), auto)| auto / host.max(peer));
        let better = with_range(better.collect());
        let bytes = |mode| {
            let (sent, received) =
                (median_of(mode, |point| point.sent), median_of(mode, |point| point.received));
            format!("{sent:.2} / {received:.2}")
        };
        text += &format!(
            "| RAID-{level}, {size} | {:.1} | {:.1} | {ratios} | {better} | {} | {} |\n",
            rate("host"),
            rate("peer"),
            bytes("host"),
            bytes("peer"),
        );
    }
    text
}
