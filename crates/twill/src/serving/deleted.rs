//! Member files that were deleted while they are served: the server still reads and writes them, and their contents are gone
//! when it ends. They are found, on each status, among the open files of this process.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// What the kernel appends to the path of an open file that has been deleted.
const MARK: &str = " (deleted)";

/// Files that this process has open and that have no name left, by their last names.
pub(super) struct Deleted(HashSet<PathBuf>);

impl Deleted {
    /// Looks now; finds none where /proc is not mounted.
    pub(super) fn look() -> Self {
        let open = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
        Deleted(open.filter_map(|file| deleted_path(&file.path())).collect())
    }

    /// Whether the member that was opened by this path is one of them.
    pub(super) fn has(&self, path: &Path) -> bool {
        !self.0.is_empty() && self.0.contains(&resolved(path))
    }
}

fn deleted_path(file: &Path) -> Option<PathBuf> {
    let link = fs::read_link(file).ok()?;
    let path = link.to_str()?.strip_suffix(MARK)?;
    // With another name left, the contents are not lost.
    let metadata = fs::metadata(file).ok()?;
    (metadata.is_file() && metadata.nlink() == 0).then(|| PathBuf::from(path))
}

/// The path without links in it, though there may be nothing at its end.
fn resolved(path: &Path) -> PathBuf {
    let target = fs::read_link(path).ok().zip(path.parent()).map(|(target, folder)| folder.join(target));
    let path = target.unwrap_or_else(|| path.to_path_buf());
    match (path.parent().and_then(|folder| fs::canonicalize(folder).ok()), path.file_name()) {
        (Some(folder), Some(name)) => folder.join(name),
        _ => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn a_file_that_was_deleted_is_known_by_every_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::os::unix::fs::symlink("a", path("link")).unwrap();
        std::os::unix::fs::symlink(folder.path(), path("folder")).unwrap();
        let _open: Vec<File> = ["a", "b", "c"].map(|name| File::create(path(name)).unwrap()).into();
        fs::hard_link(path("b"), path("other")).unwrap();
        assert!(!Deleted::look().has(&path("a")));
        fs::remove_file(path("a")).unwrap();
        fs::remove_file(path("b")).unwrap();
        let deleted = Deleted::look();
        assert!(deleted.has(&path("a")) && deleted.has(&path("link")) && deleted.has(&path("folder/a")));
        assert!(!deleted.has(&path("b")), "it has another name");
        assert!(!deleted.has(&path("c")));
    }
}
