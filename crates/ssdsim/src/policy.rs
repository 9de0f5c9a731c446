//! Which routine a parity update takes: Baseline, BPU, Adaptive, and an Oracle as the limit.
//!
//! A policy sees the channels through [`Sight`], chooses and has no state, so a run is a function of its inputs.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::{
    cost::{MemberLoad, Routine, RoutineCost, cheaper, routine_cost},
    raid::{ChannelSet, PreReads, channels_in},
};

/// A rule that chooses between RMW and RCW.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// The routine with fewer pre-reads.
    Baseline,
    /// Fixed thresholds on pre-reads and queue lengths, after reference \[27\] of the paper.
    Bpu,
    /// The paper's cost model.
    Adaptive,
    /// The cost of both routines from the true state of the chips: all but the future is known.
    Oracle,
}

impl Policy {
    /// All policies, in the order of the paper's figures.
    pub const ALL: [Policy; 4] = [Policy::Baseline, Policy::Bpu, Policy::Adaptive, Policy::Oracle];

    /// Name in figures and tables.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Baseline => "Baseline",
            Policy::Bpu => "BPU",
            Policy::Adaptive => "Adaptive",
            Policy::Oracle => "Oracle",
        }
    }
}

/// Which queues and which collection time the Adaptive model is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModelView {
    /// The paper's: all that waits on the channel, and Eq. 3's mean while a collection runs.
    #[default]
    Channel,
    /// The same, with t_R the read time of the very page to be pre-read, by its LDPC level.
    PageLevel,
    /// What waits on the chip of the page to be pre-read, and what is left of the running collection.
    Chip,
}

/// Queue thresholds of BPU by how many pre-reads the longer routine adds: none, up to two, more.
///
/// The paper says only that BPU classes updates by pre-reads and total queue length and that its thresholds were
/// trained. These were trained once, by `ssdsim train-bpu` on the lun1 stand-in at 5+1 (least mean response), and
/// stay fixed for every other trace, which is the paper's point about BPU.
pub const BPU_THRESHOLDS: [u32; 3] = [2, 0, 64];

/// What a policy may look at when it chooses for one update.
pub trait Sight {
    /// Load of `channel` as the model view has it.
    fn load(&self, channel: usize, view: ModelView) -> MemberLoad;
    /// True time until the pre-read from `channel` is done, and true delay it adds to writes behind it.
    fn truth(&self, channel: usize) -> (u64, u64);
    /// Time before the parity channel can start the parity write, because of a collection.
    fn parity_blocked_ns(&self) -> u64;
}

/// Rule and its parameters.
#[derive(Clone, Copy, Debug)]
pub struct Chooser {
    /// The rule.
    pub policy: Policy,
    /// What Adaptive sees.
    pub view: ModelView,
    /// BPU's thresholds.
    pub bpu: [u32; 3],
}

impl Chooser {
    /// `policy` with the paper's view and the trained thresholds.
    pub fn new(policy: Policy) -> Chooser {
        Chooser { policy, view: ModelView::default(), bpu: BPU_THRESHOLDS }
    }

    /// Chooses the routine for an update that pre-reads from `sets`.
    #[inline]
    pub fn choose(&self, sets: PreReads, sight: &impl Sight) -> Routine {
        match self.policy {
            Policy::Baseline => fewest_pre_reads(sets),
            Policy::Bpu => self.by_threshold(sets, sight),
            Policy::Adaptive => self.by_model(sets, sight),
            Policy::Oracle => by_truth(sets, sight),
        }
    }

    /// Takes the longer routine when the shorter one's channels hold more waiting requests than the longer one's by
    /// more than the threshold of the update's class.
    fn by_threshold(&self, sets: PreReads, sight: &impl Sight) -> Routine {
        let shorter = fewest_pre_reads(sets);
        let (near, far) = match shorter {
            Routine::Rmw => (sets.rmw, sets.rcw),
            Routine::Rcw => (sets.rcw, sets.rmw),
        };
        let class = match far.count_ones() - near.count_ones() {
            0 => 0,
            1 | 2 => 1,
            _ => 2,
        };
        let waiting = |set: ChannelSet| -> u32 {
            channels_in(set)
                .map(|c| sight.load(c, ModelView::Channel))
                .map(|load| load.reads + load.writes)
                .sum()
        };
        if near == 0 || waiting(near) <= waiting(far) + self.bpu[class] { shorter } else { other(shorter) }
    }

    fn by_model(&self, sets: PreReads, sight: &impl Sight) -> Routine {
        let cost = |set| routine_cost(channels_in(set).map(|channel| sight.load(channel, self.view)));
        cheaper(cost(sets.rmw), cost(sets.rcw))
    }
}

/// Baseline's rule. A tie goes to RMW, as in Algorithm 1.
pub fn fewest_pre_reads(sets: PreReads) -> Routine {
    if sets.rmw.count_ones() > sets.rcw.count_ones() { Routine::Rcw } else { Routine::Rmw }
}

/// The other routine.
pub fn other(routine: Routine) -> Routine {
    match routine {
        Routine::Rmw => Routine::Rcw,
        Routine::Rcw => Routine::Rmw,
    }
}

/// Tries both routines on the chips as they truly are: what runs, what is queued with its true read time, what is left
/// of a collection. Pre-reads that end before the parity channel can write gain nothing.
fn by_truth(sets: PreReads, sight: &impl Sight) -> Routine {
    let floor = sight.parity_blocked_ns();
    let cost = |set| {
        let mut cost = RoutineCost { update_ns: floor, delay_ns: 0 };
        for channel in channels_in(set) {
            let (done_ns, delay_ns) = sight.truth(channel);
            cost.update_ns = cost.update_ns.max(done_ns);
            cost.delay_ns += delay_ns;
        }
        cost
    };
    cheaper(cost(sets.rmw), cost(sets.rcw))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Channels with given (reads, writes), 100 ns reads.
    struct Loads([(u32, u32); 6]);

    impl Sight for Loads {
        fn load(&self, channel: usize, _: ModelView) -> MemberLoad {
            let (reads, writes) = self.0[channel];
            MemberLoad { reads, writes, read_ns: 100, gc_ns: 0 }
        }
        fn truth(&self, channel: usize) -> (u64, u64) {
            let (reads, writes) = self.0[channel];
            (u64::from(reads + 1) * 100, u64::from(writes) * 100)
        }
        fn parity_blocked_ns(&self) -> u64 {
            0
        }
    }

    const SMALL: PreReads = PreReads { rmw: 0b10_0001, rcw: 0b01_1110 };
    const FULL: PreReads = PreReads { rmw: 0b11_1111, rcw: 0 };

    fn choose(policy: Policy, sets: PreReads, loads: [(u32, u32); 6]) -> Routine {
        Chooser { bpu: [1, 4, 16], ..Chooser::new(policy) }.choose(sets, &Loads(loads))
    }

    #[test]
    fn every_policy_takes_the_shorter_routine_on_an_idle_device_and_rcw_for_full_stripes() {
        for policy in Policy::ALL {
            assert_eq!(choose(policy, SMALL, [(0, 0); 6]), Routine::Rmw, "{policy:?}");
            assert_eq!(choose(policy, FULL, [(9, 9); 6]), Routine::Rcw, "{policy:?}");
        }
    }

    #[test]
    fn only_baseline_ignores_a_congested_channel() {
        let loads = [(9, 9), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0)];
        assert_eq!(choose(Policy::Baseline, SMALL, loads), Routine::Rmw);
        for policy in [Policy::Bpu, Policy::Adaptive, Policy::Oracle] {
            assert_eq!(choose(policy, SMALL, loads), Routine::Rcw, "{policy:?}");
        }
    }

    /// The paper's criticism of BPU: a backlog under the threshold is not seen, and writes count like reads.
    #[test]
    fn bpu_does_not_act_below_its_threshold() {
        let loads = [(4, 0), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0)];
        assert_eq!(choose(Policy::Bpu, SMALL, loads), Routine::Rmw);
        assert_eq!(choose(Policy::Adaptive, SMALL, loads), Routine::Rcw);
    }
}
