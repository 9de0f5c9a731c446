//! The redo log of an array with members missing: the writes of a stripe are durable in the log before the first of
//! them goes out, so that after a crash they are made again and no missing chunk is lost with them (invariants 2, 6
//! and 10). A healthy array never comes here: the write path asks [`Members::plain`] and goes on.
//!
//! - **Who is logged.** From the moment a member fails, writes wait at a gate before they touch their stripe
//!   ([`Redo::admit`](state::Redo::admit)). Stripe writes that were on their way unlogged end first, all is flushed, and then a header on
//!   the members says that the log is in force ([`tend`]). From there on every stripe in flight has a record, so a
//!   stripe without one is consistent. When the array is whole again the gate closes once more, until a header says
//!   that the log is over. Before an operator takes a member out of use the same is done, if there is time.
//! - **What is logged.** Data and parity as they are to be; where no other member may fail and the missing chunk is
//!   written, its contents alone ([`cut`]). After a crash parity is made of them.
//! - **Order.** Record durable, then the stripe's writes ([`write`]). A slot is used again only after those
//!   writes are durable and a header says that records below a number are done with ([`retire`]): an old record is
//!   never redone over newer contents. Records of one stripe are in the order of its owners.
//! - **Whose log.** The header names the superblock beside it by its digest, the old and the new one while superblocks
//!   are written ([`headers`]). Whoever else runs the array changes the superblock, and the log is old.
//!
//! [`Members::plain`]: crate::members::Members::plain

pub(super) mod cut;
pub(crate) mod headers;
pub(crate) mod log;
mod queue;
pub(crate) mod retire;
mod slots;
pub(crate) mod state;
pub(crate) mod tend;
pub(super) mod write;

pub use state::{Redo, RedoMember, RedoStart};
