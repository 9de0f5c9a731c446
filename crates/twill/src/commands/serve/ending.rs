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
    /// It is being stopped, and that is not called off any more.
    Stopping,
    /// `twill stop` stopped it, with this outcome.
    Stopped(Result<Stopped, Failure>),
    /// It does not end: the block device is in use.
    Refused(Failure),
}
