//! All RAID behaviour: what happens to a read, a write, a flush, a failed member. The engine has no syscalls, threads,
//! clock or randomness of its own: it reaches devices through [`device::Device`] and runs tasks on [`executor::Executor`],
//! so the simulator and the host run the same code.
#![forbid(unsafe_code)]

pub mod array;
pub mod bad_blocks;
pub mod buffer;
pub mod code;
pub mod counters;
pub mod device;
pub mod error;
pub mod events;
pub mod executor;
pub mod fabric;
pub mod foreground;
pub mod foreign_buffer;
pub mod in_place;
pub mod limits;
pub mod log;
pub mod members;
mod mirror;
pub mod mismatch;
pub mod read_errors;
pub mod stages;
pub mod stripe;
mod striped;
pub mod sync;
pub mod volume;
pub mod zone_device;
