//! Devices that members live on: files and block devices through the ring, memory, and namespaces on other machines
//! ([nvme_tcp]); and [zoned] ones.
//!
//! A [`DeviceSpec`] says what to open, a [`SharedDevice`] is open for all shards, a [`HostDevice`] is one shard's way
//! to it.

mod block;
mod block_file;
mod host_device;
#[allow(unsafe_code)]
mod ioctl;
pub mod memory;
pub mod nvme_tcp;
mod open;
pub mod spec;
#[cfg(test)]
mod tests;
pub mod zoned;

pub use self::block::BlockDevice;
pub use self::block_file::BlockFile;
pub use self::host_device::{Closing, HostDevice, SharedDevice};
pub use self::open::{OpenError, OpenErrorKind, OpenOptions};
pub use self::spec::{DeviceSpec, SpecError, parse_size};
