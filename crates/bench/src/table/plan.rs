//! What of the table is measured, and how.

use serde::Serialize;

use super::peers::PeerCommand;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How.
    pub method: Method,
    /// Numbers of cores.
    pub shards: Vec<usize>,
    /// Only rows whose name holds this.
    pub only: Option<String>,
    /// Further rows than those with figures to reach.
    pub all: bool,
    /// Other programs that are run in turns.
    pub peers: Vec<PeerCommand>,
}

/// How it was measured.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Method {
    /// Runs of each row.
    pub runs: usize,
    /// Seconds of each.
    pub runtime_s: f64,
    /// Bytes of each member.
    pub member_bytes: u64,
}
