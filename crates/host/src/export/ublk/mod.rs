//! The export as a block device of this machine, `/dev/ublkbN`, through the kernel's ublk driver.
//!
//! The way of a request: the driver completes a fetch (`queue`) → its descriptor is parsed (`request`) → the data of a
//! write is copied from the device into a buffer → the volume executes it → the data of a read is copied back, unless the
//! members' reads have filled the request's own memory → the result is committed together with the next fetch. All of it
//! goes through the ring of the shard that the queue is on.
//!
//! - The device outlives its server: killed or replaced, its requests wait for the next server of the same array, and
//!   those in flight are sent again (`device`).
//! - Why this module speaks to the driver itself and not through a library, and why data is copied: docs/decisions,
//!   2026-11-21-ublk.md.

mod control;
mod device;
#[allow(unsafe_code)]
mod kernel;
mod openers;
mod parameters;
mod protocol;
mod queue;
mod request;

pub use control::{Control, UblkError, block_path, character_path};
pub use device::{UblkDevice, UblkOptions, UblkStatus, is_awaited};
pub use openers::Opener;
pub use parameters::optimal_bytes;
