//! Which candidates make an array, as a pure decision: superblocks in, slots and a verdict for every candidate out.
//!
//! The rules are md's (`super_1_load`, `super_1_validate`, `analyze_sbs` in the kernel's md.c; Assemble in mdadm):
//! the member with the newest event count speaks for the array, if no other one's generation grew from its own without it
//! ([`super::generations`]); a member more than one event behind is stale, since
//! superblocks are written side by side and a crash may leave some of them one behind; what the newest superblock
//! says of a device's role outweighs what the device says of itself (invariant 8); the copy of a member that md was
//! replacing has the same slot, and gets it only where that member is gone. Members of which each calls the other failed
//! are not mixed ([`super::split`]).

use std::sync::Arc;

use layout::generations::{Generations, GenerationsRecord};
use layout::geometry::{Geometry, GeometryError, Level, Raid0Zones};
use layout::md_superblock::{DeviceRole, Superblock, display_uuid, raid0_zones};
use layout::units::Slot;
use serde::Serialize;

use super::generations::{FoundGenerations, MemberMetadata, Standing, is_outgrown, names, standing};
use super::split::{accuses, leaves_out, other_side, whole_member};
use crate::limits::{DATA_CHUNKS_MAX, EVENTS_BEHIND_MAX};
use crate::members::MemberState;

/// Something that may be a member.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Path or address, for messages.
    pub name: String,
    /// Size of the device in bytes.
    pub size_bytes: u64,
    /// The superblock, or why there is none that may be believed.
    pub superblock: Result<Superblock, String>,
    /// The record of generations that goes with that superblock.
    pub generations: Option<GenerationsRecord>,
}

impl Candidate {
    fn metadata(&self) -> Option<MemberMetadata<'_>> {
        let generations = self.generations.as_ref().map(|record| &record.generations);
        self.superblock.as_ref().ok().map(|superblock| MemberMetadata { superblock, generations })
    }
}

/// Which arrays are wanted, and how much is dared.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Only the array with this set UUID.
    pub set_uuid: Option<[u8; 16]>,
    /// Only arrays with this name, with or without the `host:` before it.
    pub name: Option<String>,
    /// Start although contents may be wrong: with stale members that are needed, and with the newest side of an array that
    /// was split. What is in doubt after a crash counts as right.
    pub force: bool,
}

/// What becomes of a candidate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "verdict", rename_all = "kebab-case")]
pub enum Verdict {
    /// It is the member in this slot.
    Member {
        /// The slot.
        slot: Slot,
        /// In sync, or to be rebuilt from where it was.
        state: MemberState,
    },
    /// It waits for a slot.
    Spare,
    /// It is to replace the member in this slot, which is there.
    Replacement {
        /// The slot.
        slot: Slot,
    },
    /// It is not taken.
    Refused {
        /// Why, and what would help.
        reason: String,
    },
}

/// Why an array does not start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A feature that Twill does not know.
    #[error("the array uses {}, which Twill does not run; finish or undo it with mdadm first", .0.join(", "))]
    Features(Vec<String>),
    /// Too few members.
    #[error("{level} needs more members: {present} of {members} are there, {} missing", slots_are(missing))]
    NotEnoughMembers {
        /// The level.
        level: Level,
        /// Members there.
        present: u32,
        /// Members it should have.
        members: u32,
        /// Slots without a member.
        missing: Vec<Slot>,
    },
    /// Members went on without each other.
    #[error(
        "{} and {newest} went on without each other: what they hold differs. Name the members of one side only, or force the \
         start of {newest}'s, which is newer", .others.join(", ")
    )]
    Split {
        /// The newest member.
        newest: String,
        /// The members of the other side.
        others: Vec<String>,
    },
    /// Level, chunk or members that make no array.
    #[error("{0}")]
    Geometry(String),
    /// More data chunks beside parity than the engine tells apart.
    #[error(
        "{data_chunks} data chunks in a stripe with parity are more than Twill runs: at most {DATA_CHUNKS_MAX}"
    )]
    TooWide {
        /// How many there are.
        data_chunks: u32,
    },
    /// A RAID-0 whose members differ in size, and none of them says by which of md's two rules.
    #[error(
        "the members differ in size, and no superblock says where chunks are beyond the end of the smallest; md does not start \
         this array either. Say it once: mdadm --assemble --update=layout-original if a kernel before 3.14 wrote to it, \
         --update=layout-alternate if only newer ones did"
    )]
    ZonesNeedLayout,
}

/// An array that candidates make.
#[derive(Clone, Debug)]
pub struct Assembly {
    /// Identity of the array.
    pub set_uuid: [u8; 16],
    /// Name of the array.
    pub name: String,
    /// Where every byte lives.
    pub geometry: Option<Geometry>,
    /// Where the chunks of a RAID-0 are whose members differ in size.
    pub unequal_zones: Option<Arc<Raid0Zones>>,
    /// The candidate in each slot, by index.
    pub slots: Vec<Option<usize>>,
    /// Candidates that wait as spares, by index.
    pub spares: Vec<usize>,
    /// Candidates that are to replace the members in slots: a replacement was not finished.
    pub replacements: Vec<(usize, Slot)>,
    /// Candidates that the newest superblock calls members and that are stale, by index: no superblock says that they failed.
    pub left_behind: Vec<usize>,
    /// A verdict for each candidate that belongs to the array, with its index.
    pub verdicts: Vec<(usize, Verdict)>,
    /// Newest event count.
    pub events: u64,
    /// What the array goes on from.
    pub generations: FoundGenerations,
    /// Parity or copies may not agree from this byte of the members on: the array was not stopped cleanly, or its
    /// first resync is not finished.
    pub resync_from_bytes: Option<u64>,
    /// Force took members that lack writes: contents of several times are mixed.
    pub takes_stale: bool,
    /// Whether it may start.
    pub start: Result<(), Refusal>,
}

impl Assembly {
    /// Bytes that a user of the array sees. Unknown where a RAID-0 lacks a member, which may be larger or smaller than the others.
    pub fn array_bytes(&self) -> Option<u64> {
        let is_known =
            |geometry: &Geometry| geometry.level() != Level::Raid0 || self.slots.iter().all(Option::is_some);
        self.geometry.filter(is_known).map(|geometry| geometry.array_bytes())
    }

    /// State of every slot.
    pub fn states(&self) -> Vec<MemberState> {
        let state = |slot: Slot| {
            let taken = self.verdicts.iter().find_map(|(_, verdict)| match verdict {
                Verdict::Member { slot: taken, state } if *taken == slot => Some(*state),
                _ => None,
            });
            taken.unwrap_or(MemberState::Missing)
        };
        Slot::all().take(self.slots.len()).map(state).collect()
    }
}

/// `slot 1 is`, `slots 1, 2 are`.
fn slots_are(slots: &[Slot]) -> String {
    let numbers: Vec<String> = slots.iter().map(ToString::to_string).collect();
    match numbers.as_slice() {
        [one] => format!("slot {one} is"),
        several => format!("slots {} are", several.join(", ")),
    }
}

/// What candidates make.
#[derive(Clone, Debug)]
pub struct Found {
    /// Arrays, in the order in which their first members stand.
    pub arrays: Vec<Assembly>,
    /// Candidates that belong to no wanted array, by index, and why.
    pub others: Vec<(usize, Verdict)>,
}

/// Decides which arrays the candidates make.
pub fn assemble(candidates: &[Candidate], filter: &Filter) -> Found {
    let mut found = Found { arrays: Vec::new(), others: Vec::new() };
    let mut sets: Vec<([u8; 16], Vec<usize>)> = Vec::new();
    for (index, candidate) in candidates.iter().enumerate() {
        match &candidate.superblock {
            Err(reason) => found.others.push((index, refused(reason))),
            Ok(superblock) => match wanted(superblock, filter) {
                Err(reason) => found.others.push((index, refused(&reason))),
                Ok(()) => match sets.iter_mut().find(|(uuid, _)| *uuid == superblock.set_uuid()) {
                    Some((_, members)) => members.push(index),
                    None => sets.push((superblock.set_uuid(), vec![index])),
                },
            },
        }
    }
    found.arrays =
        sets.into_iter().map(|(_, members)| Decision::make(candidates, &members, filter)).collect();
    found
}

fn refused(reason: &str) -> Verdict {
    Verdict::Refused { reason: reason.to_string() }
}

/// A spare that the array did not come to know, because its adding was cut short, or that it forgot: superblocks tell devices
/// apart by number, and two with one number would be taken for each other.
fn number_taken(spare: &Superblock) -> Verdict {
    let number = spare.dev_number();
    refused(&format!(
        "it is a spare with the device number {number}, which another device of the array has: add it again"
    ))
}

fn wanted(superblock: &Superblock, filter: &Filter) -> Result<(), String> {
    let uuid = superblock.set_uuid();
    if filter.set_uuid.is_some_and(|wanted| wanted != uuid) {
        return Err(format!("it belongs to another array, {}", display_uuid(&uuid)));
    }
    let name = superblock.set_name();
    let short = name.rsplit(':').next().unwrap_or_default();
    match &filter.name {
        Some(wanted) if *wanted != name && wanted != short => {
            Err(format!("it belongs to the array {name:?}"))
        }
        _ => Ok(()),
    }
}

struct Decision<'a> {
    candidates: &'a [Candidate],
    /// What the members tell.
    all: Vec<MemberMetadata<'a>>,
    speaker: MemberMetadata<'a>,
    newest: &'a Superblock,
    newest_name: &'a str,
    slots: Vec<Option<usize>>,
    spares: Vec<usize>,
    replacements: Vec<(usize, Slot)>,
    /// Stale members with the slots they had, newest first.
    stale: Vec<(usize, Slot)>,
    left_behind: Vec<usize>,
    verdicts: Vec<(usize, Verdict)>,
}

impl<'a> Decision<'a> {
    fn make(candidates: &'a [Candidate], members: &[usize], filter: &Filter) -> Assembly {
        let superblock = |index: usize| candidates[index].superblock.as_ref().expect("a believed superblock");
        let metadata = |index: usize| candidates[index].metadata().expect("a believed superblock");
        let all: Vec<MemberMetadata<'_>> = members.iter().map(|index| metadata(*index)).collect();
        // The newest speaks for the array: among those that are members by their own word, if there are any.
        let rank = |index: &usize| {
            let superblock = superblock(*index);
            let is_member = matches!(superblock.role(), DeviceRole::Active(_));
            let leads = !is_outgrown(metadata(*index), &all);
            // One that is to replace a member may be there before its record of generations: of two alike the member speaks.
            (is_member, leads, superblock.events(), !superblock.is_replacement(), superblock.utime_s())
        };
        let speaker = *members.iter().max_by_key(|index| rank(index)).expect("a set has a member");
        let newest = superblock(speaker);
        let slots = vec![None; newest.raid_disks() as usize];
        let mut decision = Decision {
            candidates,
            all: all.clone(),
            speaker: metadata(speaker),
            newest,
            newest_name: &candidates[speaker].name,
            slots,
            spares: Vec::new(),
            replacements: Vec::new(),
            stale: Vec::new(),
            left_behind: Vec::new(),
            verdicts: Vec::new(),
        };
        // Newest first, so that of two that want one slot the newer one has it. After these those that were being made the
        // copy of a member: whatever they hold, that member holds more. Last spares, which hold nothing.
        let mut order = members.to_vec();
        order.sort_by_key(|&index| {
            let own = superblock(index);
            (own.role() == DeviceRole::Spare, own.is_replacement(), std::cmp::Reverse(own.events()))
        });
        for index in order {
            let verdict = decision.judge(index, superblock(index));
            decision.verdicts.push((index, verdict));
        }
        let split = decision.split();
        let takes_stale = filter.force && decision.take_stale_members();
        let forced = takes_stale || filter.force && split.is_err();
        decision.verdicts.sort_by_key(|(index, _)| *index);
        Assembly { takes_stale, ..decision.finish(if filter.force { Ok(()) } else { split }, forced) }
    }

    fn judge(&mut self, index: usize, superblock: &Superblock) -> Verdict {
        if let Err(reason) = self.belongs(index, superblock) {
            return refused(&reason);
        }
        if let Some(verdict) = self.judge_generations(index, superblock) {
            return verdict;
        }
        let role = self.newest.role_of(superblock.dev_number()).unwrap_or(DeviceRole::Spare);
        let slot = match role {
            DeviceRole::Active(slot) => slot,
            DeviceRole::Spare if matches!(superblock.role(), DeviceRole::Active(_)) => {
                return self.stale_with("the array has gone on without it");
            }
            DeviceRole::Spare if self.has_number(superblock.dev_number()) => return number_taken(superblock),
            DeviceRole::Spare => {
                self.spares.push(index);
                return Verdict::Spare;
            }
            DeviceRole::Faulty => return self.judge_faulty(index, superblock),
            DeviceRole::Journal => return refused("it is a write journal, which Twill does not use"),
        };
        let behind = self.newest.events().saturating_sub(superblock.events());
        let Some(&in_slot) = self.slots.get(slot.index()) else {
            return refused(&format!("it is in slot {slot} of an array of {}", self.slots.len()));
        };
        if let Some(taken) = in_slot {
            let other = &self.candidates[taken].name;
            let is_free = self.replacements.iter().all(|(_, replaced)| *replaced != slot);
            if superblock.is_replacement() && behind <= EVENTS_BEHIND_MAX && self.is_in_sync(taken) && is_free
            {
                self.replacements.push((index, slot));
                return Verdict::Replacement { slot };
            }
            return refused(&format!("slot {slot} is taken by {other}, which is as new or newer"));
        }
        // A spare that was given the slot and does not know it yet: it is rebuilt from the start on.
        if superblock.role() == DeviceRole::Spare {
            self.slots[slot.index()] = Some(index);
            return Verdict::Member { slot, state: MemberState::Recovering };
        }
        if behind > EVENTS_BEHIND_MAX {
            self.stale.push((index, slot));
            let (events, newest) = (superblock.events(), self.newest.events());
            self.left_behind.push(index);
            return self.stale_with(&format!("its event count {events} is behind the array's {newest}"));
        }
        self.take(index, slot, superblock)
    }

    /// Whether a device that was taken has this number.
    fn has_number(&self, number: u32) -> bool {
        let is_taken = |verdict: &Verdict| !matches!(verdict, Verdict::Refused { .. });
        let mut taken = self.verdicts.iter().filter(|(_, verdict)| is_taken(verdict));
        taken.any(|(index, _)| {
            let other = self.candidates[*index].superblock.as_ref().expect("a believed superblock");
            other.dev_number() == number
        })
    }

    /// What generations say against a member, whatever the newest superblock says of its number: the number may be another
    /// device's by now.
    fn judge_generations(&mut self, index: usize, superblock: &Superblock) -> Option<Verdict> {
        if superblock.device_uuid() == self.newest.device_uuid() || superblock.is_replacement() {
            return None;
        }
        let own = self.candidates[index].metadata()?;
        let newest = self.newest_name;
        let reason = match standing(own, self.speaker, &self.all) {
            Standing::Together => return None,
            Standing::Apart => {
                let why = format!("it went on without {newest}, and {newest} without it");
                return Some(self.stale_with(&why));
            }
            Standing::Forgotten => {
                let why = format!("its generation is none that {newest} remembers");
                return Some(self.stale_with(&why));
            }
            Standing::Behind => {
                let role = self.newest.role_of(superblock.dev_number());
                self.left_behind.extend(matches!(role, Some(DeviceRole::Active(_))).then_some(index));
                format!("{newest} has gone on without it, in another generation")
            }
            Standing::Unknown => match self.names_another(own) {
                true if superblock.role() == DeviceRole::Spare => return Some(number_taken(superblock)),
                true => {
                    format!("{newest} does not name it, or it does not name {newest}, as a member beside it")
                }
                false => return None,
            },
        };
        self.stale.extend(whole_member(superblock).map(|slot| (index, slot)));
        Some(self.stale_with(&reason))
    }

    /// With generations on one side only: the newest superblock calls a member what has the number of this one, and that is
    /// another device. Or the newest is not among those that this one was beside.
    fn names_another(&self, own: MemberMetadata<'_>) -> bool {
        let number = own.superblock.dev_number();
        let is_called = matches!(self.newest.role_of(number), Some(DeviceRole::Active(_)));
        // One that is in sync beside the newest knows it, unless that has just come and is being rebuilt.
        let are_whole = whole_member(self.newest).and(whole_member(own.superblock)).is_some();
        let is_strange = match (own.generations, self.speaker.generations) {
            (_, Some(newest)) => !names(newest, &own.superblock.device_uuid()),
            (Some(own), None) => are_whole && !names(own, &self.newest.device_uuid()),
            (None, None) => are_whole && leaves_out(own.superblock, self.newest),
        };
        is_called && is_strange
    }

    /// With force it may be wanted nevertheless, but not if it went on by itself.
    fn judge_faulty(&mut self, index: usize, own: &Superblock) -> Verdict {
        if accuses(own, self.newest) {
            let newest = self.newest_name;
            return self.stale_with(&format!("the array says that it failed, and it says so of {newest}"));
        }
        self.stale.extend(whole_member(own).map(|slot| (index, slot)));
        self.stale_with("the array says that it failed")
    }

    fn is_in_sync(&self, index: usize) -> bool {
        let superblock = self.candidates[index].superblock.as_ref().expect("a believed superblock");
        superblock.recovery_offset().is_none() && superblock.role() != DeviceRole::Spare
    }

    fn stale_with(&self, why: &str) -> Verdict {
        refused(&match self.newest.bitmap_start() {
            None => format!("{why}; its contents are stale: add it again to rebuild it"),
            Some(_) => format!(
                "{why}; its contents are stale: re-add it to get what the bitmap marks, or add it again to rebuild it"
            ),
        })
    }

    fn take(&mut self, index: usize, slot: Slot, superblock: &Superblock) -> Verdict {
        self.slots[slot.index()] = Some(index);
        let state = match superblock.recovery_offset() {
            Some(_) => MemberState::Recovering,
            None => MemberState::InSync,
        };
        Verdict::Member { slot, state }
    }

    /// With force, stale members fill the slots that the array cannot do without, and no more: a stale copy beside one that
    /// holds more would be read as if it were as new (invariant 8). The newest are preferred. Whether any was needed.
    fn take_stale_members(&mut self) -> bool {
        let Ok(geometry) = self.newest.geometry() else { return false };
        let mut wanted: Vec<(usize, Slot)> = Vec::new();
        for (index, slot) in std::mem::take(&mut self.stale) {
            let is_free = self.slots.get(slot.index()).is_some_and(Option::is_none);
            let is_first = wanted.iter().all(|(_, other)| *other != slot);
            wanted.extend((is_free && is_first && self.is_in_sync(index)).then_some((index, slot)));
        }
        let survives = |wanted: &[(usize, Slot)]| {
            geometry.survives(|slot| {
                let is_filled = wanted.iter().any(|(_, filled)| *filled == slot);
                !is_filled && self.slots[slot.index()].is_none_or(|index| !self.is_in_sync(index))
            })
        };
        if survives(&[]) {
            return false;
        }
        for at in (0..wanted.len()).rev() {
            let mut fewer = wanted.clone();
            fewer.remove(at);
            if survives(&fewer) {
                wanted = fewer;
            }
        }
        for &(index, slot) in &wanted {
            let superblock = self.candidates[index].superblock.as_ref().expect("a believed superblock");
            let verdict = self.take(index, slot, superblock);
            let old = self.verdicts.iter_mut().filter(|(other, _)| *other == index);
            old.for_each(|(_, old)| *old = verdict.clone());
        }
        !wanted.is_empty()
    }

    /// What the array goes on from: the speaker's generations, or those of another member in sync beside it.
    fn generations(&self) -> Option<Generations> {
        let in_sync = self.slots.iter().flatten().filter(|index| self.is_in_sync(**index));
        let metadata = in_sync.filter_map(|index| self.candidates[*index].metadata());
        let known =
            metadata.filter(|metadata| metadata.generations.is_some() && !is_outgrown(*metadata, &self.all));
        let other = known
            .max_by_key(|metadata| metadata.superblock.events())
            .and_then(|metadata| metadata.generations);
        self.speaker.generations.or(other).cloned()
    }

    /// Whether the superblock describes the same array as the newest one, on a device that can hold it once.
    fn belongs(&self, index: usize, superblock: &Superblock) -> Result<(), String> {
        let own = superblock;
        describes_same(own, self.newest)?;
        let needed = own.data_offset().bytes().saturating_add(own.size().bytes());
        if own.role() != DeviceRole::Spare
            && self.candidates[index].size_bytes < needed
            && own.level() != Level::Raid0
        {
            let has = self.candidates[index].size_bytes;
            return Err(format!("it has {has} bytes, the array needs {needed} of it: was it cut short?"));
        }
        let twin = self.verdicts.iter().map(|(other, _)| *other).find(|&other| {
            let other = self.candidates[other].superblock.as_ref().expect("a believed superblock");
            other.device_uuid() == own.device_uuid()
        });
        match twin {
            Some(twin) => Err(format!(
                "it is the same member as {}: a second path or a copy",
                self.candidates[twin].name
            )),
            None => Ok(()),
        }
    }

    fn split(&self) -> Result<(), Refusal> {
        let known = self.verdicts.iter().map(|(index, _)| *index);
        let own = |index: usize| Some((index, self.candidates[index].metadata()?));
        let candidates: Vec<(usize, MemberMetadata<'_>)> = known.filter_map(own).collect();
        other_side(self.speaker, &candidates).map_or(Ok(()), |others| {
            let others = others.iter().map(|index| self.candidates[*index].name.clone()).collect();
            Err(Refusal::Split { newest: self.newest_name.to_string(), others })
        })
    }

    /// `forced` says that force chose among contents.
    fn finish(self, split: Result<(), Refusal>, forced: bool) -> Assembly {
        let newest = self.newest;
        let candidates = self.candidates;
        let with_record = self.verdicts.iter().filter_map(|(index, _)| {
            let (own, record) = (candidates[*index].metadata()?, candidates[*index].generations.as_ref()?);
            Some((own.superblock.device_uuid(), record.sequence))
        });
        let generations = FoundGenerations {
            now: if forced { None } else { self.generations() },
            sequences: with_record.collect(),
        };
        let zones = self.unequal_zones();
        let geometry = match &zones {
            Some(Ok(zones)) => Ok(zones.geometry()),
            Some(Err(_)) | None => newest.geometry().map_err(|error| error.to_string()),
        };
        let zones = zones.transpose();
        let mut assembly = Assembly {
            set_uuid: newest.set_uuid(),
            name: newest.set_name(),
            geometry: geometry.as_ref().ok().copied(),
            unequal_zones: zones.as_ref().ok().cloned().flatten().map(Arc::new),
            slots: self.slots,
            spares: self.spares,
            replacements: self.replacements,
            left_behind: self.left_behind,
            verdicts: self.verdicts,
            events: newest.events(),
            generations,
            resync_from_bytes: newest.resync_offset().map(layout::units::Sectors::bytes),
            takes_stale: false,
            start: Ok(()),
        };
        let zones = zones.map(|_| ()).map_err(|error| match error {
            GeometryError::ZonesNeedLayout => Refusal::ZonesNeedLayout,
            error => Refusal::Geometry(error.to_string()),
        });
        assembly.start = may_start(&assembly, newest, geometry).and(zones).and(split);
        assembly
    }

    /// Where the chunks of a RAID-0 are, if its members are all there and differ in size by more than a part of a chunk.
    fn unequal_zones(&self) -> Option<Result<Raid0Zones, GeometryError>> {
        if self.newest.level() != Level::Raid0 {
            return None;
        }
        let superblock = |slot: &Option<usize>| self.candidates[(*slot)?].superblock.as_ref().ok();
        let members: Vec<&Superblock> = self.slots.iter().map(superblock).collect::<Option<_>>()?;
        let zones = raid0_zones(members);
        (!matches!(&zones, Ok(zones) if zones.zones() == 1)).then_some(zones)
    }
}

/// Whether two superblocks describe arrays alike, and how not.
pub(super) fn describes_same(own: &Superblock, array: &Superblock) -> Result<(), String> {
    let level = |of: &Superblock| format!("{} {}", of.level(), of.layout());
    let differs =
        |what: &str, own: String, array: String| Err(format!("its {what} is {own}, the array's is {array}"));
    if own.level() != array.level() || own.layout_word() != array.layout_word() {
        return differs("level", level(own), level(array));
    }
    if own.chunk_bytes() != array.chunk_bytes() {
        return differs("chunk", own.chunk_bytes().to_string(), array.chunk_bytes().to_string());
    }
    if own.raid_disks() != array.raid_disks() {
        let (own, array) = (own.raid_disks().to_string(), array.raid_disks().to_string());
        return differs("number of members", own, array);
    }
    if own.size() != array.size() {
        return differs("size", own.size().to_string(), array.size().to_string());
    }
    Ok(())
}

/// Whether the engine tells all data chunks of a stripe apart.
///
/// # Errors
/// [`Refusal::TooWide`].
pub fn check_width(geometry: &Geometry) -> Result<(), Refusal> {
    let data_chunks = geometry.data_chunks();
    if geometry.parity_chunks() > 0 && data_chunks > DATA_CHUNKS_MAX {
        return Err(Refusal::TooWide { data_chunks });
    }
    Ok(())
}

fn may_start(
    assembly: &Assembly,
    newest: &Superblock,
    geometry: Result<Geometry, String>,
) -> Result<(), Refusal> {
    let unsupported = newest.unsupported_features();
    if !unsupported.is_empty() {
        return Err(Refusal::Features(unsupported));
    }
    let geometry = geometry.map_err(Refusal::Geometry)?;
    check_width(&geometry)?;
    let states = assembly.states();
    let out = |slot: Slot| states[slot.index()] != MemberState::InSync;
    let missing: Vec<Slot> = geometry.slots().filter(|&slot| out(slot)).collect();
    if !geometry.survives(out) {
        let members = geometry.members();
        let present = members - u32::try_from(missing.len()).expect("few members");
        return Err(Refusal::NotEnoughMembers { level: geometry.level(), present, members, missing });
    }
    Ok(())
}
