//! A deterministic world that tries to break the engine.
//!
//! One history is one seed: an array of any level and layout on simulated members ([`disk`](self) says with which
//! faults), clients that read and write the same few places at once, an operator with bad luck, and a crash at the
//! end. What is checked is in `check.rs`, what a block may hold is in `oracle.rs`.
#![forbid(unsafe_code)]

mod agenda;
mod array;
pub mod campaign;
mod check;
mod counts;
mod disk;
mod drawer;
pub mod experiment;
mod foreign_buffer;
#[cfg(test)]
mod found;
pub mod grid;
mod history;
mod lost;
mod operator;
mod oracle;
mod pages;
mod platform;
mod random;
mod reading;
mod recorded;
mod scenario;
pub mod shrink;
mod silent;
mod start;
mod trace;
mod workload;
mod world;

pub use counts::Counts;
pub use history::{Failure, Options, Report, run};
