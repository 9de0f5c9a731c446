//! A start without a member that would leave stripes in doubt waits a little for that member: drives of one machine do not
//! all come up in the same second.
//!
//! After a crash parity may not tell what a missing member holds. It tells when it is there, so a few seconds may save a
//! degraded run; without the wait nothing is lost either, but what the member holds there cannot be read until it is back.

use std::thread;
use std::time::{Duration, Instant};

use engine::array::assemble::Filter;
use layout::redo_log::StripeRange;

use super::super::assemble as choose;
use super::picked::Picked;
use crate::arguments::ServeArguments;
use crate::bytes;
use crate::counted::counted;
use crate::exit::ExitKind;
use crate::failure::Failure;

/// How long a start that searches for its members waits unless --wait-members says otherwise. Drives answer within this
/// after a reset.
const PATIENCE_S: u64 = 5;
/// Time between two looks.
const INTERVAL: Duration = Duration::from_millis(250);

/// What a start without some members costs.
pub struct Cost {
    slots: Vec<usize>,
    stripes: u64,
    chunk_bytes: u64,
}

/// The members that make the array, once all are there, or no stripe would be in doubt without those that are not, or the
/// time is over.
///
/// # Errors
/// They make no array that may start.
pub fn choose_when_there(arguments: &ServeArguments, filter: &Filter) -> Result<Picked, Failure> {
    let is_search = arguments.choice.scan.is_some();
    let patience_s = arguments.wait_members.unwrap_or(if is_search { PATIENCE_S } else { 0 });
    let end = Instant::now() + Duration::from_secs(patience_s);
    // A path that was named and is not there is waited for only on demand: else it is likely misspelt.
    let may_come = |failure: &Failure| arguments.wait_members.is_some() && failure.kind == ExitKind::NotFound;
    let mut said = false;
    loop {
        let outcome = Picked::decide(&arguments.choice, filter);
        let waits_for = match &outcome {
            Ok(picked) => cost(picked).map(|cost| cost.words()),
            Err(failure) => may_come(failure).then(|| failure.to_string()),
        };
        let Some(why) = waits_for.filter(|_| Instant::now() < end) else { return outcome };
        if !std::mem::replace(&mut said, true) {
            tracing::info!("waiting up to {patience_s} s for missing members (--wait-members): {why}");
        }
        thread::sleep(INTERVAL);
    }
}

/// What it costs to start without the members that are not there. None: nothing that parity does not tell, as always in a
/// zoned array.
pub fn cost(picked: &Picked) -> Option<Cost> {
    let Picked::InPlace(chosen) = picked else { return None };
    let array = &chosen.array;
    let slots: Vec<usize> = (0..array.slots.len()).filter(|slot| array.slots[*slot].is_none()).collect();
    if slots.is_empty() || array.resync_from_bytes.is_none() {
        return None;
    }
    let doubts = choose::found_redo(&chosen.candidates, array, chosen.force).repair.doubts;
    let stripes = doubts.iter().map(|range: &StripeRange| range.end - range.first).sum();
    let chunk_bytes = array.geometry.as_ref().map_or(0, |geometry| u64::from(geometry.chunk_bytes()));
    (stripes > 0).then_some(Cost { slots, stripes, chunk_bytes })
}

impl Cost {
    /// The cost for a person.
    pub fn words(&self) -> String {
        let Cost { slots, stripes, chunk_bytes } = self;
        format!(
            "no member in {}, and {} in doubt since the last stop was not clean: up to {} that each missing member holds there \
             cannot be read until it is back",
            slots_words(slots),
            match stripes {
                1 => "1 stripe is".to_owned(),
                many => format!("{} are", counted(*many, "stripe")),
            },
            bytes::human(stripes.saturating_mul(*chunk_bytes)),
        )
    }
}

/// `slot 2`, `slots 2, 3`.
pub fn slots_words(slots: &[usize]) -> String {
    let numbers: Vec<String> = slots.iter().map(ToString::to_string).collect();
    format!("slot{} {}", if slots.len() == 1 { "" } else { "s" }, numbers.join(", "))
}
