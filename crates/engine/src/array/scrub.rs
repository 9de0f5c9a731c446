//! Scrub of a whole array: which stripes or regions, how many at once, how far, and what was found.
//!
//! A scrub stands behind everything else: it goes on only while every member is in sync and parity is known to agree.
//! After a crash that is not so before the resync has ended: until then rows differ because a write was cut short, and
//! no member is to blame.
//!
//! Where it is and what it found is a plain value ([`ScrubState`]) that its owner keeps outside of the members, so that it
//! goes on there after a restart; md's superblock has no place for it. A lost value costs a scrub from the start.

use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

use serde::{Deserialize, Serialize};

use super::progress::{Ended, Pace, Progress};
use crate::device::Device;
use crate::error::VolumeError;
use crate::events::Event;
use crate::executor::join_all;
use crate::in_place::InPlace;
use crate::mismatch::{Checked, Mismatch, Outcome, ScrubMode};
use crate::stripe::unit_number::UnitNumber;

/// Mismatches that a report lists; the rest are counted.
pub const FOUND_MAX: usize = 1000;
/// Mismatches that become events; the rest are in the report.
const EVENTS_MAX: u64 = 100;
/// md counts mismatches in sectors.
const SECTOR_BYTES: u64 = 512;

/// How a scrub is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// It goes on, or waits for a recovery or resync to end.
    #[default]
    Running,
    /// An operator paused it.
    Paused,
    /// All was checked.
    Finished,
    /// An operator cancelled it.
    Cancelled,
    /// It could not go on.
    Failed,
}

/// What a scrub found so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubReport {
    /// Stripes, or regions of a mirror, that were checked.
    pub stripes_checked: u64,
    /// Those that could not be: a member was missing, or the last write failed half way.
    pub stripes_skipped: u64,
    /// What does not agree, in sectors of a member, as md's `mismatch_cnt` counts.
    pub mismatch_sectors: u64,
    /// Mismatches with a block that is known to be wrong.
    pub located: u64,
    /// Mismatches that were repaired.
    pub repaired: u64,
    /// Mismatches that were to be repaired and could not be, or that are not repaired without being asked to.
    pub left: u64,
    /// The first [`FOUND_MAX`] of them.
    pub found: Vec<Mismatch>,
    /// How many more there are.
    pub found_not_listed: u64,
}

/// All there is to know of a scrub.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubState {
    /// Tells it from others of the same array.
    pub number: u64,
    /// What it does.
    pub mode: ScrubMode,
    /// How it is.
    pub phase: Phase,
    /// The next stripe, or region of a mirror, to check.
    pub next_stripe: u64,
    /// What it found.
    pub report: ScrubReport,
    /// Why it could not go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

impl ScrubState {
    /// A scrub from the start. `number` is another than that of the one before.
    pub fn new(number: u64, mode: ScrubMode) -> Self {
        ScrubState { number, mode, ..ScrubState::default() }
    }

    /// Takes over how far this same scrub has come and what it found; how it is stays as it was. What is listed only grows, so
    /// a copy of all of it for each batch is not needed.
    pub fn follow(&mut self, newer: &ScrubState) {
        self.next_stripe = newer.next_stripe;
        let listed = self.report.found.len();
        let mut found = std::mem::take(&mut self.report.found);
        found.extend_from_slice(newer.report.found.get(listed..).unwrap_or_default());
        let ScrubReport { stripes_checked, stripes_skipped, mismatch_sectors, .. } = newer.report;
        let ScrubReport { located, repaired, left, found_not_listed, .. } = newer.report;
        self.report = ScrubReport {
            stripes_checked,
            stripes_skipped,
            mismatch_sectors,
            located,
            repaired,
            left,
            found,
            found_not_listed,
        };
    }

    /// Whether it is not over.
    pub fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Running | Phase::Paused)
    }
}

/// What an operator wants of a scrub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScrubRequest {
    /// A scrub. One of the same kind that is not over goes on, unless `restart` wants it from the start.
    Start {
        /// What it shall do.
        mode: ScrubMode,
        /// One that is not over is given up.
        restart: bool,
    },
    /// Stop for now.
    Pause,
    /// Go on.
    Resume,
    /// Stop for good.
    Cancel,
}

/// Why a request is not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The level has neither parity nor copies.
    #[error("the level has neither parity nor copies to compare with")]
    NoRedundancy,
    /// The array is served read-only.
    #[error("the array is served read-only: it can be checked, not repaired")]
    ReadOnly,
    /// Members are missing, and nothing takes their place.
    #[error("members are missing: what is there has nothing to be compared with before they are replaced")]
    Degraded,
    /// Parity or copies may not agree, and nothing makes them.
    #[error(
        "the array was not stopped cleanly and is served read-only: no resync makes its parity agree first"
    )]
    NotSynced,
    /// Another kind of scrub is under way or paused.
    #[error("a {} is {}; cancel it first, or begin from the start with --restart", word(.0.repair), phase_word(.1))]
    Another(ScrubMode, Phase),
    /// Nothing is there to be paused, resumed or cancelled.
    #[error("no check or repair is {0}")]
    Nothing(&'static str),
}

/// The operator's word for a kind of scrub.
pub fn word(repair: bool) -> &'static str {
    if repair { "repair" } else { "check" }
}

fn phase_word(phase: &Phase) -> &'static str {
    if *phase == Phase::Paused { "paused" } else { "under way" }
}

/// What becomes of the scrub `old` by a request.
///
/// # Errors
/// [`Refused`] says why it stays as it is.
pub fn apply(old: Option<&ScrubState>, request: ScrubRequest) -> Result<ScrubState, Refused> {
    let open = old.filter(|old| old.is_open());
    let with = |phase: Phase, what: &'static str, found: Option<&ScrubState>| match found {
        Some(found) => Ok(ScrubState { phase, ..found.clone() }),
        None => Err(Refused::Nothing(what)),
    };
    let running = open.filter(|old| old.phase == Phase::Running);
    match (request, open) {
        (ScrubRequest::Start { mode, restart: false }, Some(open)) if open.mode == mode => {
            Ok(ScrubState { phase: Phase::Running, ..open.clone() })
        }
        (ScrubRequest::Start { restart: false, .. }, Some(open)) => {
            Err(Refused::Another(open.mode, open.phase))
        }
        (ScrubRequest::Start { mode, .. }, _) => {
            Ok(ScrubState::new(old.map_or(1, |old| old.number + 1), mode))
        }
        (ScrubRequest::Pause, _) => with(Phase::Paused, "under way", running),
        (ScrubRequest::Resume, _) => with(Phase::Running, "paused", open),
        (ScrubRequest::Cancel, _) => with(Phase::Cancelled, "under way or paused", open),
    }
}

impl ScrubReport {
    /// Adds what the check of a stripe or region found. Returns those that are worth an event.
    pub(in crate::array) fn add(&mut self, checked: Checked, mode: ScrubMode) -> Vec<Mismatch> {
        if checked.skipped {
            self.stripes_skipped += 1;
        } else {
            self.stripes_checked += 1;
        }
        let mut events = Vec::new();
        for mismatch in checked.found {
            self.mismatch_sectors += mismatch.bytes / SECTOR_BYTES;
            self.located += u64::from(mismatch.wrong != crate::mismatch::Wrong::Unknown);
            match mismatch.outcome {
                Outcome::Found | Outcome::NotRepaired => self.left += u64::from(mode.repair),
                Outcome::BlockRewritten
                | Outcome::ParityRewritten
                | Outcome::CopiesRewritten
                | Outcome::Moved => {
                    self.repaired += 1;
                }
            }
            if self.count() < EVENTS_MAX {
                events.push(mismatch.clone());
            }
            if self.found.len() < FOUND_MAX {
                self.found.push(mismatch);
            } else {
                self.found_not_listed += 1;
            }
        }
        events
    }

    /// Mismatches in all.
    pub fn count(&self) -> u64 {
        self.found.len() as u64 + self.found_not_listed
    }
}

/// Whether a scrub may go on, for its owner to say after each batch.
pub trait Permit {
    /// Called before each batch.
    fn may_go_on(&self) -> bool;
    /// A batch was checked; `state` says what is done.
    fn checked(&self, state: &ScrubState);
}

/// Checks from `state.next_stripe` on. `state` is brought up to date after each batch.
pub async fn scrub<D: Device>(
    set: &Rc<InPlace<D>>,
    mut state: ScrubState,
    progress: &Progress,
    permit: &impl Permit,
    pace: &impl Pace,
) -> (Ended, ScrubState) {
    let steps = Steps::of(set);
    progress.begin(&set.shared, steps.bytes_done(state.next_stripe), steps.bytes_done(steps.count));
    while state.next_stripe < steps.count {
        if progress.stop.load(Relaxed) || !permit.may_go_on() {
            return (Ended::Stopped, state);
        }
        let end = (state.next_stripe + steps.at_once).min(steps.count);
        match batch(set, state.next_stripe, end, state.mode).await {
            Ok(checked) => checked.into_iter().for_each(|checked| {
                for mismatch in state.report.add(checked, state.mode) {
                    set.shared.members.report(Event::Mismatch(mismatch));
                }
            }),
            Err(error) => return (Ended::Failed(error), state),
        }
        let bytes = steps.bytes_done(end) - steps.bytes_done(state.next_stripe);
        state.next_stripe = end;
        progress.done_bytes.store(steps.bytes_done(end), Relaxed);
        permit.checked(&state);
        pace.after(bytes).await;
    }
    (Ended::Finished, state)
}

/// Member bytes in one batch: enough to keep a member busy, little enough to wait for.
const BATCH_MEMBER_BYTES: u64 = 1 << 20;
/// Stripes owned by one batch at the most: a small part of the stripe table.
const BATCH_STRIPES_MAX: u64 = 64;
/// Regions of a mirror at a time.
const REGIONS_AT_ONCE: u64 = 8;

/// How an array is cut for a scrub.
struct Steps {
    /// Stripes, or regions of a mirror.
    count: u64,
    at_once: u64,
    total_bytes: u64,
}

impl Steps {
    fn of<D: Device>(set: &InPlace<D>) -> Self {
        let geometry = &set.shared.geometry;
        match geometry.parity_chunks() {
            0 if geometry.losses_survived() == 0 => Steps { count: 0, at_once: 1, total_bytes: 0 },
            0 => {
                let total_bytes = geometry.array_bytes();
                Steps { count: set.regions(), at_once: REGIONS_AT_ONCE, total_bytes }
            }
            _ => {
                let chunk_bytes = u64::from(geometry.chunk_bytes());
                let at_once = (BATCH_MEMBER_BYTES / chunk_bytes).clamp(1, BATCH_STRIPES_MAX);
                let count = geometry.stripes();
                Steps { count, at_once, total_bytes: count * chunk_bytes }
            }
        }
    }

    /// Bytes of a member, for a mirror of the array, that lie before a stripe or region.
    fn bytes_done(&self, number: u64) -> u64 {
        let done = u128::from(self.total_bytes) * u128::from(number) / u128::from(self.count.max(1));
        u64::try_from(done).expect("a part of the whole")
    }
}

async fn batch<D: Device>(
    set: &Rc<InPlace<D>>,
    first: u64,
    end: u64,
    mode: ScrubMode,
) -> Result<Vec<Checked>, VolumeError> {
    let start = |number| {
        let set = Rc::clone(set);
        set.executor.clone().spawn_with_result(async move { set.check(UnitNumber::new(number), mode).await })
    };
    join_all((first..end).map(start)).await.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mismatch::Unit;
    use layout::units::Stripe;

    const CHECK: ScrubMode = ScrubMode { repair: false, trust_data: false };
    const REPAIR: ScrubMode = ScrubMode { repair: true, trust_data: false };

    fn state(number: u64, mode: ScrubMode, phase: Phase) -> ScrubState {
        let next_stripe = if number == 7 { 0 } else { 42 };
        ScrubState { number, mode, phase, next_stripe, ..ScrubState::default() }
    }

    /// Three batches with a mismatch more than is listed, followed from each to the next.
    #[test]
    fn who_follows_has_the_same() {
        let mismatch = Mismatch {
            unit: Unit::Stripe(Stripe::new(3)),
            row_bytes: 0,
            bytes: 4096,
            wrong: crate::mismatch::Wrong::Unknown,
            blocks: Vec::new(),
            array_offset_bytes: None,
            outcome: Outcome::NotRepaired,
        };
        let mut scrub = ScrubState::new(4, REPAIR);
        let mut follower = ScrubState { phase: Phase::Paused, ..scrub.clone() };
        for found in [0, 1, FOUND_MAX] {
            scrub.next_stripe += 1;
            let checked = Checked { skipped: found == 1, found: vec![mismatch.clone(); found] };
            scrub.report.add(checked, REPAIR);
            follower.follow(&scrub);
            assert_eq!(follower, ScrubState { phase: Phase::Paused, ..scrub.clone() });
        }
        assert_eq!(follower.report.found_not_listed, 1);
    }

    #[test]
    fn table_of_wishes() {
        use Phase::{Cancelled, Failed, Finished, Paused, Running};
        let start = |mode, restart| ScrubRequest::Start { mode, restart };
        let new = |number, mode| Ok(ScrubState::new(number, mode));
        let old = |phase| Some(state(6, CHECK, phase));
        let becomes = |phase| Ok(state(6, CHECK, phase));
        let cases = [
            (None, start(CHECK, false), new(1, CHECK)),
            (None, ScrubRequest::Pause, Err(Refused::Nothing("under way"))),
            (None, ScrubRequest::Cancel, Err(Refused::Nothing("under way or paused"))),
            (old(Finished), start(CHECK, false), new(7, CHECK)),
            (old(Cancelled), start(REPAIR, false), new(7, REPAIR)),
            (old(Failed), ScrubRequest::Resume, Err(Refused::Nothing("paused"))),
            (old(Running), start(CHECK, false), becomes(Running)),
            (old(Paused), start(CHECK, false), becomes(Running)),
            (old(Paused), start(CHECK, true), new(7, CHECK)),
            (old(Paused), start(REPAIR, false), Err(Refused::Another(CHECK, Paused))),
            (old(Running), start(REPAIR, true), new(7, REPAIR)),
            (old(Running), ScrubRequest::Pause, becomes(Paused)),
            (old(Paused), ScrubRequest::Pause, Err(Refused::Nothing("under way"))),
            (old(Paused), ScrubRequest::Resume, becomes(Running)),
            (old(Paused), ScrubRequest::Cancel, becomes(Cancelled)),
            (old(Running), ScrubRequest::Cancel, becomes(Cancelled)),
            (old(Finished), ScrubRequest::Cancel, Err(Refused::Nothing("under way or paused"))),
        ];
        for (old, request, expected) in cases {
            assert_eq!(apply(old.as_ref(), request), expected, "{old:?} {request:?}");
        }
    }
}
