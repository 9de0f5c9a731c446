//! What a server answers to `ping`: which array it has, so that commands find it by any of its names.

use serde::{Deserialize, Serialize};

/// A server, and the array that it serves. It is said without asking the array or a member.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Identity {
    /// Of the server's program.
    pub version: String,
    /// The server's process.
    pub pid: u32,
    /// The array's name; servers of earlier versions do not say it, nor what follows.
    #[serde(default)]
    pub name: String,
    /// The array's identity, as mdadm prints it; empty while it is not known.
    #[serde(default)]
    pub uuid: String,
    /// Its block device and its members.
    #[serde(default)]
    pub devices: Vec<String>,
    /// How far it is.
    #[serde(default)]
    pub state: ServedState,
}

/// How far an array is with its server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServedState {
    /// Clients are served.
    #[default]
    Served,
    /// Its start is under way.
    Starting,
    /// It did not start; the server says why.
    NotServed,
    /// Its stop is under way.
    Stopping,
}
