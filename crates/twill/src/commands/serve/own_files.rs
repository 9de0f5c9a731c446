//! Files that a server writes for whoever started it: the pid file and the log. Neither is ever written over a member, nor the
//! pid file over anything but a number.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use crate::exit::ExitKind;
use crate::failure::Failure;
use crate::probe::member_file::MemberFile;
use crate::probe::superblocks;

/// More bytes than a process number and the end of its line.
const PID_BYTES_MAX: u64 = 32;

/// A file with the process number, removed in the end.
pub(super) struct PidFile(PathBuf);

impl PidFile {
    /// Says before anything is done whether the file may be written.
    ///
    /// # Errors
    /// The path names a member, or something that holds anything but a process number.
    pub(super) fn at(path: &Path, members: &[PathBuf]) -> Result<Self, Failure> {
        let refused = |what: &str| {
            let failure =
                Failure::new(ExitKind::AlreadyExists, format!("--pid-file {}: {what}", path.display()));
            Err(failure.help("nothing was written; name a file that is not there, or holds a process number"))
        };
        check_no_member("--pid-file", path, members)?;
        match fs::metadata(path) {
            Err(_) => {
                let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
                let there = folder.map_or(Ok(()), |folder| fs::metadata(folder).map(drop));
                there.map_err(|error| Failure::from_io("write", path, &error))?;
            }
            Ok(found) if !found.is_file() => return refused("it is no ordinary file"),
            Ok(_) => match read_number(path) {
                Ok(true) => {}
                Ok(false) => return refused("it is there and holds something else than a process number"),
                Err(error) => return Err(Failure::from_io("read", path, &error)),
            },
        }
        Ok(PidFile(path.to_path_buf()))
    }

    /// Writes the number. By now nobody else serves the members.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn write(&self) -> Result<(), Failure> {
        fs::write(&self.0, own_number()).map_err(|error| Failure::from_io("write", &self.0, &error))
    }
}

impl Drop for PidFile {
    /// Whoever has written another number meanwhile serves now.
    fn drop(&mut self) {
        let is_own = start_of(&self.0).is_ok_and(|text| text == own_number().as_bytes());
        if is_own {
            let _best_effort = fs::remove_file(&self.0);
        }
    }
}

fn own_number() -> String {
    format!("{}\n", std::process::id())
}

/// Whether the file holds a process number, or nothing that could be lost.
fn read_number(path: &Path) -> std::io::Result<bool> {
    let start = start_of(path)?;
    let text = std::str::from_utf8(&start).map_or("?", str::trim);
    Ok(text.is_empty() || text.parse::<u32>().is_ok())
}

fn start_of(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut start = Vec::new();
    File::open(path)?.take(PID_BYTES_MAX).read_to_end(&mut start)?;
    Ok(start)
}

/// Says before it is opened whether lines may be appended to a log.
///
/// # Errors
/// The path names a member, or a block device.
pub fn check_log(path: &Path, members: &[PathBuf]) -> Result<(), Failure> {
    if fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device()) {
        return Err(is_taken("--log", path, "is a block device"));
    }
    check_no_member("--log", path, members)
}

/// A member is what is named as one, by whatever name, and what has a superblock.
fn check_no_member(option: &str, path: &Path, members: &[PathBuf]) -> Result<(), Failure> {
    let Ok(file) = MemberFile::open(path) else { return Ok(()) };
    let is_same =
        |member: &PathBuf| MemberFile::open(member).is_ok_and(|member| member.identity == file.identity);
    if members.iter().any(is_same) {
        return Err(is_taken(option, path, "is a member of the array"));
    }
    match superblocks::find_all(&file) {
        Ok(found) if !found.is_empty() => Err(is_taken(option, path, "has an md superblock")),
        _ => Ok(()),
    }
}

fn is_taken(option: &str, path: &Path, what: &str) -> Failure {
    let failure = Failure::new(ExitKind::MemberInUse, format!("{option} {}: it {what}", path.display()));
    failure.help("nothing was written to it; name another file")
}
