//! Why a server ends.

use std::time::Instant;

use crate::failure::Failure;
use crate::serving::Stopped;

/// Why serving should end.
pub enum Ending {
    /// A signal asks for it.
    Signal {
        /// Its number.
        signal: i32,
        /// When it came.
        at: Instant,
    },
    /// `twill stop` did it; this is how it went.
    Stopped(Result<Stopped, Failure>),
    /// It does not end: somebody uses the block device.
    Refused(Failure),
}
