//! The requests that are counted: of an array of six members, whose size no parity cache holds much of.

/// A kind of request.
pub struct Row {
    /// Its name, in the ratchet too.
    pub name: &'static str,
    /// Words of the program that serves them.
    options: &'static str,
    /// How many of them are counted: fewer of those that take longer.
    counted: u64,
}

/// All rows.
pub const ROWS: &[Row] = &[
    Row { name: "RAID-5 read 4K", options: "rw=randread", counted: 20_000 },
    Row { name: "RAID-5 read 320K, five chunks", options: "rw=randread bs=327680", counted: 2_000 },
    Row { name: "RAID-5 read 4K, degraded", options: "rw=randread fail=0", counted: 10_000 },
    Row { name: "RAID-5 write 4K", options: "rw=randwrite", counted: 8_000 },
    Row { name: "RAID-5 write 4K, no parity cache", options: "rw=randwrite parity-cache=0", counted: 8_000 },
    Row { name: "RAID-6 write 4K", options: "level=6 rw=randwrite", counted: 6_000 },
    Row { name: "RAID-5 write 64K", options: "rw=randwrite bs=65536", counted: 2_000 },
    Row { name: "RAID-5 write 320K, whole stripes", options: "rw=randwrite bs=327680", counted: 1_000 },
];

impl Row {
    /// Requests of the shorter run, which warms up, and of the longer one.
    pub fn requests(&self) -> (u64, u64) {
        (self.counted / 4, self.counted / 4 + self.counted)
    }

    /// Words of the program that serves them.
    pub fn words(&self) -> impl Iterator<Item = &'static str> {
        self.options.split(' ')
    }
}
