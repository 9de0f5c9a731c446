//! The image of one stripe: old contents that are in memory, by chunk and rows, from pre-reads or the parity cache.

use smallvec::SmallVec;

use super::chunk_set::Chunk;
use super::rows::{Fragment, Rows};
use crate::buffer::{Buffer, Slice};

/// Old contents in memory that the image owns alone, or shares.
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
struct HeldFragment {
    fragment: Fragment,
    held: Held,
}

/// The fragments of a stripe that are in memory, disjoint for each chunk.
#[derive(Debug, Default)]
pub(crate) struct Image {
    parts: SmallVec<[HeldFragment; 4]>,
}

impl Image {
    pub(crate) fn insert(&mut self, fragment: Fragment, held: Held) {
        assert_eq!(fragment.rows.bytes(), held.bytes().len(), "a fragment has the length of its rows");
        self.parts.push(HeldFragment { fragment, held });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The fragments that are held, for the plan.
    pub(crate) fn fragments(&self) -> SmallVec<[Fragment; 4]> {
        self.parts.iter().map(|part| part.fragment).collect()
    }

    /// The contents of some rows of a chunk, if one held fragment covers them.
    pub(crate) fn get(&self, chunk: Chunk, rows: Rows) -> Option<&[u8]> {
        let part = self.parts.iter().find(|p| p.fragment.chunk == chunk && p.fragment.rows.contains(rows))?;
        let start = (rows.start - part.fragment.rows.start) as usize;
        Some(&part.held.bytes()[start..start + rows.bytes()])
    }

    /// The contents of rows that the plan read.
    pub(crate) fn expect(&self, chunk: Chunk, rows: Rows) -> &[u8] {
        self.get(chunk, rows).expect("the plan read what it needs")
    }

    /// A shared slice of rows that were read.
    pub(crate) fn share(&mut self, chunk: Chunk, rows: Rows) -> Slice {
        let wanted = |p: &&mut HeldFragment| p.fragment.chunk == chunk && p.fragment.rows.contains(rows);
        let part = self.parts.iter_mut().find(wanted).expect("the plan read what it needs");
        if let Held::Owned(buffer) = &mut part.held {
            let buffer = std::mem::replace(buffer, Buffer::new(0));
            part.held = Held::Shared(buffer.freeze());
        }
        let Held::Shared(slice) = &part.held else { unreachable!("just shared") };
        slice.part((rows.start - part.fragment.rows.start) as usize, rows.bytes())
    }

    /// How many fragments are held.
    pub(crate) fn len(&self) -> usize {
        self.parts.len()
    }

    /// Makes a shared fragment of exactly these rows the image's own, if no other reference exists.
    pub(crate) fn own(&mut self, chunk: Chunk, rows: Rows) -> bool {
        let wanted = Fragment { chunk, rows };
        let Some(part) = self.parts.iter_mut().find(|part| part.fragment == wanted) else { return false };
        let held = std::mem::replace(&mut part.held, Held::Owned(Buffer::new(0)));
        part.held = match held {
            Held::Shared(slice) => slice.thaw().map_or_else(Held::Shared, Held::Owned),
            Held::Owned(buffer) => Held::Owned(buffer),
        };
        matches!(part.held, Held::Owned(_))
    }

    /// Takes out a fragment of exactly these rows, if the image owns it alone: the caller may change it in place.
    pub(crate) fn take_owned(&mut self, chunk: Chunk, rows: Rows) -> Option<Buffer> {
        let wanted = Fragment { chunk, rows };
        let index =
            self.parts.iter().position(|p| p.fragment == wanted && matches!(p.held, Held::Owned(_)))?;
        match self.parts.swap_remove(index).held {
            Held::Owned(buffer) => Some(buffer),
            Held::Shared(_) => unreachable!("matched as owned"),
        }
    }
}
