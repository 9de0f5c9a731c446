//! How fast writers may go while reclaim makes room: a pure decision. With plenty of free segments they are not held back;
//! below the mark at which reclaim works their rate falls in proportion to what is left, and meets the rate at which
//! reclaim frees blocks half way down. So a writer sees a slope and not a wall, and waits for a segment only if it
//! is written faster than reclaim has learnt to expect.
//!
//! What is left is counted in blocks, not in segments: what open segments have room for, and what the batch under way has
//! gained so far, count as well. By segments alone the rate went up and down by a multiple with each that was opened or freed,
//! and writers stood still for the rest of a batch whenever they needed one.

/// Room for writes, in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slope {
    /// What is left.
    pub left: u64,
    /// Reclaim works while less than this is left.
    pub all: u64,
}

impl Slope {
    /// `free` segments of `segment` blocks, of which writers never take `kept`; reclaim works while no more than `low` are free.
    /// Beside them `open` blocks are left in open segments or gained already.
    pub fn of((free, kept, low): (usize, usize, usize), segment: u64, open: u64) -> Slope {
        let blocks = |segments: usize| segments as u64 * segment;
        Slope { left: (blocks(free) + open).saturating_sub(blocks(kept)), all: blocks(low + 1 - kept) }
    }
}

/// Cost of a block before reclaim has freed any: 10 us, a hundred thousand blocks a second.
const FIRST_NS: u64 = 2_000;
/// The steepest cost, in what a freed block takes reclaim.
const STEEPEST: u64 = 8;

/// Nanoseconds of all writers together for each block. `ns_per_block`: what a block that reclaim frees takes it, 0 if that is
/// not known yet.
pub fn block_cost_ns(slope: Slope, ns_per_block: u64) -> u64 {
    let Slope { left, all } = slope;
    let ns_per_block = if ns_per_block == 0 { FIRST_NS } else { ns_per_block };
    // None at the mark, the steepest with nothing left; equal half way.
    let (used, left) = (all - left.min(all), left.max(1));
    let cost = u128::from(ns_per_block) * u128::from(used) / u128::from(left);
    (cost as u64).min(ns_per_block.saturating_mul(STEEPEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_meet_a_slope() {
        let slope = |free, open| Slope::of((free, 3, 12), 100, open);
        let cost = |free| block_cost_ns(slope(free, 0), 1000);
        assert_eq!(cost(13), 0, "above the mark");
        let costs: Vec<u64> = (3..=12).rev().map(cost).collect();
        assert!(costs.is_sorted() && costs[0] > 0, "{costs:?}");
        assert_eq!(cost(8), 1000, "half way writers go as fast as reclaim frees");
        assert_eq!(cost(3), 8000, "and never stand still");
        assert_eq!(cost(2), 8000, "nor while reclaim has taken of its reserve");
        assert_eq!(block_cost_ns(slope(8, 0), 0), FIRST_NS);
    }

    /// What is in open segments and what a batch has gained so far count: no jump where a segment is opened or freed.
    #[test]
    fn the_slope_has_no_steps() {
        let cost = |free, open| block_cost_ns(Slope::of((free, 3, 12), 100, open), 1000);
        assert_eq!(cost(7, 100), cost(8, 0));
        assert_eq!(cost(2, 600), cost(8, 0));
        let costs: Vec<u64> = (0..900).map(|open| cost(3, open)).collect();
        assert!(costs.is_sorted_by(|before, next| before >= next), "it falls");
        let steps = costs[150..].windows(2).map(|pair| pair[0] - pair[1]);
        assert!(steps.max() < Some(60), "a block changes it by little");
    }
}
