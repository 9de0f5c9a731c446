//! A copy of the checkout to put bugs in.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Makes `tree` equal to the checkout as it is now, less what git ignores. A file that is equal keeps its time, so that
/// cargo builds only what has changed.
pub fn refresh(root: &Path, tree: &Path) -> Result<()> {
    let files = listed(root)?;
    for file in &files {
        let (from, to) = (root.join(file), tree.join(file));
        let Ok(new) = fs::read(&from) else { continue }; // deleted and not yet committed
        if fs::read(&to).is_ok_and(|old| old == new) {
            continue;
        }
        fs::create_dir_all(to.parent().expect("a folder above")).with_context(|| to.display().to_string())?;
        // With its permissions: scripts are run.
        fs::copy(&from, &to).with_context(|| to.display().to_string())?;
    }
    remove_others(tree, tree, &files)
}

fn listed(root: &Path) -> Result<BTreeSet<PathBuf>> {
    let mut git = Command::new("git");
    git.current_dir(root).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let output = git.output().context("git ls-files")?;
    if !output.status.success() {
        bail!("git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim_end());
    }
    let names = String::from_utf8(output.stdout).context("names of files are UTF-8")?;
    Ok(names.split('\0').filter(|name| !name.is_empty()).map(PathBuf::from).collect())
}

/// A file that was deleted or moved in the checkout would be built still.
fn remove_others(tree: &Path, folder: &Path, files: &BTreeSet<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let below = path.strip_prefix(tree).expect("below the tree");
        if path.is_dir() && !path.is_symlink() {
            remove_others(tree, &path, files)?;
        } else if !files.contains(below) && below != Path::new("Cargo.lock") {
            fs::remove_file(&path).with_context(|| path.display().to_string())?;
        }
    }
    Ok(())
}
