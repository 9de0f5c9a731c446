//! Reads what may be members: the superblock of each, or why there is none that may be believed.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use engine::array::assemble::{Assembly, Candidate};
use engine::bad_blocks::BadBlocks;
use layout::md_superblock::{
    BadRange, Features, Superblock, SuperblockError, decode_bad_blocks, display_uuid,
};

use crate::bytes;
use crate::exit::ExitKind;
use crate::failure::{Failure, Problem};
use crate::md_places;
use crate::member_file::MemberFile;

/// What may be members, each with its path.
pub struct Candidates {
    /// Paths, one for each candidate.
    pub paths: Vec<PathBuf>,
    /// What was read there.
    pub read: Vec<Candidate>,
}

/// Reads what a person named: each must be there, once.
///
/// # Errors
/// [`ExitKind::Ambiguous`] for a member that is named twice or has a copy, and what the system says of paths that
/// cannot be opened.
pub fn read_named(paths: &[PathBuf]) -> Result<Candidates, Failure> {
    let mut problems = Vec::new();
    let mut seen: HashMap<(u64, u64), &Path> = HashMap::new();
    let mut candidates = Candidates { paths: Vec::new(), read: Vec::new() };
    for path in paths {
        match MemberFile::open(path) {
            Err(problem) => problems.push(problem),
            Ok(member) => {
                if let Some(first) = seen.insert(member.identity, path) {
                    let what = format!("is the same file or device as {}", first.display());
                    problems.push(Problem::new(ExitKind::Ambiguous, path, what).help("name it once"));
                    continue; // that is all there is to say of it: it is no copy
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

/// Reads what a search found: what cannot be opened or holds no superblock is passed over, a second name is too.
/// Copies are judged later, and only those of the array that is wanted: see [`Candidates::check_copies`].
pub fn read_found(paths: &[PathBuf]) -> Candidates {
    let mut seen = HashMap::new();
    let mut candidates = Candidates { paths: Vec::new(), read: Vec::new() };
    for path in paths {
        let member = match MemberFile::open(path) {
            Ok(member) => member,
            Err(problem) => {
                tracing::debug!("{}: {}", problem.member, problem.what);
                continue;
            }
        };
        let first = seen.insert(member.identity, ()).is_none();
        if first && md_places::find_all(&member).is_ok_and(|found| !found.is_empty()) {
            candidates.push(member);
        }
    }
    candidates
}

impl Candidates {
    fn push(&mut self, member: MemberFile) {
        // A member whose bad-block log makes no sense is none, as in md: the array may do without.
        let believed = |superblock: Superblock| bad_blocks_of(&member, &superblock).map(|_| superblock);
        let superblock = superblock_of(&member).and_then(believed).map_err(|problem| match problem.help {
            Some(help) => format!("{}; {help}", problem.what),
            None => problem.what,
        });
        let name = member.path.display().to_string();
        self.read.push(Candidate { name, size_bytes: member.device_bytes, superblock, generations: None });
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

    /// Members that are there twice under one identity: nobody can say which of them is right.
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

/// The superblock of a member that may be believed, of several the newest.
///
/// # Errors
/// Why there is none.
pub fn superblock_of(member: &MemberFile) -> Result<Superblock, Problem> {
    let problem = |kind, what: String| Problem::new(kind, &member.path, what);
    let found = md_places::find_all(member)
        .map_err(|error| Problem::from_io(&member.path, "read its superblock", &error))?;
    match md_places::choose(found) {
        Some(found) => found.outcome.map_err(|error| {
            let what = match needed_bytes(&error).filter(|needed| *needed > member.device_bytes) {
                Some(needed) => {
                    let has = bytes::human(member.device_bytes);
                    format!("has {has}, needs {}: was it cut short?", bytes::human(needed))
                }
                None => format!("its superblock {} cannot be believed: {error}", found.version),
            };
            problem(ExitKind::Damaged, what)
        }),
        None if md_places::is_too_small(member) => Err(problem(
            ExitKind::Damaged,
            format!("has {} bytes, too few for a superblock: was it cut short?", member.device_bytes),
        )),
        None => Err(problem(ExitKind::NotAMember, "has no md superblock".into())),
    }
}

/// Where the data of a superblock would end, if that is what is wrong with it.
fn needed_bytes(error: &SuperblockError) -> Option<u64> {
    match error {
        SuperblockError::DataBeyondEnd { data_offset, data_size, .. } => {
            data_offset.checked_bytes()?.checked_add(data_size.checked_bytes()?)
        }
        _ => None,
    }
}

/// What the member's bad-block log lists, none if its superblock says that there is nothing in it.
///
/// # Errors
/// The log cannot be read, or makes no sense: md does not take such a member either, since nobody can say which of its
/// blocks hold data.
pub fn bad_blocks_of(member: &MemberFile, superblock: &Superblock) -> Result<BadBlocks, Problem> {
    Ok(BadBlocks::from_log(&bad_ranges_of(member, superblock)?, superblock.data_offset()))
}

/// The same as the log has it, in places of the device.
///
/// # Errors
/// As [`bad_blocks_of`].
pub fn bad_ranges_of(member: &MemberFile, superblock: &Superblock) -> Result<Vec<BadRange>, Problem> {
    let Some((start, length)) = superblock.bad_block_log() else { return Ok(Vec::new()) };
    if !superblock.features().contains(Features::BAD_BLOCKS) {
        return Ok(Vec::new());
    }
    let log = member.read(start.bytes(), length.bytes() as usize);
    let log = log.map_err(|error| Problem::from_io(&member.path, "read the bad-block log of", &error))?;
    decode_bad_blocks(&log, superblock.bad_block_shift()).map_err(|error| {
        let what = format!("its bad-block log is damaged: {error}");
        Problem::new(ExitKind::Damaged, &member.path, what)
    })
}
