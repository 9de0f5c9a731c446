//! A deterministic world that tries to break the engine.
//!
//! One history is one seed: an array of any level and layout on simulated members ([`disk`](self) says with which
//! faults), clients that read and write the same few places at once, an operator with bad luck, and a crash at the
//! end. What is checked is in `check.rs`, what a block may hold is in `oracle.rs`.
#![forbid(unsafe_code)]

mod array;
mod check;
mod counts;
mod disk;
pub mod experiment;
#[cfg(test)]
mod found;
mod history;
mod operator;
mod oracle;
mod pages;
mod random;
mod scenario;
mod trace;
mod workload;
mod world;

pub use counts::Counts;
pub use history::{Failure, Options, Report, run};
