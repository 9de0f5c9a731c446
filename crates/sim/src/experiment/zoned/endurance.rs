//! `sim experiment endurance`: an array is filled, and ten times its capacity is written at random, with flushes and FUA in between, while the
//! power is cut a hundred times, also in the starts from these cuts. After each start every block is read and compared with what it may
//! hold. Virtual time, on drives with volatile caches that take the times of the paper's.
//!
//! Three promises are held for each case: nothing is lost and no write is refused for lack of space; the 99th percentile of writes is at most
//! ten times that of a new array of the same shape; and the write amplification is within the bound of its reserve. Writes of the first 5 ms
//! after a start are shown apart, too: a cut costs the rest of the open segments, and reclaim is behind then. What came out is in
//! `docs/zoned.md`.

mod trial;

use engine::log::config::{MapLimits, ReclaimOptions};
use engine::log::reclaim::choose::ReclaimPolicy;
use layout::geometry::Level;
use layout::zoned::{Access, Carrier};
use serde::Serialize;

use self::trial::{Figures, Plan};
use super::array::Array;
pub use super::places::Places;
use super::reclaim::Latencies;
use super::speed::{BLOCK_KIB, Mode};
use crate::experiment::quantile_us;

/// Reserves in hundredths of the array's size, and the write amplification that each bounds: the design's figures for uniform writes of
/// 4 KiB and greedy reclaim. Other places have none.
const BOUNDS: [(u64, f64); 3] = [(25, 2.9), (50, 1.8), (100, 1.3)];
/// The 99th percentile while reclaim works, by that of a new array: at most.
const P99_TIMES_MAX: f64 = 10.0;

/// How zones of the members are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Ordinary drives: in any order.
    Placed,
    /// Zoned drives: at the pointer, in order.
    Sequential,
    /// Zoned drives that choose the place, and keep metadata out of band.
    Append,
}

/// A case.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Point {
    /// How zones are written.
    pub kind: Kind,
    /// Where writes go.
    pub places: Places,
    /// Room for what is overwritten, in hundredths of the array's size.
    pub reserve_percent: u64,
    /// Which segments are emptied first.
    #[serde(serialize_with = "super::aged::policy_words")]
    pub policy: ReclaimPolicy,
    /// How much of it there is.
    pub size: Size,
}

/// How large the arrays are, and how much is done to them.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Size {
    /// Zones of each drive.
    pub zones: u32,
    /// Blocks of a zone.
    pub zone_blocks: u32,
    /// KiB of a small record, and of a large one.
    pub record_kib: [u16; 2],
    /// How many times the array's capacity is written.
    pub times: u64,
    /// Power cuts.
    pub cuts: u64,
    /// Groups of the map that change until a checkpoint is due. None: there are none.
    pub changed_groups: Option<usize>,
}

impl Size {
    /// As in `docs/zoned.md`.
    pub const WHOLE: Size = Size {
        zones: 130,
        zone_blocks: 512,
        record_kib: [32, 128],
        times: 10,
        cuts: 100,
        changed_groups: None,
    };
}

/// What came of a case.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The case.
    pub point: Point,
    /// Blocks that clients see.
    pub logical_blocks: u64,
    /// Writes that were acknowledged, fills apart, those with FUA among them, and flushes.
    pub writes: u64,
    /// See `writes`.
    pub fua_writes: u64,
    /// See `writes`.
    pub flushes: u64,
    /// Power cuts, and how many of them came while the array was starting.
    pub cuts: u64,
    /// See `cuts`.
    pub cuts_in_starts: u64,
    /// Starts that used a checkpoint.
    pub from_checkpoint: u64,
    /// Blocks that were compared with what they may hold.
    pub checked_blocks: u64,
    /// What was found wrong first, if anything: a block that is lost or another one's, a request that failed, a start that was refused.
    pub wrong: Option<String>,
    /// Writes that were refused for lack of space.
    pub refused: u64,
    /// Blocks written for each that clients wrote while the array served, parity, padding and metadata apart.
    pub write_amplification: f64,
    /// Blocks of the map for each that clients wrote.
    pub map_blocks: f64,
    /// Blocks that all drives wrote while the array served, for each that clients wrote: with parity, padding and metadata.
    pub drive_blocks: f64,
    /// Blocks that all drives wrote in starts, for each that clients wrote.
    pub start_blocks: f64,
    /// Milliseconds of a start, median and longest, those that were cut apart.
    pub start_ms: [f64; 2],
    /// Of all writes of 4 KiB.
    pub all: Latencies,
    /// 99th percentile in microseconds of writes that began in the first 5 ms after a start from a cut.
    pub behind_p99_us: f64,
    /// Of the others.
    pub settled_p99_us: f64,
    /// On a new array of the same shape with the same requests, and nothing to reclaim.
    pub new: Latencies,
}

/// All cases: where all blocks are written alike age says nothing and greedy reclaim is best; else the default policy.
pub fn points(size: Size) -> Vec<Point> {
    let mut points = Vec::new();
    for kind in [Kind::Placed, Kind::Sequential, Kind::Append] {
        for (places, policy) in
            [(Places::Uniform, ReclaimPolicy::Greedy), (Places::Zipf, ReclaimPolicy::default())]
        {
            for (reserve_percent, _) in BOUNDS {
                points.push(Point { kind, places, reserve_percent, policy, size });
            }
        }
    }
    points
}

/// Runs a case. The same each time.
pub fn run(point: &Point) -> Row {
    let plan = point.plan();
    let (new, worn) = (trial::on_a_new_array(&plan), trial::with_cuts(&plan));
    Row::new(point, plan.config.logical_blocks, new, worn)
}

impl Point {
    fn plan(&self) -> Plan {
        let Point { kind, places, reserve_percent, policy, size } = *self;
        let chunk_blocks = size.record_kib.map(|kib| kib / BLOCK_KIB);
        let array = Array {
            level: Level::Raid5,
            members: 4,
            mode: Mode::Twill,
            open: [1, 1],
            chunk_blocks,
            // Small: what is left of a zone behind its last whole group would be more room in reserve than is said.
            group: (size.zone_blocks / 16 / u32::from(chunk_blocks[0])).clamp(1, 256) as u16,
            zones: size.zones,
            zone_blocks: size.zone_blocks,
            access: match kind {
                Kind::Placed => Access::Placed,
                Kind::Sequential => Access::Sequential,
                Kind::Append => Access::Append,
            },
            carrier: if kind == Kind::Append { Carrier::Oob } else { Carrier::Inband },
        };
        let mut config = array.config(array.logical_blocks(reserve_percent));
        config.reclaim = ReclaimOptions { policy, idle_ns: None };
        config.map_limits = MapLimits { groups: None, changed: size.changed_groups };
        Plan { config, places, times: size.times, cuts: size.cuts }
    }

    fn bound(&self) -> Option<f64> {
        if self.places != Places::Uniform {
            return None;
        }
        BOUNDS.iter().find(|(reserve, _)| *reserve == self.reserve_percent).map(|(_, bound)| *bound)
    }
}

/// What cells of a row are.
const HEADS: [&str; 13] = [
    "members",
    "writes",
    "reserve",
    "policy",
    "nothing lost, none refused",
    "write amplification, bound",
    "p99 us, new array's",
    "times, at most 10",
    "after starts, others",
    "MiB/s",
    "drives wrote",
    "in starts",
    "start ms, longest",
];

impl Row {
    fn new(point: &Point, logical_blocks: u64, new: Figures, worn: Figures) -> Self {
        let user_blocks = worn.user_blocks as f64;
        let per_user = |blocks: u64| blocks as f64 / user_blocks;
        let sorted = |mut all: Vec<u64>| {
            all.sort_unstable();
            all
        };
        let starts_ns = sorted(worn.starts_ns);
        let all_ns = [&worn.took_ns[..], &worn.behind_ns].concat();
        let p99_us = |took_ns: Vec<u64>| quantile_us(&sorted(took_ns), 0.99);
        Row {
            point: *point,
            logical_blocks,
            writes: all_ns.len() as u64,
            fua_writes: worn.fua_writes,
            flushes: worn.flushes,
            cuts: worn.cuts,
            cuts_in_starts: worn.cuts_in_starts,
            from_checkpoint: worn.from_checkpoint,
            checked_blocks: worn.checked_blocks,
            refused: worn.refused,
            write_amplification: 1.0 + per_user(worn.moved_blocks),
            map_blocks: per_user(worn.map_blocks),
            drive_blocks: per_user(worn.drive_blocks),
            start_blocks: per_user(worn.start_blocks),
            start_ms: [0.5, 1.0].map(|share| quantile_us(&starts_ns, share) / 1e3),
            all: Latencies::new(all_ns, worn.serving_ns),
            behind_p99_us: p99_us(worn.behind_ns),
            settled_p99_us: p99_us(worn.took_ns),
            new: Latencies::new(new.took_ns, new.serving_ns),
            wrong: worn.wrong.or(new.wrong),
        }
    }

    /// The 99th percentile while reclaim works, by that of a new array.
    pub fn p99_times(&self) -> f64 {
        self.all.p99_us / self.new.p99_us
    }

    /// Nothing is lost, and no write was refused.
    pub fn keeps_everything(&self) -> bool {
        self.wrong.is_none() && self.refused == 0 && self.cuts == self.point.size.cuts
    }

    /// Writes do not wait much longer than on a new array.
    pub fn keeps_latency(&self) -> bool {
        self.p99_times() <= P99_TIMES_MAX
    }

    /// No more is moved than the bound of the reserve allows.
    pub fn keeps_bound(&self) -> bool {
        self.point.bound().is_none_or(|bound| self.write_amplification <= bound)
    }

    /// All three.
    pub fn holds(&self) -> bool {
        self.keeps_everything() && self.keeps_latency() && self.keeps_bound()
    }

    fn cells(&self) -> [String; HEADS.len()] {
        let Row { point, all, new, start_ms, .. } = self;
        let verdict = |holds: bool| if holds { "yes" } else { "NO" };
        let kind = match point.kind {
            Kind::Placed => "placed",
            Kind::Sequential => "sequential",
            Kind::Append => "append",
        };
        let amplification = match point.bound() {
            Some(bound) => {
                format!("{:.2}, {bound}: {}", self.write_amplification, verdict(self.keeps_bound()))
            }
            None => format!("{:.2}", self.write_amplification),
        };
        [
            kind.to_owned(),
            point.places.words().to_owned(),
            format!("{} %", point.reserve_percent),
            point.policy.to_string(),
            verdict(self.keeps_everything()).to_owned(),
            amplification,
            format!("{:.0}, {:.0}", all.p99_us, new.p99_us),
            format!("{:.1}: {}", self.p99_times(), verdict(self.keeps_latency())),
            format!("{:.0}, {:.0}", self.behind_p99_us, self.settled_p99_us),
            format!("{:.0}", all.mib_per_s),
            format!("{:.2}", self.drive_blocks),
            format!("{:.2}", self.start_blocks),
            format!("{:.1}, {:.1}", start_ms[0], start_ms[1]),
        ]
    }

    /// A line of the table.
    pub fn words(&self) -> String {
        let mut line = padded(&self.cells());
        if let Some(wrong) = &self.wrong {
            line += &format!("\n    {wrong}");
        }
        line
    }

    /// A line of the same table in Markdown.
    pub fn markdown(&self) -> String {
        format!("| {} |", self.cells().join(" | "))
    }
}

fn padded(cells: &[String]) -> String {
    let pad = |(cell, head): (&String, &&str)| format!("{cell:<width$}", width = head.len().max(12) + 2);
    cells.iter().zip(&HEADS).map(pad).collect::<String>().trim_end().to_owned()
}

/// The heading of the lines of [`Row::words`].
pub fn heading() -> String {
    padded(&HEADS.map(str::to_owned))
}

/// The heading of the lines of [`Row::markdown`].
pub fn markdown_heading() -> String {
    format!("| {} |\n|{}", HEADS.join(" | "), "---|".repeat(HEADS.len()))
}

/// What all cases did, in a sentence.
pub fn summary(rows: &[Row]) -> String {
    let sum = |of: fn(&Row) -> u64| rows.iter().map(of).sum::<u64>();
    format!(
        "{} cases: {} writes acknowledged, {} with FUA, {} flushes; {} power cuts, {} of them in starts; {} blocks compared; {} hold",
        rows.len(),
        sum(|row| row.writes),
        sum(|row| row.fua_writes),
        sum(|row| row.flushes),
        sum(|row| row.cuts),
        sum(|row| row.cuts_in_starts),
        sum(|row| row.checked_blocks),
        rows.iter().filter(|row| row.holds()).count()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Small enough for seconds: a few segments are filled between two cuts.
    const SMALL: Size = Size { zones: 34, zone_blocks: 96, ..Size::WHOLE };

    /// Of each kind of member one case of each load, with checkpoints, and all reserves. Arrays of so few segments keep the first
    /// promise alone.
    #[test]
    fn a_hundred_cuts_lose_nothing_and_refuse_nothing() {
        let all = points(Size { changed_groups: Some(4), ..SMALL });
        for (kind, wanted) in
            [(Kind::Placed, [25, 50]), (Kind::Sequential, [50, 100]), (Kind::Append, [100, 25])]
        {
            for (places, reserve_percent) in [Places::Uniform, Places::Zipf].into_iter().zip(wanted) {
                let is_it = |point: &&Point| {
                    (point.kind, point.places, point.reserve_percent) == (kind, places, reserve_percent)
                };
                let row = run(all.iter().find(is_it).expect("it is a case"));
                println!("{}", row.words());
                assert!(row.keeps_everything(), "{}", row.words());
                assert!(row.cuts_in_starts > 0 && row.fua_writes > 0 && row.flushes > 0, "{row:?}");
            }
        }
    }

    /// The smallest history that was refused a write, with half of the array empty: each start closed a segment of which it had used a
    /// stripe, until the two were left that reclaim leaves to recovery. It came after 32 cuts.
    #[test]
    fn reclaim_has_a_segment_to_begin_with_after_any_number_of_cuts() {
        let (kind, places, policy) = (Kind::Sequential, Places::Uniform, ReclaimPolicy::Greedy);
        let row = run(&Point { kind, places, reserve_percent: 100, policy, size: SMALL });
        assert!(row.keeps_everything(), "{}", row.words());
    }
}
