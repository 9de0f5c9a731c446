//! `sim experiment zoned`: how fast the log engine writes to drives that take the times of ZapRAID's Fig. 2, beside what those
//! times alone allow. Virtual time: the engine costs nothing, so what lies between the two is what it makes the drives wait.
//! What came out is in `docs/zoned.md`.
//!
//! Rows are the points of the paper's experiments 1, 3, 4 and 6 on one open segment, and of 7 on four. What the authors' RAIZN
//! stand-in does is not run.

mod array;
mod drive;
mod model;
mod point;
pub mod reclaim;

use layout::geometry::Level;
use serde::Serialize;

use self::point::GROUP_MAX;
pub use self::point::{Mode, Point, Speed};

/// The paper's depth.
const DEPTH: u32 = 64;
/// What an engine has to reach of the drives' own times, in percent.
pub const WANTED_PERCENT: f64 = 95.0;

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
            "{:>3}  {:<7}{}+{}  {:<15}{:>5}{:>7}{:>8}{:>6}{:>10.1}{:>10.1}{:>8.1}{:>10.1}{:>8.1}",
            point.experiment,
            point.level.to_string(),
            data,
            point.members - data,
            format!("{}{}", point.mode.words(), if point.is_femu { ", femu" } else { "" }),
            format!("{},{}", point.open[0], point.open[1]),
            match point.chunk_kib {
                [small, large] if small == large => small.to_string(),
                [small, large] => format!("{small},{large}"),
            },
            if point.request_kib > 0 { point.request_kib.to_string() } else { "mix".to_owned() },
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
        "exp  level  k+m  {:<15}{:>5}{:>7}{:>8}{:>6}{:>10}{:>10}{:>8}{:>10}{:>8}",
        "zones", "Ns,Nl", "chunk", "request", "depth", "MiB/s", "model", "%", "median us", "p95"
    )
}

/// All points.
pub fn points() -> Vec<Point> {
    let base = Point {
        experiment: 1,
        level: Level::Raid5,
        members: 4,
        mode: Mode::ZAPRAID,
        open: [1, 0],
        chunk_kib: [4; 2],
        request_kib: 4,
        depth: DEPTH,
        is_femu: false,
    };
    let modes = [Mode::ZoneWrite, Mode::Append { group: GROUP_MAX }, Mode::ZAPRAID, Mode::Twill];
    let chunks = [4, 8, 16];
    let mut points = Vec::new();
    for mode in modes {
        points.extend(chunks.map(|chunk| Point { mode, chunk_kib: [chunk; 2], request_kib: chunk, ..base }));
        points.extend([8, 16].map(|chunk| Point { mode, chunk_kib: [chunk; 2], ..base }));
    }
    for group in [4, 16, 64, 256, 1024, 4096] {
        let mode = Mode::Append { group };
        let point = |chunk| Point { experiment: 3, mode, chunk_kib: [chunk; 2], request_kib: chunk, ..base };
        points.extend(chunks.map(point));
    }
    for level in [Level::Raid0, Level::Raid10, Level::Raid4, Level::Raid5, Level::Raid6] {
        for mode in [Mode::ZoneWrite, Mode::ZAPRAID] {
            let point = |chunk| Point {
                experiment: 4,
                level,
                mode,
                chunk_kib: [chunk; 2],
                request_kib: chunk,
                ..base
            };
            points.extend(chunks.map(point));
        }
    }
    for (is_femu, members, depths) in [(false, 4, &[4, 8, 16, 64][..]), (true, 7, &[4, 16, 64, 128])] {
        for depth in depths.iter().copied() {
            let own = Point { experiment: 6, members, depth, is_femu, ..base };
            // The paper says 4 KiB of FEMU's, but what it measured doubles with the chunk.
            points.extend(chunks.map(|chunk| Point { chunk_kib: [chunk; 2], request_kib: chunk, ..own }));
        }
    }
    points.extend(hybrid_points(&base));
    points
}

/// Experiment 7: four open segments with chunks of 8 and 16 KiB, as many of each kind as the paper has.
fn hybrid_points(base: &Point) -> Vec<Point> {
    let base = Point { experiment: 7, chunk_kib: [8, 16], ..*base };
    let mut points = Vec::new();
    for request_kib in [4, 8, 16, 0] {
        for small in (0..=4).rev() {
            let open = [small, 4 - small];
            let modes = [Mode::ZoneWrite, Mode::Append { group: GROUP_MAX }, Mode::ZAPRAID, Mode::Twill];
            points.extend(modes.map(|mode| Point { open, request_kib, mode, ..base }));
        }
    }
    points
}

/// Writes `requests` times at a point, with the engine and with the drives alone.
pub fn run(point: &Point, requests: u64) -> Row {
    Row { point: *point, engine: array::run(point, requests), model: model::run(point, requests) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A gate: one of each mode, level and drive.
    #[test]
    fn the_engine_makes_drives_wait_for_nothing() {
        for point in points().iter().step_by(5) {
            let row = run(point, 3000);
            println!("{}", row.words());
            assert!(row.percent() >= WANTED_PERCENT, "{}", row.words());
        }
    }

    /// Experiment 7: whatever the segments and requests, hybrid management is nearly as good as the better of writes and appends
    /// alone. (The paper's rule is not, on these drives: it appends whenever no other segment is idle.)
    #[test]
    fn hybrid_management_is_never_much_below_the_best() {
        let all: Vec<Point> = points().into_iter().filter(|point| point.experiment == 7).collect();
        for cell in all.chunks(4) {
            let speed = |mode: Mode| {
                let point = cell.iter().find(|point| point.mode == mode).expect("each mode is in each cell");
                array::run(point, 6000).mib_per_s
            };
            let best = speed(Mode::ZoneWrite).max(speed(Mode::Append { group: GROUP_MAX }));
            let (own, Point { open, request_kib, .. }) = (speed(Mode::Twill), cell[0]);
            println!("{open:?} segments, {request_kib} KiB: {own:.1} of {best:.1} MiB/s");
            assert!(
                own >= 0.95 * best,
                "{open:?} segments, {request_kib} KiB: {own:.1} MiB/s, the best {best:.1}"
            );
        }
    }
}
