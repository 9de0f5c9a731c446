//! What one shard did while it was measured.

use engine::counters::CounterTotals;

use crate::histogram::Histogram;

/// Requests of one shard, between two moments.
#[derive(Clone, Debug, Default)]
pub(crate) struct ShardFigures {
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) read_bytes: u64,
    pub(crate) write_bytes: u64,
    pub(crate) latency: Histogram,
    pub(crate) start: Moment,
    pub(crate) end: Moment,
}

/// A shard's clocks and counters.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moment {
    pub(crate) wall_ns: u64,
    pub(crate) cpu_ns: u64,
    pub(crate) counts: CounterTotals,
}
