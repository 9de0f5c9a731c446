//! Files that the program writes beside its arrays: the pid file, the log, and what outlives a server. Neither of the first two ever
//! overwrites a member, and the pid file overwrites nothing but a process number.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::exit::ExitKind;
use crate::failure::Failure;
use crate::probe::member_file::MemberFile;
use crate::probe::superblocks;

/// More bytes than a process number and the end of its line.
const PID_BYTES_MAX: u64 = 32;

/// A file with the process number, removed in the end.
pub struct PidFile(PathBuf);

impl PidFile {
    /// Checks, before anything is written, that the file may be.
    ///
    /// # Errors
    /// The path names a member, or a file with other contents than a process number.
    pub fn at(path: &Path, members: &[PathBuf]) -> Result<Self, Failure> {
        let refused = |what: &str| {
            let failure =
                Failure::new(ExitKind::AlreadyExists, format!("--pid-file {}: {what}", path.display()));
            Err(failure.help("nothing was written; name a new file, or one that holds a process number"))
        };
        check_no_member("--pid-file", path, members)?;
        match fs::symlink_metadata(path) {
            Err(_) => {
                let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
                let there = folder.map_or(Ok(()), |folder| fs::metadata(folder).map(drop));
                there.map_err(|error| Failure::from_io("write", path, &error))?;
            }
            Ok(found) if found.is_symlink() => return refused("it is a link, and links are not followed"),
            Ok(found) if !found.is_file() => return refused("it is not a regular file"),
            Ok(_) => match read_number(path) {
                Ok(true) => {}
                Ok(false) => return refused("it exists and holds something other than a process number"),
                Err(error) => return Err(Failure::from_io("read", path, &error)),
            },
        }
        Ok(PidFile(path.to_path_buf()))
    }

    /// Writes the number. The members are held, so no other server uses the file for them.
    ///
    /// # Errors
    /// What the system says.
    pub fn write(&self) -> Result<(), Failure> {
        let file = no_link().write(true).create(true).truncate(true).open(&self.0);
        let written = file.and_then(|mut file| file.write_all(own_number().as_bytes()));
        written.map_err(|error| Failure::from_io("write", &self.0, &error))
    }
}

impl Drop for PidFile {
    /// Removes the file, unless another server has written its own number meanwhile.
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
    no_link().read(true).open(path)?.take(PID_BYTES_MAX).read_to_end(&mut start)?;
    Ok(start)
}

/// Opens a log to append lines to it.
///
/// # Errors
/// The path names a member, a block device or a link, and what the system says.
pub fn open_log(path: &Path, members: &[PathBuf]) -> Result<File, Failure> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_symlink() => {
            let message = format!("--log {}: it is a link, and links are not followed", path.display());
            return Err(Failure::new(ExitKind::AlreadyExists, message).help("name the file itself"));
        }
        Ok(found) if found.file_type().is_block_device() => {
            return Err(is_taken("--log", path, "is a block device"));
        }
        _ => check_no_member("--log", path, members)?,
    }
    let file = no_link().create(true).append(true).open(path);
    file.map_err(|error| Failure::from_io("open the log", path, &error))
}

/// Opens a file itself and never what a link points to, which in a folder that others write to may be any file of root's. What
/// is new is for its owner and group.
fn no_link() -> OpenOptions {
    let mut options = OpenOptions::new();
    let flags = i32::try_from(OFlags::NOFOLLOW.bits()).expect("a flag of open(2)");
    options.mode(0o640).custom_flags(flags);
    options
}

/// Refuses a path of a member of this array, under any of its names, and of anything with a superblock.
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

/// Puts these contents in the place of a file, and makes its folder where there is none. After a crash, of the machine too, the
/// file is the old one or the new one, whole.
///
/// # Errors
/// What the system says. The old file is there.
pub fn replace_file(path: &Path, contents: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let making = path.with_extension("new");
    let mut file = File::create(&making)?;
    file.write_all(contents)?;
    file.sync_all()?;
    fs::rename(&making, path)?;
    File::open(folder)?.sync_all()
}
