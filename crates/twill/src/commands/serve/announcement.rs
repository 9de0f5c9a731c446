//! What `serve` says once it serves.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::plain::plain;
use crate::status::ArrayStatus;

/// What `serve` says once it serves.
#[derive(Debug, Serialize, Deserialize)]
pub struct Announcement {
    /// Name of the array.
    pub name: String,
    /// Its identity.
    pub uuid: String,
    /// Where clients connect: block device, then URIs.
    pub exports: Vec<String>,
    /// The control socket.
    pub control: PathBuf,
    /// Process that serves.
    pub pid: u32,
    /// Members that were not taken, and slots without one.
    pub warnings: Vec<String>,
}

impl Announcement {
    /// What an array with this status, controlled at `control`, says.
    pub fn new(status: ArrayStatus, control: &Path, warnings: Vec<String>) -> Self {
        let device = status.block_device.map(|device| device.path);
        Announcement {
            name: status.name,
            uuid: status.uuid,
            exports: device.into_iter().chain(status.exports.into_iter().map(|export| export.uri)).collect(),
            control: control.to_path_buf(),
            pid: std::process::id(),
            warnings,
        }
    }
}

/// For people.
pub fn words(announcement: &Announcement) -> String {
    let mut text = format!("{} is served\n", plain(&announcement.name));
    for export in &announcement.exports {
        text += &format!("  clients  {export}\n");
    }
    text + &format!("  control  {}\n", announcement.control.display())
}

/// In one line.
pub fn summary(announcement: &Announcement) -> String {
    format!("{} is served: {}", plain(&announcement.name), announcement.exports.join(" "))
}
