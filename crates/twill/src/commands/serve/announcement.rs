//! What `serve` says once it serves.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::failure::Problem;
use crate::plain::plain;
use crate::status::ArrayStatus;

/// What `serve` says once it serves.
#[derive(Clone, Debug, Serialize, Deserialize)]
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

/// What starts of several arrays came to.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Started {
    /// Arrays that are served.
    pub arrays: Vec<Announcement>,
    /// Those that are not, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_served: Vec<Problem>,
    /// Names of those whose start is still under way.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub starting: Vec<String>,
}

/// What `serve --all` says once it serves.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AllAnnouncement {
    /// Its arrays.
    #[serde(flatten)]
    pub started: Started,
    /// The control socket of the process.
    pub control: PathBuf,
    /// The process.
    pub pid: u32,
}

/// What a process in the background says to the one that has started it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Announced {
    /// It serves all arrays.
    All(AllAnnouncement),
    /// It serves one.
    One(Announcement),
}

/// For people.
pub fn announced_words(announced: &Announced) -> String {
    match announced {
        Announced::All(all) => all_words(all),
        Announced::One(one) => words(one),
    }
}

/// For people.
pub fn all_words(all: &AllAnnouncement) -> String {
    started_words(&all.started)
        + &format!("further arrays: twill start, twill serve --join  ({})\n", all.control.display())
}

/// For people.
pub fn started_words(started: &Started) -> String {
    let mut text: String = started.arrays.iter().map(words).collect();
    for Problem { member, what, .. } in &started.not_served {
        text += &format!("{} is not served: {}\n", plain(member), plain(what));
    }
    for name in &started.starting {
        text += &format!("{} is still being started\n", plain(name));
    }
    if text.is_empty() { "no array is to be served\n".to_owned() } else { text }
}

/// In one line.
pub fn all_summary(Started { arrays, not_served, starting }: &Started) -> String {
    let mut text = match arrays.as_slice() {
        [] => "no array is served".to_owned(),
        arrays => format!("served: {}", names(arrays.iter().map(|array| &array.name))),
    };
    if !not_served.is_empty() {
        text += &format!("; not served: {}", names(not_served.iter().map(|problem| &problem.member)));
    }
    if !starting.is_empty() {
        text += &format!("; being started: {}", names(starting.iter()));
    }
    text
}

fn names<'a>(names: impl Iterator<Item = &'a String>) -> String {
    names.map(|name| plain(name)).collect::<Vec<_>>().join(", ")
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
