//! `sim experiment zoned`: how fast the log engine writes to drives that take the times of ZapRAID's Fig. 2, beside what those
//! times alone allow. Virtual time: the engine costs nothing, so what lies between the two is what it makes the drives wait.
//! What came out is in `docs/zoned.md`.
//!
//! Rows are the points of the paper's experiments 1, 3, 4 and 6 on one open segment. What the authors' RAIZN stand-in does is
//! not run.

mod array;
mod drive;
mod model;

use engine::zone_device::timing::DriveModel;
use layout::geometry::Level;
use serde::Serialize;

/// Blocks of 4 KiB in 64 KiB and the like.
const BLOCK_KIB: u16 = 4;
/// The paper's stripe group.
const GROUP: u16 = 256;
/// The paper's depth.
const DEPTH: u32 = 64;
/// What an engine has to reach of the drives' own times, in percent.
pub const WANTED_PERCENT: f64 = 95.0;

/// How zones are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// In order, as the paper's ZoneWrite-Only.
    ZoneWrite,
    /// By appends in groups, as the paper's ZapRAID; a group of a whole segment is its ZoneAppend-Only.
    Append {
        /// Stripes of a group.
        group: u16,
    },
    /// As ZapRAID, but stripes that are not full go when another returns.
    Twill,
}

impl Mode {
    const ZAPRAID: Mode = Mode::Append { group: GROUP };

    fn group(self) -> Option<u16> {
        match self {
            Mode::ZoneWrite => None,
            Mode::Append { group } => Some(group),
            Mode::Twill => Some(GROUP),
        }
    }

    fn words(self) -> String {
        match self {
            Mode::ZoneWrite => "zone write".to_owned(),
            Mode::ZAPRAID => "zapraid".to_owned(),
            Mode::Append { group } => format!("groups of {group}"),
            Mode::Twill => "twill".to_owned(),
        }
    }
}

/// One point: random writes of one size, so many in flight, to one open segment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Number of the paper's experiment.
    pub experiment: u32,
    /// Level.
    #[serde(serialize_with = "level_words")]
    pub level: Level,
    /// Members.
    pub members: u8,
    /// How zones are written.
    pub mode: Mode,
    /// KiB of a chunk.
    pub chunk_kib: u16,
    /// KiB of a request.
    pub request_kib: u16,
    /// Requests in flight.
    pub depth: u32,
    /// Whether the drive is FEMU's rather than the ZN540.
    pub is_femu: bool,
}

impl Point {
    fn chunk_blocks(&self) -> u16 {
        self.chunk_kib / BLOCK_KIB
    }

    fn request_blocks(&self) -> u16 {
        self.request_kib / BLOCK_KIB
    }

    fn drive(&self) -> DriveModel {
        if self.is_femu { DriveModel::Femu } else { DriveModel::Zn540 }
    }

    /// Data chunks of a stripe.
    fn data_chunks(&self) -> u8 {
        match self.level {
            Level::Raid0 => self.members,
            Level::Raid10 => self.members / 2,
            Level::Raid6 => self.members - 2,
            _ => self.members - 1,
        }
    }
}

fn level_words<S: serde::Serializer>(level: &Level, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(level)
}

/// What came out of a point.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Speed {
    /// Requests, in MiB a second.
    pub mib_per_s: f64,
    /// Median latency in microseconds.
    pub median_us: f64,
    /// 95th percentile of the latency in microseconds.
    pub p95_us: f64,
}

impl Speed {
    /// Of requests of so many bytes: their latencies, and the time from the first of them to the last.
    fn of(mut latencies_ns: Vec<u64>, request_bytes: u64, elapsed_ns: u64) -> Speed {
        let mib = (latencies_ns.len() as u64 * request_bytes) as f64 / f64::from(1 << 20);
        latencies_ns.sort_unstable();
        Speed {
            mib_per_s: mib / (elapsed_ns as f64 / 1e9),
            median_us: super::quantile_us(&latencies_ns, 0.5),
            p95_us: super::quantile_us(&latencies_ns, 0.95),
        }
    }
}

/// A point, what the engine made of it, and what the drives' times allow.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Row {
    /// The point.
    pub point: Point,
    /// The engine.
    pub engine: Speed,
    /// An event simulation of the drives alone.
    pub model: Speed,
}

impl Row {
    /// The engine's speed in percent of what the drives' times allow.
    pub fn percent(&self) -> f64 {
        100.0 * self.engine.mib_per_s / self.model.mib_per_s
    }

    /// A line of the table.
    pub fn words(&self) -> String {
        let Row { point, engine, model } = self;
        let data = point.data_chunks();
        format!(
            "{:>3}  {:<7}{}+{}  {:<15}{:>5}{:>8}{:>6}{:>10.1}{:>10.1}{:>8.1}{:>10.1}{:>8.1}",
            point.experiment,
            point.level.to_string(),
            data,
            point.members - data,
            format!("{}{}", point.mode.words(), if point.is_femu { ", femu" } else { "" }),
            point.chunk_kib,
            point.request_kib,
            point.depth,
            engine.mib_per_s,
            model.mib_per_s,
            self.percent(),
            engine.median_us,
            engine.p95_us,
        )
    }
}

/// The heading of the lines of [`Row::words`].
pub fn heading() -> String {
    format!(
        "exp  level  k+m  {:<15}{:>5}{:>8}{:>6}{:>10}{:>10}{:>8}{:>10}{:>8}",
        "zones", "chunk", "request", "depth", "MiB/s", "model", "%", "median us", "p95"
    )
}

/// All points.
pub fn points() -> Vec<Point> {
    let base = Point {
        experiment: 1,
        level: Level::Raid5,
        members: 4,
        mode: Mode::ZAPRAID,
        chunk_kib: 4,
        request_kib: 4,
        depth: DEPTH,
        is_femu: false,
    };
    let modes = [Mode::ZoneWrite, Mode::Append { group: array::GROUP_MAX }, Mode::ZAPRAID, Mode::Twill];
    let chunks = [4, 8, 16];
    let mut points = Vec::new();
    for mode in modes {
        points.extend(chunks.map(|chunk| Point { mode, chunk_kib: chunk, request_kib: chunk, ..base }));
        points.extend([8, 16].map(|chunk| Point { mode, chunk_kib: chunk, ..base }));
    }
    for group in [4, 16, 64, 256, 1024, 4096] {
        let mode = Mode::Append { group };
        let point = |chunk| Point { experiment: 3, mode, chunk_kib: chunk, request_kib: chunk, ..base };
        points.extend(chunks.map(point));
    }
    for level in [Level::Raid0, Level::Raid10, Level::Raid4, Level::Raid5, Level::Raid6] {
        for mode in [Mode::ZoneWrite, Mode::ZAPRAID] {
            let point =
                |chunk| Point { experiment: 4, level, mode, chunk_kib: chunk, request_kib: chunk, ..base };
            points.extend(chunks.map(point));
        }
    }
    for (is_femu, members, depths) in [(false, 4, &[4, 8, 16, 64][..]), (true, 7, &[4, 16, 64, 128])] {
        for depth in depths.iter().copied() {
            let own = Point { experiment: 6, members, depth, is_femu, ..base };
            // The paper says 4 KiB of FEMU's, but what it measured doubles with the chunk.
            points.extend(chunks.map(|chunk| Point { chunk_kib: chunk, request_kib: chunk, ..own }));
        }
    }
    points
}

/// Runs a point with so many requests.
pub fn run(point: &Point, requests: u64) -> Row {
    Row { point: *point, engine: array::run(point, requests), model: model::run(point, requests) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A gate: one of each mode, level and drive.
    #[test]
    fn the_engine_makes_drives_wait_for_nothing() {
        let all = points();
        let chosen = all.iter().step_by(7);
        for point in chosen {
            let row = run(point, 3000);
            println!("{}", row.words());
            assert!(row.percent() >= WANTED_PERCENT, "{}", row.words());
        }
    }
}
