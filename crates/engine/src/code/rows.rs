//! Parts of a stripe: rows (the same bytes of every chunk), fragments (rows of one chunk), and a request cut at chunks.

use layout::geometry::Geometry;
use layout::units::{ArrayOffset, Stripe};

use super::chunk_set::{Chunk, data_chunk};
use crate::limits::{BLOCK_BYTES, CHUNK_WINDOW_BYTES};

/// A range of bytes inside a chunk, the same for every chunk of the stripe.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub struct Rows {
    /// First byte.
    pub start: u32,
    /// First byte after the range.
    pub end: u32,
}

/// Some rows of one chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fragment {
    /// Which chunk.
    pub chunk: Chunk,
    /// Which part of it.
    pub rows: Rows,
}

/// The part of a request that lies in one chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ChunkPiece {
    pub(crate) stripe: Stripe,
    pub(crate) fragment: Fragment,
}

impl Rows {
    /// The rows of a whole chunk.
    pub fn all(geometry: &Geometry) -> Rows {
        Rows { start: 0, end: geometry.chunk_bytes() }
    }

    /// Length in bytes.
    pub fn bytes(self) -> usize {
        (self.end - self.start) as usize
    }

    /// Whether `other` lies inside.
    pub fn contains(self, other: Rows) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// The block around these rows, which lie within one block.
    pub(crate) fn block_around(self, chunk_bytes: u32) -> Rows {
        let block = BLOCK_BYTES as u32;
        let start = self.start / block * block;
        Rows { start, end: start.saturating_add(block).min(chunk_bytes) }
    }
}

/// A range of the array cut at chunks, in order.
pub(crate) fn pieces(
    geometry: &Geometry,
    offset: ArrayOffset,
    bytes: u64,
) -> impl Iterator<Item = ChunkPiece> + use<> {
    let geometry = *geometry;
    let (mut at, end) = (offset, offset + bytes);
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let piece = first_piece(&geometry, at, end - at);
        at += piece.fragment.rows.bytes() as u64;
        Some(piece)
    })
}

/// The first piece of a range: the whole range, if it lies in one chunk.
#[inline]
pub(crate) fn first_piece(geometry: &Geometry, offset: ArrayOffset, bytes: u64) -> ChunkPiece {
    let place = geometry.locate(offset);
    let in_chunk = u64::from(geometry.chunk_bytes() - place.chunk_offset).min(bytes);
    let end = place.chunk_offset + u32::try_from(in_chunk).expect("less than a chunk");
    let fragment =
        Fragment { chunk: data_chunk(place.data_index), rows: Rows { start: place.chunk_offset, end } };
    ChunkPiece { stripe: place.stripe, fragment }
}

/// Rows cut at the borders of blocks.
pub(crate) fn cut_at_blocks(rows: Rows) -> impl Iterator<Item = Rows> {
    let block = BLOCK_BYTES as u32;
    let mut at = rows.start;
    std::iter::from_fn(move || {
        let end = (at / block * block).saturating_add(block).min(rows.end);
        let part = Rows { start: at, end };
        (at < rows.end).then(|| {
            at = end;
            part
        })
    })
}

/// The rows of a chunk in windows of [`CHUNK_WINDOW_BYTES`].
pub(crate) fn windows(chunk_bytes: u32) -> impl Iterator<Item = Rows> {
    let count = chunk_bytes.div_ceil(CHUNK_WINDOW_BYTES);
    (0..count).map(move |i| Rows {
        start: i * CHUNK_WINDOW_BYTES,
        end: (i * CHUNK_WINDOW_BYTES).saturating_add(CHUNK_WINDOW_BYTES).min(chunk_bytes),
    })
}
