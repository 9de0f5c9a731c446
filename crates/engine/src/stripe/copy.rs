//! What a member holds, copied to the device that is to replace it. The member is read as it is; what it cannot read is made
//! from the others, and not written back to it: it is about to go. (Of a mirror another copy is read, as for any reader.) What
//! cannot be made either is recorded as bad.
//!
//! The replacement gets every write of the member, so stripes need not be copied in order, nor stay owned when they are.

use std::ops::Range;
use std::rc::Rc;

use super::StripeSet;
use super::member_io::{MemberRead, Undone};
use super::mirror::{Run, region_bytes};
use super::plan::{Fragment, Rows};
use super::resync::{WINDOW_BYTES, windows};
use super::salvage::cut_at_blocks;
use super::seats::Standing;
use crate::buffer::{Buffer, Gather, Slice};
use crate::device::Device;
use crate::events::Event;
use crate::members::Replacing;
use crate::volume::VolumeError;

impl<D: Device> StripeSet<D> {
    /// Copies what the member in `slot` holds of stripes side by side.
    pub(crate) async fn copy_run(&self, run: Range<u64>, slot: u32) -> Result<(), VolumeError> {
        let mut at = run.start;
        while at < run.end {
            let claims = self.shared.table.claim_run_in_turn(at, run.end, self.shard).await;
            let next = at + claims.len() as u64;
            let result = self.copy_run_as_owner(at..next, slot).await;
            claims.into_iter().for_each(|claim| claim.release(&Ok(())));
            result?;
            at = next;
        }
        Ok(())
    }

    async fn copy_run_as_owner(&self, run: Range<u64>, slot: u32) -> Result<(), VolumeError> {
        let geometry = &self.shared.geometry;
        let chunk_bytes = geometry.chunk_bytes();
        let all = MemberRead {
            slot,
            offset: geometry.member_offset(run.start),
            bytes: chunk_bytes as usize * usize::try_from(run.end - run.start).expect("a few stripes"),
        };
        // A large chunk in parts.
        let whole = windows(chunk_bytes).count() == 1;
        if whole && let Some(contents) = self.read_to_copy(&all).await? {
            return self.write_replacement(slot, all.offset, Gather::from(contents.freeze())).await;
        }
        for stripe in run {
            for rows in windows(chunk_bytes) {
                self.copy_rows(stripe, slot, rows).await?;
            }
        }
        Ok(())
    }

    async fn copy_rows(&self, stripe: u64, slot: u32, rows: Rows) -> Result<(), VolumeError> {
        let fragment = Fragment { chunk: self.shared.chunk_on(stripe, slot), rows };
        let read = self.fragment_read(stripe, &fragment);
        if let Some(contents) = self.read_to_copy(&read).await? {
            return self.write_replacement(slot, read.offset, Gather::from(contents.freeze())).await;
        }
        for rows in cut_at_blocks(rows) {
            let fragment = Fragment { rows, ..fragment };
            let read = self.fragment_read(stripe, &fragment);
            let contents = match self.read_quietly(&read).await {
                Err(Undone::Unreadable) => self.remake(stripe, fragment.chunk, rows).await?,
                result => Some(result.map_err(|undone| failed(slot, undone))?),
            };
            self.copy_block(&read, contents).await?;
        }
        Ok(())
    }

    /// None: not all of it can be read. It fails if the member does.
    async fn read_to_copy(&self, read: &MemberRead) -> Result<Option<Buffer>, VolumeError> {
        if self.shared.members.replacing(read.slot) != Replacing::Copying {
            return Err(over(read.slot));
        }
        match self.read_members(&[*read]).await.remove(0) {
            Ok(contents) => Ok(Some(contents)),
            Err(Undone::Unreadable) => Ok(None),
            Err(undone) => Err(failed(read.slot, undone)),
        }
    }

    /// A block as it was read or made. None: neither could be done.
    async fn copy_block(&self, read: &MemberRead, contents: Option<Slice>) -> Result<(), VolumeError> {
        let (members, bytes) = (&self.shared.members, read.bytes as u64);
        if let Some(contents) = contents {
            return self.write_replacement(read.slot, read.offset, Gather::from(contents)).await;
        }
        if !members.set_bad_on_replacement(read.slot, read.offset..read.offset + bytes) {
            return Err(self.unreadable(read));
        }
        let offset_bytes = self.block_place(read.slot, read.offset).offset_bytes;
        members.report(Event::BadBlockRecorded { member: read.slot, offset_bytes, bytes });
        Ok(())
    }

    /// Copies what the member in `slot` holds of a region of a mirror.
    pub(crate) async fn copy_region_run(self: &Rc<Self>, region: u64, slot: u32) -> Result<(), VolumeError> {
        let claim = self.shared.table.claim_in_turn(region, self.shard).await;
        let result = self.copy_region_as_owner(region, slot).await;
        claim.release(&Ok(()));
        result
    }

    async fn copy_region_as_owner(&self, region: u64, slot: u32) -> Result<(), VolumeError> {
        let geometry = &self.shared.geometry;
        let Range { start: mut at, end } = region_bytes(region, geometry.array_bytes());
        while at < end {
            let copies = geometry.copies(at, end - at);
            let bytes = usize::try_from(copies.len).expect("less than a region");
            let run = Run { offset_bytes: at, places: copies.places.into_iter().collect(), bytes };
            at += copies.len;
            let Some(place) = run.places.iter().find(|place| place.member == slot) else { continue };
            let read = MemberRead { slot, offset: place.member_offset, bytes };
            match self.read_to_copy(&read).await? {
                Some(contents) => {
                    self.write_replacement(slot, read.offset, Gather::from(contents.freeze())).await?;
                }
                None => self.copy_run_by_blocks(&run, slot).await?,
            }
        }
        Ok(())
    }

    async fn copy_run_by_blocks(&self, run: &Run, slot: u32) -> Result<(), VolumeError> {
        for block in run.blocks() {
            let part = run.part(block.start as usize, block.bytes());
            let place = part.places.iter().find(|place| place.member == slot);
            let offset = place.expect("its run has a part of every block").member_offset;
            let read = MemberRead { slot, offset, bytes: part.bytes };
            let contents = match self.salvage_copy(&part, slot).await {
                Ok(contents) => Some(contents),
                Err(VolumeError::Unreadable { .. }) => None,
                Err(error) => return Err(error),
            };
            self.copy_block(&read, contents).await?;
        }
        Ok(())
    }

    /// The member in `slot` did not take a write and stays, since it is needed or full; its replacement may have taken it. That
    /// one gets again what the member holds: the two never differ in what was copied (invariant 6; parity is made to agree
    /// with the member). The caller owns the stripes or regions.
    pub(super) async fn take_back_from_replacement(&self, slot: u32, range: Range<u64>) {
        for at in range.clone().step_by(WINDOW_BYTES as usize) {
            if self.shared.members.replacing(slot) != Replacing::Copying {
                return;
            }
            let bytes = (range.end - at).min(u64::from(WINDOW_BYTES)) as usize;
            match self.read_quietly(&MemberRead { slot, offset: at, bytes }).await {
                // Should it not be taken, the replacement has ended.
                Ok(contents) => _ = self.write_replacement(slot, at, Gather::from(contents)).await,
                Err(_) => {
                    let reason = "its member can neither be written nor read in one place";
                    self.shared.members.fail_replacement(slot, reason);
                }
            }
        }
    }

    /// Writes to the replacement only, with a second try. One that does not take it ends the replacement.
    async fn write_replacement(&self, slot: u32, offset: u64, data: Gather) -> Result<(), VolumeError> {
        let members = &self.shared.members;
        let device = self.replacement(slot).filter(|_| members.replacing(slot) == Replacing::Copying);
        let Some(device) = device else { return Err(over(slot)) };
        self.counters().member_writes.add(1);
        self.counters().member_write_bytes.add(data.len() as u64);
        let write = || device.device.write(device.data_offset_bytes + offset, data.clone(), false);
        if write().await.is_ok() {
            return Ok(());
        }
        let Err(error) = write().await else { return Ok(()) };
        if self.standing(slot, &device) == Standing::Replacement {
            members.fail_replacement(slot, &error.to_string());
        }
        Err(over(slot))
    }
}

fn over(slot: u32) -> VolumeError {
    VolumeError::Io { reason: format!("member {slot} is not being replaced any more") }
}

fn failed(slot: u32, undone: Undone) -> VolumeError {
    match undone {
        Undone::Request(error) => error,
        Undone::MemberGone | Undone::Unreadable => over(slot),
    }
}
