//! A point of an experiment, and what is measured there.

use engine::log::config::Appends;
use engine::zone_device::timing::DriveModel;
use layout::geometry::Level;
use layout::zoned::Columns;
use serde::Serialize;

use crate::experiment::quantile_us;
use crate::random::Random;

/// Stripes of the largest group of 16 KiB chunks: more than a run writes.
pub(super) const GROUP_MAX: u16 = 16_384;
/// KiB of a block.
const BLOCK_KIB: u16 = 4;
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

/// One point: random writes, a fixed number of them in flight.
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
    /// Open segments with small and with large chunks (Ns and Nl).
    pub open: [u8; 2],
    /// KiB of a small chunk, and of a large one.
    pub chunk_kib: [u16; 2],
    /// KiB of a request. 0: three of four have 4 KiB, and one 16 KiB.
    pub request_kib: u16,
    /// Requests in flight.
    pub depth: u32,
    /// Whether the drive is FEMU's rather than the ZN540.
    pub is_femu: bool,
}

impl Point {
    pub(super) fn chunk_blocks(&self) -> [u16; 2] {
        self.chunk_kib.map(|kib| kib / BLOCK_KIB)
    }

    /// The lengths of the requests, in order.
    pub(super) fn sizes(&self, seed: u64) -> Sizes {
        Sizes { blocks: u64::from(self.request_kib / BLOCK_KIB), random: Random::new(seed) }
    }

    pub(super) fn drive(&self) -> DriveModel {
        if self.is_femu { DriveModel::Femu } else { DriveModel::Zn540 }
    }

    /// Data chunks of a stripe.
    pub(super) fn data_chunks(&self) -> u8 {
        Columns::new(self.level, self.members).expect("a level has columns for it").data()
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
    pub(super) fn next_blocks(&self) -> u64 {
        match self.blocks {
            0 if self.random.one_in(4) => (MIX_KIB_MAX / BLOCK_KIB).into(),
            0 => 1,
            blocks => blocks,
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
    /// From the latency of each request, and the bytes and the time of all of them together.
    pub(super) fn of(mut latencies_ns: Vec<u64>, bytes: u64, elapsed_ns: u64) -> Speed {
        let mib = bytes as f64 / f64::from(1 << 20);
        latencies_ns.sort_unstable();
        Speed {
            mib_per_s: mib / (elapsed_ns as f64 / 1e9),
            median_us: quantile_us(&latencies_ns, 0.5),
            p95_us: quantile_us(&latencies_ns, 0.95),
        }
    }
}
