//! Rows of which a block of data cannot be read, and nothing may be made from parity, or too little is left to make it from.
//! Other blocks of these rows can be read and written, and the rest of the array goes on.
//!
//! - A resync that meets such a block has no parity to write: none would be right. It records the parity of the row as bad
//!   in the logs of its members, as md has it for what cannot be rebuilt, and goes on. So nobody takes it for true, in a
//!   later run and in md neither (invariant 10), and the array becomes clean. What is on the medium stays there: who knows
//!   better takes the entry out of the log.
//! - A write of the block itself makes the row whole: parity from all data, which needs neither the old block nor the old
//!   parity.
//! - A write of another block leaves such a parity as it is. Before it does, the parity is bad in the log.

use super::StripeSet;
use super::chunk_set::{Chunk, ChunkSet, P, Q};
use super::image::Image;
use super::member_io::{MemberRead, Undone};
use super::plan::{Rows, plan_reconstruct};
use super::salvage::cut_at_blocks;
use super::union::Union;
use super::write::Way;
use crate::device::Device;
use crate::limits::BLOCK_BYTES;
use crate::members::Failing;
use crate::stages::Watch;
use crate::volume::VolumeError;

impl<D: Device> StripeSet<D> {
    /// New parity of some rows, block by block, where one of data cannot be had: bad. The caller owns the stripe.
    pub(super) async fn make_blocks_agree(&self, stripe: u64, rows: Rows) -> Result<(), VolumeError> {
        let data = ChunkSet::first(self.shared.geometry.data_chunks());
        for rows in cut_at_blocks(rows) {
            match self.make_rows_agree(stripe, rows).await {
                Err(error @ VolumeError::Unreadable { .. }) => {
                    // Once a member is missing its chunk is in doubt: that is told apart from what is lost.
                    let fails = self.member_fails(&error).await;
                    let is_missing = !self.shared.missing(stripe).and(data).is_empty();
                    if fails || is_missing || !self.give_up_parity(stripe, rows) {
                        return Err(error);
                    }
                }
                result => result?,
            }
        }
        // The stripe counts as one that agrees only when that is in the logs.
        Ok(self.shared.members.settled().await?)
    }

    /// Whether a member that cannot read a place cannot read any: then it is the member that fails, not a block that is lost.
    async fn member_fails(&self, error: &VolumeError) -> bool {
        let VolumeError::Unreadable { member: slot, .. } = *error else { return false };
        let end = self.shared.geometry.member_bytes();
        for offset in [0, end / 2, end].map(|at| at.saturating_sub(BLOCK_BYTES as u64) / BLOCK_BYTES as u64) {
            let read = MemberRead { slot, offset: offset * BLOCK_BYTES as u64, bytes: BLOCK_BYTES };
            match self.read_quietly(&read).await {
                Err(Undone::Unreadable) if !self.is_bad(&read) => {}
                _ => return false,
            }
        }
        self.fail_for(slot, "it cannot be read anywhere") == Failing::Failed
    }

    /// False if a log has no room.
    pub(super) fn give_up_parity(&self, stripe: u64, rows: Rows) -> bool {
        let missing = self.shared.missing(stripe);
        let start = self.shared.geometry.member_offset(stripe) + u64::from(rows.start);
        self.shared.cache.forget(stripe);
        self.parity_chunks()
            .filter(|chunk| !missing.contains(*chunk))
            .all(|chunk| self.record_bad(self.shared.member_of(stripe, chunk), start, rows.bytes() as u64))
    }

    fn parity_chunks(&self) -> impl Iterator<Item = Chunk> + use<D> {
        [P, Q].into_iter().take(self.shared.geometry.parity_chunks() as usize)
    }

    /// Updates a stripe of which old contents that the best way needs cannot be had. The caller owns it.
    pub(super) async fn update_by_blocks(
        &self,
        stripe: u64,
        union: &Union,
        fua: bool,
        watch: &mut Watch<'_>,
    ) -> Result<(), VolumeError> {
        for rows in cut_at_blocks(union.span()) {
            let part = union.within(rows);
            if !part.is_empty() {
                self.update_block(stripe, rows, &part, fua, watch).await?;
            }
        }
        Ok(())
    }

    async fn update_block(
        &self,
        stripe: u64,
        rows: Rows,
        part: &Union,
        fua: bool,
        watch: &mut Watch<'_>,
    ) -> Result<(), VolumeError> {
        let mut error = match self.update_by(Way::Best, stripe, part, Image::default(), fua, watch).await {
            Err(error @ VolumeError::Unreadable { .. }) => error,
            result => return result,
        };
        let can_reconstruct = || {
            let missing = self.shared.missing(stripe);
            plan_reconstruct(self.shared.shape(), missing, &part.fragments(), &[]).is_ok()
        };
        if can_reconstruct() {
            match self.update_by(Way::Reconstruct, stripe, part, Image::default(), fua, watch).await {
                Err(again @ VolumeError::Unreadable { .. }) => error = again,
                // A member failed while its part was read: nothing was written yet, or the stripe would be suspect.
                Err(_) if !can_reconstruct() && !self.shared.is_suspect(stripe) => {}
                result => return result,
            }
        }
        if self.member_fails(&error).await {
            return self.update_by(Way::Best, stripe, part, Image::default(), fua, watch).await;
        }
        self.write_without_parity(stripe, rows, part, fua, error).await
    }

    /// Only data. It fails with `error` if more would be lost by that than is lost already.
    async fn write_without_parity(
        &self,
        stripe: u64,
        rows: Rows,
        part: &Union,
        fua: bool,
        error: VolumeError,
    ) -> Result<(), VolumeError> {
        let missing = self.shared.missing(stripe);
        let written: ChunkSet = part.fragments().iter().map(|fragment| fragment.chunk).collect();
        // Parity, bad or not, is all there is of what is missing; new contents of that have no place at all.
        let may_give_up =
            missing.is_empty() || (missing.and(written).is_empty() && self.is_parity_bad(stripe, rows));
        if !may_give_up || !self.give_up_parity(stripe, rows) {
            return Err(error);
        }
        self.shared.members.settled().await?;
        self.store(stripe, part, &[], missing, fua).await?;
        // A member that did not take its block, and has failed for that, is not made up for by anybody.
        if self.shared.missing(stripe).and(written).is_empty() { Ok(()) } else { Err(error) }
    }

    /// Whether all parity of some rows that is not missing is known to be bad.
    fn is_parity_bad(&self, stripe: u64, rows: Rows) -> bool {
        let (members, missing) = (&self.shared.members, self.shared.missing(stripe));
        let start = self.shared.geometry.member_offset(stripe) + u64::from(rows.start);
        let range = start..start + rows.bytes() as u64;
        self.parity_chunks()
            .filter(|chunk| !missing.contains(*chunk))
            .all(|chunk| members.is_all_bad(self.shared.member_of(stripe, chunk), &range))
    }
}
