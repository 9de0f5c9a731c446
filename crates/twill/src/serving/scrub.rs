//! Checks and repairs of a served array.

use engine::array::scrub::{Refused, ScrubState, Wish};

use super::Serving;
use crate::exit::ExitKind;
use crate::failure::Failure;

impl Serving {
    /// Starts, pauses, resumes or cancels a check or repair.
    ///
    /// # Errors
    /// Why not.
    pub fn scrub(&self, wish: Wish) -> Result<(), Failure> {
        self.manager.ask(&self.shards, move |manager| manager.wish(wish))?.map_err(|refused| {
            let kind = match refused {
                Refused::NoRedundancy => ExitKind::Unsupported,
                Refused::ReadOnly | Refused::Degraded | Refused::NotSynced => ExitKind::MemberInUse,
                Refused::Another(..) => ExitKind::AlreadyExists,
                Refused::Nothing(_) => ExitKind::NotFound,
            };
            Failure::new(kind, refused.to_string())
        })
    }

    /// The last check or repair with all it found.
    ///
    /// # Errors
    /// The array is being stopped.
    pub fn scrub_state(&self) -> Result<Option<ScrubState>, Failure> {
        self.manager.ask(&self.shards, |manager| manager.scrub())
    }
}
