//! The union of a batch's writes: the new contents of each data chunk, later writes over earlier ones.

use smallvec::SmallVec;

use super::chunk_set::Chunk;
use super::rows::{Fragment, Rows};
use crate::buffer::{Gather, Slice};
use layout::geometry::Geometry;

/// New contents of some rows of a data chunk.
#[derive(Clone, Debug)]
pub(crate) struct NewData {
    pub(crate) fragment: Fragment,
    pub(crate) data: Slice,
}

/// One request's part in one stripe.
#[derive(Clone, Debug)]
pub(crate) struct StripeWrite {
    /// New contents, disjoint.
    pub(crate) parts: SmallVec<[NewData; 1]>,
    /// Durable when acknowledged.
    pub(crate) fua: bool,
    /// The write starts where an earlier write ended.
    pub(crate) in_stream: bool,
}

impl StripeWrite {
    /// Whether it writes the beginning of the stripe.
    pub(crate) fn begins_stripe(&self) -> bool {
        let begins = |part: &NewData| (part.fragment.chunk, part.fragment.rows.start) == (0, 0);
        self.parts.first().is_some_and(begins)
    }

    /// Whether its first part writes all of a chunk: then it may be a part of a write of the whole stripe.
    pub(crate) fn fills_a_chunk(&self, geometry: &Geometry) -> bool {
        self.parts.first().is_some_and(|part| part.fragment.rows == Rows::all(geometry))
    }

    /// Bytes of new contents.
    pub(crate) fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.fragment.rows.bytes() as u64).sum()
    }
}

/// Disjoint new contents in ascending order of chunk and rows.
#[derive(Debug, Default)]
pub(crate) struct Union {
    parts: SmallVec<[NewData; 1]>,
}

impl Union {
    /// The union of `writes` in the order in which they joined. A client can rely on no order among writes in flight at the
    /// same time, so any order is right, as long as data and parity follow the same one.
    pub(crate) fn of<'a>(writes: impl Iterator<Item = &'a StripeWrite>) -> Self {
        let mut union = Union::default();
        for part in writes.flat_map(|write| &write.parts) {
            union.overlay(part);
        }
        union
    }

    fn overlay(&mut self, new: &NewData) {
        let key = |part: &NewData| (part.fragment.chunk, part.fragment.rows.start);
        let (chunk, rows) = (new.fragment.chunk, new.fragment.rows);
        let at = self
            .parts
            .partition_point(|part| (part.fragment.chunk, part.fragment.rows.end) <= (chunk, rows.start));
        let overlapped = self.parts[at..]
            .iter()
            .take_while(|part| part.fragment.chunk == chunk && part.fragment.rows.start < rows.end)
            .count();
        if overlapped == 0 {
            self.parts.insert(at, new.clone());
            return;
        }
        let old: SmallVec<[NewData; 4]> = self.parts.drain(at..at + overlapped).collect();
        let head = old.first().and_then(|part| part.cut(part.fragment.rows.start, rows.start));
        let tail = old.last().and_then(|part| part.cut(rows.end, part.fragment.rows.end));
        for part in [tail, Some(new.clone()), head].into_iter().flatten() {
            self.parts.insert(at, part);
        }
        debug_assert!(self.parts.is_sorted_by_key(key));
    }

    /// The part of the union that lies within some rows.
    pub(crate) fn within(&self, rows: Rows) -> Union {
        let within = |part: &NewData| {
            let own = part.fragment.rows;
            part.cut(own.start.max(rows.start), own.end.min(rows.end))
        };
        Union { parts: self.parts.iter().filter_map(within).collect() }
    }

    /// Whether nothing is written.
    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// From the first row that is written to the last.
    pub(crate) fn span(&self) -> Rows {
        let rows = || self.parts.iter().map(|part| part.fragment.rows);
        let start = rows().map(|rows| rows.start).min().unwrap_or(0);
        Rows { start, end: rows().map(|rows| rows.end).max().unwrap_or(0) }
    }

    /// The fragments that are written, for the plan.
    pub(crate) fn fragments(&self) -> SmallVec<[Fragment; 4]> {
        self.parts.iter().map(|part| part.fragment).collect()
    }

    /// The new contents of rows that lie inside one part.
    pub(crate) fn get(&self, chunk: Chunk, rows: Rows) -> Option<&[u8]> {
        let end = |part: &NewData| (part.fragment.chunk, part.fragment.rows.end);
        let part = self.parts.get(self.parts.partition_point(|part| end(part) <= (chunk, rows.start)))?;
        if part.fragment.chunk != chunk || !part.fragment.rows.contains(rows) {
            return None;
        }
        let start = (rows.start - part.fragment.rows.start) as usize;
        Some(&part.data.bytes()[start..start + rows.bytes()])
    }

    /// Whether all these rows of a chunk are written.
    pub(crate) fn covers(&self, chunk: Chunk, rows: Rows) -> bool {
        let parts = self.parts.iter().map(|part| part.fragment).filter(|part| part.chunk == chunk);
        let end = parts.fold(rows.start, |end, part| match part.rows.start <= end {
            true => end.max(part.rows.end),
            false => end,
        });
        end >= rows.end
    }

    /// The new contents of rows that are written whole, perhaps by several parts.
    pub(crate) fn gather(&self, chunk: Chunk, rows: Rows) -> Gather {
        let mut gather = Gather::new();
        let mut at = rows.start;
        for part in self.parts.iter().filter(|part| part.fragment.chunk == chunk) {
            let own = part.fragment.rows;
            if let Some(cut) = part.cut(own.start.max(rows.start), own.end.min(rows.end)) {
                assert_eq!(cut.fragment.rows.start, at, "the plan writes what is there");
                at = cut.fragment.rows.end;
                gather.push(cut.data);
            }
        }
        assert_eq!(at, rows.end, "the plan writes what is there");
        gather
    }
}

impl NewData {
    /// The rows from `start` to `end` of this part, if there are any.
    fn cut(&self, start: u32, end: u32) -> Option<NewData> {
        if start >= end {
            return None;
        }
        let (rows, skip) = (Rows { start, end }, (start - self.fragment.rows.start) as usize);
        Some(NewData {
            fragment: Fragment { chunk: self.fragment.chunk, rows },
            data: self.data.part(skip, rows.bytes()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::chunk_set::ChunkSet;
    use crate::code::plan::{Shape, plan_data_only};

    fn write(chunk: Chunk, start: u32, fill: u8, bytes: usize) -> StripeWrite {
        let end = start + u32::try_from(bytes).unwrap();
        let fragment = Fragment { chunk, rows: Rows { start, end } };
        let data = Slice::from_bytes(&vec![fill; bytes]);
        StripeWrite { parts: SmallVec::from_iter([NewData { fragment, data }]), fua: false, in_stream: false }
    }

    /// The union against an oracle that paints bytes one after another.
    #[test]
    fn later_writes_cover_earlier_ones() {
        let mut seed = 1u32;
        let mut random = |below: u32| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 8) % below
        };
        for _ in 0..2000 {
            let mut oracle = vec![[0u8; 64]; 3];
            let mut writes = Vec::new();
            for fill in 1..=8u8 {
                let (chunk, start) = (random(3), random(60));
                let bytes = 1 + random(64 - start);
                oracle[chunk as usize][start as usize..(start + bytes) as usize].fill(fill);
                writes.push(write(u8::try_from(chunk).unwrap(), start, fill, bytes as usize));
            }
            let union = Union::of(writes.iter());
            let mut painted = vec![[0u8; 64]; 3];
            let shape = Shape { data: 3, parity: 1 };
            for write in plan_data_only(shape, ChunkSet::EMPTY, &union.fragments()).writes {
                let (chunk, start) = (usize::from(write.chunk), write.rows.start as usize);
                let gather = union.gather(write.chunk, write.rows);
                assert_eq!(gather.len(), write.rows.bytes());
                gather.copy_to(&mut painted[chunk][start..start + gather.len()]);
            }
            assert_eq!(painted, oracle);
            for fragment in union.fragments() {
                let rows = fragment.rows.start as usize..fragment.rows.end as usize;
                let got = union.get(fragment.chunk, fragment.rows).unwrap();
                assert_eq!(got, &oracle[usize::from(fragment.chunk)][rows]);
            }
        }
    }
}
