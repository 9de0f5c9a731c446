//! Candidates for zoned arrays, and the one array that they make.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use engine::array::assemble::{Filter, Verdict};
use engine::array::zoned::assemble::{ZonedAssembly, ZonedCandidate, ZonedRefusal, assemble_zoned};
use layout::md_superblock::display_uuid;
use layout::units::Slot;
use layout::zoned::{MemberState, Superblock};

use super::chosen::{WithMembers, ambiguous};
use super::member_file::MemberFile;
use super::zoned::superblock_of;
use crate::exit::ExitKind;
use crate::failure::{Failure, Problem};

/// Devices with a superblock of a zoned array, and those beside them without.
#[derive(Default)]
pub struct ZonedCandidates {
    /// One for each candidate.
    pub paths: Vec<PathBuf>,
    /// What was read there.
    pub read: Vec<ZonedCandidate>,
    /// Devices that were named too and have no such superblock.
    others: Vec<PathBuf>,
    /// They were searched for: only what belongs together is worth a word.
    are_found: bool,
}

impl ZonedCandidates {
    /// Reads these devices, which a person named, or a search found. What cannot be read counts as without a superblock: readers
    /// of other arrays say why.
    pub fn read(paths: &[PathBuf], are_found: bool) -> Self {
        let mut candidates = ZonedCandidates { are_found, ..ZonedCandidates::default() };
        let mut seen = BTreeSet::new();
        for path in paths {
            let Ok(member) = MemberFile::open(path) else {
                candidates.others.push(path.clone());
                continue;
            };
            if !seen.insert(member.identity) {
                continue;
            }
            match superblock_of(&member) {
                Ok(Some(found)) => {
                    let (name, superblock) = (path.display().to_string(), found.superblock);
                    candidates.read.push(ZonedCandidate { name, superblock });
                    candidates.paths.push(path.clone());
                }
                Ok(None) | Err(_) => candidates.others.push(path.clone()),
            }
        }
        candidates
    }

    /// The arrays that a filter lets through.
    pub fn arrays(&self, filter: &Filter) -> Vec<ZonedAssembly> {
        let mut arrays = assemble_zoned(&self.read, filter.force);
        arrays.retain(|array| {
            filter.set_uuid.is_none_or(|uuid| uuid == array.speaker.set_uuid)
                && filter.name.as_ref().is_none_or(|name| name == array.name())
        });
        arrays
    }

    /// Devices that were named and have no part in an array, with the reason; what its superblocks say of others is in its verdicts.
    pub fn strangers(&self, array: &ZonedAssembly) -> Vec<(&Path, String)> {
        if self.are_found {
            return Vec::new();
        }
        let own = array.speaker.set_uuid;
        let foreign = self.read.iter().zip(&self.paths).filter(|(read, _)| read.superblock.set_uuid != own);
        let foreign = foreign.map(|(read, path)| {
            let Superblock { set_name, set_uuid, .. } = &read.superblock;
            (path.as_path(), format!("belongs to another array, {set_name} ({})", display_uuid(set_uuid)))
        });
        let others =
            self.others.iter().map(|path| (path.as_path(), "has no superblock of a zoned array".to_owned()));
        foreign.chain(others).collect()
    }

    /// An array and its candidates.
    pub fn with_members(&self, array: &ZonedAssembly) -> WithMembers {
        let words = format!("{} ({})", array.name(), display_uuid(&array.speaker.set_uuid));
        let paths = array.verdicts.iter().map(|(index, _)| self.paths[*index].clone());
        WithMembers { words, paths: paths.collect() }
    }
}

/// A zoned array that may start.
pub struct ZonedChosen {
    /// What it was chosen from.
    pub candidates: ZonedCandidates,
    /// Which candidate has which part in it.
    pub array: ZonedAssembly,
}

impl ZonedChosen {
    /// The array of these candidates that the filter lets through. None: there is none.
    ///
    /// # Errors
    /// There are several, or it may not start.
    pub fn decide(candidates: ZonedCandidates, filter: &Filter) -> Result<Option<Self>, Failure> {
        let mut arrays = candidates.arrays(filter);
        if arrays.len() > 1 {
            let arrays: Vec<_> = arrays.iter().map(|array| candidates.with_members(array)).collect();
            return Err(ambiguous(&arrays));
        }
        let Some(array) = arrays.pop() else { return Ok(None) };
        may_start(&candidates, &array)?;
        Ok(Some(ZonedChosen { candidates, array }))
    }

    /// Slots whose member is not there, and that the array does not call failed.
    pub fn missing_members(&self) -> Vec<Slot> {
        let (array, is_stale) =
            (&self.array, |slot: usize| self.array.stale.iter().any(|(stale, _)| *stale == slot));
        let listed = array.speaker.members.iter().filter(|member| member.state == MemberState::InSync);
        let slots = listed.filter_map(|member| member.slot).map(usize::from);
        slots
            .filter(|slot| array.slots.get(*slot) == Some(&None) && !is_stale(*slot))
            .map(Slot::of_index)
            .collect()
    }

    /// The path of the member in a slot.
    pub fn path(&self, slot: usize) -> Option<&Path> {
        self.array.slots[slot].map(|index| self.candidates.paths[index].as_path())
    }
}

/// Refuses an array that does not start, with what speaks against each candidate.
///
/// # Errors
/// The array does not start.
pub fn may_start(candidates: &ZonedCandidates, array: &ZonedAssembly) -> Result<(), Failure> {
    let Err(refusal) = &array.start else { return Ok(()) };
    let problems = array.verdicts.iter().filter_map(|(index, verdict)| match verdict {
        Verdict::Refused { reason } => {
            Some(Problem::new(ExitKind::NotAMember, &candidates.paths[*index], reason.clone()))
        }
        Verdict::Member { .. } | Verdict::Spare | Verdict::Replacement { .. } => None,
    });
    let strangers = candidates.strangers(array).into_iter();
    let strangers = strangers.map(|(path, reason)| Problem::new(ExitKind::NotAMember, path, reason));
    let problems = problems.chain(strangers).collect();
    let failure = Failure::new(kind_of(refusal), format!("the array does not start: {refusal}"));
    Err(Failure { problems, ..failure.help(help_of(refusal)) })
}

/// The exit code of a refusal.
pub fn kind_of(refusal: &ZonedRefusal) -> ExitKind {
    match refusal {
        ZonedRefusal::NotEnoughMembers { .. } => ExitKind::NotEnoughMembers,
        ZonedRefusal::RanApart { .. } => ExitKind::NeedsForce,
        ZonedRefusal::Copy { .. } => ExitKind::Ambiguous,
        ZonedRefusal::ReadOnlyFeature { .. } => ExitKind::Unsupported,
        ZonedRefusal::Table { .. } => ExitKind::Damaged,
        ZonedRefusal::OtherZones { .. } | ZonedRefusal::EpochsUsedUp => ExitKind::BadGeometry,
    }
}

fn help_of(refusal: &ZonedRefusal) -> &'static str {
    match refusal {
        ZonedRefusal::NotEnoughMembers { .. } => {
            "bring back members: twill assemble --explain says which are missing or stale, and why"
        }
        ZonedRefusal::RanApart { .. } => {
            "name only the members of the side to keep, or --force takes the side of the newest epoch; the other side's writes are lost then"
        }
        ZonedRefusal::Copy { .. } => "leave out the one that is the copy",
        ZonedRefusal::ReadOnlyFeature { .. } => "serve it with a version of Twill that knows the feature",
        ZonedRefusal::Table { .. } => "twill examine says what the superblock of each member lists",
        ZonedRefusal::OtherZones { .. } => "leave it out if the level can do without it",
        ZonedRefusal::EpochsUsedUp => "make a new array and restore the data: twill create",
    }
}
