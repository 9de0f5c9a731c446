//! An array whose members were read and judged, and the decisions about its start, as plain data.

use std::sync::Arc;

use layout::geometry::{Geometry, Level, Raid0Zones};
use layout::md_superblock::Superblock;
use layout::redo_log::{BitmapExtent, RedoArea, StripeRange};
use layout::units::{DeviceOffset, Slot};

use super::inspect::{FoundRedo, Inspection, MemberProblem};
use crate::array::absences::{absence_place, standing_of};
use crate::array::assemble::Refusal;
use crate::array::bad_block_log;
use crate::array::generations::FoundGenerations;
use crate::array::ledgers::{NotUsed, stripes_under_way};
use crate::array::redo::Repair;
use crate::array::start_bitmap::StartBitmap;
use crate::bad_blocks::BadBlocks;
use crate::events::EventSink;
use crate::fabric::ledger::Listed;
use crate::members::load::{Clock, UpdatePolicy};
use crate::members::{MemberState, Members};
use crate::stripe::Shared;
use crate::stripe::absences::{FoundAbsences, Standing};
use crate::stripe::intent::Intent;
use crate::stripe::locks::Locks;
use crate::stripe::redo::RedoContents;

/// How an array is to be run.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Nothing is written to any member.
    pub read_only: bool,
    /// Contents that may be wrong are accepted: what is in doubt after a crash counts as right.
    pub force: bool,
    /// What is durable before a stripe changes.
    pub consistency: Consistency,
    /// Writes are logged while members are missing, where the level and the rest of the policy allow it.
    pub redo_log: Option<RedoContents>,
    /// Unit of addressing: the largest logical block of the members, in bytes.
    pub logical_block_bytes: u32,
    /// Shards that serve it.
    pub shards: usize,
    /// Parity kept in memory, in bytes.
    pub parity_cache_bytes: usize,
    /// The locks over a bitmap's counters and over the stripes.
    pub locks: Locks,
    /// Writes that arrive together share one stripe write.
    pub two_phase: bool,
    /// How writes choose what to read for new parity.
    pub update_policy: UpdatePolicy,
    /// Reads of a member that is far slower than the others are reconstructed.
    pub avoid_slow: bool,
}

/// What is durable before a stripe changes, as far as the level has anything that may disagree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consistency {
    /// Nothing: after a crash no record says which parity agrees.
    None,
    /// The superblocks say dirty, and where there is a bitmap its bits are set.
    Marked,
}

impl Policy {
    /// Whether a redo log is kept. Without write intent the superblocks call the array clean at all times, so they do not say
    /// which records a replay needs: there is no log then.
    fn keeps_redo_log(&self, geometry: &Geometry) -> bool {
        let is_marked = !self.read_only && self.consistency == Consistency::Marked;
        is_marked && self.redo_log.is_some() && geometry.parity_chunks() > 0
    }
}

/// Why an assembly does not start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotAssembled {
    /// It may not.
    Refused(Refusal),
    /// The metadata of members beside their superblocks cannot be used as it is.
    Members(Vec<MemberProblem>),
    /// The array has a bitmap, which [`Consistency::None`] would leave untrue.
    BitmapNotKept,
}

/// An array that may start.
pub struct Assembled {
    pub(super) policy: Policy,
    pub(super) geometry: Geometry,
    /// Where the chunks of a RAID-0 are whose members differ in size.
    unequal_zones: Option<Arc<Raid0Zones>>,
    states: Vec<MemberState>,
    pub(in crate::array) superblocks: Vec<Option<Superblock>>,
    /// The newest event count.
    pub(super) events: u64,
    /// The generations that the next superblocks continue.
    pub(super) generations: FoundGenerations,
    /// Parity or copies may not agree from here on: the superblocks say so.
    unsynced_from_bytes: Option<u64>,
    bad_blocks: Vec<BadBlocks>,
    pub(super) bitmap: Option<StartBitmap>,
    pub(super) redo: FoundRedo,
    pub(super) keeps_redo_log: bool,
    absences: FoundAbsences,
    /// What the former host had under way, if the members' targets tell: nothing else has to be made to agree.
    pub(super) under_way: Option<Vec<StripeRange>>,
    /// Candidate and superblock of every spare.
    pub(in crate::array) spares: Vec<(usize, Superblock)>,
    /// Slot, candidate and superblock of each replacement of a member.
    pub(super) replacements: Vec<(Slot, usize, Superblock)>,
}

impl Assembled {
    /// Reads what the members of an assembly hold and decides how the array starts. Nothing is written. The caller makes
    /// sure that from here on only this array changes the members.
    ///
    /// # Errors
    /// [`NotAssembled`] says why the array does not start so.
    pub fn read<R: Fn(usize, DeviceOffset, usize) -> Result<Vec<u8>, String>>(
        inspection: &Inspection<'_, R>,
        policy: Policy,
    ) -> Result<Self, NotAssembled> {
        let assembly = inspection.assembly;
        assembly.start.clone().map_err(NotAssembled::Refused)?;
        let geometry = assembly.geometry.expect("an array that may start has a geometry");
        let superblock = |candidate: usize| inspection.superblock_to_come(candidate);
        let superblocks: Vec<Option<Superblock>> =
            assembly.slots.iter().map(|slot| slot.and_then(superblock)).collect();
        let bad_blocks = inspection.bad_blocks().map_err(NotAssembled::Members)?;
        let has_bitmap = superblocks.iter().flatten().any(|superblock| superblock.bitmap_start().is_some());
        if has_bitmap && policy.consistency == Consistency::None {
            return Err(NotAssembled::BitmapNotKept);
        }
        let one = |problem| NotAssembled::Members(vec![problem]);
        let bitmap = inspection.bitmap(&geometry).map_err(one)?;
        let mut redo = inspection.redo(bitmap.as_ref(), policy.force, policy.read_only);
        let keeps_redo_log = policy.keeps_redo_log(&geometry);
        let is_part_recovered =
            |superblock: &Superblock| superblock.recovery_offset().is_some_and(|at| at.bytes() > 0);
        let has_parity = geometry.parity_chunks() == 2 || superblocks.iter().flatten().any(is_part_recovered);
        if assembly.takes_stale && geometry.parity_chunks() > 0 && has_parity && keeps_redo_log {
            // Parity and data of several times: what is made from some of them agrees with those, and not with the others. A resync
            // is due once all are there. Without a log its mark would put all that force accepted in doubt at the next start.
            redo.resync_from_bytes = Some(0);
        }
        let absences = match policy.force {
            true => FoundAbsences::default(),
            false => inspection.absences(&redo.bitmaps),
        };
        follow_bitmap(&mut redo.bitmaps, &superblocks, bitmap.as_ref());
        let spare = |candidate: &usize| Some((*candidate, superblock(*candidate)?));
        let replacements = assembly.replacements.iter().filter(|_| !policy.read_only);
        let replacement =
            |(candidate, slot): &(usize, Slot)| Some((*slot, *candidate, superblock(*candidate)?));
        Ok(Assembled {
            geometry: of_whole_blocks(geometry, policy.logical_block_bytes),
            unequal_zones: assembly.unequal_zones.clone(),
            states: assembly.states(),
            superblocks,
            events: assembly.events,
            generations: assembly.generations.clone(),
            unsynced_from_bytes: assembly.resync_from_bytes,
            bad_blocks,
            bitmap,
            absences,
            under_way: None,
            redo,
            keeps_redo_log,
            spares: assembly.spares.iter().filter_map(spare).collect(),
            replacements: replacements.filter_map(replacement).collect(),
            policy,
        })
    }

    /// Goes by what the members' targets have recorded of the former host, in place of a resync. `ask` asks them, by slot, if the
    /// array was not stopped cleanly.
    ///
    /// # Errors
    /// [`NotUsed`] says why the array starts as without.
    pub fn use_ledgers(&mut self, ask: impl FnOnce() -> Vec<Option<Listed>>) -> Result<(), NotUsed> {
        if self.unsynced_from_bytes.is_none() || self.redo.resync_from_bytes.is_none() {
            return Err(NotUsed::Clean);
        }
        let found = ask();
        let policy = &self.policy;
        let is_whole = self.states.iter().all(|state| *state == MemberState::InSync);
        let repair = &self.redo.repair;
        // What is in a redo log was written with a member missing: such a member has caught up since, or is none of this array.
        let is_logged = !repair.records.is_empty() || !repair.doubts.is_empty();
        let is_marked = !policy.read_only && !policy.force && policy.consistency == Consistency::Marked;
        if !is_whole || is_logged || !is_marked || self.geometry.parity_chunks() == 0 {
            return Err(NotUsed::Otherwise);
        }
        self.under_way = Some(stripes_under_way(&self.geometry, &self.superblocks, &found)?);
        Ok(())
    }

    /// Where every byte lives.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// What the redo log asks for.
    pub fn redo(&self) -> &FoundRedo {
        &self.redo
    }

    /// The bitmap that the array starts with.
    pub fn bitmap(&self) -> Option<&StartBitmap> {
        self.bitmap.as_ref()
    }

    /// Where on each member a redo log will be, by slot; `None` where there is no room or no log is kept.
    pub fn redo_areas(&self) -> Vec<Option<RedoArea>> {
        let area = |(superblock, bitmap): (&Option<Superblock>, _)| {
            RedoArea::of(superblock.as_ref().filter(|_| self.keeps_redo_log)?, bitmap)
        };
        self.superblocks.iter().zip(self.redo.bitmaps.iter().copied()).map(area).collect()
    }

    /// Makes the memory that the array's shards share. Events go to `events`.
    pub(super) fn shared(&self, events: EventSink, clock: Arc<dyn Clock>) -> Arc<Shared> {
        let policy = &self.policy;
        let members = Members::new(self.geometry, &self.states, events);
        self.describe(&members);
        let intent = match &self.bitmap {
            Some(start) => start.intent(self.redo.resync_from_bytes, policy.locks),
            None => {
                let is_used =
                    self.geometry.level() != Level::Raid0 && policy.consistency == Consistency::Marked;
                Intent::new(policy.shards, is_used, false)
            }
        };
        let mut shared =
            Shared::new(self.geometry, members, intent, policy.shards, policy.parity_cache_bytes);
        let own = Arc::get_mut(&mut shared).expect("only this function has it yet");
        if let Some(start) = &self.bitmap {
            start.limit_doubts(own);
        }
        if let Some(zones) = &self.unequal_zones {
            own.set_unequal_zones(zones);
        }
        if self.geometry.parity_chunks() > 0 && policy.consistency == Consistency::Marked {
            self.begin_absences(&shared);
        }
        if policy.read_only {
            shared.set_read_only();
        }
        shared.two_phase.store(policy.two_phase, std::sync::atomic::Ordering::Relaxed);
        shared.loads.set_clock(clock);
        shared.loads.set_policy(policy.update_policy);
        shared.loads.set_avoid_slow(policy.avoid_slow);
        shared
    }

    /// What members that are away hold: what is on record, and what those hold that left in the crash.
    fn begin_absences(&self, shared: &Shared) {
        let standing =
            |slot: Slot| standing_of(&shared.members, slot, self.superblocks[slot.index()].as_ref());
        let standings: Vec<Standing> = self.geometry.slots().map(standing).collect();
        // Without a log in force the crash may have torn parity that was made since a member left.
        let Repair { in_force, lost_records, .. } = self.redo.repair;
        let made_counts = (in_force && !lost_records) || self.unsynced_from_bytes.is_none();
        shared.absences.begin(&self.absences, &standings, made_counts);
        for (slot, superblock) in Slot::all().zip(&self.superblocks) {
            let extent = self.redo.bitmaps[slot.index()];
            let place = superblock.as_ref().and_then(|superblock| absence_place(superblock, extent));
            shared.absences.set_place(slot, place);
        }
    }

    /// Tells the members what their superblocks and logs say of them.
    fn describe(&self, members: &Members) {
        for (slot, superblock) in Slot::all().zip(&self.superblocks) {
            let Some(superblock) = superblock else { continue };
            let (bad, room) = (self.bad_blocks[slot.index()].clone(), bad_block_log::room(superblock));
            members.begin_with(slot, u64::from(superblock.corrected_reads()), bad, room);
            members.set_read_last(slot, superblock.is_write_mostly());
            let is_recovering = self.states[slot.index()] == MemberState::Recovering;
            if let Some(offset) = superblock.recovery_offset().filter(|_| is_recovering) {
                let lacks_marked =
                    self.bitmap.as_ref().is_some_and(|bitmap| bitmap.lets_catch_up(superblock));
                members.resume_recovery(slot, offset.bytes(), lacks_marked);
            }
        }
    }
}

/// Members that the newest superblock gives a bitmap, or takes it from, have it from here on: how long it is then, by slot.
fn follow_bitmap(
    extents: &mut [BitmapExtent],
    superblocks: &[Option<Superblock>],
    bitmap: Option<&StartBitmap>,
) {
    for (extent, superblock) in extents.iter_mut().zip(superblocks) {
        let has_bitmap = superblock.as_ref().map(|superblock| superblock.bitmap_start().is_some());
        *extent = match (has_bitmap, bitmap) {
            (Some(false), _) => BitmapExtent::Absent,
            (Some(true), Some(start)) if *extent == BitmapExtent::Absent => {
                BitmapExtent::Bytes(start.image.superblock().bitmap_bytes())
            }
            _ => *extent,
        };
    }
}

/// A RAID-1 has md's size in KiB, which may end inside a block of its members. No request reaches that end by itself, so
/// it is not served.
fn of_whole_blocks(geometry: Geometry, block_bytes: u32) -> Geometry {
    let bytes = geometry.member_bytes();
    let whole = bytes - bytes % u64::from(block_bytes);
    if geometry.level() != Level::Raid1 || whole == bytes || whole == 0 {
        return geometry;
    }
    Geometry::new(geometry.level(), geometry.layout(), geometry.members(), geometry.chunk_bytes(), whole)
        .unwrap_or(geometry)
}
