//! The members of an array: which device is in which slot, its health, load and bad blocks, and the port through which an
//! engine reads and writes the members.

pub mod attachment;
pub(crate) mod bad_place;
pub mod health;
pub mod load;
pub(crate) mod metadata;
#[cfg(all(test, feature = "model"))]
mod model;
pub(crate) mod port;
pub(crate) mod read_into;
pub mod replacement;
pub(crate) mod replacing;

pub use attachment::Attached;
pub use health::{Failing, MemberState, Members};
pub use replacement::Replacing;
