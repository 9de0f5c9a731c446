//! Making stripes whole: parity that agrees with data (resync), contents of a member that is rebuilt (recovery).
//! Stripes are owned while that is done; what is as usual in several side by side is done at once ([`run`](super::run)),
//! else one stripe at a time, in windows that fit in the cache. Which stripes and how fast is decided in `array/`.

use smallvec::SmallVec;
use std::ops::Range;

use super::chunk_set::{Chunk, ChunkSet, P, Q};
use super::image::Image;
use super::member_io::{MemberWrite, Undone};
use super::parity_step;
use super::plan::{Fragment, Rows};
use super::write::too_many_missing;
use super::{StripeSet, data_chunk};
use crate::buffer::{Buffer, Gather};
use crate::device::Device;
use crate::members::MemberState;
use crate::volume::VolumeError;

/// Bytes of each chunk worked on at once.
pub(super) const WINDOW_BYTES: u32 = 256 << 10;

impl<D: Device> StripeSet<D> {
    /// Makes the parity of one stripe agree with its data (md's resync). Where data is missing that is an error:
    /// parity is all there is of it then.
    pub async fn resync_stripe(&self, stripe: u64) -> Result<(), VolumeError> {
        self.resync_run(stripe..stripe + 1).await
    }

    /// The same for stripes side by side.
    pub(crate) async fn resync_run(&self, run: Range<u64>) -> Result<(), VolumeError> {
        let mut at = run.start;
        while at < run.end {
            let claims = self.shared.table.claim_run_in_turn(at, run.end, self.shard).await;
            let next = at + claims.len() as u64;
            let result = self.resync_as_owner(at..next).await;
            claims.into_iter().for_each(|claim| claim.release(&Ok(())));
            result?;
            at = next;
        }
        Ok(())
    }

    async fn resync_as_owner(&self, run: Range<u64>) -> Result<(), VolumeError> {
        if self.make_parity_of_run_agree(&run).await? {
            return Ok(());
        }
        for stripe in run {
            let missing = self.shared.missing(stripe);
            if !missing.and(ChunkSet::first(self.shared.geometry.data_chunks())).is_empty() {
                return Err(too_many_missing(stripe, missing));
            }
            self.make_parity_agree(stripe).await?;
        }
        Ok(())
    }

    /// New parity from all data. The caller owns the stripe.
    pub(super) async fn make_parity_agree(&self, stripe: u64) -> Result<(), VolumeError> {
        self.shared.cache.forget(stripe);
        self.without_unmade_records(stripe).await?;
        for rows in windows(self.shared.geometry.chunk_bytes()) {
            match self.make_rows_agree(stripe, rows).await {
                Err(VolumeError::Unreadable { .. }) => Box::pin(self.make_blocks_agree(stripe, rows)).await?,
                result => result?,
            }
        }
        self.shared.trust(stripe);
        Ok(())
    }

    /// New parity of some rows.
    pub(super) async fn make_rows_agree(&self, stripe: u64, rows: Rows) -> Result<(), VolumeError> {
        let count = self.shared.geometry.data_chunks();
        // Not from what a failed or half rebuilt member holds: parity is all there is of its data.
        let missing = self.shared.missing(stripe);
        if !missing.and(ChunkSet::first(count)).is_empty() {
            return Err(too_many_missing(stripe, missing));
        }
        let mut image = Image::default();
        let data = (0..count)
            .map(|index| Fragment { chunk: data_chunk(index), rows })
            .collect::<SmallVec<[Fragment; 16]>>();
        self.fetch(stripe, &data, &mut image).await?;
        let missing = self.shared.missing(stripe);
        if data.iter().any(|fragment| image.get(fragment.chunk, rows).is_none()) {
            return Err(too_many_missing(stripe, missing)); // a member failed just now
        }
        let contents = |chunk: Chunk| image.expect(chunk, rows);
        let parity = self.parity_from(stripe, rows, missing, contents).into_iter();
        let writes: SmallVec<[MemberWrite; 2]> =
            parity.map(|(chunk, buffer)| self.parity_write(stripe, rows, chunk, buffer)).collect();
        self.write_parity(&writes).await
    }

    /// The parity of some rows, but for what is missing.
    pub(super) fn parity_from<'a>(
        &self,
        stripe: u64,
        rows: Rows,
        missing: ChunkSet,
        contents: impl Fn(Chunk) -> &'a [u8],
    ) -> SmallVec<[(Chunk, Buffer); 2]> {
        let geometry = &self.shared.geometry;
        let wanted = |chunk, parities| geometry.parity_chunks() >= parities && !missing.contains(chunk);
        let mut p = wanted(P, 1).then(|| self.pool.take(rows.bytes()));
        let mut q = wanted(Q, 2).then(|| self.pool.take(rows.bytes()));
        let (to_p, to_q) = (p.as_mut().map(Buffer::bytes_mut), q.as_mut().map(Buffer::bytes_mut));
        parity_step::encode(geometry, stripe, contents, rows, to_p, to_q);
        [(P, p), (Q, q)].into_iter().filter_map(|(chunk, buffer)| Some((chunk, buffer?))).collect()
    }

    pub(super) fn parity_write(&self, stripe: u64, rows: Rows, chunk: Chunk, buffer: Buffer) -> MemberWrite {
        MemberWrite {
            slot: self.shared.member_of(stripe, chunk),
            offset: self.shared.geometry.member_offset(stripe) + u64::from(rows.start),
            data: Gather::from(buffer.freeze()),
        }
    }

    pub(super) async fn write_parity(&self, writes: &[MemberWrite]) -> Result<(), VolumeError> {
        for result in self.write_members(writes, false).await {
            match result {
                Ok(()) | Err(Undone::MemberGone | Undone::Unreadable) => {}
                Err(Undone::Request(error)) => return Err(error),
            }
        }
        Ok(())
    }

    /// Those of some stripes of which a member that is rebuilt may lack anything, as runs.
    pub(crate) fn lacking(&self, slot: u32, stripes: Range<u64>) -> SmallVec<[Range<u64>; 4]> {
        let mut runs = SmallVec::<[Range<u64>; 4]>::new();
        for stripe in stripes.filter(|&stripe| self.lacks(slot, stripe)) {
            match runs.last_mut() {
                Some(run) if run.end == stripe => run.end += 1,
                _ => runs.push(stripe..stripe + 1),
            }
        }
        runs
    }

    fn lacks(&self, slot: u32, stripe: u64) -> bool {
        let (start, chunk_bytes) =
            (self.shared.geometry.member_offset(stripe), u64::from(self.shared.geometry.chunk_bytes()));
        !self.shared.members.lacks_only_marked(slot)
            || self.shared.intent.next_marked(start, start + chunk_bytes).is_some()
    }

    /// Writes what the member in `slot`, which is rebuilt, should hold of a run of stripes. The caller owns them, until the
    /// member's cursor has moved over them.
    pub(crate) async fn recover_run(&self, run: Range<u64>, slot: u32) -> Result<(), VolumeError> {
        if let Some(contents) = self.contents_of_run(&run, slot).await? {
            let offset = self.shared.geometry.member_offset(run.start);
            return self.write_recovered(slot, offset, contents).await;
        }
        for stripe in run {
            self.recover_as_owner(stripe, slot).await?;
        }
        Ok(())
    }

    async fn recover_as_owner(&self, stripe: u64, slot: u32) -> Result<(), VolumeError> {
        let geometry = &self.shared.geometry;
        let data = ChunkSet::first(geometry.data_chunks());
        if self.shared.is_suspect(stripe) || !self.shared.missing(stripe).and(data).is_empty() {
            self.shared.unrecoverable(stripe).map_or(Ok(()), Err)?;
        }
        for rows in windows(geometry.chunk_bytes()) {
            match self.contents_of(stripe, slot, rows).await {
                Ok(contents) => {
                    let offset = geometry.member_offset(stripe) + u64::from(rows.start);
                    self.write_recovered(slot, offset, contents).await?;
                }
                Err(VolumeError::Unreadable { .. }) => self.recover_blocks(stripe, slot, rows).await?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// What a member should hold in some rows of a stripe.
    pub(super) async fn contents_of(
        &self,
        stripe: u64,
        slot: u32,
        rows: Rows,
    ) -> Result<Gather, VolumeError> {
        match self.shared.chunk_on(stripe, slot) {
            parity @ (P | Q) => self.recovered_parity(stripe, parity, rows).await,
            chunk => {
                let mut slices = self.read_as_owner(stripe, &[Fragment { chunk, rows }]).await?;
                Ok(Gather::from(slices.remove(0)))
            }
        }
    }

    /// Writes what a member that is rebuilt should hold.
    pub(super) async fn write_recovered(
        &self,
        slot: u32,
        offset: u64,
        data: Gather,
    ) -> Result<(), VolumeError> {
        let gone = || VolumeError::Io { reason: format!("member {slot} failed while it was rebuilt") };
        if self.shared.members.state(slot) != MemberState::Recovering {
            return Err(gone());
        }
        match self.write_members(&[MemberWrite { slot, offset, data }], false).await.remove(0) {
            Ok(()) => Ok(()),
            Err(Undone::MemberGone | Undone::Unreadable) => Err(gone()),
            Err(Undone::Request(error)) => Err(error),
        }
    }

    /// P or Q of a stripe from its data, lost data recovered first.
    async fn recovered_parity(&self, stripe: u64, chunk: Chunk, rows: Rows) -> Result<Gather, VolumeError> {
        let geometry = &self.shared.geometry;
        let data = (0..geometry.data_chunks()).map(|index| Fragment { chunk: data_chunk(index), rows });
        let data: SmallVec<[Fragment; 16]> = data.collect();
        let contents = self.read_as_owner(stripe, &data).await?;
        let mut parity = self.pool.take(rows.bytes());
        let bytes = |chunk: Chunk| contents[usize::from(chunk)].bytes();
        let (p, q) =
            if chunk == P { (Some(parity.bytes_mut()), None) } else { (None, Some(parity.bytes_mut())) };
        parity_step::encode(geometry, stripe, bytes, rows, p, q);
        Ok(Gather::from(parity.freeze()))
    }
}

/// The rows of a chunk, cut.
pub(super) fn windows(chunk_bytes: u32) -> impl Iterator<Item = Rows> {
    let count = chunk_bytes.div_ceil(WINDOW_BYTES);
    (0..count).map(move |i| Rows {
        start: i * WINDOW_BYTES,
        end: (i * WINDOW_BYTES).saturating_add(WINDOW_BYTES).min(chunk_bytes),
    })
}
