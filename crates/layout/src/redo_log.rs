//! The redo log of a degraded array. It closes the write hole: while members are missing, a write is durable in the log
//! before it changes a stripe.
//!
//! Invariants:
//! - A [`RedoHeader`] or [`RedoRecord`] that was read comes from `parse`, which has checked magic, version, checksum,
//!   array, member and place.
//! - Only a [`WholeRecord`], whose payload was checked too, gives out a record's contents.
//! - The log lies before the member's data, after everything that md keeps there. md never reads or writes that space.
//!
//! The engine decides what is written when. `docs/formats.md` draws the bytes.

mod area;
mod header;
mod raw;
mod record;

/// The version that is written. Those before can be read too: version 1, which has no [`PieceKind::Missing`] and no
/// [`PieceKind::Unlogged`], and version 2, which has no [`PieceKind::Partial`].
pub const VERSION: u32 = 3;

pub use crate::Checksum;
pub use crate::headroom::{BLOCK_BYTES, BitmapExtent, Place, RecordError};
pub use area::{AREA_BYTES_MAX, RedoArea, SlotPlan};
pub use header::{RedoHeader, StripeRange};
pub use raw::{DOUBTS_MAX, HEADER_FIELDS, PIECE_FIELDS, PIECES_MAX, RECORD_FIELDS};
pub use record::{PieceKind, RedoPiece, RedoRecord, WholeRecord};
