//! Candidates for zoned arrays, and the one array that they make.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use engine::array::assemble::{Filter, Verdict};
use engine::array::zoned::assemble::{ZonedAssembly, ZonedCandidate, ZonedRefusal, assemble_zoned};
use layout::md_superblock::display_uuid;
use layout::units::Slot;
use layout::zoned::MemberState;

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
    pub others: Vec<PathBuf>,
}

impl ZonedCandidates {
    /// Reads these devices. What cannot be read counts as without a superblock: readers of other arrays say why.
    pub fn read<'a>(paths: impl IntoIterator<Item = &'a PathBuf>) -> Self {
        let mut candidates = ZonedCandidates::default();
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
            let name = |array: &ZonedAssembly| {
                format!("{} ({})", array.name(), display_uuid(&array.speaker.set_uuid))
            };
            let names: Vec<String> = arrays.iter().map(name).collect();
            let message = format!("the members belong to {} arrays: {}", names.len(), names.join(", "));
            return Err(Failure::new(ExitKind::Ambiguous, message).help("choose one with --uuid or --name"));
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
    let foreign = candidates
        .others
        .iter()
        .map(|path| Problem::new(ExitKind::NotAMember, path, "has no superblock of a zoned array"));
    let problems = problems.chain(foreign).collect();
    let failure = Failure::new(kind_of(refusal), format!("the array does not start: {refusal}"));
    let failure = match help_of(refusal) {
        Some(help) => failure.help(help),
        None => failure,
    };
    Err(Failure { problems, ..failure })
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

fn help_of(refusal: &ZonedRefusal) -> Option<&'static str> {
    match refusal {
        ZonedRefusal::NotEnoughMembers { .. } => {
            Some("bring back members: twill assemble --explain says which are missing or stale, and why")
        }
        ZonedRefusal::RanApart { .. } => Some(
            "name only the members of the side to keep, or --force takes the side of the newest epoch; the other side's writes are lost then",
        ),
        _ => None,
    }
}
