//! What the members of an assembly hold beside their superblocks, read before the array starts: bad-block logs,
//! bitmaps, redo logs. Nothing is written.
//!
//! Reading comes as one closure, and every decision is a pure function of its result. So `assemble --explain`, the
//! program and the simulator come to the same conclusion.

use layout::absences::{AbsenceRecord, AbsencesArea};
use layout::geometry::Geometry;
use layout::md_bitmap::{Bitmap, BitmapSuper, PAGE_BYTES, SUPER_BYTES};
use layout::md_superblock::{Superblock, SuperblockError};
use layout::redo_log::{BitmapExtent, Place, StripeRange};
use layout::units::{DeviceOffset, Slot};

use crate::array::assemble::{Assembly, Candidate};
use crate::array::bad_block_log::{self, Unbelieved};
use crate::array::redo::{MemberLog, Repair, Situation, decide, member_of, read_log};
use crate::array::start_bitmap::{self, StartBitmap};
use crate::bad_blocks::BadBlocks;
use crate::members::MemberState;
use crate::stripe::absences::FoundAbsences;

/// Why the members of an assembly cannot be taken as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberProblem {
    /// Index of the candidate.
    pub candidate: usize,
    /// What is wrong with it.
    pub kind: MemberProblemKind,
    /// The same in words.
    pub reason: String,
}

/// What is wrong with a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberProblemKind {
    /// Its bad-block log cannot be read.
    BadBlockLogUnreadable,
    /// Its bad-block log makes no sense: it does not tell which of its blocks hold data. md does not take it either.
    BadBlockLogDamaged,
    /// Its bitmap is of a kind that Twill does not keep. With a lockless one (version 6) parity was never made where
    /// nothing was written, and a clustered array (version 5) may be in use elsewhere.
    ForeignBitmap,
}

/// What the redo logs of an array's members ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundRedo {
    /// What is to be done.
    pub repair: Repair,
    /// How much of each member its bitmap takes, by slot.
    pub bitmaps: Vec<BitmapExtent>,
    /// From where on parity may not agree, in bytes of the members.
    pub resync_from_bytes: Option<u64>,
}

/// Reads what the members of an assembly hold.
pub struct Inspection<'a, R> {
    /// What might be members.
    pub candidates: &'a [Candidate],
    /// What they make.
    pub assembly: &'a Assembly,
    /// Reads a number of bytes at an offset of a candidate's device.
    pub read: R,
}

impl<'a, R: Fn(usize, DeviceOffset, usize) -> Result<Vec<u8>, String>> Inspection<'a, R> {
    /// The superblock of a candidate, if that may be believed.
    pub(in crate::array) fn superblock(&self, candidate: usize) -> Option<&'a Superblock> {
        self.candidates[candidate].superblock.as_ref().ok()
    }

    /// The superblock that says whether the array has a bitmap, and where: the newest, as in md. A crash while a bitmap came or went
    /// leaves others that say otherwise.
    pub(in crate::array) fn newest(&self) -> Option<&'a Superblock> {
        let members = self.members().map(|(.., superblock)| superblock);
        members.max_by_key(|superblock| (superblock.events(), superblock.bitmap_start().is_some()))
    }

    /// The superblock of a candidate as it is written next: with a bitmap if the array has one, and without if it has none.
    pub(super) fn superblock_to_come(&self, candidate: usize) -> Option<Superblock> {
        let (own, size_bytes) = (self.superblock(candidate)?, self.candidates[candidate].size_bytes);
        let follows = self.newest().and_then(|newest| own.with_bitmap_of(newest, size_bytes));
        Some(follows.unwrap_or_else(|| own.clone()))
    }

    /// Slot, candidate and superblock of every member.
    pub(in crate::array) fn members(&self) -> impl Iterator<Item = (Slot, usize, &'a Superblock)> {
        let member = |(slot, candidate): (Slot, &Option<usize>)| {
            let candidate = (*candidate)?;
            Some((slot, candidate, self.superblock(candidate)?))
        };
        Slot::all().zip(&self.assembly.slots).filter_map(member)
    }

    /// What the members' bad-block logs list, by slot.
    ///
    /// # Errors
    /// The members whose logs cannot be believed.
    pub fn bad_blocks(&self) -> Result<Vec<BadBlocks>, Vec<MemberProblem>> {
        let mut bad_blocks = vec![BadBlocks::default(); self.assembly.slots.len()];
        let mut problems = Vec::new();
        for (slot, candidate, superblock) in self.members() {
            match self.bad_blocks_of(candidate, superblock) {
                Ok(listed) => bad_blocks[slot.index()] = listed,
                Err(problem) => problems.push(problem),
            }
        }
        if problems.is_empty() { Ok(bad_blocks) } else { Err(problems) }
    }

    fn bad_blocks_of(&self, candidate: usize, superblock: &Superblock) -> Result<BadBlocks, MemberProblem> {
        let read = |offset, bytes| (self.read)(candidate, offset, bytes);
        bad_block_log::read(superblock, read).map_err(|unbelieved| {
            let (kind, reason) = match unbelieved {
                Unbelieved::Unreadable(reason) => (MemberProblemKind::BadBlockLogUnreadable, reason),
                Unbelieved::Damaged(error) => (MemberProblemKind::BadBlockLogDamaged, error.to_string()),
            };
            MemberProblem { candidate, kind, reason }
        })
    }

    /// The bitmap that the array starts with; `None` if it has none.
    ///
    /// # Errors
    /// A member's bitmap is of a kind that Twill does not keep.
    pub fn bitmap(&self, geometry: &Geometry) -> Result<Option<StartBitmap>, MemberProblem> {
        let assembly = self.assembly;
        if self.newest().is_none_or(|newest| newest.bitmap_start().is_none()) {
            return Ok(None);
        }
        let mut found = vec![None; assembly.slots.len()];
        let mut room_bytes = u64::MAX;
        for (slot, candidate, superblock) in self.members() {
            room_bytes = room_bytes.min(self.bitmap_room(candidate, superblock));
            // A member that is being rebuilt has not held everything: the others know better.
            if superblock.bitmap_start().is_some() && superblock.recovery_offset().is_none() {
                found[slot.index()] = Some(self.bitmap_of(candidate, superblock)?);
            }
        }
        let (events, resync_from_bytes) = (assembly.events, assembly.resync_from_bytes);
        Ok(start_bitmap::decide(&found, geometry, assembly.set_uuid, events, resync_from_bytes, room_bytes))
    }

    fn bitmap_room(&self, candidate: usize, superblock: &Superblock) -> u64 {
        superblock.bitmap_room(self.candidates[candidate].size_bytes).unwrap_or(0)
    }

    /// The bitmap of a member, or why that cannot be believed.
    fn bitmap_of(
        &self,
        candidate: usize,
        superblock: &Superblock,
    ) -> Result<start_bitmap::ReadBitmap, MemberProblem> {
        let unbelieved = |error: SuperblockError| match error {
            SuperblockError::BitmapVersion { .. } => Err(MemberProblem {
                candidate,
                kind: MemberProblemKind::ForeignBitmap,
                reason: error.to_string(),
            }),
            error => Ok(Err(error.to_string())),
        };
        let head = match self.bitmap_super(candidate, superblock, PAGE_BYTES) {
            Ok(Ok(head)) => head,
            Ok(Err(error)) => return unbelieved(error),
            Err(reason) => return Ok(Err(unreadable(&reason))),
        };
        let start = DeviceOffset::of_sector(superblock.bitmap_start().expect("a bitmap"));
        let length = usize::try_from(head.bitmap_bytes()).unwrap_or(usize::MAX);
        let bytes = match (self.read)(candidate, start, length) {
            Ok(bytes) => bytes,
            Err(reason) => return Ok(Err(unreadable(&reason))),
        };
        match Bitmap::parse(&bytes, superblock.set_uuid(), self.bitmap_room(candidate, superblock)) {
            Ok(bitmap) => Ok(Ok(bitmap)),
            Err(error) => unbelieved(error),
        }
    }

    fn bitmap_super(
        &self,
        candidate: usize,
        superblock: &Superblock,
        bytes: usize,
    ) -> Result<Result<BitmapSuper, SuperblockError>, String> {
        let start = DeviceOffset::of_sector(superblock.bitmap_start().expect("a bitmap"));
        let head = (self.read)(candidate, start, bytes)?;
        let room_bytes = self.bitmap_room(candidate, superblock);
        Ok(BitmapSuper::parse(&head, superblock.set_uuid(), room_bytes))
    }

    /// Reads the members' redo logs and decides what they ask for. What cannot be read is part of the decision.
    /// `bitmap` is what the array starts with; with `force` a person accepts contents that may be wrong; with
    /// `read_only` nothing is written, so what the logs would repair is in doubt.
    pub fn redo(&self, bitmap: Option<&StartBitmap>, force: bool, read_only: bool) -> FoundRedo {
        let states = self.assembly.states();
        let mut found =
            FoundRedo { bitmaps: vec![BitmapExtent::Unknown; states.len()], ..FoundRedo::default() };
        let mut logs = Vec::new();
        for (slot, candidate, superblock) in self.members() {
            let extent = self.bitmap_extent(candidate, superblock);
            found.bitmaps[slot.index()] = extent;
            if states[slot.index()] == MemberState::InSync {
                logs.extend(self.redo_log(slot, candidate, superblock, extent));
            }
        }
        let Some(geometry) = self.assembly.geometry else { return found };
        let is_redundant = geometry.losses_survived() > 0;
        let situation = Situation {
            geometry,
            states: &states,
            events: self.assembly.events,
            resync_from_bytes: self.assembly.resync_from_bytes.filter(|_| is_redundant),
            bitmap,
            force,
        };
        found.repair = decide(&situation, &logs);
        if read_only && !found.repair.records.is_empty() {
            doubt_instead(&mut found.repair, &geometry);
        }
        found.resync_from_bytes = match bitmap {
            // Bits are cleared by a resync once the array is whole again, whatever was redone.
            Some(_) => self.assembly.resync_from_bytes,
            None => found.repair.resync_from_bytes(&situation),
        };
        found
    }

    /// What the members in sync have on record of members that are away. It counts if the record of generations names it.
    pub fn absences(&self, extents: &[BitmapExtent]) -> FoundAbsences {
        let Some(now) = &self.assembly.generations.now else { return FoundAbsences::default() };
        let states = self.assembly.states();
        let named = now.members.iter().take(states.len()).copied().collect();
        let mut record: Option<AbsenceRecord> = None;
        let in_sync = self.members().filter(|(slot, ..)| states[slot.index()] == MemberState::InSync);
        for (slot, candidate, superblock) in in_sync.filter(|_| now.absences != 0) {
            let Some(area) = AbsencesArea::of(superblock, extents[slot.index()]) else { continue };
            for copy in 0..2 {
                let offset = area.copy_offset(copy);
                let length = usize::try_from(area.copy_bytes).expect("a copy is small");
                let Ok(bytes) = (self.read)(candidate, offset, length) else { continue };
                let (set_uuid, device_uuid) = (superblock.set_uuid(), superblock.device_uuid());
                let found = AbsenceRecord::parse(&bytes, Place { set_uuid, device_uuid, offset });
                let found = found.filter(|found| found.id == now.absences);
                let is_newer = |found: &AbsenceRecord| {
                    record.as_ref().is_none_or(|record| record.sequence < found.sequence)
                };
                if let Some(found) = found.filter(is_newer) {
                    record = Some(found);
                }
            }
        }
        FoundAbsences { record, was_whole: now.bitmap == now.current, named }
    }

    /// How long the bitmap is that a candidate has on its device.
    pub(in crate::array) fn bitmap_extent(&self, candidate: usize, superblock: &Superblock) -> BitmapExtent {
        if superblock.bitmap_start().is_none() {
            return BitmapExtent::Absent;
        }
        match self.bitmap_super(candidate, superblock, SUPER_BYTES) {
            Ok(Ok(head)) => BitmapExtent::Bytes(head.bitmap_bytes()),
            Ok(Err(_)) | Err(_) => BitmapExtent::Unknown,
        }
    }

    fn redo_log(
        &self,
        slot: Slot,
        candidate: usize,
        superblock: &Superblock,
        extent: BitmapExtent,
    ) -> Option<MemberLog> {
        let member = member_of(superblock, extent)?;
        Some(read_log(slot, &member, |offset, bytes| (self.read)(candidate, offset, bytes)))
    }
}

fn unreadable(reason: &str) -> String {
    format!("it cannot be read: {reason}")
}

/// Nothing is written to an array that is served read-only: the stripes of the records are in doubt.
fn doubt_instead(repair: &mut Repair, geometry: &Geometry) {
    let stripes = repair.stripes(geometry).into_iter();
    repair.doubts.extend(stripes.map(StripeRange::of));
    repair.records.clear();
    repair.reason = Some("the redo log is not replayed on a read-only array".to_string());
}
