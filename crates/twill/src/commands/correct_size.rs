//! `correct-size`: a member's superblock counts more, or less, than its device has, and is put right.

use std::path::Path;

use clap::Args;
use layout::md_superblock::Superblock;
use serde::Serialize;

use super::output::{OfMembers, Output};
use crate::bytes;
use crate::exit::ExitKind;
use crate::failure::{Failure, Problem};
use crate::plain::plain;
use crate::probe::member_file::MemberFile;
use crate::probe::superblocks::{self, superblock_of};
use crate::remote;
use crate::remote_arguments::DeviceArguments;

/// Arguments of `correct-size`.
#[derive(Debug, Args)]
#[command(after_help = "Example: in another enclosure a drive has a few sectors less
  twill correct-size /dev/sdc && twill assemble --scan

As mdadm --assemble --update=devicesize does it: the superblock gets the size that the device has now. It is refused
where the device lacks a part that the array uses. The array is stopped meanwhile.")]
pub struct CorrectSizeArguments {
    /// Which members.
    #[command(flatten)]
    pub of: DeviceArguments,
}

/// What `correct-size` answers about a member.
#[derive(Debug, Serialize)]
struct AnswerMember {
    path: String,
    device_bytes: u64,
    data_bytes: u64,
    /// What the superblock said.
    former_data_bytes: u64,
}

/// Writes the size of each device to its superblock.
///
/// # Errors
/// Why a member cannot be put right, nothing was written then; or the member at which the system failed.
pub fn run(arguments: &CorrectSizeArguments, output: Output) -> Result<(), Failure> {
    remote::set(&arguments.of.remote)?;
    let looked = arguments.of.members.iter().map(|path| look_at(path));
    let (right, wrong): (Vec<_>, Vec<_>) = looked.partition(Result::is_ok);
    let problems: Vec<Problem> = wrong.into_iter().filter_map(Result::err).collect();
    if !problems.is_empty() {
        return Err(Failure::from_problems("nothing was written", problems));
    }
    let mut members = Vec::new();
    for Resized { member, superblock, former_data_bytes } in right.into_iter().flatten() {
        let bytes = superblock.encode(member.logical_block_bytes);
        member.write(superblock.offset().get(), &bytes).and_then(|()| member.sync()).map_err(|error| {
            let problem = Problem::from_io(&member.path, "write its superblock", &error);
            Failure::from_problems("not every member was put right", vec![problem])
        })?;
        members.push(AnswerMember {
            path: member.path.display().to_string(),
            device_bytes: member.device_bytes,
            data_bytes: superblock.data_size().bytes(),
            former_data_bytes,
        });
    }
    output.print(&OfMembers { members }, answer_words)
}

/// A member, and its superblock as it should be.
struct Resized {
    member: MemberFile,
    superblock: Superblock,
    former_data_bytes: u64,
}

fn look_at(path: &Path) -> Result<Resized, Problem> {
    let member = MemberFile::open_held(path)?;
    let resized = superblocks::resized(&member)
        .map_err(|error| Problem::from_io(path, "read its superblock", &error))?;
    if let Some((superblock, former)) = resized {
        return Ok(Resized { member, superblock, former_data_bytes: former.bytes() });
    }
    let problem = match superblock_of(&member) {
        Err(problem) => problem,
        Ok(_) => Problem::new(
            ExitKind::Unsupported,
            path,
            "its superblock is at the end (1.0), so its place depends on the size of the device",
        ),
    };
    Err(problem)
}

fn answer_words(answer: &OfMembers<AnswerMember>) -> String {
    let words = |member: &AnswerMember| {
        let (path, data) = (plain(&member.path), bytes::human(member.data_bytes));
        if member.data_bytes == member.former_data_bytes {
            return format!("{path}: {data} for data, as its superblock said\n");
        }
        let (former, by) = (
            bytes::human(member.former_data_bytes),
            bytes::human(member.data_bytes.abs_diff(member.former_data_bytes)),
        );
        let how = if member.data_bytes < member.former_data_bytes { "less" } else { "more" };
        format!("{path}: {data} for data, {by} {how} than the {former} of its superblock until now\n")
    };
    answer.members.iter().map(words).collect()
}
