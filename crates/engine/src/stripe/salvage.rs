//! Blocks that a member cannot read: latent errors of the medium, and places that its bad-block log lists. They are made
//! from the other members, written again and read back; the member stays. It fails when it does not take the block, or
//! has had more of them lately than md forgives.
//!
//! Nothing is made from a stripe whose parity may not agree with its data (invariant 10): then the request fails.
//! A block that is written again holds what it held, so no intent is needed.

use smallvec::SmallVec;

use super::chunk_set::{Chunk, ChunkSet, P, Q};
use super::image::{Held, Image};
use super::member_io::{MemberRead, Undone};
use super::parity_step;
use super::plan::{Fragment, Rows, plan_read};
use super::{StripeSet, data_chunk};
use crate::buffer::Slice;
use crate::device::Device;
use crate::events::Event;
use crate::limits::BLOCK_BYTES;
use crate::members::{MemberState, Replacing};
use crate::volume::VolumeError;

impl<D: Device> StripeSet<D> {
    /// The contents of a fragment whose member could not read all of it. None if the member has failed meanwhile: plan
    /// again without it. The caller owns the stripe.
    pub(super) async fn salvage(
        &self,
        stripe: u64,
        fragment: &Fragment,
    ) -> Result<Option<Slice>, VolumeError> {
        let mut whole = self.pool.take(fragment.rows.bytes());
        for wanted in cut_at_blocks(fragment.rows) {
            // Invariant 8: another device may have taken the slot while the last block was made.
            if self.shared.missing(stripe).contains(fragment.chunk) {
                return Ok(None);
            }
            let Some(contents) = self.salvage_block(stripe, fragment.chunk, wanted).await? else {
                return Ok(None);
            };
            let at = (wanted.start - fragment.rows.start) as usize;
            whole.bytes_mut()[at..at + wanted.bytes()].copy_from_slice(contents.bytes());
        }
        Ok(Some(whole.freeze()))
    }

    /// Some rows within one block.
    async fn salvage_block(
        &self,
        stripe: u64,
        chunk: Chunk,
        wanted: Rows,
    ) -> Result<Option<Slice>, VolumeError> {
        let rows = block_around(wanted, self.shared.geometry.chunk_bytes());
        let read = self.fragment_read(stripe, &Fragment { chunk, rows });
        let contents = match self.read_quietly(&read).await {
            Ok(contents) => contents,
            Err(Undone::Unreadable) => {
                let Some(contents) = self.remake(stripe, chunk, rows).await? else {
                    return Err(self.unreadable(&read));
                };
                if self.shared.missing(stripe).contains(chunk) {
                    return Ok(None);
                }
                self.put_back(&read, &contents).await;
                contents
            }
            Err(Undone::MemberGone) => return Ok(None),
            Err(Undone::Request(error)) => return Err(error),
        };
        Ok(Some(contents.part((wanted.start - rows.start) as usize, wanted.bytes())))
    }

    /// Rows of a chunk from the other chunks. None if too few of them can be read, or they may not agree.
    pub(super) async fn remake(
        &self,
        stripe: u64,
        chunk: Chunk,
        rows: Rows,
    ) -> Result<Option<Slice>, VolumeError> {
        if self.shared.unrecoverable(stripe).is_some() {
            return Ok(None); // invariant 10
        }
        let geometry = &self.shared.geometry;
        let data = (0..geometry.data_chunks()).map(|index| Fragment { chunk: data_chunk(index), rows });
        let wanted: SmallVec<[Fragment; 16]> = match chunk {
            P | Q => data.collect(),
            data => [Fragment { chunk: data, rows }].into_iter().collect(),
        };
        let mut image = Image::default();
        let mut lost = ChunkSet::one(chunk);
        loop {
            lost = lost.or(self.shared.missing(stripe));
            let Ok(mut helpers) = plan_read(self.shared.shape(), lost, &wanted) else { return Ok(None) };
            helpers.retain(|helper| image.get(helper.chunk, helper.rows).is_none());
            if helpers.is_empty() {
                break;
            }
            let reads: SmallVec<[MemberRead; 16]> =
                helpers.iter().map(|helper| self.fragment_read(stripe, helper)).collect();
            for (helper, result) in helpers.iter().zip(self.read_members(&reads).await) {
                match result {
                    Ok(buffer) => image.insert(*helper, Held::Owned(buffer)),
                    Err(Undone::Unreadable | Undone::MemberGone) => lost.insert(helper.chunk),
                    Err(Undone::Request(error)) => return Err(error),
                }
            }
        }
        let mut slices: SmallVec<[Slice; 16]> =
            wanted.iter().map(|fragment| self.extract(stripe, lost, fragment, &mut image)).collect();
        if !matches!(chunk, P | Q) {
            return Ok(slices.pop());
        }
        let mut parity = self.pool.take(rows.bytes());
        let (p, q) =
            if chunk == P { (Some(parity.bytes_mut()), None) } else { (None, Some(parity.bytes_mut())) };
        parity_step::encode(geometry, stripe, |data| slices[usize::from(data)].bytes(), rows, p, q);
        Ok(Some(parity.freeze()))
    }

    /// Writes again what could not be read, and reads it back. A member that does not take it fails.
    pub(super) async fn put_back(&self, read: &MemberRead, contents: &Slice) {
        let (shared, slot) = (&*self.shared, read.slot);
        if !shared.may_write() {
            return;
        }
        let place = self.block_place(slot, read.offset);
        let (offset_bytes, bytes) = (place.offset_bytes, read.bytes as u64);
        let member = self.attached(slot);
        match self.write_and_read_back(slot, read.offset, contents).await {
            Ok(true) => {
                shared.members.report(Event::BlockRewritten { member: slot, offset_bytes, bytes });
                if shared.members.one_corrected_too_many(slot, shared.loads.now_ns()) {
                    self.fail_for(slot, "it had more read errors lately than are forgiven");
                }
            }
            // It failed, and another device has the slot.
            Ok(false) if member.is_none_or(|member| !self.is_in_slot(slot, &member)) => {}
            Ok(false) => {
                let reason =
                    format!("the block at byte {offset_bytes} cannot be read back after it was written");
                self.fail_for(slot, &reason);
            }
            // The array needs the member, and whoever reads gets what was made.
            Err(error) => {
                shared.members.report(Event::MemberKept { member: slot, reason: error.to_string() });
            }
        }
    }

    /// A place that nobody can read or make.
    pub(super) fn unreadable(&self, read: &MemberRead) -> VolumeError {
        let offset_bytes = self.block_place(read.slot, read.offset).offset_bytes;
        let error = VolumeError::Unreadable { member: read.slot, offset_bytes };
        let bytes = read.bytes as u64;
        self.shared.members.report(Event::BlockUnreadable { member: read.slot, offset_bytes, bytes });
        error
    }

    /// What belongs at a place of a member cannot be made: its bad-block log says so from now on, as md has it for a member
    /// that is rebuilt. False if the log has no room; who makes the array whole cannot go on then. One that has failed since has
    /// no log any more.
    pub(super) fn record_bad(&self, slot: u32, offset: u64, bytes: u64) -> bool {
        let members = &self.shared.members;
        if matches!(members.state(slot), MemberState::Missing | MemberState::Failed) {
            return true;
        }
        // First: a device that has got what the member held may have the slot a moment later.
        if members.replacing(slot) == Replacing::Copying
            && !members.set_bad_on_replacement(slot, offset..offset + bytes)
        {
            members.fail_replacement(slot, "its bad-block log has no room");
        }
        let recorded = members.set_bad(slot, offset..offset + bytes);
        if recorded {
            let offset_bytes = self.block_place(slot, offset).offset_bytes;
            self.shared.members.report(Event::BadBlockRecorded { member: slot, offset_bytes, bytes });
        }
        recorded
    }

    /// Rows of the member in `slot`, which is rebuilt, block by block: what cannot be made is recorded as bad.
    pub(super) async fn recover_blocks(&self, stripe: u64, slot: u32, rows: Rows) -> Result<(), VolumeError> {
        let base = self.shared.geometry.member_offset(stripe);
        for rows in cut_at_blocks(rows) {
            let offset = base + u64::from(rows.start);
            match self.contents_of(stripe, slot, rows).await {
                Ok(contents) => self.write_recovered(slot, offset, contents).await?,
                Err(error @ VolumeError::Unreadable { .. }) => {
                    if !self.record_bad(slot, offset, rows.bytes() as u64) {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads without a word: who asks knows that something is wrong there. A passing error has its second try.
    pub(super) async fn read_quietly(&self, read: &MemberRead) -> Result<Slice, Undone> {
        match self.read_once(read).await {
            Err(Undone::Unreadable) => self.read_once(read).await,
            result => result,
        }
    }

    async fn read_once(&self, read: &MemberRead) -> Result<Slice, Undone> {
        loop {
            let Some((from, reading)) = self.start_read(read) else {
                return Err(self.not_started(read));
            };
            let error = match reading.await {
                (buffer, Ok(())) => return Ok(buffer.freeze()),
                (_, Err(error)) => error,
            };
            match self.is_in_slot(read.slot, &from) {
                false => self.has_successor(read.slot)?,
                true if Self::is_latent(&error) => return Err(Undone::Unreadable),
                true => return Err(self.give_up(read.slot, &error)),
            }
        }
    }
}

/// Rows cut at the borders of blocks.
pub(super) fn cut_at_blocks(rows: Rows) -> impl Iterator<Item = Rows> {
    let block = BLOCK_BYTES as u32;
    let mut at = rows.start;
    std::iter::from_fn(move || {
        let end = (at / block * block).saturating_add(block).min(rows.end);
        let part = Rows { start: at, end };
        (at < rows.end).then(|| {
            at = end;
            part
        })
    })
}

/// The block that holds some rows.
fn block_around(rows: Rows, chunk_bytes: u32) -> Rows {
    let block = BLOCK_BYTES as u32;
    let start = rows.start / block * block;
    Rows { start, end: start.saturating_add(block).min(chunk_bytes) }
}
