//! What speaks against taking a member. All members are looked at, so that a person hears of everything at once.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use layout::md_superblock::DeviceRole;

use super::place::Place;
use super::wanted::{Wanted, is_missing};
use crate::arguments::CreateArguments;
use crate::counted::counted;
use crate::exit::ExitKind;
use crate::failure::{Failure, Problem};
use crate::probe::contents::check_empty;
use crate::probe::member_file::MemberFile;
use crate::probe::signatures;

/// Opens and judges every member.
///
/// # Errors
/// All problems of all members.
pub fn look_at(arguments: &CreateArguments, wanted: &Wanted) -> Result<Vec<Place>, Failure> {
    let mut problems = Vec::new();
    let mut places: Vec<Place> = Vec::new();
    let mut seen: HashMap<(u64, u64), PathBuf> = HashMap::new();
    for (path, role) in arguments.members.iter().zip(&wanted.roles) {
        if is_missing(path) {
            continue;
        }
        if let Some(first) = same_as(path, &mut seen) {
            let what = format!("is the same file or device as {}", first.display());
            problems.push(Problem::new(ExitKind::Ambiguous, path, what).help("name each member once"));
            continue;
        }
        match look_at_one(path, *role, arguments) {
            Ok(place) => places.push(place),
            Err(problem) => problems.push(problem),
        }
    }
    if problems.is_empty() {
        return Ok(places);
    }
    let message = format!(
        "no array was made: {} of {} cannot be taken",
        problems.len(),
        counted(wanted.roles.len() as u64, "member")
    );
    Err(Failure::from_problems(message, problems))
}

/// The name under which the same file or device was named before.
pub(super) fn same_as(path: &Path, seen: &mut HashMap<(u64, u64), PathBuf>) -> Option<PathBuf> {
    let identity = match MemberFile::open(path) {
        Ok(member) => member.identity,
        // What is not there yet is known by its name.
        Err(problem) if problem.kind == ExitKind::NotFound => {
            let full = future_path(path)?;
            return seen.values().find(|other| future_path(other).as_ref() == Some(&full)).cloned().or_else(
                || {
                    seen.insert((u64::MAX - 1, seen.len() as u64), path.to_path_buf());
                    None
                },
            );
        }
        Err(_) => return None,
    };
    match seen.get(&identity) {
        Some(first) => Some(first.clone()),
        None => {
            seen.insert(identity, path.to_path_buf());
            None
        }
    }
}

pub(super) fn future_path(path: &Path) -> Option<PathBuf> {
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Some(folder.canonicalize().ok()?.join(path.file_name()?))
}

fn look_at_one(path: &Path, role: DeviceRole, arguments: &CreateArguments) -> Result<Place, Problem> {
    let place =
        |device_bytes, member, found| Place { path: path.to_path_buf(), role, device_bytes, member, found };
    let member = match MemberFile::open_held(path) {
        Ok(member) => member,
        Err(problem) if problem.kind == ExitKind::NotFound => {
            let folder_is_there = future_path(path).is_some() && path.symlink_metadata().is_err();
            return match arguments.create_files {
                Some(device_bytes) if folder_is_there => Ok(place(device_bytes, None, Vec::new())),
                Some(_) => Err(problem.help("its folder is not there, or it is a link to nothing")),
                None => Err(problem.help("--create-files SIZE makes it as a sparse file")),
            };
        }
        Err(problem) => return Err(problem),
    };
    let found =
        signatures::find(&member).map_err(|error| Problem::from_io(path, "look at what is on it", &error))?;
    if !arguments.force {
        check_empty(&member, &found)?;
    }
    Ok(place(member.device_bytes, Some(member), found))
}
