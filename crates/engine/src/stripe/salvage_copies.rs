//! Blocks of a mirror that a member cannot read: read from another copy, written again and read back. See
//! [`salvage`](super::salvage), which does so from parity.

use smallvec::SmallVec;

use super::StripeSet;
use super::member_io::{MemberRead, MemberWrite, Undone};
use super::mirror::{Run, no_copy, region_bytes, region_of};
use super::plan::Rows;
use super::salvage::cut_at_blocks;
use crate::buffer::{Gather, Slice};
use crate::device::Device;
use crate::members::MemberState;
use crate::volume::VolumeError;

impl<D: Device> StripeSet<D> {
    /// Reads a run of which the copy in `slot` cannot be read, as the owner of one region after the other.
    pub(super) async fn salvage_run(&self, run: &Run, slot: u32) -> Result<Gather, VolumeError> {
        let (mut gather, mut done) = (Gather::new(), 0);
        while done < run.bytes {
            let region = region_of(run.offset_bytes + done as u64);
            let end = region_bytes(region, u64::MAX).end;
            let left = usize::try_from(end - run.offset_bytes).unwrap_or(usize::MAX).min(run.bytes) - done;
            let claim = self.shared.table.claim(region, self.shard).await;
            let result = self.salvage_as_owner(&run.part(done, left), slot).await;
            claim.release(&Ok(()));
            gather.push(result?);
            done += left;
        }
        Ok(gather)
    }

    /// Reads a run block by block, each from a copy that can be read; the one in `slot` is tried first. The caller owns
    /// the regions.
    pub(super) async fn salvage_as_owner(&self, run: &Run, slot: u32) -> Result<Slice, VolumeError> {
        let mut whole = self.pool.take(run.bytes);
        for block in run.blocks() {
            let contents = self.salvage_copy(&run.part(block.start as usize, block.bytes()), slot).await?;
            whole.bytes_mut()[block.start as usize..block.end as usize].copy_from_slice(contents.bytes());
        }
        Ok(whole.freeze())
    }

    pub(super) async fn salvage_copy(&self, block: &Run, slot: u32) -> Result<Slice, VolumeError> {
        let in_sync = |member| self.shared.members.state(member) == MemberState::InSync;
        let mut places = block.places.clone();
        places.sort_by_key(|place| place.member != slot);
        let mut unreadable = SmallVec::<[MemberRead; 4]>::new();
        // Looked at before each read: another device may have taken a slot meanwhile (invariant 8).
        for place in places.iter().filter(|place| in_sync(place.member)) {
            let read = MemberRead { slot: place.member, offset: place.member_offset, bytes: block.bytes };
            match self.read_quietly(&read).await {
                Ok(contents) => {
                    for read in unreadable.iter().filter(|read| in_sync(read.slot)) {
                        self.put_back(read, &contents).await;
                    }
                    return Ok(contents);
                }
                Err(Undone::Unreadable) => unreadable.push(read),
                Err(Undone::MemberGone) => {}
                Err(Undone::Request(error)) => return Err(error),
            }
        }
        Err(unreadable.first().map_or_else(|| no_copy(&block.places), |read| self.unreadable(read)))
    }

    /// Copies a run that cannot be read whole to the members in `targets`, block by block: what no copy has is recorded as bad
    /// there. It is tried first from `source`, which stays as it is. The caller owns the region.
    pub(super) async fn copy_blocks(
        &self,
        run: &Run,
        source: u32,
        targets: &[u32],
    ) -> Result<(), VolumeError> {
        for block in run.blocks() {
            let part = run.part(block.start as usize, block.bytes());
            let contents = self.salvage_copy(&part, source).await;
            for place in part.places.iter().filter(|place| targets.contains(&place.member)) {
                let (slot, offset) = (place.member, place.member_offset);
                match &contents {
                    Ok(contents) => {
                        let write = MemberWrite { slot, offset, data: Gather::from(contents.clone()) };
                        let written = self.write_members(&[write], false).await.remove(0);
                        if let Err(Undone::Request(error)) = written {
                            return Err(error);
                        }
                    }
                    Err(VolumeError::Unreadable { .. })
                        if self.record_bad(slot, offset, part.bytes as u64) => {}
                    Err(error) => return Err(error.clone()),
                }
            }
        }
        // They count as copies that agree only when that is in the logs.
        Ok(self.shared.members.settled().await?)
    }
}

impl Run {
    /// A part of it.
    pub(super) fn part(&self, start: usize, bytes: usize) -> Run {
        let mut places = self.places.clone();
        places.iter_mut().for_each(|place| place.member_offset += start as u64);
        Run { offset_bytes: self.offset_bytes + start as u64, places, bytes }
    }

    /// Where its blocks are, counted from its start.
    pub(super) fn blocks(&self) -> impl Iterator<Item = Rows> + use<> {
        // All copies lie alike in their blocks: chunks are whole blocks.
        let first = (self.places[0].member_offset % crate::limits::BLOCK_BYTES as u64) as u32;
        let end = first + u32::try_from(self.bytes).expect("a request is below 4 GiB");
        cut_at_blocks(Rows { start: first, end })
            .map(move |rows| Rows { start: rows.start - first, end: rows.end - first })
    }
}
