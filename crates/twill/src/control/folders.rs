//! Where servers put their sockets, and what outlives them.

use std::path::{Path, PathBuf};

use crate::exit::ExitKind;
use crate::failure::Failure;

/// Overrides where sockets are.
const FOLDER_VARIABLE: &str = "TWILL_RUNTIME_DIR";
const FOLDER_OF_ROOT: &str = "/run/twill";

/// Where this user's server puts its sockets.
///
/// # Errors
/// [`ExitKind::Usage`] if there is no such place.
pub fn own_folder() -> Result<PathBuf, Failure> {
    if let Some(folder) = std::env::var_os(FOLDER_VARIABLE) {
        return Ok(folder.into());
    }
    if rustix::process::geteuid().is_root() {
        return Ok(FOLDER_OF_ROOT.into());
    }
    let folder = std::env::var_os("XDG_RUNTIME_DIR").map(|folder| Path::new(&folder).join("twill"));
    folder.ok_or_else(|| {
        Failure::new(ExitKind::Usage, "there is no place for the control socket: XDG_RUNTIME_DIR is not set")
            .help("give one with --control PATH")
    })
}

/// Overrides where servers keep what outlives them.
const STATE_VARIABLE: &str = "TWILL_STATE_DIR";
const STATE_OF_ROOT: &str = "/var/lib/twill";

/// Where this user's servers keep what outlives them and is not on the members; `None` if there is no such place.
pub fn state_folder() -> Option<PathBuf> {
    if let Some(folder) = std::env::var_os(STATE_VARIABLE) {
        return Some(folder.into());
    }
    if rustix::process::geteuid().is_root() {
        return Some(STATE_OF_ROOT.into());
    }
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/state"));
    Some(state.or_else(home)?.join("twill"))
}

/// Where servers of this machine may have put their sockets.
pub(super) fn folders() -> Vec<PathBuf> {
    if let Some(folder) = std::env::var_os(FOLDER_VARIABLE) {
        return vec![folder.into()];
    }
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(|folder| Path::new(&folder).join("twill"));
    own.into_iter().chain([FOLDER_OF_ROOT.into()]).collect()
}

/// An array's name as the name of a file: md allows more than a file system does.
pub fn file_name(array: &str) -> String {
    let short = array.rsplit(':').next().unwrap_or_default();
    let safe = |letter: char| if letter == '/' || letter.is_control() { '_' } else { letter };
    let name: String = short.chars().map(safe).collect();
    if name.is_empty() || name.starts_with('.') { format!("_{name}") } else { name }
}
