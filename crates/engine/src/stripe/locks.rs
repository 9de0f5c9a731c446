//! Which counters of the bitmap and which stripes share a lock: the three systems that ScalaRAID compares (its 3.1 and
//! 4.1). All three make the same write intent durable before a stripe changes.

use std::fmt::{self, Display};
use std::str::FromStr;

/// The locks over the bitmap's counters and over the stripes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Locks {
    /// md's: one lock over all counters (`bitmap_counts.lock`), eight over the stripes (`NR_STRIPE_HASH_LOCKS`).
    Orig,
    /// The paper's intermediate system: one lock over all counters, 128 over the stripes.
    Hemi,
    /// No locks: one atomic word for each counter and each stripe.
    #[default]
    Scala,
}

impl Locks {
    /// All of them.
    pub const ALL: [Locks; 3] = [Locks::Orig, Locks::Hemi, Locks::Scala];

    /// How many locks there are over the stripes, a power of two. None: no locks.
    pub(super) fn of_stripes(self) -> Option<usize> {
        match self {
            Locks::Orig => Some(8),
            Locks::Hemi => Some(128),
            Locks::Scala => None,
        }
    }

    /// Whether all counters share one lock.
    pub(super) fn one_for_counters(self) -> bool {
        self != Locks::Scala
    }
}

impl FromStr for Locks {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = |locks: &&Locks| locks.to_string() == text;
        Locks::ALL.iter().find(named).copied().ok_or_else(|| format!("{text:?}: write orig, hemi or scala"))
    }
}

impl Display for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Locks::Orig => "orig",
            Locks::Hemi => "hemi",
            Locks::Scala => "scala",
        })
    }
}
