//! The points of the paper's figures: an array over targets, and what its clients do.

use layout::geometry::Level;
use serde::Serialize;

/// Where parity is made, and lost chunks are put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// At the host: what any RAID over NVMe-oF does.
    Host,
    /// At the targets.
    Peer,
    /// At the targets, and any of them puts a lost chunk together.
    PeerRandom,
}

/// Whether a member is missing, and what that means for reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// All members are there.
    Whole,
    /// One is missing.
    Degraded,
    /// One is missing, and nothing but its chunks is read.
    AllLost,
}

/// The targets' network cards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cards {
    /// As the host's, 100 Gbit/s.
    Equal,
    /// Every other one has 25 Gbit/s.
    Mixed,
}

/// The targets' drives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Drives {
    /// The paper's.
    Paper,
    /// Four times as fast: eight of them are no limit to the host's card.
    Fast,
}

/// A point of a figure.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Point {
    /// RAID-5 or RAID-6.
    #[serde(serialize_with = "as_words")]
    pub level: Level,
    /// How the array works.
    pub mode: Mode,
    /// What is missing.
    pub state: State,
    /// Members, each on a target of its own.
    pub members: u32,
    /// Chunk in KiB.
    pub chunk_kib: u32,
    /// Bytes of a request in KiB.
    pub size_kib: u64,
    /// Requests that read, in percent.
    pub read_percent: u64,
    /// Requests in flight.
    pub depth: u64,
    /// Network cards.
    pub cards: Cards,
    /// Drives.
    pub drives: Drives,
}

fn as_words<S: serde::Serializer>(level: &Level, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(level)
}

/// The paper's default setting, writing.
const WRITE: Point = Point {
    level: Level::Raid5,
    mode: Mode::Host,
    state: State::Whole,
    members: 8,
    chunk_kib: 512,
    size_kib: 128,
    read_percent: 0,
    depth: 96,
    cards: Cards::Equal,
    drives: Drives::Paper,
};
const READ: Point = Point { read_percent: 100, ..WRITE };
/// With as many drives as the paper has.
const WIDEST: u32 = 18;

/// A point, and where its figure has it.
pub(super) type Placed = (String, Point);

/// Both levels and these modes, for each of some values.
fn each<T: Copy>(base: Point, modes: &[Mode], values: &[T], at: impl Fn(Point, T) -> Placed) -> Vec<Placed> {
    let mut points = Vec::new();
    for level in [Level::Raid5, Level::Raid6] {
        for &mode in modes {
            points.extend(values.iter().map(|value| at(Point { level, mode, ..base }, *value)));
        }
    }
    points
}

const BOTH: &[Mode] = &[Mode::Host, Mode::Peer];

fn sized(point: Point, size_kib: u64) -> Placed {
    (format!("{size_kib}K"), Point { size_kib, ..point })
}

fn wide(point: Point, members: u32) -> Placed {
    (members.to_string(), Point { members, ..point })
}

/// 2.3 and figures 12, 25: every width.
pub(super) fn by_width() -> Vec<Placed> {
    each(WRITE, BOTH, &[4, 6, 8, 10, 12, 14, 16, WIDEST], wide)
}

pub(super) fn reads_by_size() -> Vec<Placed> {
    each(Point { members: 6, ..READ }, BOTH, &[4, 16, 64, 128, 256, 512], sized)
}

pub(super) fn writes_by_size() -> Vec<Placed> {
    let mut points = each(WRITE, BOTH, &[4, 16, 64, 128, 256, 512, 1024, 1536, 2048, 2560, 3072], sized);
    // A whole stripe of RAID-5; RAID-6 has one at 3072.
    let whole = each(WRITE, BOTH, &[3584], sized);
    points.extend(whole.into_iter().filter(|(_, point)| point.level == Level::Raid5));
    points
}

pub(super) fn writes_by_size_to_fast_drives() -> Vec<Placed> {
    each(Point { drives: Drives::Fast, ..WRITE }, BOTH, &[4, 16, 64, 128, 256, 512, 1024, 2048], sized)
}

pub(super) fn writes_by_chunk() -> Vec<Placed> {
    each(WRITE, BOTH, &[32, 64, 128, 256, 512, 1024], |point, chunk_kib| {
        (format!("{chunk_kib}K"), Point { chunk_kib, ..point })
    })
}

pub(super) fn mixes() -> Vec<Placed> {
    each(WRITE, BOTH, &[0, 25, 50, 75, 100], |point, read_percent| {
        (format!("{read_percent} %"), Point { read_percent, ..point })
    })
}

/// Latency against load; of the paper's two mixes the one with this share of reads.
pub(super) fn loads(read_percent: u64) -> Vec<Placed> {
    let base = Point { members: WIDEST, read_percent, ..WRITE };
    each(base, BOTH, &[1, 4, 8, 16, 32, 48, 64, 96], |point, depth| {
        (depth.to_string(), Point { depth, ..point })
    })
}

pub(super) fn degraded_reads_by_size() -> Vec<Placed> {
    let sizes = &[4, 16, 64, 128, 256, 512];
    let mut points = each(READ, &[Mode::Host], sizes, sized);
    points.extend(each(Point { state: State::Degraded, ..READ }, BOTH, sizes, sized));
    points
}

pub(super) fn degraded_reads_by_width() -> Vec<Placed> {
    let degraded = Point { state: State::Degraded, ..READ };
    each(degraded, BOTH, &[4, 6, 8, 10, 12, 14, 16, WIDEST], wide)
}

pub(super) fn lost_reads_by_width() -> Vec<Placed> {
    each(Point { state: State::AllLost, ..READ }, BOTH, &[4, 6, 8, 10, 12, 14, 16, WIDEST], wide)
}

pub(super) fn lost_reads_over_mixed_cards() -> Vec<Placed> {
    let base = Point { state: State::AllLost, cards: Cards::Mixed, ..READ };
    each(base, &[Mode::Host, Mode::PeerRandom, Mode::Peer], &[1, 4, 8, 16, 32, 64], |point, depth| {
        (depth.to_string(), Point { depth, ..point })
    })
}

pub(super) fn degraded_writes_by_size() -> Vec<Placed> {
    let sizes = &[4, 16, 64, 128, 256, 512, 1024];
    let mut points = each(WRITE, BOTH, sizes, sized);
    points.extend(each(Point { state: State::Degraded, ..WRITE }, BOTH, sizes, sized));
    points
}
