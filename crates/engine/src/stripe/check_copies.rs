//! Scrub of a mirror's region: do the copies agree, and if not, which are outvoted?

use smallvec::SmallVec;

use super::StripeSet;
use super::check::{Checked, Mismatch, Outcome, ScrubMode, Wrong};
use super::locate::outvoted;
use super::member_io::{MemberRead, Undone};
use super::mirror::{Run, region_bytes};
use crate::buffer::Slice;
use crate::device::Device;
use crate::limits::BLOCK_BYTES;
use crate::members::MemberState;
use crate::volume::VolumeError;
use layout::geometry::CopyPlace;

/// The same bytes of the array on every member that holds them.
struct Compared {
    region: u64,
    /// From the start of the array.
    offset_bytes: u64,
    places: SmallVec<[CopyPlace; 4]>,
    copies: Vec<Slice>,
}

impl<D: Device> StripeSet<D> {
    /// Checks one region of a mirror, and repairs it if `mode` says so.
    ///
    /// # Errors
    /// A member could not be read, and the array cannot do without it.
    pub async fn check_region(&self, region: u64, mode: ScrubMode) -> Result<Checked, VolumeError> {
        let claim = self.shared.table.claim_in_turn(region, self.shard).await;
        let result = self.check_region_as_owner(region, mode).await;
        claim.release(&Ok(()));
        Checked::or_unreadable(result, region)
    }

    async fn check_region_as_owner(&self, region: u64, mode: ScrubMode) -> Result<Checked, VolumeError> {
        let geometry = &self.shared.geometry;
        let mut checked = Checked::default();
        let range = region_bytes(region, geometry.array_bytes());
        let mut at = range.start;
        while at < range.end {
            let copies = geometry.copies(at, range.end - at);
            let bytes = usize::try_from(copies.len).expect("less than a region");
            let places: SmallVec<[CopyPlace; 4]> = copies.places.into_iter().collect();
            match self.read_all_copies(&Run { offset_bytes: at, places: places.clone(), bytes }).await? {
                Some(copies) if !self.shared.is_suspect(region) => {
                    let run = Compared { region, offset_bytes: at, places, copies };
                    self.check_run(&run, range.start, mode, &mut checked).await?;
                }
                _ => checked.skipped = true,
            }
            at += bytes as u64;
        }
        Ok(checked)
    }

    /// None if a copy is not there.
    async fn read_all_copies(&self, run: &Run) -> Result<Option<Vec<Slice>>, VolumeError> {
        let in_sync = |place: &CopyPlace| self.shared.members.state(place.member) == MemberState::InSync;
        if !run.places.iter().all(in_sync) {
            return Ok(None);
        }
        let read = |place: &CopyPlace| MemberRead {
            slot: place.member,
            offset: place.member_offset,
            bytes: run.bytes,
        };
        let reads: SmallVec<[MemberRead; 4]> = run.places.iter().map(read).collect();
        let mut copies = Vec::new();
        for (read, result) in reads.iter().zip(self.read_members(&reads).await) {
            match result {
                Ok(buffer) => copies.push(buffer.freeze()),
                // It becomes what another copy holds.
                Err(Undone::Unreadable) => copies.push(self.salvage_as_owner(run, read.slot).await?),
                Err(Undone::Request(error)) => return Err(error),
                Err(Undone::MemberGone) => return Ok(None),
            }
        }
        Ok(Some(copies))
    }

    async fn check_run(
        &self,
        run: &Compared,
        region_start: u64,
        mode: ScrubMode,
        checked: &mut Checked,
    ) -> Result<(), VolumeError> {
        let bytes = run.copies[0].len();
        for start in (0..bytes).step_by(BLOCK_BYTES) {
            let block = start..(start + BLOCK_BYTES).min(bytes);
            let copies: SmallVec<[&[u8]; 4]> =
                run.copies.iter().map(|copy| &copy.bytes()[block.clone()]).collect();
            if copies.iter().all(|copy| *copy == copies[0]) {
                continue;
            }
            let (liars, wrong) = match outvoted(&copies) {
                Some(liars) => (liars, Wrong::Copy),
                None => ((0..copies.len()).collect(), Wrong::Unknown),
            };
            // Without a majority the first copy counts, as for md.
            let right = (0..copies.len()).find(|place| wrong == Wrong::Unknown || !liars.contains(place));
            let right = Slice::from_bytes(copies[right.expect("a copy")]);
            let places: SmallVec<[CopyPlace; 4]> = liars.iter().map(|&place| run.places[place]).collect();
            let at = |place: &CopyPlace| place.member_offset + start as u64;
            let outcome = match mode.repair {
                false => Outcome::Found,
                true => {
                    let mut done = true;
                    for place in &places {
                        done &= self.write_and_read_back(place.member, at(place), &right).await?;
                    }
                    match (done, wrong) {
                        (false, _) => Outcome::NotRepaired,
                        (true, Wrong::Unknown) => Outcome::CopiesRewritten,
                        (true, _) => Outcome::BlockRewritten,
                    }
                }
            };
            let offset_bytes = run.offset_bytes + start as u64;
            checked.found_in(Some(Mismatch {
                stripe: run.region,
                row_bytes: offset_bytes - region_start,
                bytes: block.len() as u64,
                wrong,
                blocks: places.iter().map(|place| self.block_place(place.member, at(place))).collect(),
                array_offset_bytes: Some(offset_bytes),
                outcome,
            }));
        }
        Ok(())
    }
}
