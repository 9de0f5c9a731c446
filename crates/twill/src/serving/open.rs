//! Members opened and locked.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use engine::array::assemble::Candidate;
use host::device::{DeviceSpec, OpenOptions, SharedDevice};
use host::killed_server::when_free;
use layout::md_superblock::Superblock;

use super::options::ServeOptions;
use super::platform::is_held;
use crate::exit::ExitKind;
use crate::failure::{Problem, open_problem};
use crate::probe::member_file::{MemberFile, check_no_loop_device};
use crate::probe::superblocks::superblock_of;
use crate::remote;

/// Opens and locks a member, then reads its superblock again: from here on no other program can change it.
pub(super) fn open_member(
    path: &Path,
    candidate: &Candidate,
    options: &ServeOptions,
) -> Result<(SharedDevice, Superblock), Problem> {
    let device = open_device(path, options.read_only, options.direct)?;
    let member = MemberFile::open(path)?;
    let superblock = superblock_of(&member)?;
    let before = candidate.superblock.as_ref().map(Superblock::events);
    if before != Ok(superblock.events()) {
        let what = "its superblock changed while it was being opened: another program uses the array";
        return Err(Problem::new(ExitKind::MemberInUse, path, what));
    }
    Ok((device, superblock))
}

/// Opens and locks a file, a block device or a namespace on another machine.
///
/// # Errors
/// Why it cannot be used.
pub fn open_device(path: &Path, read_only: bool, direct: bool) -> Result<SharedDevice, Problem> {
    let open =
        OpenOptions { read_only, direct, remote: Some(remote::options().clone()), ..OpenOptions::default() };
    if let Some(address) = remote::address(path) {
        if is_held(&path.display().to_string()) {
            let problem =
                Problem::new(ExitKind::MemberInUse, path, "is a member of an array that this process serves");
            return Err(problem.help("twill list and twill detail say of which"));
        }
        return DeviceSpec::Remote(address).open(&open).map_err(|error| open_problem(path, &error));
    }
    if !read_only
        && let Ok(metadata) = std::fs::metadata(path)
        && metadata.is_file()
    {
        check_no_loop_device(path, (metadata.dev(), metadata.ino()))?;
    }
    DeviceSpec::Path(path.to_path_buf()).open(&open).map_err(|error| open_problem(path, &error))
}

/// Opens a device to be written, and waits if it was removed a moment ago and is still locked. Never on a shard.
pub(super) fn open_free_device(path: &Path) -> Result<SharedDevice, Problem> {
    let is_in_use = |problem: &Problem| problem.kind == ExitKind::MemberInUse;
    when_free(is_in_use, || open_device(path, false, true))
}
