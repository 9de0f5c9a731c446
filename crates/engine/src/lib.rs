//! All RAID behaviour: what happens to a read, a write, a flush, a failure. No syscalls, threads, clock or
//! randomness of its own: devices come through [`device::Device`], tasks run on [`executor::Executor`], so that the
//! simulator and the host run the same code.
#![forbid(unsafe_code)]

pub mod array;
pub mod buffer;
pub mod counters;
pub mod device;
pub mod events;
pub mod executor;
pub mod limits;
pub mod members;
pub mod stages;
pub mod stripe;
pub mod volume;
