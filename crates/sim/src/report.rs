//! What a history is run with, and how it ended: for histories and the grid alike.

use layout::geometry::Level;

use crate::counts::Counts;
use crate::network::Bug;
use crate::random::Random;
use crate::reduced::Reduced;
use crate::scenario::Scenario;
use crate::zoned::Plant;

/// What to run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Only this level.
    pub level: Option<Level>,
    /// A bug that is planted: members say that a flush is done, and nothing is durable.
    pub flushes_lie: bool,
    /// A bug that is planted in zoned arrays.
    pub plant: Option<Plant>,
    /// A bug that is planted in members on other machines.
    pub network_bug: Option<Bug>,
    /// Bits to flip at the end of each history of a zoned array. The power is not cut in it then.
    pub flips: Option<u64>,
    /// How the history is made smaller than the seed says.
    pub reduced: Reduced,
    /// Lines of the trace to keep for a failure.
    pub tail: usize,
}

impl Options {
    /// Changes a drawn scenario to these options. With a salt it returns another source of chance.
    pub(crate) fn change(&self, scenario: &mut Scenario, seed: u64) -> Option<Random> {
        scenario.faults.flushes_lie = self.flushes_lie;
        self.reduced.apply(scenario, seed).map(Random::new)
    }
}

/// A history that ended well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// What was done.
    pub counts: Counts,
    /// Hash of everything that happened, in order.
    pub trace_hash: u64,
    /// The array, the load and the faults in words.
    pub scenario: String,
}

/// A history in which a check failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed that replays it.
    pub seed: u64,
    /// What went wrong.
    pub what: String,
    /// The array, the load and the faults in words.
    pub scenario: String,
    /// The last part of the trace.
    pub tail: Vec<String>,
    /// The scenario, for shrinking; zoned arrays are not made smaller.
    pub(crate) drawn: Option<Scenario>,
}
