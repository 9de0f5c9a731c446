//! In-place RAID after StRAID: one task does one stripe write from the claim to the release, on the core where it
//! arrived (S1). [`write`](mod@write) tells the story; the other files are its parts.

mod agree;
mod avoid;
mod by_hand;
pub(crate) mod check;
pub mod consistency;
pub(crate) mod copy;
pub(crate) mod engine;
#[cfg(test)]
pub(crate) mod fake;
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
#[cfg(test)]
mod unsynced_tests;
mod update;
mod whole;
pub(crate) mod write;
pub(crate) mod zero;

pub use crate::code::chunk_set::{Chunk, ChunkSet, P, Q};
pub use crate::code::{cost, plan};
pub use crate::in_place::InPlace as StripeSet;
pub use crate::members::Attached;
pub use crate::members::load;
pub use crate::mismatch as check_types;
pub use shared::Shared;
