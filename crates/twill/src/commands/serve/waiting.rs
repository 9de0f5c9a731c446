//! A start without a member that would leave stripes in doubt waits a little for that member: drives of one machine do not
//! all come up in the same second.
//!
//! After a crash parity may not tell what a missing member holds. It tells when it is there, so a few seconds may save a
//! degraded run; without the wait nothing is lost either, but what the member holds there cannot be read until it is back.

use std::thread;
use std::time::{Duration, Instant};

use engine::array::assemble::Filter;

use super::picked::Picked;
use crate::arguments::ServeArguments;
use crate::exit::ExitKind;
use crate::failure::Failure;

/// How long a start that searches for its members waits unless --wait-members says otherwise. Drives answer within this
/// after a reset.
const PATIENCE_S: u64 = 5;
/// Time between two looks.
const INTERVAL: Duration = Duration::from_millis(250);

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
            Ok(picked) => picked.cost().map(|cost| cost.words()),
            Err(failure) => may_come(failure).then(|| failure.to_string()),
        };
        let Some(why) = waits_for.filter(|_| Instant::now() < end) else { return outcome };
        if !std::mem::replace(&mut said, true) {
            tracing::info!("waiting up to {patience_s} s for missing members (--wait-members): {why}");
        }
        thread::sleep(INTERVAL);
    }
}
