//! The RAID-enabled SSD of "Adaptive selection of parity chunk update methods in RAID-enabled SSDs", trace-driven.
//!
//! A write to a part of a stripe needs new parity, made by RMW (read the old parity and the old data) or RCW (read
//! the rest of the stripe). The paper chooses by how congested the channels are that would be read from; this crate
//! is the device, the policies, the traces and the figures to judge that by. Read [`simulator`] first, then
//! [`queue`], [`ftl`], [`policy`] and [`cost`]. `docs/ssdsim.md` tells what is modelled and what is not.

#![forbid(unsafe_code)]

pub mod cli;
pub use engine::code::cost;
pub mod device;
pub mod events;
pub mod experiment;
pub mod ftl;
pub mod generate;
pub mod metrics;
pub mod outcome;
pub mod policy;
pub mod queue;
pub mod raid;
pub mod report;
pub mod simulator;
pub mod trace;
pub mod warmup;

use std::path::PathBuf;

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The device's shape is impossible.
    #[error("impossible device: {0}")]
    Device(String),
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A trace is malformed.
    #[error("trace {name}, line {line}: {reason}")]
    Trace {
        /// Trace.
        name: String,
        /// Line, from 1.
        line: u64,
        /// What is wrong.
        reason: String,
    },
    /// A figure could not be drawn.
    #[error(transparent)]
    Figure(#[from] charts::Error),
    /// An argument names something unknown.
    #[error("{0}")]
    Argument(String),
}
