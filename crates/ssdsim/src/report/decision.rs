//! What a decision costs the processor.

use std::{hint::black_box, time::Instant};

use crate::{
    cost::MemberLoad,
    policy::{Chooser, ModelView, Policy, Sight},
    raid::PreReads,
};

/// Fixed loads, to time a decision without a simulator round it.
struct Loads([MemberLoad; 8]);

impl Sight for Loads {
    fn load(&self, channel: usize, _: ModelView) -> MemberLoad {
        self.0[channel]
    }
    fn truth(&self, channel: usize) -> (u64, u64) {
        let load = self.0[channel];
        (load.gc_ns + load.read_ns * u64::from(load.reads + 1), load.read_ns * u64::from(load.writes))
    }
    fn parity_blocked_ns(&self) -> u64 {
        0
    }
}

/// Wall-clock nanoseconds that `policy` takes to choose at 7+1.
pub fn decision_ns(policy: Policy) -> f64 {
    let load = |i: u32| MemberLoad { reads: i % 5, writes: i % 7, read_ns: 130_000, gc_ns: 0 };
    let loads = Loads(std::array::from_fn(|i| load(i as u32)));
    let chooser = Chooser::new(policy);
    let rounds = 200_000u32;
    let started = Instant::now();
    for i in 0..rounds {
        let rmw = 1 << (i % 8) | 1 << ((i + 3) % 8);
        black_box(chooser.choose(black_box(PreReads { rmw, rcw: 0xFF & !rmw }), &loads));
    }
    started.elapsed().as_secs_f64() * 1e9 / f64::from(rounds)
}
