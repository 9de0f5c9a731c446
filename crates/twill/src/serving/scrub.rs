//! Checks and repairs of a served array.

use engine::array::scrub::{Refused, ScrubRequest, ScrubState};

use super::managed::ManagedArray;
use crate::exit::ExitKind;
use crate::failure::Failure;

/// Starts, pauses, resumes or cancels a check or repair.
///
/// # Errors
/// Why not.
pub fn scrub(array: &ManagedArray, wish: ScrubRequest) -> Result<(), Failure> {
    let refused = array.ask(move |manager| manager.request_scrub(wish))?;
    refused.map_err(|refused| match refused {
        Refused::Degraded => {
            let message = format!("{refused}; missing: {}", array.missing_words());
            Failure::new(ExitKind::MemberInUse, message).help(DEGRADED_HELP)
        }
        _ => failure(&refused),
    })
}

/// Why a request is not granted, for a person.
pub(super) fn failure(refused: &Refused) -> Failure {
    let kind = match refused {
        Refused::NoRedundancy => ExitKind::Unsupported,
        Refused::ReadOnly | Refused::Degraded | Refused::NotSynced => ExitKind::MemberInUse,
        Refused::Another(..) => ExitKind::AlreadyExists,
        Refused::Nothing(_) => ExitKind::NotFound,
    };
    Failure::new(kind, refused.to_string()).help(match refused {
        Refused::NoRedundancy => "compare its files with a backup",
        Refused::ReadOnly | Refused::NotSynced => "stop the array and serve it without --read-only",
        Refused::Degraded => DEGRADED_HELP,
        Refused::Another(..) => "twill scrub cancel ends it; twill scrub report says what it found so far",
        Refused::Nothing(_) => "twill check begins one",
    })
}

/// What helps where nothing can be compared.
const DEGRADED_HELP: &str =
    "give the array a member first: twill re-add or twill add, then twill status --wait";

/// The last check or repair with all it found.
///
/// # Errors
/// The array is being stopped.
pub fn scrub_state(array: &ManagedArray) -> Result<Option<ScrubState>, Failure> {
    array.ask(|manager| manager.scrub())
}
