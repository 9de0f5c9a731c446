//! RAID-1 and RAID-10: the same bytes on several members.
//!
//! Two overlapping writes in flight must reach every copy in the same order, or the copies differ for ever. So a
//! write owns the regions it touches in the stripe table, in ascending order, while it is on its way.
//!
//! A write that fails may be on some copies only. Its regions are suspect until one copy was written over the others,
//! at the next write or by a resync; the array is not called clean before.
//!
//! A member that is rebuilt gets every write and serves no read before it is done: regions are copied as their
//! owner, so a copy never overwrites a newer write.

use smallvec::SmallVec;
use std::ops::{Range, RangeInclusive};
use std::rc::Rc;

use super::StripeSet;
use super::member_io::{MemberRead, MemberWrite, Undone};
use super::read_into::Reads;
use crate::buffer::Gather;
use crate::device::Device;
use crate::members::MemberState;
use crate::stages::Watch;
use crate::volume::VolumeError;
use layout::geometry::CopyPlace;

/// What a write owns. Large enough that a large write claims little, small enough that small writes rarely meet.
pub(crate) const REGION_BYTES: u64 = 256 << 10;
/// Reads change to the next copy after this many bytes, so that every member works and runs stay sequential.
pub(super) const READ_TURN_BYTES: u64 = 1 << 20;

impl<D: Device> StripeSet<D> {
    pub(super) async fn read_copies(&self, offset_bytes: u64, bytes: u64) -> Result<Gather, VolumeError> {
        let runs = self.runs(offset_bytes, bytes);
        let reads = self.copy_reads(&runs)?;
        let mut gather = Gather::new();
        for ((run, read), result) in runs.iter().zip(&reads).zip(self.read_members(&reads).await) {
            let pieces = match result {
                Ok(buffer) => Gather::from(buffer.freeze()),
                Err(Undone::MemberGone) => self.read_any_copy(run).await?,
                Err(Undone::Unreadable) => self.salvage_run(run, read.slot).await?,
                Err(Undone::Request(error)) => self.read_other_copy(run, read.slot, error).await?,
            };
            pieces.slices().iter().for_each(|slice| gather.push(slice.clone()));
        }
        Ok(gather)
    }

    /// A request cut where its copies change members.
    pub(super) fn runs(&self, offset_bytes: u64, bytes: u64) -> SmallVec<[Run; 1]> {
        let mut runs = SmallVec::new();
        let mut at = offset_bytes;
        while at < offset_bytes + bytes {
            let copies = self.shared.geometry.copies(at, offset_bytes + bytes - at);
            let length = usize::try_from(copies.len).expect("a request fits in memory");
            runs.push(Run { offset_bytes: at, places: copies.places.into_iter().collect(), bytes: length });
            at += copies.len;
        }
        runs
    }

    /// One copy of each run.
    pub(super) fn copy_reads(&self, runs: &[Run]) -> Result<Reads, VolumeError> {
        let read = |run: &Run| {
            let place = self.copy_to_read(&run.places, self.turn(run));
            let place = place.ok_or_else(|| no_copy(&run.places))?;
            Ok(MemberRead { slot: place.member, offset: place.member_offset, bytes: run.bytes })
        };
        runs.iter().map(read).collect()
    }

    /// Which copy a run is read from. Where copies may differ it is the one that is written over the others later: what was
    /// read once does not change back (invariant 6).
    fn turn(&self, run: &Run) -> usize {
        if self.may_differ(run) {
            return 0;
        }
        usize::try_from(run.places[0].member_offset / self.shared.read_turn_bytes).unwrap_or(0)
    }

    /// Whether the copies of a run may differ.
    fn may_differ(&self, run: &Run) -> bool {
        let shared = &self.shared;
        let is_suspect = || {
            let mut regions = regions(run.offset_bytes, run.bytes as u64);
            shared.suspects() > 0 && regions.any(|region| shared.is_suspect(region))
        };
        !shared.loads.parity_agrees() || is_suspect()
    }

    /// The copy to read among those in sync; `turn` spreads the choice.
    fn copy_to_read(&self, places: &[CopyPlace], turn: usize) -> Option<CopyPlace> {
        let in_sync = |place: &&CopyPlace| self.shared.members.state(place.member) == MemberState::InSync;
        let count = places.iter().filter(in_sync).count();
        places.iter().filter(in_sync).nth(turn % count.max(1)).copied()
    }

    /// Tries copy after copy; a member that is gone is not chosen again.
    async fn read_any_copy(&self, run: &Run) -> Result<Gather, VolumeError> {
        while let Some(place) = self.copy_to_read(&run.places, 0) {
            let read = MemberRead { slot: place.member, offset: place.member_offset, bytes: run.bytes };
            match self.read_members(&[read]).await.remove(0) {
                Ok(buffer) => return Ok(Gather::from(buffer.freeze())),
                Err(Undone::MemberGone) => {}
                Err(Undone::Unreadable) => return self.salvage_run(run, place.member).await,
                Err(Undone::Request(error)) => return self.read_other_copy(run, place.member, error).await,
            }
        }
        Err(no_copy(&run.places))
    }

    /// A member does not answer that the array needs for other data: of this there may be another copy. Where copies may
    /// differ only one of them is read (invariant 6).
    async fn read_other_copy(&self, run: &Run, not: u32, error: VolumeError) -> Result<Gather, VolumeError> {
        let in_sync = |place: &&CopyPlace| self.shared.members.state(place.member) == MemberState::InSync;
        let others = run.places.iter().filter(|place| place.member != not && !self.may_differ(run));
        for place in others.filter(in_sync) {
            let read = MemberRead { slot: place.member, offset: place.member_offset, bytes: run.bytes };
            if let Ok(buffer) = self.read_members(&[read]).await.remove(0) {
                return Ok(Gather::from(buffer.freeze()));
            }
        }
        Err(error)
    }

    /// As [`StripeSet::read_any_copy`], for the owner of the region.
    async fn read_any_copy_as_owner(&self, run: &Run) -> Result<Gather, VolumeError> {
        while let Some(place) = self.copy_to_read(&run.places, 0) {
            let read = MemberRead { slot: place.member, offset: place.member_offset, bytes: run.bytes };
            match self.read_members(&[read]).await.remove(0) {
                Ok(buffer) => return Ok(Gather::from(buffer.freeze())),
                Err(Undone::MemberGone) => {}
                Err(Undone::Unreadable) => {
                    return Ok(Gather::from(self.salvage_as_owner(run, place.member).await?));
                }
                Err(Undone::Request(error)) => return Err(error),
            }
        }
        Err(no_copy(&run.places))
    }

    pub(super) async fn write_copies(
        &self,
        offset_bytes: u64,
        data: Gather,
        fua: bool,
    ) -> Result<(), VolumeError> {
        let shared = &*self.shared;
        let (mut done, bytes) = (0, data.len() as u64);
        let range = offset_bytes..offset_bytes + bytes;
        let _marked = shared.intent.mark(&Watch::off(self.shard), &shared.members, range).await?;
        while done < bytes {
            let at = offset_bytes + done;
            let regions = regions(at, bytes - done);
            let claims = shared.table.claim_whole_run(*regions.start(), regions.end() + 1, self.shard).await;
            let owned = *regions.start()..regions.start() + claims.len() as u64;
            let part = (bytes - done).min(owned.end * REGION_BYTES - at);
            let data = data.part(to_usize(done), to_usize(part));
            let result = self.write_regions(owned, at, &data, fua).await;
            claims.into_iter().for_each(|claim| claim.release(&Ok(())));
            result?;
            done += part;
        }
        Ok(())
    }

    /// Writes what lies in `regions`. The caller owns them.
    async fn write_regions(
        &self,
        regions: Range<u64>,
        offset_bytes: u64,
        data: &Gather,
        fua: bool,
    ) -> Result<(), VolumeError> {
        let shared = &*self.shared;
        for region in regions.clone().filter(|&region| shared.is_suspect(region)) {
            // A new write builds on nothing, so it goes ahead where this fails; the region stays suspect then.
            let _ = self.make_copies_agree(region).await;
        }
        match self.write_as_owner(offset_bytes, data, fua).await {
            Ok(()) => self.settle().await, // invariants 1 and 8
            Err(error) => {
                regions.for_each(|region| shared.suspect(region, &error.to_string()));
                Err(error)
            }
        }
    }

    async fn write_as_owner(&self, offset_bytes: u64, data: &Gather, fua: bool) -> Result<(), VolumeError> {
        let mut writes = SmallVec::<[MemberWrite; 4]>::new();
        let mut done = 0;
        while done < data.len() {
            let at = offset_bytes + done as u64;
            let copies = self.shared.geometry.copies(at, (data.len() - done) as u64);
            let bytes = usize::try_from(copies.len).expect("a request fits in memory");
            let before = writes.len();
            for place in &copies.places {
                if matches!(
                    self.shared.members.state(place.member),
                    MemberState::InSync | MemberState::Recovering
                ) {
                    let data = data.part(done, bytes);
                    writes.push(MemberWrite { slot: place.member, offset: place.member_offset, data });
                }
            }
            if writes.len() == before {
                return Err(no_copy(&copies.places));
            }
            done += bytes;
        }
        for result in self.write_members(&writes, fua).await {
            match result {
                // A member that fails is one that the array can do without: another copy was written.
                Ok(()) | Err(Undone::MemberGone | Undone::Unreadable) => {}
                Err(Undone::Request(error)) => return Err(error),
            }
        }
        Ok(())
    }

    /// How many regions the array has, for resync and recovery.
    pub fn regions(&self) -> u64 {
        self.shared.geometry.array_bytes().div_ceil(REGION_BYTES)
    }

    /// Copies one region from a copy that is in sync to the others: all others for a resync, or only the one in
    /// `slot` for a recovery.
    pub async fn copy_region(self: &Rc<Self>, region: u64, slot: Option<u32>) -> Result<(), VolumeError> {
        let claim = self.shared.table.claim_in_turn(region, self.shard).await;
        let result = match slot {
            Some(_) => self.copy_as_owner(region, slot).await,
            None => self.make_copies_agree(region).await,
        };
        claim.release(&Ok(()));
        result
    }

    /// One copy becomes what all hold. The caller owns the region.
    async fn make_copies_agree(&self, region: u64) -> Result<(), VolumeError> {
        self.copy_as_owner(region, None).await?;
        self.shared.trust(region);
        Ok(())
    }

    async fn copy_as_owner(&self, region: u64, slot: Option<u32>) -> Result<(), VolumeError> {
        let geometry = &self.shared.geometry;
        let Range { start: mut at, end } = region_bytes(region, geometry.array_bytes());
        while at < end {
            let copies = geometry.copies(at, end - at);
            let bytes = usize::try_from(copies.len).expect("less than a region");
            at += copies.len;
            let state = |place: &CopyPlace| self.shared.members.state(place.member);
            let wanted = |place: &&CopyPlace| match slot {
                Some(slot) => place.member == slot && state(place) == MemberState::Recovering,
                // One that is being rebuilt too: it may have passed here already.
                None => matches!(state(place), MemberState::InSync | MemberState::Recovering),
            };
            if copies.places.iter().filter(wanted).count() == 0 {
                continue; // the member in `slot` has no part in this run
            }
            let Some(source) = self.copy_to_read(&copies.places, 0) else {
                return Err(no_copy(&copies.places));
            };
            let places = copies.places.iter().copied().collect();
            let run = Run { offset_bytes: at - copies.len, places, bytes };
            let targets = copies.places.iter().filter(wanted).filter(|place| place.member != source.member);
            let contents = match self.read_any_copy_as_owner(&run).await {
                Err(VolumeError::Unreadable { .. }) => {
                    let targets: SmallVec<[u32; 4]> = targets.map(|place| place.member).collect();
                    self.copy_blocks(&run, source.member, &targets).await?;
                    continue;
                }
                contents => contents?,
            };
            let write = |place: &CopyPlace| MemberWrite {
                slot: place.member,
                offset: place.member_offset,
                data: contents.clone(),
            };
            let writes: SmallVec<[MemberWrite; 4]> = targets.map(write).collect();
            for result in self.write_members(&writes, false).await {
                if let Err(Undone::Request(error)) = result {
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

/// A part of the array that lies in one piece on each member that has a copy.
pub(super) struct Run {
    /// From the start of the array.
    pub(super) offset_bytes: u64,
    pub(super) places: SmallVec<[CopyPlace; 4]>,
    pub(super) bytes: usize,
}

/// The region of a byte of the array.
pub(super) fn region_of(offset_bytes: u64) -> u64 {
    offset_bytes / REGION_BYTES
}

/// The bytes of the array in a region.
pub(super) fn region_bytes(region: u64, array_bytes: u64) -> Range<u64> {
    region * REGION_BYTES..((region + 1) * REGION_BYTES).min(array_bytes)
}

/// The regions that a range touches.
fn regions(offset_bytes: u64, bytes: u64) -> RangeInclusive<u64> {
    offset_bytes / REGION_BYTES..=(offset_bytes + bytes - 1) / REGION_BYTES
}

fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).expect("a request fits in memory")
}

pub(super) fn no_copy(places: &[CopyPlace]) -> VolumeError {
    let members: Vec<String> = places.iter().map(|place| place.member.to_string()).collect();
    VolumeError::Io { reason: format!("no copy is left: members {} are missing", members.join(", ")) }
}
