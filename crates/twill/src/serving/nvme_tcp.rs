//! The array as a namespace of NVMe/TCP hosts.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use host::export::array::ClientVolumes;
use host::export::nvme_tcp::{NewNamespace, NewSubsystem, Server, Subsystems};
use host::shard::Handle;
use nvme_tcp::names::Nqn;
use uuid::Uuid;

use super::hosts::{HostAccess, listen, subsystem_failure};
use crate::failure::Failure;
use crate::status::ExportStatus;

/// Hex digits of a UUID that make a serial number.
const SERIAL_CHARACTERS: usize = 20;

/// How an array is served to NVMe/TCP hosts.
#[derive(Clone, Debug)]
pub struct NvmeTcpOptions {
    /// Where to listen.
    pub listen: Vec<SocketAddr>,
    /// Name of the subsystem; none: made of the array's UUID.
    pub nqn: Option<Nqn>,
    /// Which hosts may connect.
    pub access: HostAccess,
}

/// An array that NVMe/TCP hosts reach, as namespace 1 of a subsystem.
pub struct NvmeTcpExport {
    server: Server,
    nqn: Nqn,
}

impl NvmeTcpExport {
    /// Serves the array. The namespace is known by the array's UUID, so that it is the same wherever the array is served.
    ///
    /// # Errors
    /// Its reservations are lost, or an address cannot be had.
    pub(super) fn start(
        shards: &Handle,
        volumes: &ClientVolumes,
        options: &NvmeTcpOptions,
        set_uuid: &[u8; 16],
    ) -> Result<Self, Failure> {
        let NvmeTcpOptions { listen: addresses, nqn, access } = options;
        let uuid = Uuid::from_bytes(*set_uuid);
        let nqn = nqn.clone().unwrap_or_else(|| {
            Nqn::new(&format!("nqn.2014-08.org.nvmexpress:uuid:{uuid}")).expect("a short name")
        });
        let reservations = access.reservations(&format!("the array as {nqn}"), *set_uuid)?;
        let subsystems =
            Subsystems::with_keys(access.keys.clone()).map_err(|error| subsystem_failure(&error))?;
        let subsystems = Arc::new(subsystems);
        let serial = uuid.simple().to_string()[..SERIAL_CHARACTERS].to_owned();
        let subsystem = NewSubsystem {
            nqn: nqn.clone(),
            serial,
            allow: access.allow.clone(),
            drives: String::new(),
            peers: None,
            peer_memory: 0,
        };
        subsystems.add(subsystem).map_err(|error| subsystem_failure(&error))?;
        let namespace = NewNamespace { id: 1, uuid: *set_uuid };
        volumes
            .over_nvme_tcp(&subsystems, &nqn, &namespace, reservations)
            .map_err(|error| subsystem_failure(&error))?;
        let server = Server::new(shards.clone(), subsystems, access.server_options());
        listen(&server, addresses)?;
        Ok(NvmeTcpExport { server, nqn })
    }

    /// Every address that hosts connect to. Hosts are the same at each.
    pub(super) fn status(&self) -> Vec<ExportStatus> {
        let status = self.server.status();
        let hosts: Vec<String> = status.hosts.iter().map(|one| one.host.to_string()).collect();
        let at = |address: &SocketAddr| ExportStatus {
            uri: format!("nvme+tcp://{address}/{}", self.nqn),
            connections: hosts.len() as u64,
            hosts: hosts.clone(),
        };
        status.addresses.iter().map(at).collect()
    }

    /// Hosts that are connected.
    pub(super) fn hosts(&self) -> u64 {
        self.server.status().hosts.len() as u64
    }

    /// Ends all connections, each after what it has at work; those that do not end within the limit are cut off.
    pub(super) fn stop(&self, limit: Duration) {
        self.server.stop(limit);
    }
}
