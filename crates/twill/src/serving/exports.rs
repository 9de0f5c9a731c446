//! Where clients reach a served array: over NBD and NVMe/TCP, as a block device of this machine, and of a virtual one.

use std::thread;
use std::time::{Duration, Instant};

use host::export::array::ClientVolumes;
use host::export::nbd::Server;
use host::export::ublk::{UblkDevice, UblkStatus};
use host::export::vhost_user;
use host::shard::Handle;

use super::nvme_tcp::NvmeTcpExport;
use super::{ServeOptions, block_device, virtual_machine};
use crate::counted::counted_as;
use crate::exit::ExitKind;
use crate::failure::Failure;
use crate::status::ExportStatus;

/// How long clients get to finish at a stop.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// How long a client that has just closed its connection may still be counted.
const LEAVING_LIMIT: Duration = Duration::from_millis(500);

/// How often to look whether it is gone.
const LEAVING_INTERVAL: Duration = Duration::from_millis(10);

/// What clients are connected to.
pub struct Exports {
    pub(super) server: Server,
    pub(super) nvme_tcp: Option<NvmeTcpExport>,
    pub(super) device: Option<UblkDevice>,
    pub(super) machine: Option<vhost_user::Server>,
}

impl Exports {
    /// Serves the array in every other way that was asked for.
    ///
    /// # Errors
    /// Which is refused, and why.
    pub(super) fn add_others(
        &mut self,
        shards: &Handle,
        volumes: &ClientVolumes,
        options: &ServeOptions,
        set_uuid: &[u8; 16],
    ) -> Result<(), Failure> {
        if let Some(nvme_tcp) = &options.nvme_tcp {
            self.nvme_tcp = Some(NvmeTcpExport::start(shards, volumes, nvme_tcp, set_uuid)?);
        }
        self.machine = virtual_machine::start(volumes, options, set_uuid)?;
        // Last: a device that was made is not taken away again.
        self.device = block_device::start(volumes, options, set_uuid)?;
        Ok(())
    }

    /// Takes the block device away, if there is one.
    ///
    /// # Errors
    /// [`ExitKind::DeviceInUse`]: the device stays, and is served as before.
    pub fn take_device_away(&self) -> Result<(), Failure> {
        self.device
            .as_ref()
            .map_or(Ok(()), |device| device.stop().map_err(|error| block_device::failure(&error)))
    }

    /// Leaves the block device, if there is one, to the next server of the array; this one is to be stopped now.
    ///
    /// # Errors
    /// [`ExitKind::NoDriver`]: the driver is too old; the device is served as before.
    pub fn leave_device(&self) -> Result<(), Failure> {
        self.device
            .as_ref()
            .map_or(Ok(()), |device| device.leave().map_err(|error| block_device::failure(&error)))
    }

    /// Refuses to end the exports while clients are connected.
    ///
    /// # Errors
    /// [`ExitKind::DeviceInUse`] with how many and where.
    pub fn check_unused(&self) -> Result<(), Failure> {
        let end = Instant::now() + LEAVING_LIMIT;
        while self.connections() > 0 && Instant::now() < end {
            thread::sleep(LEAVING_INTERVAL);
        }
        let connected = match self.connections() {
            0 => return Ok(()),
            count => counted_as(count, "client is connected", "clients are connected"),
        };
        let places: Vec<String> = self.status().into_iter().map(|export| export.uri).collect();
        let message = format!("the array is in use: {connected} to {}", places.join(", "));
        Err(Failure::new(ExitKind::DeviceInUse, message)
            .help("disconnect them, or cut them off: twill stop --force"))
    }

    /// Connections of NBD clients, NVMe/TCP hosts, and virtual machines.
    pub(super) fn connections(&self) -> u64 {
        let hosts = self.nvme_tcp.as_ref().map_or(0, NvmeTcpExport::hosts);
        self.nbd_connections() + hosts + self.machines()
    }

    fn machines(&self) -> u64 {
        u64::from(self.machine.as_ref().is_some_and(vhost_user::Server::is_connected))
    }

    fn nbd_connections(&self) -> u64 {
        self.server.status().exports.iter().map(|export| export.connections as u64).sum()
    }

    /// Every address that clients connect to.
    pub(super) fn status(&self) -> Vec<ExportStatus> {
        let status = self.server.status();
        let connections = self.nbd_connections();
        let uri = |address: &String| ExportStatus { uri: address.clone(), connections, hosts: Vec::new() };
        let over_nbd = status.addresses.iter().map(uri);
        let to_machine = self.machine.iter().map(|machine| ExportStatus {
            uri: format!("vhost-user:{}", machine.path().display()),
            connections: self.machines(),
            hosts: Vec::new(),
        });
        over_nbd.chain(self.nvme_tcp.iter().flat_map(NvmeTcpExport::status)).chain(to_machine).collect()
    }

    /// Where the block device is.
    pub(super) fn device_path(&self) -> Option<String> {
        Some(self.device.as_ref()?.path().display().to_string())
    }

    /// How the block device is.
    pub(super) fn device_status(&self) -> Option<UblkStatus> {
        Some(self.device.as_ref()?.status())
    }

    /// Ends all connections, each after what it has under way.
    pub(super) fn stop(self) {
        // One after the other, without threads: at a stop there may be no memory for any.
        let end = Instant::now() + STOP_LIMIT;
        let left = || end.saturating_duration_since(Instant::now());
        self.server.stop(STOP_LIMIT);
        if let Some(nvme_tcp) = &self.nvme_tcp {
            nvme_tcp.stop(left());
        }
        if let Some(machine) = &self.machine {
            machine.stop(left());
        }
    }
}
