//! Reads what may be members: the superblock of each, or why there is no usable one.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use engine::array::assemble::{Assembly, Candidate};
use layout::md_superblock::{Superblock, display_uuid};

use super::bad_blocks::bad_blocks_of;
use super::generations::record_of;
use super::member_file::MemberFile;
use super::superblocks::{self, superblock_of};
use crate::exit::ExitKind;
use crate::failure::{Failure, Problem};

/// What may be members, each with its path.
pub struct Candidates {
    /// Paths, one for each candidate.
    pub paths: Vec<PathBuf>,
    /// What was read there.
    pub read: Vec<Candidate>,
    /// They were searched for: only what belongs together is worth a word.
    pub are_found: bool,
}

/// Reads what a person named: each must be there, once.
///
/// # Errors
/// [`ExitKind::Ambiguous`] for a member that is named twice or has a copy, and what the system says of paths that
/// cannot be opened.
pub fn read_named(paths: &[PathBuf]) -> Result<Candidates, Failure> {
    let mut problems = Vec::new();
    let mut seen: HashMap<(u64, u64), &Path> = HashMap::new();
    let mut candidates = Candidates { paths: Vec::new(), read: Vec::new(), are_found: false };
    for path in paths {
        match MemberFile::open(path) {
            Err(problem) => problems.push(problem),
            Ok(member) => {
                if let Some(first) = seen.insert(member.identity, path) {
                    let what = format!("is the same file or device as {}", first.display());
                    problems.push(Problem::new(ExitKind::Ambiguous, path, what).help("name it once"));
                    continue; // not a copy: the same device
                }
                candidates.push(member);
            }
        }
    }
    problems.extend(candidates.copies(0..candidates.read.len()));
    if problems.is_empty() {
        return Ok(candidates);
    }
    Err(Failure::from_problems("these members cannot be taken", problems))
}

/// Reads what a search found. Skips what cannot be opened, what has no superblock, and a second name of the same device.
/// Copies are judged later, and only within the wanted array: see [`Candidates::check_copies`].
pub fn read_found(paths: &[PathBuf]) -> Candidates {
    let mut seen = HashMap::new();
    let mut candidates = Candidates { paths: Vec::new(), read: Vec::new(), are_found: true };
    for path in paths {
        let member = match MemberFile::open(path) {
            Ok(member) => member,
            Err(problem) => {
                tracing::debug!("{}: {}", problem.member, problem.what);
                continue;
            }
        };
        let first = seen.insert(member.identity, ()).is_none();
        if first && superblocks::find_all(&member).is_ok_and(|found| !found.is_empty()) {
            candidates.push(member);
        }
    }
    candidates
}

impl Candidates {
    /// Whether it is worth a word that a candidate has no part in the array that is looked for. A search over all devices finds members
    /// of others.
    pub fn is_of_interest(&self, index: usize) -> bool {
        !self.are_found || self.read[index].superblock.is_err()
    }

    fn push(&mut self, member: MemberFile) {
        // A member whose bad-block log cannot be decoded is left out, as in md.
        let believed = |superblock: Superblock| bad_blocks_of(&member, &superblock).map(|_| superblock);
        let superblock = superblock_of(&member).and_then(believed).map_err(|problem| match problem.help {
            Some(help) => format!("{}; {help}", problem.what),
            None => problem.what,
        });
        let name = member.path.display().to_string();
        let generations = superblock.as_ref().ok().and_then(|superblock| record_of(&member, superblock));
        self.read.push(Candidate { name, size_bytes: member.device_bytes, superblock, generations });
        self.paths.push(member.path);
    }

    /// Refuses an array of which a member is there twice.
    ///
    /// # Errors
    /// [`ExitKind::Ambiguous`] with the copies.
    pub fn check_copies(&self, array: &Assembly) -> Result<(), Failure> {
        let copies = self.copies(array.verdicts.iter().map(|(index, _)| *index));
        if copies.is_empty() {
            return Ok(());
        }
        Err(Failure::from_problems("of these members there are copies", copies))
    }

    /// Members with the same identity as another: which of them is the member cannot be decided.
    fn copies(&self, among: impl Iterator<Item = usize>) -> Vec<Problem> {
        let mut seen: HashMap<([u8; 16], [u8; 16]), usize> = HashMap::new();
        let mut problems = Vec::new();
        for index in among {
            let Ok(superblock) = &self.read[index].superblock else { continue };
            let identity = (superblock.set_uuid(), superblock.device_uuid());
            let Some(&first) = seen.get(&identity) else {
                seen.insert(identity, index);
                continue;
            };
            let what = format!(
                "is a copy of {}: both have device UUID {}",
                self.paths[first].display(),
                display_uuid(&superblock.device_uuid())
            );
            let help = "leave out the one that is not the member";
            problems.push(Problem::new(ExitKind::Ambiguous, &self.paths[index], what).help(help));
        }
        problems
    }
}
