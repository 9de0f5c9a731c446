//! The rows of the table.

use crate::setting::{Setting, Skew, Work};

/// Members of the arrays.
pub(super) const MEMBERS: usize = 6;

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
}

/// What a read of a member costs in the rows of the parity cache, one after the other: a page of flash. At 20 us and
/// copies of 1 us the row says how fast the processor is, not what the cache saves.
const READ_US: u64 = 50;

const fn work(name: &'static str, level: &'static str, rw: Work, kib: u64) -> Task {
    Task { name, level, rw, bs: kib << 10, two_phase: true, skewed: None, is_goal: true }
}

const fn more(name: &'static str, level: &'static str, rw: Work, kib: u64) -> Task {
    Task { is_goal: false, ..work(name, level, rw, kib) }
}

const fn skewed(name: &'static str, cache: u64) -> Task {
    Task { skewed: Some(cache), ..work(name, "5", Work::RandWrite, 4) }
}

pub(super) const GATHERED: &str = "RAID-5 write 64K";
pub(super) const NOT_GATHERED: &str = "RAID-5 write 64K, two-phase off";
pub(super) const CACHED: &str = "RAID-5 randwrite 4K, skewed, reads take 50 us";
pub(super) const NOT_CACHED: &str = "RAID-5 randwrite 4K, skewed, reads take 50 us, no cache";

/// The rows.
pub(super) const WORKS: [Task; 19] = [
    work("RAID-5 randwrite 4K", "5", Work::RandWrite, 4),
    work("RAID-5 randwrite 64K", "5", Work::RandWrite, 64),
    work("RAID-5 write 320K", "5", Work::Write, 320),
    work("RAID-5 randwrite 320K", "5", Work::RandWrite, 320),
    work("RAID-5 randread 4K", "5", Work::RandRead, 4),
    work("RAID-5 randread 64K", "5", Work::RandRead, 64),
    work("RAID-5 randread 320K", "5", Work::RandRead, 320),
    work("RAID-6 randwrite 4K", "6", Work::RandWrite, 4),
    work("RAID-6 randwrite 64K", "6", Work::RandWrite, 64),
    work("RAID-6 write 256K", "6", Work::Write, 256),
    work(GATHERED, "5", Work::Write, 64),
    Task { two_phase: false, ..work(NOT_GATHERED, "5", Work::Write, 64) },
    skewed(CACHED, 64 << 20),
    skewed(NOT_CACHED, 0),
    more("RAID-6 randwrite 256K", "6", Work::RandWrite, 256),
    more("RAID-5 write 4K", "5", Work::Write, 4),
    more("RAID-6 write 64K", "6", Work::Write, 64),
    more("RAID-0 randread 4K", "0", Work::RandRead, 4),
    more("RAID-0 randwrite 4K", "0", Work::RandWrite, 4),
];

impl Task {
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
