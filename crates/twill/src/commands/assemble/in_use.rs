//! Which members that an array would start with are in use: by a server, md or a file system.

use engine::array::assemble::{Assembly, Verdict};

use crate::exit::ExitKind;
use crate::failure::{Failure, Problem};
use crate::probe::candidates::Candidates;
use crate::probe::member_file::MemberFile;

/// The members in use, of an array that may start otherwise.
pub fn in_use(candidates: &Candidates, array: &Assembly) -> Vec<Problem> {
    if array.start.is_err() {
        return Vec::new();
    }
    let is_taken = |(_, verdict): &&(usize, Verdict)| !matches!(verdict, Verdict::Refused { .. });
    let taken = array.verdicts.iter().filter(is_taken).map(|(index, _)| &candidates.paths[*index]);
    let problems = taken.filter_map(|path| MemberFile::check_free(path).err());
    // Other problems of a member are for `serve` to report.
    problems.filter(|problem| problem.kind == ExitKind::MemberInUse).collect()
}

/// Refuses an array with members in use.
///
/// # Errors
/// [`ExitKind::MemberInUse`] with the members.
pub fn check_none(in_use: &[Problem]) -> Result<(), Failure> {
    if in_use.is_empty() {
        return Ok(());
    }
    Err(Failure::from_problems("the array does not start: members are in use", in_use.to_vec()))
}
