//! The rows of the table, and two user-space peers' figures for them.

use crate::setting::{Setting, Skew, Work};

/// One row: what is run.
pub(super) struct Task {
    pub(super) name: &'static str,
    level: &'static str,
    pub(super) rw: Work,
    pub(super) bs: u64,
    two_phase: bool,
    /// By Zipf's law with exponent 0.99, at members that take 20 microseconds for a read: with this parity cache.
    skewed: Option<u64>,
    /// Measured without `--all` too: the table of figures to reach.
    pub(super) is_goal: bool,
    /// Thousands of operations a second of peers A and B on 1 and on 2 cores.
    peers: [[Option<f64>; 2]; 2],
}

/// Bytes a second that one core of the peers' machine copied over 1 GiB, in blocks of 4 KiB and of 64 KiB.
pub(super) const PEERS_MEMCPY: (f64, f64) = (16.0e9, 23.6e9);

/// Names of the peers.
pub(super) const PEERS: [&str; 2] = ["A", "B"];

/// What a read of a member costs in the rows of the parity cache, one after the other: a page of flash. At 20 us and
/// copies of 1 us the row says how fast the processor is, not what the cache saves.
const READ_US: u64 = 50;

const NONE: [[Option<f64>; 2]; 2] = [[None; 2]; 2];

const fn a(one: f64, two: f64) -> [[Option<f64>; 2]; 2] {
    [[Some(one), Some(two)], [None; 2]]
}

const fn ab(one_a: f64, two_a: f64, one_b: f64, two_b: f64) -> [[Option<f64>; 2]; 2] {
    [[Some(one_a), Some(two_a)], [Some(one_b), Some(two_b)]]
}

const fn work(
    name: &'static str,
    level: &'static str,
    rw: Work,
    kib: u64,
    peers: [[Option<f64>; 2]; 2],
) -> Task {
    Task { name, level, rw, bs: kib << 10, two_phase: true, skewed: None, is_goal: true, peers }
}

const fn more(name: &'static str, level: &'static str, rw: Work, kib: u64) -> Task {
    Task { is_goal: false, ..work(name, level, rw, kib, NONE) }
}

const fn skewed(name: &'static str, cache: u64) -> Task {
    Task { skewed: Some(cache), ..work(name, "5", Work::RandWrite, 4, NONE) }
}

pub(super) const GATHERED: &str = "RAID-5 write 64K";
pub(super) const NOT_GATHERED: &str = "RAID-5 write 64K, two-phase off";
pub(super) const CACHED: &str = "RAID-5 randwrite 4K, skewed, reads take 50 us";
pub(super) const NOT_CACHED: &str = "RAID-5 randwrite 4K, skewed, reads take 50 us, no cache";

/// The rows. The peers' figures are from two cores of an AVX-512 Xeon with six members in memory on huge pages, chunk
/// 64 KiB, 32 requests in flight on each core.
pub(super) const WORKS: [Task; 19] = [
    work("RAID-5 randwrite 4K", "5", Work::RandWrite, 4, a(696.0, 1107.0)),
    work("RAID-5 randwrite 64K", "5", Work::RandWrite, 64, a(90.0, 115.0)),
    work("RAID-5 write 320K", "5", Work::Write, 320, ab(64.0, 121.0, 74.0, 138.0)),
    work("RAID-5 randwrite 320K", "5", Work::RandWrite, 320, ab(69.0, 115.0, 73.0, 137.0)),
    work("RAID-5 randread 4K", "5", Work::RandRead, 4, ab(1982.0, 2781.0, 2294.0, 4487.0)),
    work("RAID-5 randread 64K", "5", Work::RandRead, 64, ab(429.0, 610.0, 449.0, 885.0)),
    work("RAID-5 randread 320K", "5", Work::RandRead, 320, ab(90.0, 161.0, 90.0, 147.0)),
    work("RAID-6 randwrite 4K", "6", Work::RandWrite, 4, a(294.0, 558.0)),
    work("RAID-6 randwrite 64K", "6", Work::RandWrite, 64, a(38.0, 70.0)),
    work("RAID-6 write 256K", "6", Work::Write, 256, a(30.0, 57.0)),
    work(GATHERED, "5", Work::Write, 64, NONE),
    Task { two_phase: false, ..work(NOT_GATHERED, "5", Work::Write, 64, NONE) },
    skewed(CACHED, 64 << 20),
    skewed(NOT_CACHED, 0),
    more("RAID-6 randwrite 256K", "6", Work::RandWrite, 256),
    more("RAID-5 write 4K", "5", Work::Write, 4),
    more("RAID-6 write 64K", "6", Work::Write, 64),
    more("RAID-0 randread 4K", "0", Work::RandRead, 4),
    more("RAID-0 randwrite 4K", "0", Work::RandWrite, 4),
];

impl Task {
    /// Thousands of operations a second of each peer on this many cores.
    pub(super) fn peers(&self, shards: usize) -> [Option<f64>; 2] {
        self.peers.map(|peer| peer.get(shards.wrapping_sub(1)).copied().flatten())
    }

    /// A write of a part of a stripe.
    pub(super) fn is_partial(&self) -> bool {
        self.rw == Work::RandWrite && self.bs <= 64 << 10 && self.level != "0"
    }

    /// Whether the row is measured on this many shards. Rows with slow members are measured on one: there the members
    /// limit the speed, not the cores.
    pub(super) fn runs_on(&self, shards: usize) -> bool {
        self.skewed.is_none() || shards == 1
    }

    pub(super) fn setting(&self, base: &Setting) -> Setting {
        let setting = Setting {
            level: self.level.to_string(),
            rw: self.rw,
            bs: self.bs,
            two_phase: self.two_phase,
            ..base.clone()
        };
        match self.skewed {
            Some(parity_cache) => {
                Setting { skew: Skew::Zipf(0.99), member_read_us: READ_US, parity_cache, ..setting }
            }
            None => setting,
        }
    }
}
