//! Keeps md away from a new array on a machine that has Twill's rule for udev: whoever closes a member after a write causes an event,
//! on which md's rules would assemble the array before its server has it.

use std::fs::{self, File};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use uuid::Uuid;

use super::plan::Plan;

/// A file here, by the array's UUID as lsblk writes it, has the rule leave the members to Twill (docs/boot.md).
const FOLDER: &str = "/etc/twill/arrays";

/// Makes the array's file, before superblocks are on the members. None: no rule would look at it, or it cannot be made.
pub(super) fn keep_from_md(plan: &Plan) -> Option<PathBuf> {
    let is_block_device =
        |path: &Path| fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device());
    if !Path::new(FOLDER).is_dir() || !plan.places.iter().any(|place| is_block_device(&place.path)) {
        return None;
    }
    let path = Path::new(FOLDER).join(Uuid::from_bytes(plan.set_uuid).to_string());
    match File::create(&path) {
        Ok(_) => Some(path),
        Err(error) => {
            tracing::warn!("{}: {error}; md may assemble the array before it is served", path.display());
            None
        }
    }
}
