//! Has the members' targets do a stripe's work: each gets an order, and they make the parity among themselves
//! ([`crate::fabric`]). The host decides what the answers mean, and makes again what was left half done.
//!
//! The stripe has its owner until all of that has ended (F-I5).

mod ask;
mod mend;
mod place;
mod read;
mod reduction;
mod update;
mod upkeep;

pub(super) use read::read_by_peers;
pub(super) use update::update_by_peers;
pub(super) use upkeep::{agree_by_peers, left_by_peers, make_parity_by_peers, recover_by_peers};
