//! A file, a block device or a namespace on another machine as one-off commands see it: its identity and size, whether
//! another program uses it, its bytes.
//!
//! A member opened to be written is held for as long as the value lives: block devices exclusively (`O_EXCL`), both
//! kinds by an exclusive lock, which the server of an array takes too.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use host::device::nvme_tcp::{Attached, LookedAt, RemoteAddress, look_at, open_error};
use host::killed_server;
use parking_lot::Mutex;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::exit::ExitKind;
use crate::failure::{Problem, open_problem};
use crate::remote;

/// An open member.
#[derive(Debug)]
pub struct MemberFile {
    /// As it was named.
    pub path: PathBuf,
    /// Size in bytes.
    pub device_bytes: u64,
    /// Unit of addressing in bytes: 512 or 4096.
    pub logical_block_bytes: usize,
    /// The same for every name of the same file, device or namespace.
    pub identity: (u64, u64),
    backing: Backing,
}

/// Where its bytes are.
#[derive(Debug)]
enum Backing {
    /// A file or block device.
    File(File),
    /// A namespace on another machine that this process has attached.
    Attached(Arc<Attached>),
    /// One that it only looks at.
    LookedAt(Box<LookedAt>),
}

impl MemberFile {
    /// Opens a member to read it, in use or not.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn open(path: &Path) -> Result<Self, Problem> {
        if let Some(address) = remote::address(path) {
            return Self::look_at(path, &address);
        }
        Self::open_with(path, OFlags::RDONLY, OFlags::empty())
    }

    /// Opens a member to write it, and holds it against others.
    ///
    /// # Errors
    /// What is wrong with it; [`ExitKind::MemberInUse`] if another program uses it.
    pub fn open_held(path: &Path) -> Result<Self, Problem> {
        if let Some(address) = remote::address(path) {
            return Self::attach(path, &address);
        }
        Self::hold(path, OFlags::RDWR)
    }

    /// Whether it could be held now. Writes nothing.
    ///
    /// # Errors
    /// As [`MemberFile::open_held`].
    pub fn check_free(path: &Path) -> Result<(), Problem> {
        if let Some(address) = remote::address(path) {
            return Self::check_remote_free(path, &address);
        }
        Self::hold(path, OFlags::RDONLY).map(drop)
    }

    /// Looks at a namespace on another machine: through this process's own attach, if it has one.
    fn look_at(path: &Path, address: &RemoteAddress) -> Result<Self, Problem> {
        if let Some(attached) = Attached::find(address) {
            return Ok(Self::of_attached(path, attached));
        }
        // Nothing is read past this process's own reservation.
        if Attached::is_kept(address) {
            return Self::attach(path, address);
        }
        let looked_at = look_at(address, remote::options())
            .map_err(|error| open_problem(path, &open_error(&path.display().to_string(), &error)))?;
        let (info, identity) = (&looked_at.info, looked_at.identity);
        Ok(MemberFile {
            path: path.to_path_buf(),
            device_bytes: info.size_bytes,
            logical_block_bytes: info.logical_block_bytes as usize,
            identity,
            backing: Backing::LookedAt(Box::new(looked_at)),
        })
    }

    fn of_attached(path: &Path, attached: Arc<Attached>) -> Self {
        MemberFile {
            path: path.to_path_buf(),
            device_bytes: attached.info().size_bytes,
            logical_block_bytes: attached.info().logical_block_bytes as usize,
            identity: attached.identity(),
            backing: Backing::Attached(attached),
        }
    }

    /// Attaches a namespace on another machine, which keeps every other host from it.
    fn attach(path: &Path, address: &RemoteAddress) -> Result<Self, Problem> {
        let attached = Attached::open(address, remote::options());
        Ok(Self::of_attached(path, attached.map_err(|error| open_problem(path, &error))?))
    }

    fn check_remote_free(path: &Path, address: &RemoteAddress) -> Result<(), Problem> {
        let member = Self::look_at(path, address)?;
        let Backing::LookedAt(looked_at) = &member.backing else { return Ok(()) };
        match looked_at.holder {
            Some(holder) if !remote::options().take_over => {
                let problem = Problem::new(ExitKind::MemberInUse, path, format!("{holder} has reserved it"));
                Err(problem.help("stop the array on that host, or take it over: --take-over"))
            }
            _ => Ok(()),
        }
    }

    fn hold(path: &Path, access: OFlags) -> Result<Self, Problem> {
        let member = Self::open_with(path, access, OFlags::EXCL)?;
        check_no_loop_device(path, member.identity)?;
        let Backing::File(file) = &member.backing else { return Ok(member) };
        match lock(file) {
            Ok(()) => Ok(member),
            Err(Errno::WOULDBLOCK) => {
                let problem = Problem::new(ExitKind::MemberInUse, path, "is locked by another program");
                Err(problem.help("stop the array that it is a member of: twill status"))
            }
            Err(errno) => Err(Problem::from_io(path, "lock", &errno.into())),
        }
    }

    /// Opens a device to write it that this program holds already.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn open_to_clear(path: &Path) -> Result<Self, Problem> {
        if let Some(address) = remote::address(path) {
            return Self::attach(path, &address);
        }
        Self::open_with(path, OFlags::RDWR, OFlags::empty())
    }

    fn open_with(path: &Path, access: OFlags, of_devices: OFlags) -> Result<Self, Problem> {
        let metadata = fs::metadata(path).map_err(|error| Problem::from_io(path, "open", &error))?;
        let kind = metadata.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            let what = if kind.is_dir() { "is a folder" } else { "is neither a file nor a block device" };
            return Err(Problem::new(ExitKind::NotAMember, path, what).help("name a file or a block device"));
        }
        let exclusive = if kind.is_block_device() { of_devices } else { OFlags::empty() };
        // NONBLOCK: what is behind the name may have become a pipe meanwhile.
        let flags = access | exclusive | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(descriptor) => File::from(descriptor),
            Err(Errno::BUSY) => return Err(busy(path, metadata.rdev())),
            Err(errno) => return Err(Problem::from_io(path, "open", &errno.into())),
        };
        let from_io = |error: io::Error| Problem::from_io(path, "look at", &error);
        let metadata = file.metadata().map_err(from_io)?;
        let is_device = metadata.file_type().is_block_device();
        let device_bytes = if is_device {
            rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0)).map_err(|errno| from_io(errno.into()))?
        } else {
            metadata.len()
        };
        let logical_block_bytes = if is_device {
            rustix::fs::ioctl_blksszget(&file).map_or(512, |bytes| bytes as usize)
        } else {
            512
        };
        // A device may have several nodes, a file several names.
        let identity = if is_device { (u64::MAX, metadata.rdev()) } else { (metadata.dev(), metadata.ino()) };
        let (path, backing) = (path.to_path_buf(), Backing::File(file));
        Ok(MemberFile { path, device_bytes, logical_block_bytes, identity, backing })
    }

    /// Reads up to `bytes` bytes at `offset`; fewer at the end.
    ///
    /// # Errors
    /// What the system says.
    pub fn read(&self, offset: u64, bytes: usize) -> io::Result<Vec<u8>> {
        let file = match &self.backing {
            Backing::File(file) => file,
            Backing::Attached(attached) => return attached.read(offset, bytes),
            Backing::LookedAt(looked_at) => return looked_at.read(offset, bytes),
        };
        let mut data = vec![0; bytes];
        let mut done = 0;
        while done < bytes {
            match file.read_at(&mut data[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        data.truncate(done);
        Ok(data)
    }

    /// Writes `data` at `offset`.
    ///
    /// # Errors
    /// What the system says.
    pub fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        match &self.backing {
            Backing::File(file) => file.write_all_at(data, offset),
            Backing::Attached(attached) => attached.write(offset, data),
            Backing::LookedAt(_) => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }

    /// Makes everything written durable.
    ///
    /// # Errors
    /// What the system says.
    pub fn sync(&self) -> io::Result<()> {
        match &self.backing {
            Backing::File(file) => file.sync_all(),
            Backing::Attached(attached) => attached.sync(),
            Backing::LookedAt(_) => Ok(()),
        }
    }

    /// Whether the system knows that the range was never written: it is a hole of a file, so it reads as zeroes.
    pub fn is_hole(&self, offset: u64, bytes: u64) -> bool {
        if self.is_block_device() || self.is_remote() {
            return false;
        }
        match self.first_data(offset) {
            Ok(None) => offset <= self.device_bytes,
            Ok(Some(data)) => data >= offset.saturating_add(bytes),
            Err(_) => false,
        }
    }

    /// Where a file first has data at `offset` or after it, in bytes; None if there are only holes.
    ///
    /// # Errors
    /// What the system says; of a block device it knows no holes.
    pub fn first_data(&self, offset: u64) -> io::Result<Option<u64>> {
        let Backing::File(file) = &self.backing else { return Ok(Some(offset)) };
        match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(offset)) {
            Ok(data) => Ok(Some(data)),
            Err(Errno::NXIO) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Whether it is a block device; else it is a regular file, or on another machine.
    pub fn is_block_device(&self) -> bool {
        self.identity.0 == u64::MAX
    }

    /// Whether it is a namespace on another machine.
    pub fn is_remote(&self) -> bool {
        !matches!(self.backing, Backing::File(_))
    }
}

/// How long after it a deadline still counts for the members that are locked next.
const DEADLINE_COUNTS_FOR: Duration = Duration::from_secs(10);

fn lock(file: &File) -> Result<(), Errno> {
    // One deadline for all members of an array: the program that holds one of them holds the others too. Later ones are another's.
    static DEADLINE: Mutex<Option<Instant>> = Mutex::new(None);
    loop {
        let outcome = rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive);
        let is_late = || {
            let (mut deadline, now) = (DEADLINE.lock(), Instant::now());
            let present = deadline.filter(|end| now < *end + DEADLINE_COUNTS_FOR);
            now >= *deadline.insert(present.unwrap_or(now + killed_server::LIMIT))
        };
        if outcome != Err(Errno::WOULDBLOCK) || is_late() {
            return outcome;
        }
        std::thread::sleep(killed_server::INTERVAL);
    }
}

/// Names the user of a block device that could not be opened exclusively.
fn busy(path: &Path, rdev: u64) -> Problem {
    let (major, minor) = (rustix::fs::major(rdev), rustix::fs::minor(rdev));
    let problem = |what: String| Problem::new(ExitKind::MemberInUse, path, what);
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let number = format!("{major}:{minor}");
    let mounted = mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(2);
        (words.next()? == number).then(|| words.nth(1).map(str::to_owned))?
    });
    if let Some(place) = mounted {
        return problem(format!("is mounted at {place}")).help(format!("unmount it: umount {place}"));
    }
    let holders = fs::read_dir(format!("/sys/dev/block/{number}/holders")).ok();
    let holder = holders.and_then(|mut entries| entries.next()?.ok());
    if let Some(holder) = holder.map(|entry| entry.file_name().to_string_lossy().into_owned()) {
        let help = if holder.starts_with("md") {
            format!("stop that array: mdadm --stop /dev/{holder}")
        } else {
            format!("take it out of {holder}")
        };
        return problem(format!("is in use by {holder}")).help(help);
    }
    problem("is in use: as swap, by one of its partitions, or by another program".into())
        .help("lsblk and swapon --show name the user")
}

/// Refuses a file that a loop device writes to: the loop driver takes no lock that would show it.
///
/// # Errors
/// [`ExitKind::MemberInUse`] with the loop device.
pub fn check_no_loop_device(path: &Path, identity: (u64, u64)) -> Result<(), Problem> {
    let Some(user) = loop_device_of(identity) else { return Ok(()) };
    let problem = Problem::new(ExitKind::MemberInUse, path, format!("is the file of {user}"));
    Err(problem.help(format!("detach it: losetup -d {user}")))
}

/// The loop device over a file.
fn loop_device_of(identity: (u64, u64)) -> Option<String> {
    for entry in fs::read_dir("/sys/block").ok()?.flatten() {
        let Ok(backing) = fs::read_to_string(entry.path().join("loop/backing_file")) else { continue };
        let Ok(metadata) = fs::metadata(backing.trim_end()) else { continue };
        if (metadata.dev(), metadata.ino()) == identity {
            return Some(format!("/dev/{}", entry.file_name().to_string_lossy()));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hole_is_known_and_data_is_not_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("member");
        File::create(&path).unwrap().set_len(8 << 20).unwrap();
        let member = MemberFile::open_held(&path).unwrap();
        assert!(member.is_hole(0, 8 << 20));
        member.write(4 << 20, b"data").unwrap();
        assert!(
            member.is_hole(0, 4 << 20) && !member.is_hole(0, 8 << 20) && member.is_hole(5 << 20, 3 << 20)
        );
    }

    #[test]
    fn a_held_member_is_not_had_twice_and_can_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("member");
        fs::write(&path, [7; 4096]).unwrap();
        let held = MemberFile::open_held(&path).unwrap();
        assert_eq!(MemberFile::open_held(&path).unwrap_err().kind, ExitKind::MemberInUse);
        assert_eq!(MemberFile::open(&path).unwrap().read(4000, 4096).unwrap(), [7; 96]);
        drop(held);
        assert!(MemberFile::open_held(&path).is_ok());
    }

    #[test]
    fn names_of_one_file_have_one_identity() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name| folder.path().join(name);
        fs::write(path("a"), [0; 512]).unwrap();
        fs::hard_link(path("a"), path("b")).unwrap();
        std::os::unix::fs::symlink("a", path("c")).unwrap();
        let identity = |name| MemberFile::open(&path(name)).unwrap().identity;
        assert_eq!(identity("a"), identity("b"));
        assert_eq!(identity("a"), identity("c"));
    }

    #[test]
    fn a_folder_and_a_pipe_are_no_members() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(MemberFile::open(folder.path()).unwrap_err().kind, ExitKind::NotAMember);
        assert_eq!(MemberFile::open(Path::new("/dev/null")).unwrap_err().kind, ExitKind::NotAMember);
        assert_eq!(MemberFile::open(&folder.path().join("x")).unwrap_err().kind, ExitKind::NotFound);
    }
}
