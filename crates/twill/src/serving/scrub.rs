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
    array.ask(move |manager| manager.request_scrub(wish))?.map_err(|refused| failure(&refused))
}

/// Why a request is not granted, for a person.
pub(super) fn failure(refused: &Refused) -> Failure {
    let kind = match refused {
        Refused::NoRedundancy => ExitKind::Unsupported,
        Refused::ReadOnly | Refused::Degraded | Refused::NotSynced => ExitKind::MemberInUse,
        Refused::Another(..) => ExitKind::AlreadyExists,
        Refused::Nothing(_) => ExitKind::NotFound,
    };
    Failure::new(kind, refused.to_string())
}

/// The last check or repair with all it found.
///
/// # Errors
/// The array is being stopped.
pub fn scrub_state(array: &ManagedArray) -> Result<Option<ScrubState>, Failure> {
    array.ask(|manager| manager.scrub())
}
