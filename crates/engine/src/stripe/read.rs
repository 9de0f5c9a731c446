//! Reads. While every member is in sync a read takes no lock and looks at no shared state but the health flag.
//! A read of a lost chunk owns the stripe while it recovers: parity and data of a stripe in motion do not agree.

use smallvec::SmallVec;

use super::chunk_set::Chunk;
use super::image::Image;
use super::member_io::{MemberRead, Undone};
use super::plan::{Fragment, Rows, plan_read};
use super::read_into::Reads;
use super::recover::recover_data;
use super::write::too_many_missing;
use super::{StripeSet, data_chunk};
use crate::buffer::{Gather, Slice};
use crate::device::Device;
use crate::volume::VolumeError;

/// Part of a request that lies in one chunk.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub(super) stripe: u64,
    pub(super) fragment: Fragment,
}

impl<D: Device> StripeSet<D> {
    /// Reads a range of a parity array.
    pub(super) async fn read_stripes(&self, offset_bytes: u64, bytes: u64) -> Result<Gather, VolumeError> {
        let pieces: SmallVec<[Piece; 2]> = self.pieces(offset_bytes, bytes).collect();
        if self.shared.loads.may_avoid(self.shard, pieces.len())
            && let Some(gather) = self.read_avoiding(&pieces).await
        {
            return Ok(gather);
        }
        // After anything that waits: between this look and the reads nobody can take a member away.
        if self.any_lost(&pieces) {
            return self.read_around(&pieces).await;
        }
        let mut gather = Gather::new();
        self.read_present(&pieces, &mut gather).await?;
        Ok(gather)
    }

    /// The reads of a range, if all members that it needs are there and none is avoided.
    pub(super) fn present_reads(&self, offset_bytes: u64, bytes: u64) -> Option<Reads> {
        let pieces: SmallVec<[Piece; 2]> = self.pieces(offset_bytes, bytes).collect();
        if self.shared.loads.avoid_slow() || self.any_lost(&pieces) {
            return None;
        }
        Some(pieces.iter().map(|piece| self.fragment_read(piece.stripe, &piece.fragment)).collect())
    }

    fn any_lost(&self, pieces: &[Piece]) -> bool {
        !self.shared.members.all_in_sync() && pieces.iter().any(|piece| self.is_lost(piece))
    }

    fn is_lost(&self, piece: &Piece) -> bool {
        self.shared.missing(piece.stripe).contains(piece.fragment.chunk)
    }

    /// Reads pieces whose members are there, all at once.
    async fn read_present(&self, pieces: &[Piece], gather: &mut Gather) -> Result<(), VolumeError> {
        let reads: SmallVec<[MemberRead; 2]> =
            pieces.iter().map(|piece| self.fragment_read(piece.stripe, &piece.fragment)).collect();
        for (piece, result) in pieces.iter().zip(self.read_members(&reads).await) {
            gather.push(match result {
                Ok(buffer) => buffer.freeze(),
                Err(Undone::MemberGone | Undone::Unreadable) => {
                    self.read_lost(piece.stripe, &[piece.fragment]).await?.remove(0)
                }
                Err(Undone::Request(error)) => return Err(error),
            });
        }
        Ok(())
    }

    /// The request cut at chunks, in order.
    pub(super) fn pieces(&self, offset_bytes: u64, bytes: u64) -> impl Iterator<Item = Piece> + use<D> {
        let geometry = self.shared.geometry;
        let (mut at, end) = (offset_bytes, offset_bytes + bytes);
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let place = geometry.locate(at);
            let left = u64::from(geometry.chunk_bytes() - place.chunk_offset).min(end - at);
            at += left;
            let end = place.chunk_offset + u32::try_from(left).expect("less than a chunk");
            let rows = Rows { start: place.chunk_offset, end };
            let fragment = Fragment { chunk: data_chunk(place.data_index), rows };
            Some(Piece { stripe: place.stripe, fragment })
        })
    }

    /// A request that meets lost chunks: stripe by stripe, each row read once.
    async fn read_around(&self, pieces: &[Piece]) -> Result<Gather, VolumeError> {
        let mut gather = Gather::new();
        for stripe in pieces.chunk_by(|a, b| a.stripe == b.stripe) {
            if stripe.iter().any(|piece| self.is_lost(piece)) {
                let fragments: SmallVec<[Fragment; 8]> = stripe.iter().map(|piece| piece.fragment).collect();
                let slices = self.read_lost(stripe[0].stripe, &fragments).await?;
                slices.into_iter().for_each(|slice| gather.push(slice));
            } else {
                self.read_present(stripe, &mut gather).await?;
            }
        }
        Ok(gather)
    }

    /// Reads fragments of a stripe of which some are lost, as its owner.
    async fn read_lost(
        &self,
        stripe: u64,
        fragments: &[Fragment],
    ) -> Result<SmallVec<[Slice; 4]>, VolumeError> {
        let claim = self.shared.table.claim(stripe, self.shard).await;
        let result = self.read_as_owner(stripe, fragments).await;
        claim.release(&Ok(()));
        result
    }

    /// Reads fragments, lost ones included. The caller owns the stripe.
    pub(super) async fn read_as_owner(
        &self,
        stripe: u64,
        fragments: &[Fragment],
    ) -> Result<SmallVec<[Slice; 4]>, VolumeError> {
        let mut image = Image::default();
        let missing = loop {
            let missing = self.shared.missing(stripe);
            let needs_parity = fragments.iter().any(|fragment| missing.contains(fragment.chunk));
            if needs_parity && let Some(error) = self.shared.unrecoverable(stripe) {
                return Err(error);
            }
            let wanted = plan_read(self.shared.shape(), missing, fragments);
            let mut wanted = wanted.map_err(|_| too_many_missing(stripe, missing))?;
            wanted.retain(|fragment| image.get(fragment.chunk, fragment.rows).is_none());
            if wanted.is_empty() {
                break missing;
            }
            self.fetch(stripe, &wanted, &mut image).await?;
        };
        self.counters().reconstructed_reads.add(1);
        Ok(fragments.iter().map(|fragment| self.extract(stripe, missing, fragment, &mut image)).collect())
    }

    pub(super) fn extract(
        &self,
        stripe: u64,
        missing: super::ChunkSet,
        fragment: &Fragment,
        image: &mut Image,
    ) -> Slice {
        let Fragment { chunk, rows } = *fragment;
        if !missing.contains(chunk) {
            return image.share(chunk, rows);
        }
        let known = |chunk: Chunk| image.get(chunk, rows);
        let recovered = recover_data(&self.shared.geometry, stripe, missing, rows, known, &self.pool);
        let (_, buffer) = recovered
            .into_iter()
            .find(|(lost, _)| *lost == chunk)
            .expect("a missing data chunk is recovered");
        buffer.freeze()
    }
}
