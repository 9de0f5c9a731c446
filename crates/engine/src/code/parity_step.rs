//! The parity step of a stripe write: old contents and new data in memory, new parity out.

use smallvec::SmallVec;
use std::sync::Arc;

use super::chunk_set::{Chunk, ChunkSet, P, Q, data_chunk};
use super::image::{Held, Image};
use super::plan::{Plan, Routine, Step};
use super::recover::recover_data;
use super::rows::{Fragment, Rows};
use super::union::Union;
use crate::buffer::{Buffer, Pool, Slice};
use layout::geometry::Geometry;
use layout::units::Stripe;
use parity::Change;

/// New parity to be written.
pub(crate) struct NewParity {
    pub(crate) chunk: Chunk,
    pub(crate) start: u32,
    pub(crate) slice: Slice,
}

impl NewParity {
    /// Chunk, first row and contents.
    pub(crate) fn parts(&self) -> (Chunk, u32, &Slice) {
        (self.chunk, self.start, &self.slice)
    }
}

/// Makes the new parity of every step. Neighbouring steps share one buffer, so that each parity chunk is
/// written in as few pieces as the rows allow.
pub(crate) fn compute(
    geometry: &Geometry,
    stripe: Stripe,
    plan: &Plan,
    union: &Union,
    image: &mut Image,
    pool: &Arc<Pool>,
    missing: ChunkSet,
) -> SmallVec<[NewParity; 2]> {
    let maker = Maker { geometry, stripe, union, pool, missing };
    let mut parity = SmallVec::new();
    let mut steps = &plan.steps[..];
    while let Some(first) = steps.first() {
        let neighbours = steps.windows(2).take_while(|pair| pair[0].rows.end == pair[1].rows.start).count();
        let (run, rest) = steps.split_at(neighbours + 1);
        steps = rest;
        if first.routine == Routine::DataOnly {
            continue; // no parity member is left, for any step
        }
        let (p, q) = maker.run(run, image);
        for (chunk, buffer) in [(P, p), (Q, q)] {
            parity.extend(buffer.map(|buffer| NewParity {
                chunk,
                start: first.rows.start,
                slice: buffer.freeze(),
            }));
        }
    }
    parity
}

struct Maker<'a> {
    geometry: &'a Geometry,
    stripe: Stripe,
    union: &'a Union,
    pool: &'a Arc<Pool>,
    missing: ChunkSet,
}

impl Maker<'_> {
    fn run(&self, run: &[Step], image: &mut Image) -> (Option<Buffer>, Option<Buffer>) {
        let with =
            |chunk, parities| self.geometry.parity_chunks() >= parities && !self.missing.contains(chunk);
        let (with_p, with_q) = (with(P, 1), with(Q, 2));
        if let [only] = run
            && let Some(updated) = self.update_in_place(only, image, with_p, with_q)
        {
            return updated;
        }
        let rows = Rows { start: run[0].rows.start, end: run[run.len() - 1].rows.end };
        let mut p = with_p.then(|| self.pool.take(rows.bytes()));
        let mut q = with_q.then(|| self.pool.take(rows.bytes()));
        for step in run {
            let start = (step.rows.start - rows.start) as usize;
            let part = start..start + step.rows.bytes();
            let p = p.as_mut().map(|buffer| &mut buffer.bytes_mut()[part.clone()]);
            let q = q.as_mut().map(|buffer| &mut buffer.bytes_mut()[part.clone()]);
            match step.routine {
                Routine::Rmw => self.delta(step, image, p, q),
                Routine::Rcw => self.encode(step, image, &[], p, q),
                Routine::Recover => self.recover_and_encode(step, image, p, q),
                Routine::DataOnly => unreachable!("a stripe with parity to write"),
            }
        }
        (p, q)
    }

    /// The common small write: one chunk changes and the image owns the old parity alone, so it is updated in place.
    fn update_in_place(
        &self,
        step: &Step,
        image: &mut Image,
        with_p: bool,
        with_q: bool,
    ) -> Option<(Option<Buffer>, Option<Buffer>)> {
        if step.routine != Routine::Rmw || step.written.len() != 1 {
            return None;
        }
        let mut p = with_p.then(|| image.take_owned(P, step.rows));
        let mut q = with_q.then(|| image.take_owned(Q, step.rows));
        if matches!(p, Some(None)) || matches!(q, Some(None)) {
            // Parity that is shared, or part of a larger fragment, cannot be updated in place: put back what was taken.
            for (chunk, taken) in [(P, p), (Q, q)] {
                if let Some(Some(buffer)) = taken {
                    let fragment = Fragment { chunk, rows: step.rows };
                    image.insert(fragment, Held::Owned(buffer));
                }
            }
            return None;
        }
        let change = self.changes(step, image)[0];
        let bytes = |parity: &mut Option<Option<Buffer>>| parity.take().flatten();
        let (mut p, mut q) = (bytes(&mut p), bytes(&mut q));
        let Change { index, old, new } = change;
        match (&mut p, &mut q) {
            (Some(p), None) => parity::update_p(old, new, p.bytes_mut()),
            (None, Some(q)) => parity::update_q(index, old, new, q.bytes_mut()),
            (Some(p), Some(q)) => parity::update_pq(index, old, new, p.bytes_mut(), q.bytes_mut()),
            (None, None) => unreachable!("read-modify-write has parity"),
        }
        Some((p, q))
    }

    fn changes<'a>(&'a self, step: &Step, image: &'a Image) -> SmallVec<[Change<'a>; 4]> {
        let change = |chunk: Chunk| Change {
            index: self.geometry.syndrome_index(self.stripe, u32::from(chunk)) as usize,
            old: image.expect(chunk, step.rows),
            new: self.union.get(chunk, step.rows).expect("a written chunk"),
        };
        step.written.iter().map(change).collect()
    }

    fn delta(&self, step: &Step, image: &Image, p: Option<&mut [u8]>, q: Option<&mut [u8]>) {
        let changes = self.changes(step, image);
        let old = |chunk| image.expect(chunk, step.rows);
        match (p, q) {
            (Some(p), None) => parity::delta_p(&changes, old(P), p),
            (None, Some(q)) => parity::delta_q(&changes, old(Q), q),
            (Some(p), Some(q)) => parity::delta_pq(&changes, old(P), old(Q), p, q),
            (None, None) => unreachable!("read-modify-write has parity"),
        }
    }

    fn recover_and_encode(&self, step: &Step, image: &Image, p: Option<&mut [u8]>, q: Option<&mut [u8]>) {
        let known = |chunk| image.get(chunk, step.rows);
        let recovered = recover_data(self.geometry, self.stripe, self.missing, step.rows, known, self.pool);
        self.encode(step, image, &recovered, p, q);
    }

    /// Parity from all data: new contents of written chunks, old contents of others.
    fn encode(
        &self,
        step: &Step,
        image: &Image,
        recovered: &[(Chunk, Buffer)],
        p: Option<&mut [u8]>,
        q: Option<&mut [u8]>,
    ) {
        let contents = |chunk: Chunk| -> &[u8] {
            if step.written.contains(chunk) {
                return self.union.get(chunk, step.rows).expect("a written chunk");
            }
            match recovered.iter().find(|(lost, _)| *lost == chunk) {
                Some((_, buffer)) => buffer.bytes(),
                None => image.expect(chunk, step.rows),
            }
        };
        encode(self.geometry, self.stripe, contents, step.rows, p, q);
    }
}

/// P and Q of some rows of a stripe, from the contents of its data chunks.
pub(crate) fn encode<'a>(
    geometry: &Geometry,
    stripe: Stripe,
    contents: impl Fn(Chunk) -> &'a [u8],
    rows: Rows,
    p: Option<&mut [u8]>,
    q: Option<&mut [u8]>,
) {
    let count = geometry.data_chunks();
    // DDF layouts number Q's exponents over the parity slots too: a zero chunk stands in for each of those.
    let width = if q.is_some() { geometry.syndrome_width() } else { count };
    let zero = if width > count { vec![0; rows.bytes()] } else { Vec::new() };
    let mut data: SmallVec<[&[u8]; 16]> = smallvec::smallvec![&zero[..]; width as usize];
    for index in 0..count {
        let position = if q.is_some() { geometry.syndrome_index(stripe, index) } else { index };
        data[position as usize] = contents(data_chunk(index));
    }
    match (p, q) {
        (Some(p), None) => parity::encode_p(&data, p),
        (None, Some(q)) => parity::encode_q(&data, q),
        (Some(p), Some(q)) => parity::encode_pq(&data, p, q),
        (None, None) => {}
    }
}

/// One parity chunk, P or Q, of some rows.
pub(crate) fn encode_one<'a>(
    geometry: &Geometry,
    stripe: Stripe,
    chunk: Chunk,
    rows: Rows,
    contents: impl Fn(Chunk) -> &'a [u8],
    pool: &Arc<Pool>,
) -> Slice {
    let mut parity = pool.take(rows.bytes());
    let (p, q) = match chunk {
        P => (Some(parity.bytes_mut()), None),
        _ => (None, Some(parity.bytes_mut())),
    };
    encode(geometry, stripe, contents, rows, p, q);
    parity.freeze()
}

/// The parity chunks of some rows from all data, without those that are missing.
pub(crate) fn encode_all<'a>(
    geometry: &Geometry,
    stripe: Stripe,
    rows: Rows,
    missing: ChunkSet,
    contents: impl Fn(Chunk) -> &'a [u8],
    pool: &Arc<Pool>,
) -> SmallVec<[NewParity; 2]> {
    let wanted = |chunk, parities| geometry.parity_chunks() >= parities && !missing.contains(chunk);
    let mut p = wanted(P, 1).then(|| pool.take(rows.bytes()));
    let mut q = wanted(Q, 2).then(|| pool.take(rows.bytes()));
    let (to_p, to_q) = (p.as_mut().map(Buffer::bytes_mut), q.as_mut().map(Buffer::bytes_mut));
    encode(geometry, stripe, contents, rows, to_p, to_q);
    let made = [(P, p), (Q, q)].into_iter().filter_map(|(chunk, buffer)| Some((chunk, buffer?)));
    made.map(|(chunk, buffer)| NewParity { chunk, start: rows.start, slice: buffer.freeze() }).collect()
}
