//! What the runs of the experiment differ in: their writes, the troubles of their members and the policy of the array.

use engine::members::load::UpdatePolicy;
use serde::Serialize;

/// What the writes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Writes {
    /// 4 KiB each.
    Small,
    /// One chunk to all data chunks but one, each number as often.
    Mixed,
}

/// What the members suffer from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Troubles {
    /// Nothing.
    None,
    /// Each pauses now and then.
    Pauses,
    /// One of them has others' reads to serve.
    Others,
}

impl Writes {
    pub(super) const fn word(self) -> &'static str {
        match self {
            Writes::Small => "small",
            Writes::Mixed => "mixed",
        }
    }
}

impl Troubles {
    pub(super) const fn word(self) -> &'static str {
        match self {
            Troubles::None => "none",
            Troubles::Pauses => "pauses",
            Troubles::Others => "others",
        }
    }
}

/// How the array behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Policy {
    /// How writes choose.
    pub update: UpdatePolicy,
    /// Whether reads avoid slow members.
    pub avoid_slow: bool,
}

impl Policy {
    /// Every policy that is compared; the first is the one that the others are compared with.
    pub const ALL: [Policy; 4] = {
        use UpdatePolicy::{Adaptive, FewestReads};
        [
            Policy { update: FewestReads, avoid_slow: false },
            Policy { update: Adaptive, avoid_slow: false },
            Policy { update: FewestReads, avoid_slow: true },
            Policy { update: Adaptive, avoid_slow: true },
        ]
    };
}
