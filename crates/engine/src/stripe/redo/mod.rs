//! The redo log closes the write hole of a degraded array. It is a journal on the members themselves: while members are
//! missing, the writes of a stripe are durable in the log before the first of them goes out, so a crash between data and
//! parity loses no missing chunk; the next start replays the log (invariants 2, 6 and 10). A healthy array never comes
//! here: the write path asks [`Members::plain`] and goes on.
//!
//! - **Which writes are logged.** From the moment a member fails, writes wait at a gate before they touch their stripe
//!   ([`Redo::admit`](state::Redo::admit)). Unlogged stripe writes in flight end first, everything is flushed, and then a
//!   header on the members says that the log is in force ([`tend`]). From then on every stripe in flight has a record, so a
//!   stripe without one is consistent. When the array is whole again the gate closes once more, until a header says that
//!   the log is over. The same happens before an operator takes a member out of use, if there is time.
//! - **What is logged.** Where no other member may fail, the new contents of the missing chunk, or, where that is not written,
//!   what parity says without the chunks that are ([`cut`]), both of which tell the missing chunk, from which replay makes parity.
//!   What was written since the last flush, which a crash may take back, is [`kept`], so that no record counts on it. Where
//!   another member may fail, or if so asked ([`RedoContents`]), new data and new parity.
//! - **Order.** The record is durable, then the stripe's writes go out ([`write`](mod@write)). A log slot is used again
//!   only after those writes are durable and a header says that records below a sequence number are retired ([`retire`]):
//!   replay never writes an old record over newer contents. Records of one stripe are in the order of its owners.
//! - **Whether a log is current.** The header names the superblock beside it by its digest, both the old and the new one
//!   while superblocks are written ([`headers`]). Any other program that runs the array, md too, changes the superblock and
//!   so makes the log stale.
//!
//! [`Members::plain`]: crate::members::Members::plain

pub(crate) mod absence_record;
pub(super) mod cut;
pub(crate) mod headers;
mod kept;
pub(crate) mod log;
mod queue;
pub(crate) mod retire;
mod slots;
pub(crate) mod state;
pub(crate) mod tend;
pub(super) mod write;

pub use state::{Redo, RedoContents, RedoMember, RedoStart};
