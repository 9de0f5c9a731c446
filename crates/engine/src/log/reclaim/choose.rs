//! Which segments are emptied next: a pure decision. Greedy (ZapRAID's, 3.6): those with the fewest live blocks, as long as
//! their copies take less room than they give back.

/// A segment that takes no more stripes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its slot in the map.
    pub slot: u32,
    /// Blocks of it that the map names.
    pub live: u64,
    /// Data blocks that a segment like it has room for.
    pub room: u64,
    /// Whether it has a zone of the member with the fewest free ones: only these make room.
    pub is_scarce: bool,
}

/// Segments that are emptied together: one flush makes them free.
const VICTIMS_MAX: usize = 8;
/// What an emptied segment gives back at least, in parts of its room: with less the copies' padding may cost more than is gained.
const GAIN_LEAST: u64 = 16;

/// The next victims. Their live blocks fit into one segment together, so that emptying takes no more than the reserve has.
/// `copy_room`: data blocks of a new segment; `list_blocks`: what the lists that are written for them take of it, padding
/// included. None: there is nothing to gain.
pub fn choose(mut candidates: Vec<Candidate>, copy_room: u64, list_blocks: u64) -> Vec<u32> {
    let gains = |candidate: &Candidate| candidate.live + candidate.room / GAIN_LEAST < candidate.room;
    candidates.retain(|candidate| candidate.is_scarce && gains(candidate));
    candidates.sort_unstable_by_key(|candidate| (candidate.live, candidate.slot));
    let (mut live, mut victims, mut gained) = (0, Vec::new(), 0);
    for candidate in candidates.iter().take(VICTIMS_MAX) {
        live += candidate.live;
        if !victims.is_empty() && live > copy_room {
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
    use super::*;

    fn of(lives: &[u64]) -> Vec<Candidate> {
        let candidate =
            |(slot, live): (u32, &u64)| Candidate { slot, live: *live, room: 160, is_scarce: true };
        (0..).zip(lives).map(candidate).collect()
    }

    #[test]
    fn the_emptiest_go_first_as_long_as_their_copies_fit() {
        assert_eq!(choose(of(&[90, 20, 150, 40, 0]), 160, 20), [4, 1, 3, 0], "0 + 20 + 40 + 90 fit into one");
        assert_eq!(choose(of(&[100, 90, 120]), 160, 20), [1], "one at least");
        assert_eq!(choose(of(&[0; 20]), 160, 20).len(), VICTIMS_MAX);
    }

    #[test]
    fn what_gives_nothing_back_is_left_alone() {
        assert_eq!(choose(of(&[160, 155, 150]), 160, 20), [], "full, or nearly");
        assert_eq!(choose(of(&[141, 160]), 160, 20), [], "no more than the lists take");
        let mut candidates = of(&[10, 20]);
        candidates[0].is_scarce = false;
        assert_eq!(choose(candidates, 160, 20), [1], "the member that lacks zones gets some");
    }
}
