//! What clients do in an experiment.

use anyhow::Result;

use super::key_value;
use super::objects;
use crate::bench_fabric::lost_reads::read_lost;
use crate::bench_fabric::rack::{Measured, Rack};

/// In flight, where requests are small.
const DEPTH: u32 = 32;
/// In flight at most: more would wait longer in the links' queues than a run takes.
const BYTES_IN_FLIGHT_MAX: u32 = 4 << 20;
const DEPTH_MIN: u32 = 4;

/// Requests that are measured together.
#[derive(Clone, Copy)]
pub enum Load {
    /// Random requests of one size, of which this many percent read.
    Random { kib: u32, reads_percent: u32 },
    /// Reads of the chunks that the failed member held.
    LostReads { kib: u32 },
    /// A store of objects.
    Objects(objects::Workload),
    /// RocksDB.
    KeyValue(key_value::Workload),
}

impl Load {
    /// Has the rack's array worked on for so many seconds.
    pub fn run(self, rack: &Rack<'_>, seconds: u32) -> Result<Measured> {
        match self {
            Load::Random { kib, reads_percent } => {
                let mix = format!("--rwmixread={reads_percent}");
                rack.measure(|| rack.fio("randrw", &format!("{kib}k"), depth(kib), seconds, &[&mix]))
            }
            Load::LostReads { kib } => read_lost(rack, &format!("{kib}k"), depth(kib), seconds),
            Load::Objects(workload) => rack.measure(|| objects::run(&rack.socket(), workload, seconds)),
            Load::KeyValue(workload) => key_value::run(rack, workload, seconds),
        }
    }
}

fn depth(kib: u32) -> u32 {
    (BYTES_IN_FLIGHT_MAX / (kib << 10)).clamp(DEPTH_MIN, DEPTH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_requests_are_fewer_at_a_time() {
        assert_eq!([4, 128, 256, 896, 4096].map(depth), [32, 32, 16, 4, 4]);
    }
}
