//! Which counters of the bitmap and which stripes share a lock: the three systems that ScalaRAID compares (its 3.1 and
//! 4.1). What is durable before a stripe changes is the same with each.

use std::fmt::{self, Display};
use std::str::FromStr;

/// How shards keep out of each other's way in what they share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Locks {
    /// md's: one lock over all counters (`bitmap_counts.lock`), eight over the stripes (`NR_STRIPE_HASH_LOCKS`).
    Orig,
    /// The paper's half way: one lock over all counters, 128 over the stripes.
    Hemi,
    /// None: a word a counter and a word a stripe, each changed by itself.
    #[default]
    Scala,
}

impl Locks {
    /// Every one.
    pub const ALL: [Locks; 3] = [Locks::Orig, Locks::Hemi, Locks::Scala];

    /// Locks over the stripes, a power of two; None: there are none.
    pub(super) fn of_stripes(self) -> Option<usize> {
        match self {
            Locks::Orig => Some(8),
            Locks::Hemi => Some(128),
            Locks::Scala => None,
        }
    }

    /// Whether one lock is over all counters.
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
