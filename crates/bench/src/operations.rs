//! Reads and writes, counted.

use std::ops::AddAssign;

use serde::Serialize;

/// How many reads and writes there were, of requests, at members, or in a recipe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Operations {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
}

impl Operations {
    /// Reads and writes.
    pub fn count(&self) -> u64 {
        self.reads + self.writes
    }

    /// Bytes of both.
    pub fn bytes(&self) -> u64 {
        self.read_bytes + self.write_bytes
    }

    /// Counts one more.
    pub(crate) fn add(&mut self, write: bool, bytes: u64) {
        let (count, sum) = match write {
            true => (&mut self.writes, &mut self.write_bytes),
            false => (&mut self.reads, &mut self.read_bytes),
        };
        *count += 1;
        *sum += bytes;
    }
}

impl AddAssign for Operations {
    fn add_assign(&mut self, other: Operations) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.read_bytes += other.read_bytes;
        self.write_bytes += other.write_bytes;
    }
}
