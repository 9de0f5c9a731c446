//! The export as a block device of this machine, `/dev/ublkbN`, through the kernel's ublk driver.
//!
//! The way of a request: the driver completes a fetch ([`queue`]) → its descriptor is understood ([`request`]) → the data
//! of a write is copied from the device into a buffer → the volume does it → the data of a read is copied back → the
//! result is given together with the next fetch. All of it goes through the ring of the shard that the queue is on.
//!
//! - The device outlives its server: killed or replaced, its requests wait for the next server of the same array, and
//!   those that were under way are sent again ([`device`]).
//! - Why the driver is talked to here and not through a library, and why the data is copied: docs/decisions,
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
