//! A point of an experiment, and what is measured there.

use engine::zone_device::timing::DriveModel;
use layout::geometry::Level;
use layout::zoned::Columns;
use serde::Serialize;

use crate::experiment::quantile_us;

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
    /// As ZapRAID, but a stripe that is not full goes as soon as no other is in flight.
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

    pub(super) fn words(self) -> String {
        match self {
            Mode::ZoneWrite => "zone write".to_owned(),
            Mode::ZAPRAID => "zapraid".to_owned(),
            Mode::Append { group } => format!("groups of {group}"),
            Mode::Twill => "twill".to_owned(),
        }
    }
}

/// One point: random writes of one size to one open segment, a fixed number of them in flight.
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
    pub(super) fn chunk_blocks(&self) -> u16 {
        self.chunk_kib / BLOCK_KIB
    }

    pub(super) fn request_blocks(&self) -> u16 {
        self.request_kib / BLOCK_KIB
    }

    pub(super) fn drive(&self) -> DriveModel {
        if self.is_femu { DriveModel::Femu } else { DriveModel::Zn540 }
    }

    /// Data chunks of a stripe.
    pub(super) fn data_chunks(&self) -> u8 {
        Columns::new(self.level, self.members).expect("a level has columns for it").data()
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
    /// From the latency of each request, the bytes of a request, and the time that all of them took together.
    pub(super) fn of(mut latencies_ns: Vec<u64>, request_bytes: u64, elapsed_ns: u64) -> Speed {
        let mib = (latencies_ns.len() as u64 * request_bytes) as f64 / f64::from(1 << 20);
        latencies_ns.sort_unstable();
        Speed {
            mib_per_s: mib / (elapsed_ns as f64 / 1e9),
            median_us: quantile_us(&latencies_ns, 0.5),
            p95_us: quantile_us(&latencies_ns, 0.95),
        }
    }
}
