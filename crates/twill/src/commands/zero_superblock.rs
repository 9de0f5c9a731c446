//! `zero-superblock`: devices are members of no array any more. Everything is looked at before the first byte is written.

use std::collections::HashSet;
use std::path::Path;

use clap::Args;
use layout::md_superblock::{SUPERBLOCK_BYTES_MAX, Superblock, display_uuid};
use serde::Serialize;

use super::output::{OfMembers, Output};
use crate::counted::counted;
use crate::exit::ExitKind;
use crate::failure::{Failure, Problem};
use crate::plain::plain;
use crate::probe::member_file::MemberFile;
use crate::probe::superblocks::{Found, find_all};
use crate::probe::zoned;
use crate::remote;
use crate::remote_arguments::DeviceArguments;

/// Arguments of `zero-superblock`.
#[derive(Debug, Args)]
#[command(after_help = "Example: three drives leave their array for good
  twill stop store
  twill zero-superblock /dev/nvme0n1 /dev/nvme1n1 /dev/nvme2n1

The superblocks alone are cleared: what the data area holds stays, so an array that is made again of the same members in
the same order, with the same options and --assume-clean, has its contents back. wipefs and blkdiscard clear the rest.")]
pub struct ZeroSuperblockArguments {
    /// Clear superblocks that are damaged, too.
    #[arg(short, long)]
    pub force: bool,
    /// Which members.
    #[command(flatten)]
    pub of: DeviceArguments,
}

/// What `zero-superblock` answers about a member.
#[derive(Debug, Serialize)]
struct AnswerMember {
    path: String,
    cleared: Vec<Cleared>,
}

/// A superblock that is gone.
#[derive(Debug, Serialize)]
struct Cleared {
    version: String,
    offset_bytes: u64,
    /// The array that it was a member of, if that could be read.
    array: Option<String>,
    uuid: Option<String>,
}

/// Clears every superblock of the members.
///
/// # Errors
/// All reasons against it at once, nothing was written then; or the member at which the system failed.
pub fn run(arguments: &ZeroSuperblockArguments, output: Output) -> Result<(), Failure> {
    remote::set(&arguments.of.remote)?;
    let held = look_at(arguments)?;
    let mut answer = OfMembers { members: Vec::new() };
    for (member, found) in &held {
        if let Err(error) = clear(member, found) {
            let done = counted(answer.members.len() as u64, "member");
            let message = format!("cleared {done} before it failed");
            let problem = Problem::from_io(&member.path, "clear its superblock", &error);
            return Err(Failure::from_problems(message, vec![problem]));
        }
        let cleared = found.iter().map(|found| {
            let superblock = found.outcome.as_ref().ok();
            Cleared {
                version: found.version.clone(),
                offset_bytes: found.offset,
                array: superblock.map(Superblock::set_name),
                uuid: superblock.map(|superblock| display_uuid(&superblock.set_uuid())),
            }
        });
        answer
            .members
            .push(AnswerMember { path: member.path.display().to_string(), cleared: cleared.collect() });
    }
    output.print(&answer, answer_words)
}

fn look_at(arguments: &ZeroSuperblockArguments) -> Result<Vec<(MemberFile, Vec<Found>)>, Failure> {
    let mut seen = HashSet::new();
    let (mut held, mut problems) = (Vec::new(), Vec::new());
    for path in &arguments.of.members {
        // A second name of a member that is held already would say that it is locked.
        let is_first = MemberFile::open(path).map_or(true, |member| seen.insert(member.identity));
        if !is_first {
            continue;
        }
        match look_at_one(path, arguments.force) {
            Ok(member) => held.push(member),
            Err(problem) => problems.push(problem),
        }
    }
    if problems.is_empty() {
        return Ok(held);
    }
    Err(Failure::from_problems("nothing was cleared", problems))
}

fn look_at_one(path: &Path, force: bool) -> Result<(MemberFile, Vec<Found>), Problem> {
    let member = MemberFile::open_held(path)?;
    let from_io = |error| Problem::from_io(path, "read its superblock", &error);
    let found = find_all(&member).map_err(from_io)?;
    let damaged = found.iter().find_map(|found| Some((&found.version, found.outcome.as_ref().err()?)));
    match damaged {
        _ if found.is_empty() => Err(no_superblock(&member)),
        Some((version, error)) if !force => {
            let what = format!("its superblock {version} is not usable: {error}");
            Err(Problem::new(ExitKind::NeedsForce, path, what).help("--force clears it all the same"))
        }
        _ => Ok((member, found)),
    }
}

fn no_superblock(member: &MemberFile) -> Problem {
    if zoned::superblock_of(member).is_ok_and(|log| log.is_some()) {
        let what = "is a member of a zoned array: its superblock is a log in the first zones";
        let help = format!("blkzone reset {} empties them", member.path.display());
        return Problem::new(ExitKind::Unsupported, &member.path, what).help(help);
    }
    Problem::new(ExitKind::NotAMember, &member.path, "has no md superblock")
        .help("wipefs lists and clears what else is on it")
}

fn clear(member: &MemberFile, found: &[Found]) -> std::io::Result<()> {
    for found in found {
        let bytes = member.read(found.offset, SUPERBLOCK_BYTES_MAX)?.len();
        member.write(found.offset, &vec![0; bytes])?;
    }
    member.sync()?;
    match find_all(member)?.first() {
        None => Ok(()),
        Some(left) => Err(std::io::Error::other(format!("superblock {} is still there", left.version))),
    }
}

fn answer_words(answer: &OfMembers<AnswerMember>) -> String {
    let mut text = String::new();
    for AnswerMember { path, cleared } in &answer.members {
        for Cleared { version, array, uuid, .. } in cleared {
            let of = match (array, uuid) {
                (Some(array), Some(uuid)) => format!(" of array {} ({uuid})", plain(array)),
                _ => String::new(),
            };
            text += &format!("{}: superblock {version}{of} cleared\n", plain(path));
        }
    }
    text + "what the data areas hold is still there\n"
}
