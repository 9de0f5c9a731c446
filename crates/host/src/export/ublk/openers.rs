//! Which process has a block device open, for drivers that take a device away also while it is in use.
//!
//! Found are open descriptors of all processes that this one may inspect: with root's rights those of its own process
//! namespace and of the ones below. Not found are mappings whose descriptor was closed, openings by the kernel itself without
//! a claim (a loop device over the block device), and openings right after the search.

use rustix::fs::{AtFlags, CWD, FileType, StatxFlags};
use std::fmt;
use std::fs;
use std::path::Path;

/// Where the system lists its processes.
pub(super) const PROCESSES: &str = "/proc";

/// Where the system lists block devices.
pub(super) const BLOCK_DEVICES: &str = "/sys/class/block";

/// A process that has the device open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opener {
    /// Its number.
    pub process: u32,
    /// Its name as the system keeps it, of 15 bytes at most.
    pub name: String,
}

impl fmt::Display for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({})", self.process, self.name)
    }
}

/// Major and minor number of a device.
type Number = (u32, u32);

/// A process other than this one that has the block device, or a partition of it, open.
pub(super) fn opener(processes: &Path, block_devices: &Path, device: &Path) -> Option<Opener> {
    let name = device.file_name()?.to_str()?;
    let numbers = numbers(block_devices, name);
    let own = std::process::id();
    let all = fs::read_dir(processes).ok()?.flatten();
    let numbered = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut others = numbered.filter(|process: &u32| *process != own);
    let process = others.find(|process| has_open(&processes.join(process.to_string()), &numbers))?;
    let name = fs::read_to_string(processes.join(process.to_string()).join("comm")).unwrap_or_default();
    Some(Opener { process, name: name.trim_end().to_owned() })
}

/// Numbers of a block device and of its partitions, which are folders inside its own.
fn numbers(block_devices: &Path, name: &str) -> Vec<Number> {
    let folder = block_devices.join(name);
    let inside = fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let partitions = inside.filter(|path| path.join("partition").exists());
    let number = |folder: &Path| {
        let text = fs::read_to_string(folder.join("dev")).ok()?;
        let (major, minor) = text.trim_end().split_once(':')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    };
    partitions.chain([folder.clone()]).filter_map(|folder| number(&folder)).collect()
}

/// A process that has ended meanwhile, or may not be inspected, counts as one that does not have it open.
fn has_open(process: &Path, numbers: &[Number]) -> bool {
    let descriptors = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    descriptors.map(|entry| entry.path()).any(|path| is_one_of(&path, numbers))
}

fn is_one_of(path: &Path, numbers: &[Number]) -> bool {
    // Never waits for a file system over a network.
    let flags = AtFlags::STATX_DONT_SYNC;
    let Ok(found) = rustix::fs::statx(CWD, path, flags, StatxFlags::TYPE) else { return false };
    FileType::from_raw_mode(found.stx_mode.into()) == FileType::BlockDevice
        && numbers.contains(&(found.stx_rdev_major, found.stx_rdev_minor))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    /// Processes and block devices as the system shows them: 41 has a file open, 42 the node, this one too.
    fn system(node: &Path, (major, minor): Number) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        for (process, open) in [("41", file.as_path()), ("42", node), ("self", node)] {
            let process = folder.path().join("proc").join(process);
            fs::create_dir_all(process.join("fd")).unwrap();
            fs::write(process.join("comm"), "qemu\n").unwrap();
            symlink(open, process.join("fd/7")).unwrap();
        }
        let own = folder.path().join("proc").join(std::process::id().to_string());
        fs::create_dir_all(own.join("fd")).unwrap();
        symlink(node, own.join("fd/3")).unwrap();
        let block = folder.path().join("block");
        for (device, number) in [
            ("used", format!("{major}:{minor}")),
            ("other", format!("{major}:{}", minor + 1)),
            ("parted", "4000:1".to_owned()),
            ("parted/parted1", format!("{major}:{minor}")),
        ] {
            fs::create_dir_all(block.join(device)).unwrap();
            fs::write(block.join(device).join("dev"), format!("{number}\n")).unwrap();
        }
        fs::write(block.join("parted/parted1/partition"), "1\n").unwrap();
        folder
    }

    fn any_block_device() -> Option<(PathBuf, Number)> {
        let nodes = fs::read_dir("/dev").ok()?.flatten().map(|entry| entry.path());
        nodes.into_iter().find_map(|path| {
            let found = rustix::fs::stat(&path).ok()?;
            let is_device = FileType::from_raw_mode(found.st_mode) == FileType::BlockDevice;
            is_device.then(|| (path, (rustix::fs::major(found.st_rdev), rustix::fs::minor(found.st_rdev))))
        })
    }

    #[test]
    fn another_process_with_the_device_or_a_partition_open_is_named() {
        let Some((node, number)) = any_block_device() else {
            return eprintln!("skipped: there is no block device here");
        };
        let system = system(&node, number);
        let opener = |device: &str| {
            opener(&system.path().join("proc"), &system.path().join("block"), &Path::new("/dev").join(device))
        };
        let qemu = Opener { process: 42, name: "qemu".into() };
        assert_eq!(opener("used").as_ref(), Some(&qemu));
        assert_eq!(opener("parted").as_ref(), Some(&qemu), "by a partition");
        assert_eq!(opener("other"), None);
        assert_eq!(opener("missing"), None);
        assert_eq!(qemu.to_string(), "process 42 (qemu)");
    }

    #[test]
    fn a_real_process_is_found() {
        let Some((node, _)) = any_block_device() else {
            return eprintln!("skipped: there is no block device here");
        };
        let Ok(open) = fs::File::open(&node) else {
            return eprintln!("skipped: {} cannot be opened", node.display());
        };
        let sleeper = std::process::Command::new("sleep").arg("60").stdin(open).spawn();
        let mut sleeper = sleeper.unwrap();
        let found = opener(Path::new(PROCESSES), Path::new(BLOCK_DEVICES), &node);
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        // Another process may have it open, too: a file system's checker, say.
        assert!(found.is_some(), "{} is open in process {}", node.display(), sleeper.id());
    }
}
