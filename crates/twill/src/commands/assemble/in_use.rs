//! Whether somebody uses the members that an array would start with: a server, md, a file system.

use engine::array::assemble::{Assembly, Verdict};

use crate::exit::ExitKind;
use crate::failure::{Failure, Problem};
use crate::probe::candidates::Candidates;
use crate::probe::member_file::MemberFile;

/// Those of an array that may start otherwise.
pub(super) fn in_use(candidates: &Candidates, array: &Assembly) -> Vec<Problem> {
    if array.start.is_err() {
        return Vec::new();
    }
    let is_taken = |(_, verdict): &&(usize, Verdict)| !matches!(verdict, Verdict::Refused { .. });
    let taken = array.verdicts.iter().filter(is_taken).map(|(index, _)| &candidates.paths[*index]);
    let problems = taken.filter_map(|path| MemberFile::check_free(path).err());
    // Anything else that `serve` could meet there it says itself.
    problems.filter(|problem| problem.kind == ExitKind::MemberInUse).collect()
}

/// # Errors
/// [`ExitKind::MemberInUse`] with the members, if there are any.
pub(super) fn check_none(in_use: &[Problem]) -> Result<(), Failure> {
    if in_use.is_empty() {
        return Ok(());
    }
    Err(Failure::from_problems("the array does not start: members are in use", in_use.to_vec()))
}
