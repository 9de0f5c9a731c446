//! When an open stripe that is not full is sent: a pure decision.
//!
//! The paper waits 100 us for more writes. A lone synchronous writer then pays that wait for every write, so `auto` sends at
//! once where no stripe of the class is in flight, and otherwise when all of those have returned (a group commit), after 100 us at
//! the latest: as long as the padding that this costs stays within a share of what was written in the last second. Beyond it the
//! wait is 100 us. To send when the first of them returns costs 3 % of the throughput at depth 64, and a quarter of it where chunks
//! are four times as long as writes (an event simulation of the drives alone).

/// How long an open stripe waits for more writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FillWait {
    /// See the file's header.
    Auto,
    /// This many nanoseconds, always. 0: every write goes at once.
    Fixed(u64),
}

/// The wait of the paper (3.1), and the longest of `auto`.
pub const FILL_WAIT_NS: u64 = 100_000;
/// Padding that `auto` pays for latency, in percent of the blocks written.
const PADDING_PERCENT: u64 = 10;
/// A budget counts over this time.
const WINDOW_NS: u64 = 1_000_000_000;
/// Blocks of padding that are free in each window: a lone write now and then never waits.
const FREE_BLOCKS: u64 = 4096;

/// When a stripe is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Now.
    Now,
    /// When all stripes of its class have returned, at this time at the latest.
    WhenNoneIsInFlight {
        /// Nanoseconds, by the caller's clock.
        at_ns: u64,
    },
    /// At this time.
    At {
        /// Nanoseconds, by the caller's clock.
        at_ns: u64,
    },
}

/// What the decision depends on.
#[derive(Clone, Copy, Debug)]
pub struct OpenStripe {
    /// When its first block arrived.
    pub since_ns: u64,
    /// Blocks that are still free.
    pub padding_blocks: u64,
    /// Stripes of its class that were sent and have not returned.
    pub in_flight: usize,
}

/// Decides for one class of one shard.
#[derive(Clone, Debug)]
pub struct Dispatch {
    wait: FillWait,
    window_began_ns: u64,
    /// Data and padding in blocks, in this window and the one before.
    data: [u64; 2],
    padding: [u64; 2],
}

impl Dispatch {
    /// Nothing was sent yet.
    pub fn new(wait: FillWait) -> Self {
        Dispatch { wait, window_began_ns: 0, data: [0; 2], padding: [0; 2] }
    }

    /// When an open stripe is due.
    pub fn due(&mut self, now_ns: u64, stripe: &OpenStripe) -> Due {
        let due_at = |at_ns: u64| if at_ns <= now_ns { Due::Now } else { Due::At { at_ns } };
        if stripe.padding_blocks == 0 {
            return Due::Now;
        }
        match self.wait {
            FillWait::Fixed(wait_ns) => due_at(stripe.since_ns + wait_ns),
            FillWait::Auto => {
                let at_ns = stripe.since_ns + FILL_WAIT_NS;
                match (self.affords(now_ns, stripe.padding_blocks), stripe.in_flight) {
                    (true, 0) => Due::Now,
                    (true, _) if at_ns > now_ns => Due::WhenNoneIsInFlight { at_ns },
                    _ => due_at(at_ns),
                }
            }
        }
    }

    /// A stripe was sent.
    pub fn sent(&mut self, now_ns: u64, data_blocks: u64, padding_blocks: u64) {
        self.turn(now_ns);
        self.data[0] += data_blocks;
        self.padding[0] += padding_blocks;
    }

    fn affords(&mut self, now_ns: u64, padding_blocks: u64) -> bool {
        self.turn(now_ns);
        let (data, padding) = (self.data[0] + self.data[1], self.padding[0] + self.padding[1]);
        padding + padding_blocks <= FREE_BLOCKS + data * PADDING_PERCENT / 100
    }

    fn turn(&mut self, now_ns: u64) {
        let windows = now_ns.saturating_sub(self.window_began_ns) / WINDOW_NS;
        match windows {
            0 => return,
            1 => {
                self.data = [0, self.data[0]];
                self.padding = [0, self.padding[0]];
            }
            _ => (self.data, self.padding) = ([0; 2], [0; 2]),
        }
        self.window_began_ns += windows * WINDOW_NS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN: OpenStripe = OpenStripe { since_ns: 1000, padding_blocks: 5, in_flight: 0 };

    #[test]
    fn a_lone_write_never_waits_and_others_wait_for_those_in_flight() {
        let mut dispatch = Dispatch::new(FillWait::Auto);
        assert_eq!(dispatch.due(1000, &OPEN), Due::Now);
        let busy = OpenStripe { in_flight: 2, ..OPEN };
        assert_eq!(dispatch.due(1000, &busy), Due::WhenNoneIsInFlight { at_ns: 1000 + FILL_WAIT_NS });
        assert_eq!(dispatch.due(1000 + FILL_WAIT_NS, &busy), Due::Now);
        assert_eq!(dispatch.due(1000, &OpenStripe { padding_blocks: 0, ..busy }), Due::Now, "it is full");
    }

    #[test]
    fn padding_beyond_its_share_waits_as_in_the_paper() {
        let mut dispatch = Dispatch::new(FillWait::Auto);
        dispatch.sent(1000, 1000, FREE_BLOCKS + 95);
        assert_eq!(dispatch.due(1000, &OPEN), Due::Now, "100 blocks on top of the free ones");
        dispatch.sent(1000, 0, 5);
        assert_eq!(dispatch.due(1000, &OPEN), Due::At { at_ns: 1000 + FILL_WAIT_NS });
        let later = 1000 + 2 * WINDOW_NS;
        assert_eq!(dispatch.due(later, &OpenStripe { since_ns: later, ..OPEN }), Due::Now, "another window");
    }

    #[test]
    fn a_fixed_wait_is_kept() {
        let mut dispatch = Dispatch::new(FillWait::Fixed(50_000));
        assert_eq!(dispatch.due(1000, &OPEN), Due::At { at_ns: 51_000 });
        assert_eq!(dispatch.due(51_000, &OPEN), Due::Now);
        assert_eq!(Dispatch::new(FillWait::Fixed(0)).due(1000, &OPEN), Due::Now);
    }
}
