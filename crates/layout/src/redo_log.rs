//! The redo log of a degraded array: what is durable before a stripe is touched while members are missing.
//!
//! Invariants:
//! - A [`RedoHeader`], [`RedoRecord`] or [`WholeRecord`] exists only after `parse` found magic, version, checksum,
//!   array, member and place right, or because it was made here. Bytes of a member are none of them.
//! - A record's contents can be had only from a [`WholeRecord`], whose payload was checked too.
//! - The log lies between what md knows of on a member and its data, where md never looks.
//!
//! What is written when is the engine's matter. Bytes are drawn in `docs/formats.md`.

mod area;
mod block;
mod header;
mod raw;
mod record;

pub use crate::checksum::Checksum;
pub use area::{AREA_BYTES_MAX, BitmapExtent, RedoArea, SlotPlan};
pub use block::{Place, RedoError, VERSION};
pub use header::{RedoHeader, StripeRange};
pub use raw::{BLOCK_BYTES, DOUBTS_MAX, HEADER_FIELDS, PIECE_FIELDS, PIECES_MAX, RECORD_FIELDS};
pub use record::{PieceKind, RedoPiece, RedoRecord, WholeRecord};
