//! A start waits a little for members that are not there yet: drives of one machine do not all come up in the same second.
//!
//! Without the wait nothing is lost, but the array starts degraded: its first write marks the absent member as failed, and after a
//! crash what that member holds in stripes in doubt cannot be read until it is back.

use std::thread;
use std::time::{Duration, Instant};

use crate::arguments::Choice;
use crate::exit::ExitKind;
use crate::failure::Failure;

/// How long a start that searches for its members waits unless --wait-members says otherwise. Drives answer within this
/// after a reset.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Time between two looks.
const INTERVAL: Duration = Duration::from_millis(250);

/// Looks until all members are there that superblocks name, or for as long as the command line says; without a word of it, for
/// `patience`. `missing` says which are not.
///
/// # Errors
/// What the last look came to.
pub fn look_until_there<T>(
    choice: &Choice,
    patience: Duration,
    mut look: impl FnMut() -> Result<T, Failure>,
    missing: impl Fn(&T) -> Option<String>,
) -> Result<T, Failure> {
    let wanted = choice.wait_members;
    let patience = wanted.unwrap_or(patience);
    let end = Instant::now() + patience;
    let may_come = |failure: &Failure| match failure.kind {
        ExitKind::NotEnoughMembers => true,
        // A path that was named and is not there, or a search that finds no array, is waited for only on demand: else it is
        // likely misspelt.
        ExitKind::NotFound => wanted.is_some(),
        ExitKind::NotAMember => wanted.is_some() && choice.scan.is_some(),
        _ => false,
    };
    let mut said = false;
    loop {
        let outcome = look();
        let waits_for = match &outcome {
            Ok(found) => missing(found),
            Err(failure) => may_come(failure).then(|| failure.to_string()),
        };
        let Some(why) = waits_for.filter(|_| Instant::now() < end) else { return outcome };
        if !std::mem::replace(&mut said, true) {
            let patience = humantime::format_duration(patience);
            tracing::warn!("waiting up to {patience} for missing members (--wait-members): {why}");
        }
        thread::sleep(INTERVAL);
    }
}
