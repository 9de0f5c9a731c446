//! Where clients reach a served array: over NBD, and as a block device of this machine.

use std::time::Duration;

use host::export::nbd::Server;
use host::export::ublk::UblkDevice;

use super::block_device;
use crate::failure::Failure;
use crate::status::{BlockDeviceStatus, ExportStatus};

/// How long clients get to finish at a stop.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// What clients are connected to.
pub struct Exports {
    pub(super) server: Server,
    pub(super) device: Option<UblkDevice>,
}

impl Exports {
    /// Takes the block device away, if there is one.
    ///
    /// # Errors
    /// [`crate::exit::ExitKind::DeviceInUse`]: the device stays, and is served as before.
    pub fn take_device_away(&self) -> Result<(), Failure> {
        self.device
            .as_ref()
            .map_or(Ok(()), |device| device.stop().map_err(|error| block_device::failure(&error)))
    }

    /// Leaves the block device, if there is one, to the next server of the array; this one is to be stopped now.
    ///
    /// # Errors
    /// [`crate::exit::ExitKind::NoDriver`]: the driver is too old; the device is served as before.
    pub fn leave_device(&self) -> Result<(), Failure> {
        self.device
            .as_ref()
            .map_or(Ok(()), |device| device.leave().map_err(|error| block_device::failure(&error)))
    }

    /// Connections of NBD clients.
    pub(super) fn connections(&self) -> u64 {
        self.server.status().exports.iter().map(|export| export.connections as u64).sum()
    }

    /// Every address that clients connect to.
    pub(super) fn status(&self) -> Vec<ExportStatus> {
        let status = self.server.status();
        let connections = self.connections();
        let uri = |address: &String| ExportStatus { uri: address.clone(), connections };
        status.addresses.iter().map(uri).collect()
    }

    /// How the block device is.
    pub(super) fn device_status(&self) -> Option<BlockDeviceStatus> {
        let status = self.device.as_ref()?.status();
        Some(BlockDeviceStatus {
            path: status.path.display().to_string(),
            queues: status.queues,
            depth: status.depth,
            zero_copy: status.zero_copy,
            recovered: status.recovered,
            failed: status.failed,
            errors: status.errors,
        })
    }

    /// Ends all connections, each after what it has under way.
    pub(super) fn stop(self) {
        self.server.stop(STOP_LIMIT);
    }
}
