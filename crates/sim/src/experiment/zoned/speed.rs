//! How zones are written, how long requests are, and how fast they were.

use engine::log::config::Appends;
use layout::zoned::Access;
use serde::Serialize;

use super::clients::Ended;
use crate::experiment::quantile_us;
use crate::random::Random;

/// Stripes of the largest group of 16 KiB chunks: more than a run writes.
pub(super) const GROUP_MAX: u16 = 16_384;
/// KiB of a block.
pub(super) const BLOCK_KIB: u16 = 4;
/// The paper's stripe group.
const GROUP: u16 = 256;

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
    /// As ZapRAID, but a stripe that is not full goes as soon as no other is in flight, and several small segments are all written
    /// in order.
    Twill,
}

impl Mode {
    pub(super) const ZAPRAID: Mode = Mode::Append { group: GROUP };

    pub(super) fn group(self) -> Option<u16> {
        match self {
            Mode::ZoneWrite => None,
            Mode::Append { group } => Some(group),
            Mode::Twill => Some(GROUP),
        }
    }

    /// How zones of the paper's drives are written.
    pub(super) fn access(self) -> Access {
        if self == Mode::ZoneWrite { Access::Sequential } else { Access::Append }
    }

    /// Which segments are appended to.
    pub(super) fn appends(self) -> Appends {
        match self {
            Mode::Append { group: GROUP_MAX } => Appends::Only,
            Mode::ZoneWrite | Mode::Append { .. } => Appends::UnlessIdle,
            Mode::Twill => Appends::IfAlone,
        }
    }

    pub(super) fn words(self) -> String {
        match self {
            Mode::ZoneWrite => "zone write".to_owned(),
            Mode::ZAPRAID => "zapraid".to_owned(),
            Mode::Append { group } => format!("groups of {group}"),
            Mode::Twill => "twill".to_owned(),
        }
    }
}

/// Lengths of requests.
pub(super) struct Sizes {
    /// 0: mixed.
    blocks: u64,
    random: Random,
}

/// KiB of the longest request of a mix.
pub(super) const MIX_KIB_MAX: u16 = 16;

impl Sizes {
    /// All of `request_kib`. 0: mixed.
    pub(super) fn new(request_kib: u16, seed: u64) -> Self {
        Sizes { blocks: u64::from(request_kib / BLOCK_KIB), random: Random::new(seed) }
    }

    pub(super) fn next_blocks(&self) -> u64 {
        match self.blocks {
            0 if self.random.one_in(4) => (MIX_KIB_MAX / BLOCK_KIB).into(),
            0 => 1,
            blocks => blocks,
        }
    }
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
    /// From the latency of each request, and the bytes and the time of all of them together.
    pub(super) fn new(mut latencies_ns: Vec<u64>, bytes: u64, elapsed_ns: u64) -> Speed {
        let mib = bytes as f64 / f64::from(1 << 20);
        latencies_ns.sort_unstable();
        Speed {
            mib_per_s: mib / (elapsed_ns as f64 / 1e9),
            median_us: quantile_us(&latencies_ns, 0.5),
            p95_us: quantile_us(&latencies_ns, 0.95),
        }
    }

    /// Of requests in the order in which they ended; the first tenth does not count.
    pub(super) fn of(ended: &[Ended]) -> Speed {
        let (warming, counted) = ended.split_at((ended.len() / 10).max(1));
        let (Some(first), Some(last)) = (warming.last(), counted.last()) else {
            return Speed { mib_per_s: f64::NAN, median_us: f64::NAN, p95_us: f64::NAN };
        };
        let bytes = counted.iter().map(|one| one.bytes).sum();
        Speed::new(counted.iter().map(|one| one.took_ns).collect(), bytes, last.at_ns - first.at_ns)
    }
}
