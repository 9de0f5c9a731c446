//! What `assemble` answers, as `--json` prints it.

use engine::array::assemble::Verdict;
use serde::Serialize;

use crate::exit::ExitKind;
use crate::failure::Problem;
use layout::units::Stripe;

/// What `assemble` answers.
#[derive(Debug, Serialize)]
pub struct Answer {
    pub arrays: Vec<AnswerArray>,
    /// Candidates that belong to no wanted array.
    pub others: Vec<AnswerCandidate>,
}

#[derive(Debug, Serialize)]
pub struct AnswerArray {
    pub name: String,
    pub uuid: String,
    pub level: Option<String>,
    pub layout: Option<String>,
    pub chunk_bytes: Option<u32>,
    pub size_bytes: Option<u64>,
    pub raid_devices: usize,
    pub events: u64,
    pub would_start: bool,
    /// Why it would not.
    pub refusal: Option<String>,
    pub refusal_kind: Option<ExitKind>,
    /// Members that are in use.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub in_use: Vec<Problem>,
    pub missing_slots: Vec<usize>,
    pub resync_from_bytes: Option<u64>,
    /// Writes that a crash left half done and the redo log tells how to finish.
    pub redo_records: usize,
    /// The stripes that they are about, ascending.
    pub redo_stripes: Vec<Stripe>,
    /// Stripes of which what missing members held may be wrong.
    pub in_doubt: Vec<AnswerRange>,
    /// Why.
    pub in_doubt_reason: Option<String>,
    /// Stale members that force takes: which, how old, and what may be lost.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub taken_by_force: Vec<String>,
    pub candidates: Vec<AnswerCandidate>,
}

/// Stripes from `first` to `end` - 1.
#[derive(Debug, Serialize)]
pub struct AnswerRange {
    pub first: u64,
    pub end: u64,
}

#[derive(Debug, Serialize)]
pub struct AnswerCandidate {
    pub path: String,
    #[serde(flatten)]
    pub verdict: Verdict,
    /// What the verdict rests on.
    pub basis: Option<Basis>,
}

#[derive(Debug, Serialize)]
pub struct Basis {
    pub events: u64,
    pub device_uuid: String,
    pub device_role: String,
    pub update_unix_s: u64,
    pub clean: bool,
    /// Of a member of a zoned array: the last epoch that it served, or `none`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub served_epoch: Option<String>,
}
