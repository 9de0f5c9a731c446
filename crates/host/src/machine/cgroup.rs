//! The memory limit of the control groups that this process is in, version 2 and 1.
//!
//! A group's limit bounds all groups below it, so the least one on the way to the root counts. In a container the way may begin
//! at a group in the middle of the host's tree: `mountinfo` says which group a mount shows as its root.

use std::fs;
use std::path::{Path, PathBuf};

/// The least limit in bytes, if there is any.
pub(super) fn limit_bytes() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    least_limit(&groups, &mounts, |path| fs::read_to_string(path).ok())
}

/// The least limit, by the texts of `/proc/self/cgroup` and `/proc/self/mountinfo` and what `read` returns of a file.
fn least_limit(groups: &str, mounts: &str, read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let limits = mounts.lines().filter_map(|line| {
        let mount = Mount::parse(line)?;
        let group = groups.lines().find_map(|line| mount.version.group(line))?;
        // A group outside of what the mount shows is bounded at least by the mount's root.
        let below = Path::new(group).strip_prefix(&mount.root).unwrap_or(Path::new(""));
        let folders = below.ancestors().map(|folder| mount.at.join(folder));
        let files = |folder: PathBuf| mount.version.files().iter().map(move |file| folder.join(file));
        folders.flat_map(files).filter_map(|file| read(&file)?.trim().parse::<u64>().ok()).min()
    });
    limits.min()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Version {
    /// The group that a line of `/proc/self/cgroup` names, if the line is about memory under this version.
    fn group(self, line: &str) -> Option<&str> {
        let mut parts = line.splitn(3, ':');
        let (number, controllers, group) = (parts.next()?, parts.next()?, parts.next()?);
        let is_this = match self {
            Version::One => controllers.split(',').any(|controller| controller == "memory"),
            Version::Two => number == "0" && controllers.is_empty(),
        };
        is_this.then_some(group)
    }

    /// Files that hold a limit. "max", as version 2 writes for none, is no number; version 1 writes a giant one.
    fn files(self) -> &'static [&'static str] {
        match self {
            Version::One => &["memory.limit_in_bytes"],
            // Above `memory.high` the kernel slows the process down to a crawl.
            Version::Two => &["memory.max", "memory.high"],
        }
    }
}

struct Mount {
    version: Version,
    /// The group that the mount shows as its root.
    root: PathBuf,
    at: PathBuf,
}

impl Mount {
    /// `31 23 0:29 ROOT AT OPTIONS [FIELDS…] - TYPE SOURCE SUPER-OPTIONS`
    fn parse(line: &str) -> Option<Self> {
        let (mount, kind) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let (root, at) = (PathBuf::from(mount.next()?), PathBuf::from(mount.next()?));
        let mut kind = kind.split(' ');
        let version = match (kind.next()?, kind.nth(1)?) {
            ("cgroup2", _) => Version::Two,
            ("cgroup", options) if options.split(',').any(|option| option == "memory") => Version::One,
            _ => return None,
        };
        Some(Mount { version, root, at })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V2: &str = "31 23 0:27 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate";
    const V1: &str = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
                      32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu";
    const V1_IN_CONTAINER: &str =
        "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro,relatime - cgroup cgroup rw,memory";

    fn limit(groups: &str, mounts: &str, files: &[(&str, &str)]) -> Option<u64> {
        least_limit(groups, mounts, |path| {
            let (_, text) = files.iter().find(|(name, _)| Path::new(name) == path)?;
            Some(format!("{text}\n"))
        })
    }

    #[test]
    fn the_least_limit_from_the_group_to_the_root_counts() {
        let group = "0::/system.slice/twill.service";
        let own = "/sys/fs/cgroup/system.slice/twill.service/memory.max";
        let slowed = "/sys/fs/cgroup/system.slice/twill.service/memory.high";
        let slice = "/sys/fs/cgroup/system.slice/memory.max";
        assert_eq!(limit(group, V2, &[(own, "1000")]), Some(1000));
        assert_eq!(limit(group, V2, &[(own, "1000"), (slowed, "900")]), Some(900));
        assert_eq!(limit(group, V2, &[(own, "max"), (slice, "500")]), Some(500));
        assert_eq!(limit(group, V2, &[(own, "max"), (slowed, "max")]), None);
        let beside = "/sys/fs/cgroup/user.slice/memory.max";
        assert_eq!(limit(group, V2, &[(beside, "1")]), None, "another group's");
    }

    #[test]
    fn version_1_has_its_own_tree_and_file() {
        let groups = "9:name=systemd:/\n4:memory:/jobs/7\n1:cpu:/small\n0::/";
        let own = "/sys/fs/cgroup/memory/jobs/7/memory.limit_in_bytes";
        let above = "/sys/fs/cgroup/memory/jobs/memory.limit_in_bytes";
        assert_eq!(limit(groups, V1, &[(own, "9223372036854771712"), (above, "4096")]), Some(4096));
        let other = "/sys/fs/cgroup/cpu/small/memory.limit_in_bytes";
        assert_eq!(limit(groups, V1, &[(other, "1")]), None, "not the tree of memory");
        let inside = "/sys/fs/cgroup/memory/memory.limit_in_bytes";
        assert_eq!(limit("4:memory:/docker/abc", V1_IN_CONTAINER, &[(inside, "77")]), Some(77));
        assert_eq!(limit("4:memory:/docker/abc/x", V1_IN_CONTAINER, &[(inside, "77")]), Some(77));
        assert_eq!(limit("4:memory:/elsewhere", V1_IN_CONTAINER, &[(inside, "77")]), Some(77));
    }

    #[test]
    fn lines_that_make_no_sense_are_no_limit() {
        for groups in ["", "0", "0:", "::::", "0::/a"] {
            for mounts in ["", " - ", "1 2 3 - cgroup2", "1 2 3 / /x - cgroup2", "\u{0}"] {
                assert_eq!(limit(groups, mounts, &[]), None, "{groups:?} {mounts:?}");
            }
        }
    }
}
