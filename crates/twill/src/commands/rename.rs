//! `rename`: gives an array that is not served another name, on all its members.

use std::path::PathBuf;

use clap::Args;
use engine::array::assemble::{Assembly, Filter, assemble};
use layout::md_superblock::display_uuid;
use serde::Serialize;

use super::output::Output;
use crate::array_name;
use crate::exit::ExitKind;
use crate::failure::{Failure, Problem};
use crate::plain::plain;
use crate::probe::candidates::{Candidates, read_named};
use crate::probe::chosen::nothing_found;
use crate::probe::member_file::MemberFile;
use crate::probe::superblocks::superblock_of;
use crate::remote;
use crate::remote_arguments::{RemoteArguments, member_path};

/// Arguments of `rename`.
#[derive(Debug, Args)]
#[command(after_help = "Example: an array from another machine gets a name that is free here
  twill rename archive /dev/nvme[0-3]n1

The array is stopped meanwhile. Name all its members: one that is missing keeps the old name, and gets the new one when
the array is served with it.")]
pub struct RenameArguments {
    /// The new name.
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Files, block devices, or namespaces on other machines (nvme://ADDRESS/NQN) of one array.
    #[arg(required = true, value_name = "MEMBER", value_parser = member_path)]
    pub members: Vec<PathBuf>,
    /// How members on other machines are reached.
    #[command(flatten)]
    pub remote: RemoteArguments,
}

/// What `rename` answers.
#[derive(Debug, Serialize)]
struct Answer {
    name: String,
    old_name: String,
    uuid: String,
    members: Vec<String>,
    missing_slots: Vec<usize>,
}

/// Renames the array that the members make.
///
/// # Errors
/// They make none or several, or one is in use: nothing was written then. Or the system failed at a member.
pub fn run(arguments: &RenameArguments, output: Output) -> Result<(), Failure> {
    remote::set(&arguments.remote)?;
    let name = array_name::checked(&arguments.name)?;
    let candidates = read_named(&arguments.members)?;
    let array = the_array(&candidates)?;
    let full = array_name::with_host(array_name::host(&array.name), &name);
    let paths: Vec<&PathBuf> = array.verdicts.iter().map(|(index, _)| &candidates.paths[*index]).collect();
    let mut members = Vec::new();
    for path in &paths {
        let of = |problem| Failure::from_problems("nothing was renamed", vec![problem]);
        let member = MemberFile::open_held(path).map_err(of)?;
        // Only now does no server change it.
        let superblock = superblock_of(&member).map_err(of)?;
        members.push((member, superblock));
    }
    for (member, superblock) in &mut members {
        superblock.rename(&full);
        let bytes = superblock.encode(member.logical_block_bytes);
        member.write(superblock.offset().get(), &bytes).and_then(|()| member.sync()).map_err(|error| {
            let problem = Problem::from_io(&member.path, "write its superblock", &error);
            Failure::from_problems("not every member has the new name: rename it again", vec![problem])
        })?;
    }
    let answer = Answer {
        name: full,
        uuid: display_uuid(&array.set_uuid),
        members: paths.iter().map(|path| path.display().to_string()).collect(),
        missing_slots: (0..array.slots.len()).filter(|slot| array.slots[*slot].is_none()).collect(),
        old_name: array.name,
    };
    output.print(&answer, answer_words)
}

/// The only array of the candidates, all of which belong to it.
fn the_array(candidates: &Candidates) -> Result<Assembly, Failure> {
    let filter = Filter::default();
    let mut found = assemble(&candidates.read, &filter);
    let problem = |(index, verdict): &(usize, engine::array::assemble::Verdict)| {
        let what = match verdict {
            engine::array::assemble::Verdict::Refused { reason } => reason.clone(),
            _ => "belongs to no array".to_owned(),
        };
        Problem::new(ExitKind::NotAMember, &candidates.paths[*index], what)
    };
    let problems: Vec<Problem> = found.others.iter().map(problem).collect();
    if found.arrays.len() > 1 {
        let names: Vec<&str> = found.arrays.iter().map(|array| array.name.as_str()).collect();
        let message = format!(
            "nothing was renamed: the members belong to {} arrays: {}",
            names.len(),
            names.join(", ")
        );
        return Err(Failure::new(ExitKind::Ambiguous, message).help("name the members of one of them"));
    }
    match found.arrays.pop() {
        Some(array) if problems.is_empty() => Ok(array),
        Some(_) => Err(Failure::from_problems("nothing was renamed", problems)),
        None => Err(Failure { problems, ..nothing_found(&filter) }),
    }
}

fn answer_words(answer: &Answer) -> String {
    let mut text = format!(
        "{} is {} now, on {}\n",
        plain(&answer.old_name),
        plain(&answer.name),
        answer.members.iter().map(|path| plain(path)).collect::<Vec<_>>().join(", ")
    );
    if !answer.missing_slots.is_empty() {
        text += "members that are missing keep the old name until the array is served with them\n";
    }
    text
}
