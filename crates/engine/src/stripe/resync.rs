//! Making stripes whole: parity that agrees with data (resync), contents of a member that is rebuilt (recovery).
//! One stripe at a time, owned, in windows that fit in the cache. Which stripes and how fast is decided in `array/`.

use smallvec::SmallVec;
use std::rc::Rc;

use super::chunk_set::{Chunk, ChunkSet, P, Q};
use super::image::Image;
use super::member_io::{MemberWrite, Undone};
use super::parity_step;
use super::plan::{Fragment, Rows};
use super::write::too_many_missing;
use super::{StripeSet, data_chunk};
use crate::buffer::{Buffer, Gather};
use crate::device::Device;
use crate::executor::join_all;
use crate::members::MemberState;
use crate::volume::VolumeError;

/// Bytes of each chunk worked on at once.
const WINDOW_BYTES: u32 = 256 << 10;

impl<D: Device> StripeSet<D> {
    /// Makes the parity of one stripe agree with its data (md's resync). Where data is missing that is an error:
    /// parity is all there is of it then.
    pub async fn resync_stripe(&self, stripe: u64) -> Result<(), VolumeError> {
        let claim = self.shared.table.claim(stripe, self.shard).await;
        let data = ChunkSet::first(self.shared.geometry.data_chunks());
        let result = match self.shared.missing(stripe).and(data).is_empty() {
            true => self.make_parity_agree(stripe).await,
            false => Err(too_many_missing(stripe, self.shared.missing(stripe))),
        };
        claim.release(&Ok(()));
        result
    }

    /// New parity from all data. The caller owns the stripe.
    pub(super) async fn make_parity_agree(&self, stripe: u64) -> Result<(), VolumeError> {
        let geometry = &self.shared.geometry;
        self.shared.cache.forget(stripe);
        let all_data = ChunkSet::first(geometry.data_chunks());
        for rows in windows(geometry.chunk_bytes()) {
            // Not from what a failed or half rebuilt member holds: parity is all there is of its data.
            let missing = self.shared.missing(stripe);
            if !missing.and(all_data).is_empty() {
                return Err(too_many_missing(stripe, missing));
            }
            let mut image = Image::default();
            let data = (0..geometry.data_chunks()).map(|index| Fragment { chunk: data_chunk(index), rows });
            let data: SmallVec<[Fragment; 16]> = data.collect();
            self.fetch(stripe, &data, &mut image).await?;
            let missing = self.shared.missing(stripe);
            if data.iter().any(|fragment| image.get(fragment.chunk, rows).is_none()) {
                return Err(too_many_missing(stripe, missing)); // a member failed just now
            }
            let wanted = |chunk, parities| geometry.parity_chunks() >= parities && !missing.contains(chunk);
            let mut p = wanted(P, 1).then(|| self.pool.take(rows.bytes()));
            let mut q = wanted(Q, 2).then(|| self.pool.take(rows.bytes()));
            let contents = |chunk: Chunk| image.expect(chunk, rows);
            parity_step::encode(
                geometry,
                stripe,
                contents,
                rows,
                p.as_mut().map(Buffer::bytes_mut),
                q.as_mut().map(Buffer::bytes_mut),
            );
            let parity = [(P, p), (Q, q)].into_iter().filter_map(|(chunk, buffer)| Some((chunk, buffer?)));
            self.write_chunks(stripe, rows, parity.collect()).await?;
        }
        self.shared.trust(stripe);
        Ok(())
    }

    async fn write_chunks(
        &self,
        stripe: u64,
        rows: Rows,
        chunks: SmallVec<[(Chunk, Buffer); 2]>,
    ) -> Result<(), VolumeError> {
        let offset = self.shared.geometry.member_offset(stripe) + u64::from(rows.start);
        let write = |(chunk, buffer): (Chunk, Buffer)| MemberWrite {
            slot: self.shared.member_of(stripe, chunk),
            offset,
            data: Gather::from(buffer.freeze()),
        };
        let writes: SmallVec<[MemberWrite; 2]> = chunks.into_iter().map(write).collect();
        for result in self.write_members(&writes, false).await {
            match result {
                Ok(()) | Err(Undone::MemberGone | Undone::Unreadable) => {}
                Err(Undone::Request(error)) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes what the member in `slot` should hold of the stripes `first` to `end` - 1, or of those that it lacks, and
    /// returns how many these were. As many as are written at once are owned until the cursor has moved over the last
    /// one: a write that comes later finds the member in sync there, and none can come between (it would go past the
    /// member and leave it stale). So a stripe that is not marked is owned too: a write marks before it owns.
    pub async fn recover_stripes(
        self: &Rc<Self>,
        first: u64,
        end: u64,
        slot: u32,
    ) -> Result<u64, VolumeError> {
        let (mut at, mut recovered) = (first, 0);
        while at < end {
            let claims = self.shared.table.claim_run(at, end, self.shard).await;
            let next = at + claims.len() as u64;
            let start = |stripe| {
                let set = Rc::clone(self);
                self.executor.spawn_with_result(async move { set.recover_as_owner(stripe, slot).await })
            };
            let lacking: SmallVec<[u64; 64]> =
                (at..next).filter(|&stripe| self.lacks(slot, stripe)).collect();
            recovered += lacking.len() as u64;
            let results = join_all(lacking.into_iter().map(start)).await;
            let result = results.into_iter().collect::<Result<(), VolumeError>>();
            if result.is_ok() {
                let last = self.shared.geometry.member_offset(next - 1);
                self.shared.members.recovered_to(slot, last + u64::from(self.shared.geometry.chunk_bytes()));
            }
            claims.into_iter().for_each(|claim| claim.release(&Ok(())));
            result?;
            at = next;
        }
        Ok(recovered)
    }

    /// Whether a member that is rebuilt may lack anything of a stripe.
    fn lacks(&self, slot: u32, stripe: u64) -> bool {
        let (start, chunk_bytes) =
            (self.shared.geometry.member_offset(stripe), u64::from(self.shared.geometry.chunk_bytes()));
        !self.shared.members.lacks_only_marked(slot)
            || self.shared.intent.next_marked(start, start + chunk_bytes).is_some()
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
