//! What reclaim costs, in virtual time on drives that keep contents: write amplification by policy, workload and reserve, and the
//! latency of writes while it works beside that of an array that has nothing to reclaim.

use engine::log::reclaim::choose::ReclaimPolicy;
use serde::Serialize;

use super::aged::{Aged, Outcome};
use super::members::BLOCK;
pub use super::places::Places;
use super::speed::Mode;
use crate::experiment::quantile_us;

/// One way to run it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Point {
    /// Where writes go.
    pub places: Places,
    /// Room for what is overwritten, in hundredths of the array's size.
    pub reserve_percent: u64,
    /// Which segments are emptied first.
    #[serde(serialize_with = "super::aged::policy_words")]
    pub policy: ReclaimPolicy,
    /// Zones of each drive.
    pub zones: u32,
    /// Blocks of a zone.
    pub zone_blocks: u32,
}

/// What came out.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Row {
    /// The point.
    pub point: Point,
    /// Blocks written for each that clients wrote, parity apart.
    pub write_amplification: f64,
    /// While reclaim works.
    pub aged: Latencies,
    /// On a new array of the same shape, with nothing to reclaim.
    pub new: Latencies,
}

/// Of writes of 4 KiB.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Latencies {
    /// MiB a second.
    pub mib_per_s: f64,
    /// Median.
    pub median_us: f64,
    /// 99 of 100 took no longer.
    pub p99_us: f64,
    /// 999 of 1000 took no longer.
    pub p999_us: f64,
    /// The longest.
    pub max_us: f64,
}

impl Row {
    /// The 99th percentile while reclaim works, by that without.
    pub fn p99_ratio(&self) -> f64 {
        self.aged.p99_us / self.new.p99_us
    }

    /// A line of the table.
    pub fn words(&self) -> String {
        let Row { point, write_amplification, aged, new } = self;
        format!(
            "{:<9}{:>5} %  {:<13}{:>6.2}{:>9.1}{:>9.1}{:>9.1}{:>9.1}{:>10.1}{:>9.1}{:>9.1}{:>7.1}",
            format!("{:?}", point.places),
            point.reserve_percent,
            point.policy.to_string(),
            write_amplification,
            aged.mib_per_s,
            aged.median_us,
            aged.p99_us,
            aged.p999_us,
            aged.max_us,
            new.mib_per_s,
            new.p99_us,
            self.p99_ratio()
        )
    }
}

/// The heading of the lines of [`Row::words`].
pub fn heading() -> String {
    format!(
        "{:<9}{:>7}  {:<13}{:>6}{:>9}{:>9}{:>9}{:>9}{:>10}{:>9}{:>9}{:>7}",
        "places",
        "reserve",
        "policy",
        "WA",
        "MiB/s",
        "p50 us",
        "p99",
        "p99.9",
        "max",
        "new MiB/s",
        "p99",
        "ratio"
    )
}

/// All points.
pub fn points(zones: u32, zone_blocks: u32) -> Vec<Point> {
    let mut points = Vec::new();
    for places in [Places::Uniform, Places::HotCold, Places::Zipf] {
        for reserve_percent in [25, 50, 100] {
            let point = |policy| Point { places, reserve_percent, policy, zones, zone_blocks };
            points.extend(ReclaimPolicy::ALL.map(point));
        }
    }
    points
}

impl Point {
    fn aged(&self) -> Aged {
        let Point { places, reserve_percent, policy, zones, zone_blocks } = *self;
        Aged {
            mode: Mode::Twill,
            open: [1, 1],
            chunk_kib: [8, 64],
            group: 32,
            request_kib: 4,
            places,
            reserve_percent,
            policy,
            map_parts: 1,
            zones,
            zone_blocks,
        }
    }
}

/// Fills an array, writes it over `times` times, and measures one more time.
pub fn run(point: &Point, times: u64) -> Row {
    let aged = point.aged();
    let logical = aged.logical_blocks();
    let new = aged.run(false, logical / 20, logical / 5);
    let after = aged.run(true, times * logical, logical);
    Row {
        point: *point,
        write_amplification: after.write_amplification,
        aged: Latencies::of(&after),
        new: Latencies::of(&new),
    }
}

impl Latencies {
    fn of(outcome: &Outcome) -> Self {
        let took_ns: Vec<u64> = outcome.ended.iter().map(|one| one.took_ns).collect();
        Latencies::new(took_ns, outcome.elapsed_ns)
    }

    /// Of writes of 4 KiB: what each took, and all of them together.
    pub(super) fn new(mut took_ns: Vec<u64>, elapsed_ns: u64) -> Self {
        took_ns.sort_unstable();
        let seconds = elapsed_ns as f64 / 1e9;
        Latencies {
            mib_per_s: took_ns.len() as f64 * BLOCK as f64 / f64::from(1 << 20) / seconds,
            median_us: quantile_us(&took_ns, 0.5),
            p99_us: quantile_us(&took_ns, 0.99),
            p999_us: quantile_us(&took_ns, 0.999),
            max_us: quantile_us(&took_ns, 1.0),
        }
    }
}
