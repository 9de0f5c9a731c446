//! The members of an array: what slot each is in, how well it is, what else is known of it, and the port through which an
//! engine reads and writes them.

pub mod attachment;
pub(crate) mod bad_place;
pub mod health;
pub mod load;
mod metadata;
#[cfg(all(test, feature = "model"))]
mod model;
pub(crate) mod port;
pub(crate) mod read_into;
pub mod replacement;
pub(crate) mod replacing;

pub use crate::error::MetadataLost;
pub use attachment::Attached;
pub use health::{Failing, MemberState, Members};
pub use replacement::Replacing;
