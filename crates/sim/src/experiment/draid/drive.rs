//! The paper's drives in virtual time: latency, and one bandwidth that reads and writes share.
//!
//! From the paper's figures: one drive reads 25 Gbit/s (9.4), and eight bear 5000 MB/s of read-modify-writes (9.3), that is
//! 1.25 GB/s read beside 1.25 GB/s written each. What is left of the time of reads gives the rate of writes.

use std::cell::Cell;
use std::rc::Rc;

use super::point::Drives;
use crate::experiment::member::exponential;
use crate::random::Random;
use crate::timeline::Timeline;

pub(super) const READ_BYTES_PER_S: u64 = 3_125_000_000;
pub(super) const WRITE_BYTES_PER_S: u64 = 2_083_000_000;
/// Before the first byte, on average; three quarters are fixed, the rest is exponential. The paper has no figures; these are usual
/// ones of such drives. Without chance requests would go in step, all reading and then all writing.
const READ_LATENCY_NS: u64 = 80_000;
const WRITE_LATENCY_NS: u64 = 16_000;

pub(super) struct Drive {
    time: Rc<Timeline>,
    /// Times as fast as the paper's.
    faster: u64,
    random: Random,
    free_at_ns: Cell<u64>,
}

impl Drive {
    pub(super) fn new(time: &Rc<Timeline>, drives: Drives, seed: u64) -> Self {
        let faster = if drives == Drives::Fast { 4 } else { 1 };
        Drive { time: Rc::clone(time), faster, random: Random::new(seed), free_at_ns: Cell::new(0) }
    }

    /// Begins a read. When it will have ended.
    pub(super) fn read(&self, bytes: u64) -> u64 {
        self.transfer(bytes, READ_BYTES_PER_S) + self.latency_ns(READ_LATENCY_NS)
    }

    /// Begins a write. When it will have ended.
    pub(super) fn write(&self, bytes: u64) -> u64 {
        self.transfer(bytes, WRITE_BYTES_PER_S) + self.latency_ns(WRITE_LATENCY_NS)
    }

    fn latency_ns(&self, mean_ns: u64) -> u64 {
        mean_ns * 3 / 4 + exponential(&self.random, mean_ns / 4)
    }

    fn transfer(&self, bytes: u64, bytes_per_s: u64) -> u64 {
        let takes_ns = bytes * 1_000_000_000 / (self.faster * bytes_per_s);
        self.free_at_ns.set(self.free_at_ns.get().max(self.time.now_ns()) + takes_ns);
        self.free_at_ns.get()
    }
}
