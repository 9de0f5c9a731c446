//! The life of a stripe write, from the claim to the acknowledgement (StRAID 4.1 and 4.3, Algorithm 1).

use smallvec::SmallVec;
use std::ops::Range;
use std::rc::Rc;

use super::StripeSet;
use super::chunk_set::{Chunk, ChunkSet};
use super::image::{Held, Image};
use super::member_io::{MemberWrite, Undone};
use super::parity_step::{self, NewParity};
use super::plan::{Fragment, Plan, Routine, Rows, plan, plan_reconstruct};
use super::redo::StripeWrites;
use super::stripe_table::{Claim, Entry};
use super::union::{NewData, StripeWrite, Union};
use crate::buffer::Gather;
use crate::device::Device;
use crate::executor::{ahead, join_all, others_ready, yield_now};
use crate::stages::{Stage, Watch};
use crate::volume::VolumeError;

impl<D: Device> StripeSet<D> {
    /// Writes a range of a parity array: one task for each stripe it touches.
    pub(super) async fn write_stripes(
        self: &Rc<Self>,
        offset_bytes: u64,
        data: Gather,
        fua: bool,
    ) -> Result<(), VolumeError> {
        let end_bytes = offset_bytes + data.len() as u64;
        let stripe_bytes = self.shared.geometry.stripe_bytes();
        let (first, last) = (offset_bytes / stripe_bytes, (end_bytes - 1) / stripe_bytes);
        let in_stream = self.in_flight.streams.note(offset_bytes, end_bytes);
        if first == last {
            return self.write_stripe(first, self.stripe_write(offset_bytes, &data, fua, in_stream)).await;
        }
        let start = |stripe: u64| {
            let (from, to) =
                ((stripe * stripe_bytes).max(offset_bytes), ((stripe + 1) * stripe_bytes).min(end_bytes));
            let part = data.part(to_usize(from - offset_bytes), to_usize(to - from));
            let write = self.stripe_write(from, &part, fua, in_stream);
            let set = Rc::clone(self);
            self.executor.spawn_with_result(async move { set.write_stripe(stripe, write).await })
        };
        let results = join_all((first..=last).map(start)).await;
        results.into_iter().collect()
    }

    /// The request's part in one stripe, cut at chunks and at the slices it came in.
    fn stripe_write(&self, offset_bytes: u64, data: &Gather, fua: bool, in_stream: bool) -> StripeWrite {
        let mut parts = SmallVec::new();
        let mut at = offset_bytes;
        for slice in data.slices() {
            let mut done = 0;
            for piece in self.pieces(at, slice.len() as u64) {
                let bytes = piece.fragment.rows.bytes();
                parts.push(NewData { fragment: piece.fragment, data: slice.part(done, bytes) });
                done += bytes;
            }
            at += slice.len() as u64;
        }
        StripeWrite { parts, fua, in_stream }
    }

    /// What a write changes in bytes of the members' data area: parity changes in the same rows.
    fn written_range(&self, stripe: u64, write: &StripeWrite) -> Range<u64> {
        let rows = write.parts.iter().map(|part| part.fragment.rows);
        let (start, end) =
            rows.fold((u32::MAX, 0), |(start, end), rows| (start.min(rows.start), end.max(rows.end)));
        let base = self.shared.geometry.member_offset(stripe);
        base + u64::from(start)..base + u64::from(end)
    }

    /// Writes one request's part in one stripe and returns when it is on the members.
    pub(super) async fn write_stripe(&self, stripe: u64, write: StripeWrite) -> Result<(), VolumeError> {
        let shared = &*self.shared;
        let mut watch = self.watch();
        let marked = shared.intent.mark(&watch, &shared.members, self.written_range(stripe, &write)).await?;

        // Invariant 4: one owner of a stripe; a write that finds one joins its batch, or waits its turn.
        let two_phase = self.two_phase();
        let entry = match two_phase {
            true => shared.table.claim_or_join(stripe, &watch, write).await,
            false => Entry::Owned(shared.table.claim_watched(stripe, &watch).await, write),
        };
        watch.enter(Stage::Wait);
        let (mut claim, own) = match entry {
            Entry::Owned(claim, own) => (claim, own),
            Entry::Joined(done) => {
                self.counters().joined_writes.add(1);
                self.in_flight.joined();
                let result = done.await;
                marked.end(&watch);
                return result;
            }
        };

        // First phase: while the old contents are read, more writes may join.
        let in_flight = self.in_flight.begin();
        if two_phase && others_ready() {
            yield_now().await; // what has already arrived joins before the first read
        }
        claim.gather();
        if two_phase && own.in_stream {
            self.gather_stream(&own, &mut claim).await;
        }
        watch.enter(Stage::PreRead);
        let mut image = Image::default();
        let mut result = self.write_whole(stripe, &own, &mut claim, &mut watch).await;
        if result.is_none() && two_phase {
            result = self.write_small(stripe, &own, &mut claim, &mut image, &mut watch).await;
        }
        // Second phase, from the freeze on: the batch is closed, the union of its writes is what is written.
        let mut result = match result {
            Some(result) => result,
            None => self.write_union(stripe, &own, &mut claim, image, &mut watch).await,
        };
        watch.enter(Stage::Complete);
        if result.is_ok() {
            // Invariants 1 and 8: what a missing member did not get is known on disk before anyone is told.
            result = self.settle().await;
        }
        self.counters().stripe_writes.add(1);
        claim.release_watched(&result, &watch);
        marked.end(&watch);
        drop(in_flight);
        result
    }

    /// The general way: reads for what has joined so far, closes the batch, plans again and updates the stripe.
    async fn write_union(
        &self,
        stripe: u64,
        own: &StripeWrite,
        claim: &mut Claim,
        mut image: Image,
        watch: &mut Watch<'_>,
    ) -> Result<(), VolumeError> {
        let mut union = Union::of([own].into_iter().chain(claim.joined()));
        let mut result = self.trusted(stripe, &union).await;
        if result.is_ok() {
            self.take_cached_parity(stripe, &union, &mut image);
            if claim.is_open() {
                result = self.pre_read(stripe, &union, &mut image).await;
                if let Err(VolumeError::Unreadable { .. }) = result {
                    result = Ok(()); // what joins may write just that
                }
            }
        }
        if claim.freeze() > 0 {
            union = Union::of([own].into_iter().chain(claim.joined()));
            self.take_cached_parity(stripe, &union, &mut image);
        }
        let fua = own.fua || claim.joined().any(|write| write.fua);
        result?;
        self.update(stripe, &union, image, fua, watch).await
    }

    /// Before anything builds on the parity of a stripe whose last write failed, or that a resync has not come to, it is made
    /// to agree (invariants 1 and 9): what is acknowledged can be recovered from then on. Where data is missing the stripe is in
    /// doubt, and what is written to it is there.
    async fn trusted(&self, stripe: u64, union: &Union) -> Result<(), VolumeError> {
        self.without_unmade_records(stripe).await?;
        let is_suspect = self.shared.is_suspect(stripe);
        if !self.lost(stripe).is_empty() {
            if is_suspect {
                self.shared.doubt(stripe); // no more than a crash would have left
            }
            return Ok(());
        }
        if is_suspect {
            return self.make_parity_agree(stripe).await;
        }
        let data = ChunkSet::first(self.shared.geometry.data_chunks());
        if self.shared.doubts.is_unsynced(stripe) && !self.overwrites(union, data) {
            // If it fails the stripe is in doubt as before.
            let _ = Box::pin(self.make_parity_agree(stripe)).await;
        }
        Ok(())
    }

    /// Data chunks that cannot be read now.
    fn lost(&self, stripe: u64) -> ChunkSet {
        self.shared.missing(stripe).and(ChunkSet::first(self.shared.geometry.data_chunks()))
    }

    /// Whether these chunks are written whole.
    fn overwrites(&self, union: &Union, chunks: ChunkSet) -> bool {
        chunks.iter().all(|chunk| union.covers(chunk, self.all_rows()))
    }

    fn take_cached_parity(&self, stripe: u64, union: &Union, image: &mut Image) {
        self.shared.cache.take(stripe, union.span(), image);
    }

    /// One round of reads for what the writes so far need. What fails is found again by the second plan.
    async fn pre_read(&self, stripe: u64, union: &Union, image: &mut Image) -> Result<(), VolumeError> {
        let plan = self.plan(Way::Best, stripe, union, image)?;
        self.fetch(stripe, &plan.reads, image).await
    }

    async fn update(
        &self,
        stripe: u64,
        union: &Union,
        image: Image,
        fua: bool,
        watch: &mut Watch<'_>,
    ) -> Result<(), VolumeError> {
        match self.update_by(Way::Best, stripe, union, image, fua, watch).await {
            // In a box: what hardly ever happens does not make the task of every write larger.
            Err(VolumeError::Unreadable { .. }) => {
                Box::pin(self.update_by_blocks(stripe, union, fua, watch)).await
            }
            result => result,
        }
    }

    /// Plans until nothing is left to read, then makes parity and writes.
    pub(super) async fn update_by(
        &self,
        way: Way,
        stripe: u64,
        union: &Union,
        mut image: Image,
        fua: bool,
        watch: &mut Watch<'_>,
    ) -> Result<(), VolumeError> {
        let (plan, missing) = loop {
            let missing = self.shared.missing(stripe);
            let way = if self.makes_good(stripe, union) { Way::Reconstruct } else { way };
            let plan = self.plan(way, stripe, union, &image)?;
            if plan.reads.is_empty() && self.shared.missing(stripe) == missing {
                break (plan, missing);
            }
            self.fetch(stripe, &plan.reads, &mut image).await?;
        };
        watch.enter(Stage::Parity);
        self.count(&plan);
        let parity = parity_step::compute(
            &self.shared.geometry,
            stripe,
            &plan,
            union,
            &mut image,
            &self.pool,
            missing,
        );
        watch.enter(Stage::Write);
        // So it is where the stripe was in doubt when this was planned.
        let from_all =
            plan.segments.iter().all(|one| matches!(one.routine, Routine::Rcw | Routine::DataOnly));
        self.store(stripe, union, &parity, missing, fua).await?;
        if from_all {
            self.remove_doubt(stripe, union, missing);
        }
        Ok(())
    }

    /// Whether a stripe whose parity may not agree gets new parity from all data, since what is lost of it is overwritten whole.
    fn makes_good(&self, stripe: u64, union: &Union) -> bool {
        let is_doubtful = self.shared.is_suspect(stripe) || self.shared.doubts.contains(stripe);
        let lost = if is_doubtful { self.lost(stripe) } else { ChunkSet::EMPTY };
        !lost.is_empty() && self.overwrites(union, lost)
    }

    fn plan(&self, way: Way, stripe: u64, union: &Union, image: &Image) -> Result<Plan, VolumeError> {
        let (shape, missing) = (self.shared.shape(), self.shared.missing(stripe));
        let load = self.stripe_load(stripe);
        let (written, held) = (union.fragments(), image.fragments());
        let planned = match way {
            Way::Best => plan(shape, missing, &written, &held, load.as_ref()),
            Way::Reconstruct => plan_reconstruct(shape, missing, &written, &held),
        };
        let plan = planned.map_err(|_| too_many_missing(stripe, missing))?;
        if load.is_some() {
            let adjusted = plan.segments.iter().filter(|segment| segment.adjusted).count();
            self.counters().adjusted_updates.add(adjusted as u64);
        }
        Ok(plan)
    }

    /// Reads fragments into the image. A member that fails here is planned around by the caller.
    pub(super) async fn fetch(
        &self,
        stripe: u64,
        fragments: &[Fragment],
        image: &mut Image,
    ) -> Result<(), VolumeError> {
        if fragments.is_empty() {
            return Ok(());
        }
        let reads: SmallVec<[_; 4]> =
            fragments.iter().map(|fragment| self.fragment_read(stripe, fragment)).collect();
        for (fragment, result) in fragments.iter().zip(ahead(self.read_members(&reads)).await) {
            match result {
                Ok(buffer) => image.insert(*fragment, Held::Owned(buffer)),
                Err(Undone::Unreadable) => {
                    if let Some(contents) = self.salvage(stripe, fragment).await? {
                        image.insert(*fragment, Held::Shared(contents));
                    }
                }
                Err(Undone::MemberGone) => {}
                Err(Undone::Request(error)) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes data and parity at once to every member that is there; keeps the parity if all have it.
    pub(super) async fn store(
        &self,
        stripe: u64,
        union: &Union,
        parity: &[NewParity],
        missing: ChunkSet,
        fua: bool,
    ) -> Result<(), VolumeError> {
        let base = self.shared.geometry.member_offset(stripe);
        let place = |chunk: Chunk, start: u32, data: Gather| MemberWrite {
            slot: self.shared.member_of(stripe, chunk),
            offset: base + u64::from(start),
            data,
        };
        let mut writes = SmallVec::<[MemberWrite; 4]>::new();
        let mut no_place = Vec::new();
        for (chunk, start, gather) in union.runs() {
            match missing.contains(chunk) {
                false => writes.push(place(chunk, start, gather)),
                true => no_place.push(place(chunk, start, gather)),
            }
        }
        for new in parity {
            writes.push(place(new.chunk, new.start, Gather::from(new.slice.clone())));
        }
        let results = match self.shared.members.plain() {
            true => self.write_members(&writes, fua).await,
            // Invariants 2 and 10: what a crash may not damage is durable before the stripe is touched.
            false => {
                let missing = if self.shared.shape().parity == 1 { &no_place[..] } else { &[] };
                let writes = StripeWrites { stripe, made: &writes, missing };
                self.write_degraded(writes, !parity.is_empty(), fua).await?
            }
        };
        self.stored(stripe, union.span(), parity, results).await
    }

    /// After the writes of a stripe's data and parity in these rows.
    pub(super) async fn stored(
        &self,
        stripe: u64,
        rows: Rows,
        parity: &[NewParity],
        results: impl IntoIterator<Item = Result<(), Undone>>,
    ) -> Result<(), VolumeError> {
        let mut all_written = true;
        for result in results {
            match result {
                Ok(()) => {}
                // The others got data and parity of this write: the stripe is as good as a degraded one can be.
                Err(Undone::MemberGone | Undone::Unreadable) => all_written = false,
                Err(Undone::Request(error)) => {
                    return Err(Box::pin(self.half_written(stripe, rows, error)).await);
                }
            }
        }
        self.survived(stripe)?;
        if all_written {
            // Invariant 5: the members have it, and this task owns the stripe until after this.
            parity.iter().for_each(|new| self.shared.cache.put(stripe, new.chunk, new.start, &new.slice));
        }
        Ok(())
    }

    /// Some members took a write of these rows, and one that stays did not. For want of room below a member the parity is made
    /// again at once: it has its blocks by now. Else one member that fails later would take data with it that nobody wrote.
    pub(super) async fn half_written(&self, stripe: u64, rows: Rows, error: VolumeError) -> VolumeError {
        // Then these rows are all that may not agree.
        let was_sound = !self.shared.is_suspect(stripe) && !self.shared.doubts.contains(stripe);
        self.shared.suspect(stripe, &error.to_string());
        if was_sound
            && matches!(error, VolumeError::NoSpace { .. })
            && self.lost(stripe).is_empty()
            && self.without_unmade_records(stripe).await.is_ok()
            && self.make_rows_agree(stripe, rows).await.is_ok()
        {
            self.shared.trust(stripe);
        }
        error
    }

    /// A stripe whose missing data was overwritten whole is in doubt no more, if its parity was made from all data.
    fn remove_doubt(&self, stripe: u64, union: &Union, missing: ChunkSet) {
        if !self.shared.doubts.contains(stripe) && !self.shared.is_suspect(stripe) {
            return;
        }
        let data = ChunkSet::first(self.shared.geometry.data_chunks());
        let lost = missing.and(data);
        let overwritten = if lost.is_empty() { data } else { lost };
        if self.overwrites(union, overwritten) {
            self.shared.trust(stripe);
        }
    }

    /// After a write that not all members took: an error if too many are missing now.
    pub(super) fn survived(&self, stripe: u64) -> Result<(), VolumeError> {
        let missing = self.shared.missing(stripe);
        if missing.len() <= self.shared.shape().parity {
            return Ok(());
        }
        let error = too_many_missing(stripe, missing);
        self.shared.suspect(stripe, &error.to_string());
        Err(error)
    }

    fn count(&self, plan: &Plan) {
        let counters = self.counters();
        let all = ChunkSet::first(self.shared.geometry.data_chunks());
        if plan.segments.iter().all(|segment| segment.written == all) {
            counters.full_stripe_writes.add(1);
        }
        for segment in &plan.segments {
            match segment.routine {
                Routine::Rmw => counters.rmw.add(1),
                Routine::Rcw => counters.rcw.add(1),
                Routine::Recover => counters.recovered_writes.add(1),
                Routine::DataOnly => {}
            }
        }
    }
}

/// How a stripe is updated.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// As is best.
    Best,
    /// Without old contents of what is written, and without old parity.
    Reconstruct,
}

pub(super) fn too_many_missing(stripe: u64, missing: ChunkSet) -> VolumeError {
    VolumeError::Io {
        reason: format!("stripe {stripe}: chunks {missing:?} are missing, more than parity makes up for"),
    }
}

fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).expect("a request fits in memory")
}
