//! Which segments are emptied next: a pure decision. Greedy (ZapRAID's, 3.6): those with the fewest live blocks. Cost-benefit
//! (Rosenblum and Ousterhout, 1992): those that give back most for what moving them costs, times the root of their age, since what
//! is old is likely to stay as it is. Age itself, as in the paper, moved more than it spared (docs/decisions/2026-11-28-victims.md).
//! Either takes a segment only if its copies take less room than it gives back.

use std::cmp::Reverse;
use std::fmt;
use std::str::FromStr;

/// Which segments are emptied first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReclaimPolicy {
    /// Those with the fewest live blocks.
    Greedy,
    /// Those with the greatest gain for its cost, times the root of their age.
    #[default]
    CostBenefit,
}

impl ReclaimPolicy {
    /// All of them.
    pub const ALL: [ReclaimPolicy; 2] = [ReclaimPolicy::Greedy, ReclaimPolicy::CostBenefit];

    fn name(self) -> &'static str {
        match self {
            ReclaimPolicy::Greedy => "greedy",
            ReclaimPolicy::CostBenefit => "cost-benefit",
        }
    }
}

impl fmt::Display for ReclaimPolicy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for ReclaimPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = ReclaimPolicy::ALL.into_iter().find(|policy| policy.name() == text);
        found.ok_or_else(|| format!("{text} is no policy of reclaim: greedy or cost-benefit"))
    }
}

/// A segment that takes no more stripes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its slot in the map.
    pub slot: u32,
    /// Blocks of it that the map names.
    pub live: u64,
    /// Data blocks that a segment like it has room for.
    pub room: u64,
    /// Sequences that were handed out since the newest block in it was written.
    pub age: u64,
    /// Whether it has a zone of the member with the fewest free ones: only these make room.
    pub is_scarce: bool,
}

impl Candidate {
    /// What it gives back by what is read and written for that, times the root of its age.
    fn benefit(&self) -> u128 {
        let (live, room) = (u128::from(self.live), u128::from(self.room));
        // In millionths, so that segments of a few blocks differ.
        room.saturating_sub(live) * 1_000_000 * u128::from(self.age.isqrt() + 1) / (room + live).max(1)
    }
}

/// Segments that are emptied together: one flush makes them free.
const VICTIMS_MAX: usize = 8;
/// A small batch is enough if it gains this many times what its lists take.
const LISTS_WORTH: u64 = 8;
/// What an emptied segment gives back at least, in parts of its room: with less the copies' padding may cost more than is gained.
const GAIN_LEAST: u64 = 16;

/// The next victims, no more than `few` if these gain enough. Their live blocks fit into one segment together, so that emptying takes
/// no more than the reserve has.
/// `copy_room`: data blocks of a new segment; `list_blocks`: what the lists that are written for them take of it, padding
/// included. None: there is nothing to gain.
pub fn choose(
    mut candidates: Vec<Candidate>,
    policy: ReclaimPolicy,
    few: usize,
    (copy_room, list_blocks): (u64, u64),
) -> Vec<u32> {
    let gains = |candidate: &Candidate| candidate.live + candidate.room / GAIN_LEAST < candidate.room;
    candidates.retain(|candidate| candidate.is_scarce && gains(candidate));
    match policy {
        ReclaimPolicy::Greedy => {
            candidates.sort_unstable_by_key(|candidate| (candidate.live, candidate.slot));
        }
        ReclaimPolicy::CostBenefit => {
            candidates.sort_unstable_by_key(|candidate| (Reverse(candidate.benefit()), candidate.slot));
        }
    }
    let (mut live, mut victims, mut gained) = (0, Vec::new(), 0);
    for candidate in candidates.iter().take(VICTIMS_MAX) {
        live += candidate.live;
        let is_enough = victims.len() >= few && gained > list_blocks.saturating_mul(LISTS_WORTH);
        if !victims.is_empty() && (live > copy_room || is_enough) {
            break;
        }
        victims.push(candidate.slot);
        gained += candidate.room - candidate.live;
    }
    // With less, emptying the segments that hold the lists would go on for ever.
    if gained > list_blocks { victims } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::ReclaimPolicy::{CostBenefit, Greedy};
    use super::*;

    fn of(lives: &[u64]) -> Vec<Candidate> {
        let candidate =
            |(slot, live): (u32, &u64)| Candidate { slot, live: *live, room: 160, age: 9, is_scarce: true };
        (0..).zip(lives).map(candidate).collect()
    }

    #[test]
    fn the_emptiest_go_first_as_long_as_their_copies_fit() {
        assert_eq!(
            choose(of(&[90, 20, 150, 40, 0]), Greedy, 8, (160, 20)),
            [4, 1, 3, 0],
            "0 + 20 + 40 + 90 fit into one"
        );
        assert_eq!(choose(of(&[100, 90, 120]), Greedy, 8, (160, 20)), [1], "one at least");
        assert_eq!(choose(of(&[0; 20]), Greedy, 8, (160, 20)).len(), VICTIMS_MAX);
        assert_eq!(choose(of(&[0; 20]), Greedy, 2, (160, 10)), [0, 1], "few, where they gain enough");
        assert_eq!(choose(of(&[0; 20]), Greedy, 2, (160, 50)).len(), 3, "more, where they do not");
    }

    #[test]
    fn what_gives_nothing_back_is_left_alone() {
        assert_eq!(choose(of(&[160, 155, 150]), Greedy, 8, (160, 20)), [], "full, or nearly");
        assert_eq!(choose(of(&[141, 160]), Greedy, 8, (160, 20)), [], "no more than the lists take");
        let mut candidates = of(&[10, 20]);
        candidates[0].is_scarce = false;
        assert_eq!(choose(candidates, Greedy, 8, (160, 20)), [1], "the member that lacks zones gets some");
    }

    /// What is hot loses its blocks by itself, if it is left alone for a while; what is cold does not.
    #[test]
    fn age_outweighs_some_live_blocks() {
        let mut candidates = of(&[100, 110]);
        (candidates[0].age, candidates[1].age) = (10, 1000);
        assert_eq!(choose(candidates.clone(), Greedy, 8, (160, 20)), [0]);
        assert_eq!(choose(candidates.clone(), CostBenefit, 8, (160, 20)), [1]);
        candidates[1].live = 159;
        assert_eq!(choose(candidates, CostBenefit, 8, (160, 20)), [0], "not where there is nothing to gain");
        assert_eq!(
            choose(of(&[90, 20, 150, 40, 0]), CostBenefit, 8, (160, 20)),
            [4, 1, 3, 0],
            "as greedy, of one age"
        );
    }

    #[test]
    fn a_policy_has_a_name() {
        for policy in ReclaimPolicy::ALL {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        "fifo".parse::<ReclaimPolicy>().expect_err("no such");
    }
}
