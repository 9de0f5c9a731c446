//! A deterministic world that tries to break the engine.
//!
//! One history is one seed: an array of any level and layout on simulated members ([`disk`](self) says with which
//! faults), clients that read and write the same few places at once, an operator with bad luck, and a crash at the
//! end. The checks are in `check.rs` (of a running array) and `recorded.rs` (of what a crash would leave), the contents
//! that a block may have in `oracle.rs`. What outlives a crash is a machine (`machine.rs`), on which an array runs
//! (`array.rs`).
#![forbid(unsafe_code)]

pub mod acts;
mod agenda;
mod array;
pub mod campaign;
mod check;
mod counts;
mod crash;
mod disk;
mod drawer;
pub mod experiment;
mod fabric;
mod foreign_buffer;
#[cfg(test)]
mod found;
pub mod grid;
mod history;
mod ledgers;
mod lost;
mod machine;
mod network;
mod nic;
mod operator;
mod oracle;
mod outage;
mod outcome;
mod pages;
mod platform;
mod random;
mod reading;
mod recorded;
mod reduced;
mod report;
mod scenario;
pub mod shrink;
mod silent;
mod start;
mod timeline;
mod trace;
mod workload;
mod world;
pub mod zoned;

pub use counts::Counts;
pub use history::run;
pub use network::Bug;
pub use reduced::Reduced;
pub use report::{Failure, Options, Report};
