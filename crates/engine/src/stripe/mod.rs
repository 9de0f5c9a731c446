//! In-place RAID-4, 5 and 6 after StRAID: one task does one stripe write from the claim to the release, on the core where
//! the request arrived (S1). [`write`](mod@write) is the entry; the other files are its parts.
//!
//! The **write hole** (a crash between the write of data and the write of parity leaves them in disagreement, and a failed
//! member's data is then reconstructed wrong) is closed in three places: [`intent`] makes the stripes that a crash may
//! leave inconsistent known before they are written, so that a resync repairs them; while members are missing [`redo`]
//! journals each stripe write; [`consistency`] keeps reconstruction away from stripes that neither of the two vouches for.

pub mod absences;
mod agree;
mod avoid;
mod carried;
pub(crate) mod check;
pub mod consistency;
pub(crate) mod copy;
pub(crate) mod engine;
#[cfg(test)]
pub(crate) mod fake;
mod fast_path;
mod fetch;
mod gather;
#[cfg(test)]
mod half_written_tests;
mod in_flight;
pub mod intent;
pub mod locks;
#[cfg(test)]
mod lost_tests;
pub mod parity_cache;
mod peers;
pub(crate) mod ranges;
pub(crate) mod read;
pub(crate) mod recovery;
pub mod redo;
pub(crate) mod replay;
pub(crate) mod resync;
mod run;
mod runner;
mod salvage;
#[cfg(test)]
mod salvage_tests;
pub(crate) mod shared;
mod small;
pub mod streams;
pub mod stripe_table;
pub(crate) mod unit_number;
#[cfg(test)]
mod unsynced_tests;
mod update;
mod whole;
pub(crate) mod write;
pub(crate) mod zero;

pub use shared::Shared;
