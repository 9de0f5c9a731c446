//! What is in memory of one stripe: old contents by chunk and rows, from pre-reads or the parity cache.

use smallvec::SmallVec;

use super::chunk_set::Chunk;
use super::rows::{Fragment, Rows};
use crate::buffer::{Buffer, Slice};

/// Memory that is ours alone, or shared.
#[derive(Debug)]
pub(crate) enum Held {
    Owned(Buffer),
    Shared(Slice),
}

impl Held {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Held::Owned(buffer) => buffer.bytes(),
            Held::Shared(slice) => slice.bytes(),
        }
    }
}

#[derive(Debug)]
struct Piece {
    fragment: Fragment,
    held: Held,
}

/// The pieces of a stripe that are in memory, disjoint for each chunk.
#[derive(Debug, Default)]
pub(crate) struct Image {
    pieces: SmallVec<[Piece; 4]>,
}

impl Image {
    pub(crate) fn insert(&mut self, fragment: Fragment, held: Held) {
        assert_eq!(fragment.rows.bytes(), held.bytes().len(), "a piece has the length of its rows");
        self.pieces.push(Piece { fragment, held });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// What is held, for the plan.
    pub(crate) fn fragments(&self) -> SmallVec<[Fragment; 4]> {
        self.pieces.iter().map(|piece| piece.fragment).collect()
    }

    /// The contents of some rows of a chunk, if one piece covers them.
    pub(crate) fn get(&self, chunk: Chunk, rows: Rows) -> Option<&[u8]> {
        let piece =
            self.pieces.iter().find(|p| p.fragment.chunk == chunk && p.fragment.rows.contains(rows))?;
        let start = (rows.start - piece.fragment.rows.start) as usize;
        Some(&piece.held.bytes()[start..start + rows.bytes()])
    }

    /// The contents of rows that the plan read.
    pub(crate) fn expect(&self, chunk: Chunk, rows: Rows) -> &[u8] {
        self.get(chunk, rows).expect("the plan read what it needs")
    }

    /// A shared slice of rows that were read.
    pub(crate) fn share(&mut self, chunk: Chunk, rows: Rows) -> Slice {
        let wanted = |p: &&mut Piece| p.fragment.chunk == chunk && p.fragment.rows.contains(rows);
        let piece = self.pieces.iter_mut().find(wanted).expect("the plan read what it needs");
        if let Held::Owned(buffer) = &mut piece.held {
            let buffer = std::mem::replace(buffer, Buffer::new(0));
            piece.held = Held::Shared(buffer.freeze());
        }
        let Held::Shared(slice) = &piece.held else { unreachable!("just shared") };
        slice.part((rows.start - piece.fragment.rows.start) as usize, rows.bytes())
    }

    /// How many pieces are held.
    pub(crate) fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Makes a shared piece with just these rows ours alone, if nobody else has it.
    pub(crate) fn own(&mut self, chunk: Chunk, rows: Rows) -> bool {
        let wanted = Fragment { chunk, rows };
        let Some(piece) = self.pieces.iter_mut().find(|piece| piece.fragment == wanted) else { return false };
        let held = std::mem::replace(&mut piece.held, Held::Owned(Buffer::new(0)));
        piece.held = match held {
            Held::Shared(slice) => slice.thaw().map_or_else(Held::Shared, Held::Owned),
            Held::Owned(buffer) => Held::Owned(buffer),
        };
        matches!(piece.held, Held::Owned(_))
    }

    /// Takes out a piece with just these rows, if it is ours alone: it can be changed in place.
    pub(crate) fn take_owned(&mut self, chunk: Chunk, rows: Rows) -> Option<Buffer> {
        let wanted = Fragment { chunk, rows };
        let index =
            self.pieces.iter().position(|p| p.fragment == wanted && matches!(p.held, Held::Owned(_)))?;
        match self.pieces.swap_remove(index).held {
            Held::Owned(buffer) => Some(buffer),
            Held::Shared(_) => unreachable!("matched as owned"),
        }
    }
}
