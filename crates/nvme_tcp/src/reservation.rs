//! Reservations of a namespace: which hosts are registered, which of them hold it, and what the others may do.
//!
//! - F-I6: only the holder's class may change the namespace ([`AccessRule`]). A preempt names its victims; the target answers it
//!   when their running commands have ended.
//! - F-I9: a change is decided ([`Reservations::decide`]), its state file is written and synced, and only then it is installed
//!   ([`Reservations::install`]) and answered. A file that cannot be believed is an error: the target serves the namespace to
//!   no host until the operator says that its reservations are gone.
//! - A host is its 128-bit identifier together with its name: with an identifier alone any allowed host could be the holder.

mod access;
mod command;
mod decide;
mod report;
mod state;
mod state_file;

pub use access::{AccessRule, CommandClass, ReservationType, Standing};
pub use command::{Acquisition, Persistence, Registration, ReservationCommand};
pub use decide::{Change, Notice, NoticeKind};
pub use report::{Report, ReportError, ReportedRegistrant};
pub use state::{Held, REGISTRANTS_MAX, Registrant, Reservations};
pub use state_file::{HEADER_FIELDS, REGISTRANT_FIELDS, STATE_FILE_BYTES_MAX, StateFileError, Synced};
