//! Why a benchmark was not done.

use std::path::PathBuf;

/// Why a benchmark was not done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The setting makes no array or no workload.
    #[error("{0}")]
    Setting(String),
    /// A member holds something that the benchmark would overwrite.
    #[error("{path} holds something, which the benchmark would overwrite; --force does it nevertheless")]
    Occupied {
        /// The member.
        path: PathBuf,
    },
    /// A member is on another machine, where its contents are not looked at.
    #[error("{member} may hold something, which the benchmark would overwrite; --force does it nevertheless")]
    NotLookedAt {
        /// The member.
        member: String,
    },
    /// A member cannot be used.
    #[error("{0}")]
    Member(#[from] host::device::OpenError),
    /// A line of a trace is wrong.
    #[error("{name}, line {line}: {reason}")]
    Trace {
        /// The trace.
        name: String,
        /// Number of the line, from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// Which one.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A program that is needed is missing or failed.
    #[error("{name}: {reason}")]
    Program {
        /// Which one.
        name: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// A peer that the caller named could not be run, or did not say what it did.
    #[error("peer {name}: {reason}")]
    Peer {
        /// Which one.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// The shards could not be started, or one ended early.
    #[error("shards: {0}")]
    Shards(String),
    /// A request failed.
    #[error("a request failed: {0}")]
    Request(String),
    /// What was read is not what was written.
    #[error("wrong contents: {0}")]
    Contents(String),
    /// A figure could not be drawn.
    #[error(transparent)]
    Figure(#[from] charts::Error),
}
