//! What one shard did while it was measured.

use engine::counters::CounterTotals;

use crate::histogram::Histogram;
use crate::operations::Operations;

/// Requests of one shard, between two moments.
#[derive(Clone, Debug, Default)]
pub(crate) struct ShardFigures {
    pub(crate) requests: Operations,
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
