//! Stripes side by side of which nothing is unusual: what is read of them at one member is one request, and so is what a
//! member that is rebuilt gets. Where something is (a place that cannot be read, a member that fails, a stripe in doubt)
//! the caller does the stripes one by one.

use smallvec::SmallVec;
use std::ops::Range;

use super::chunk_set::{Chunk, ChunkSet, P, Q};
use super::image::{Held, Image};
use super::member_io::{MemberRead, MemberWrite, Undone};
use super::parity_step;
use super::plan::{Fragment, plan_read};
use super::resync::WINDOW_BYTES;
use super::{StripeSet, data_chunk};
use crate::buffer::{Gather, Slice};
use crate::device::Device;
use crate::volume::VolumeError;

/// What was read of a stripe.
struct Read {
    stripe: u64,
    /// Chunks that were not there.
    missing: ChunkSet,
    image: Image,
}

/// A chunk, and the member that has it.
struct Place {
    slot: u32,
    stripe: u64,
    chunk: Chunk,
}

impl<D: Device> StripeSet<D> {
    /// What the member in `slot` should hold of a run of stripes. None: ask stripe by stripe. The caller owns them.
    pub(super) async fn contents_of_run(
        &self,
        run: &Range<u64>,
        slot: u32,
    ) -> Result<Option<Gather>, VolumeError> {
        let wanted = |stripe| match self.shared.chunk_on(stripe, slot) {
            P | Q => self.all_data(),
            chunk => [self.whole(chunk)].into_iter().collect(),
        };
        let Some(mut reads) = self.read_run(run, wanted).await? else { return Ok(None) };
        Ok(Some(reads.iter_mut().map(|read| self.contents_from(read, slot)).collect()))
    }

    fn contents_from(&self, read: &mut Read, slot: u32) -> Slice {
        let chunk = self.shared.chunk_on(read.stripe, slot);
        if !matches!(chunk, P | Q) {
            return self.extract(read.stripe, read.missing, &self.whole(chunk), &mut read.image);
        }
        let data: SmallVec<[Slice; 16]> = (self.all_data().iter())
            .map(|fragment| self.extract(read.stripe, read.missing, fragment, &mut read.image))
            .collect();
        let rows = self.whole(chunk).rows;
        let mut parity = self.pool.take(rows.bytes());
        let (p, q) =
            if chunk == P { (Some(parity.bytes_mut()), None) } else { (None, Some(parity.bytes_mut())) };
        let contents = |chunk: Chunk| data[usize::from(chunk)].bytes();
        parity_step::encode(&self.shared.geometry, read.stripe, contents, rows, p, q);
        parity.freeze()
    }

    /// New parity from all data of a run of stripes. False: nothing was done, do it stripe by stripe. The caller owns them.
    pub(super) async fn make_parity_of_run_agree(&self, run: &Range<u64>) -> Result<bool, VolumeError> {
        run.clone().for_each(|stripe| self.shared.cache.forget(stripe)); // invariant 5
        let Some(reads) = self.read_run(run, |_| self.all_data()).await? else { return Ok(false) };
        let data = ChunkSet::first(self.shared.geometry.data_chunks());
        // Parity is all there is of data that is missing: it is not made from itself.
        if reads.iter().any(|read| !read.missing.and(data).is_empty()) {
            return Ok(false);
        }
        let mut writes = SmallVec::<[MemberWrite; 8]>::new();
        for read in &reads {
            let rows = self.all_rows();
            let contents = |chunk: Chunk| read.image.expect(chunk, rows);
            for (chunk, buffer) in self.parity_from(read.stripe, rows, read.missing, contents) {
                writes.push(self.parity_write(read.stripe, rows, chunk, buffer));
            }
        }
        self.write_parity(&writes).await?;
        run.clone().for_each(|stripe| self.shared.trust(stripe));
        Ok(true)
    }

    /// Reads what `wanted` says of every stripe of a run, or what that is made from. None if anything is unusual.
    async fn read_run(
        &self,
        run: &Range<u64>,
        wanted: impl Fn(u64) -> SmallVec<[Fragment; 16]>,
    ) -> Result<Option<Vec<Read>>, VolumeError> {
        let (shared, chunk_bytes) = (&*self.shared, self.shared.geometry.chunk_bytes());
        let (mut stripes, mut places) = (Vec::new(), Vec::new());
        for stripe in run.clone() {
            let missing = shared.missing(stripe);
            let planned = plan_read(shared.shape(), missing, &wanted(stripe));
            let (None, Ok(fragments), true) =
                (shared.unrecoverable(stripe), planned, chunk_bytes <= WINDOW_BYTES)
            else {
                return Ok(None);
            };
            let place = |chunk| Place { slot: shared.member_of(stripe, chunk), stripe, chunk };
            places.extend(fragments.iter().map(|fragment| place(fragment.chunk)));
            stripes.push(Read { stripe, missing, image: Image::default() });
        }
        places.sort_unstable_by_key(|place| (place.slot, place.stripe));
        let parts: SmallVec<[&[Place]; 16]> =
            places.chunk_by(|a, b| a.slot == b.slot && a.stripe + 1 == b.stripe).collect();
        let bytes = chunk_bytes as usize;
        let read = |part: &&[Place]| MemberRead {
            slot: part[0].slot,
            offset: shared.geometry.member_offset(part[0].stripe),
            bytes: part.len() * bytes,
        };
        let reads: SmallVec<[MemberRead; 16]> = parts.iter().map(read).collect();
        for (part, result) in parts.iter().zip(self.read_members(&reads).await) {
            let contents = match result {
                Ok(buffer) => buffer.freeze(),
                Err(Undone::MemberGone | Undone::Unreadable) => return Ok(None),
                Err(Undone::Request(error)) => return Err(error),
            };
            for (index, place) in part.iter().enumerate() {
                let held = Held::Shared(contents.part(index * bytes, bytes));
                let read = &mut stripes[(place.stripe - run.start) as usize];
                read.image.insert(self.whole(place.chunk), held);
            }
        }
        // A member that failed meanwhile is planned around, stripe by stripe (invariant 8).
        let is_unchanged = |read: &Read| shared.missing(read.stripe) == read.missing;
        Ok(stripes.iter().all(is_unchanged).then_some(stripes))
    }

    fn whole(&self, chunk: Chunk) -> Fragment {
        Fragment { chunk, rows: self.all_rows() }
    }

    fn all_data(&self) -> SmallVec<[Fragment; 16]> {
        (0..self.shared.geometry.data_chunks()).map(|index| self.whole(data_chunk(index))).collect()
    }
}
