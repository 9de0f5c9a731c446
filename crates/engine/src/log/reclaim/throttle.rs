//! How fast writers may go while reclaim makes room: a pure decision. With plenty of free segments they are not held back;
//! below the mark at which reclaim works their rate falls in proportion to what is left, and meets the rate at which
//! reclaim frees blocks half way down. So a writer sees a slope and not a wall, and waits for a segment only if it
//! is written faster than reclaim has learnt to expect.

/// Free segments, and where they stand between the marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slope {
    /// Free zones of the member that has the fewest.
    pub free: usize,
    /// Those that writers never take.
    pub kept: usize,
    /// Reclaim works while no more than these are free.
    pub low: usize,
}

impl Slope {
    /// Writers are not held back: there are more free segments than reclaim works for, or no mark.
    pub fn is_flat(&self) -> bool {
        self.free > self.low || self.low <= self.kept
    }
}

/// Cost of a block before reclaim has freed any: 10 us, a hundred thousand blocks a second.
const FIRST_NS: u64 = 10_000;
/// The steepest cost, in what a freed block takes reclaim.
const STEEPEST: u64 = 8;

/// Nanoseconds of all writers together for each block. `ns_per_block`: what a block that reclaim frees takes it, 0 if that is
/// not known yet.
pub fn block_cost_ns(slope: Slope, ns_per_block: u64) -> u64 {
    if slope.is_flat() {
        return 0;
    }
    let Slope { free, kept, low } = slope;
    let (left, all) = (free.saturating_sub(kept) as u64, (low + 1 - kept) as u64);
    let ns_per_block = if ns_per_block == 0 { FIRST_NS } else { ns_per_block };
    // 1 / all just below the mark, all / 1 with nothing left; equal half way.
    let (used, left) = (all - left.min(all), left.max(1));
    (ns_per_block * used / left).min(ns_per_block.saturating_mul(STEEPEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_meet_a_slope() {
        let cost = |free| block_cost_ns(Slope { free, kept: 3, low: 12 }, 1000);
        assert_eq!(cost(13), 0, "above the mark");
        let costs: Vec<u64> = (3..=12).rev().map(cost).collect();
        assert!(costs.is_sorted() && costs[0] > 0, "{costs:?}");
        assert_eq!(cost(8), 1000, "half way writers go as fast as reclaim frees");
        assert_eq!(cost(3), 8000, "and never stand still");
        assert_eq!(block_cost_ns(Slope { free: 8, kept: 3, low: 12 }, 0), FIRST_NS);
    }
}
