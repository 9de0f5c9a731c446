//! An array as clients get it, in each way in which they can, whichever engine is below.
//!
//! What serves requests is generic over the engine. It is compiled here, for both engines, as the rest of a request's path is: the
//! program that calls this may be compiled for size.

use std::io;
use std::path::Path;
use std::rc::Rc;

use engine::in_place::InPlace;
use engine::log::engine::LogSet;
use engine::volume::{Engine, Volume as _, VolumeInfo};

use super::{nbd, nvme_tcp, ublk, vhost_user};
use crate::balance::BalancedVolume;
use crate::device::HostDevice;
use crate::device::zoned::HostZones;
use crate::shard::{ShardContext, ShardGone};
use crate::socket::SocketAccess;
use crate::volumes::Volumes;

/// The volumes of an array, each client's with the help of other shards where its own is busy, if that is wanted.
#[derive(Clone)]
pub struct ClientVolumes {
    volumes: EngineVolumes,
    may_help: bool,
}

#[derive(Clone)]
enum EngineVolumes {
    InPlace(Volumes<InPlace<HostDevice>>),
    Log(Volumes<LogSet<HostZones>>),
}

/// The same with the volumes of the engine that the array has.
macro_rules! of_engine {
    ($array:expr, $volumes:ident => $body:expr) => {
        match &$array.volumes {
            EngineVolumes::InPlace($volumes) => $body,
            EngineVolumes::Log($volumes) => $body,
        }
    };
}

impl ClientVolumes {
    /// Of an array in place.
    pub fn in_place(volumes: &Volumes<InPlace<HostDevice>>, may_help: bool) -> Self {
        ClientVolumes { volumes: EngineVolumes::InPlace(volumes.clone()), may_help }
    }

    /// Of a zoned array.
    pub fn zoned(volumes: &Volumes<LogSet<HostZones>>, may_help: bool) -> Self {
        ClientVolumes { volumes: EngineVolumes::Log(volumes.clone()), may_help }
    }

    /// Size and limits of the array, as clients see them. Not for use on a shard.
    ///
    /// # Errors
    /// Its shards have ended.
    pub fn info(&self) -> Result<VolumeInfo, ShardGone> {
        of_engine!(self, volumes => {
            let on_shard = volumes.clone();
            volumes.shards().run_on(0, move |_| async move { on_shard.here().info() })
        })
    }

    /// To NBD clients under `name`.
    ///
    /// # Errors
    /// Why there is no such export.
    pub fn over_nbd(
        &self,
        exports: &nbd::Exports,
        name: &str,
        options: nbd::ExportOptions,
    ) -> Result<(), nbd::AddError> {
        of_engine!(self, volumes => exports.add(name, options, self.opener(volumes)))
    }

    /// To NVMe/TCP hosts as a namespace of the subsystem `nqn`.
    ///
    /// # Errors
    /// Why there is no such namespace.
    pub fn over_nvme_tcp(
        &self,
        subsystems: &nvme_tcp::Subsystems,
        nqn: &::nvme_tcp::names::Nqn,
        namespace: &nvme_tcp::NewNamespace,
        reservations: nvme_tcp::KeptReservations,
    ) -> Result<(), nvme_tcp::SubsystemError> {
        of_engine!(self, volumes => {
            subsystems.add_namespace(nqn, namespace, volumes.shards(), reservations, self.opener(volumes))
        })
    }

    /// As a block device of this machine.
    ///
    /// # Errors
    /// As [`ublk::UblkDevice::start`].
    pub fn as_block_device(
        &self,
        control: ublk::Control,
        options: &ublk::UblkOptions,
        info: &VolumeInfo,
    ) -> Result<ublk::UblkDevice, ublk::UblkError> {
        of_engine!(self, volumes => {
            ublk::UblkDevice::start(control, volumes.shards(), options, info, self.opener(volumes))
        })
    }

    /// As a block device of the virtual machine that comes to the socket.
    ///
    /// # Errors
    /// As [`vhost_user::Server::start`].
    pub fn to_virtual_machine(
        &self,
        socket: &Path,
        access: SocketAccess,
        identity: vhost_user::Identity,
    ) -> io::Result<vhost_user::Server> {
        of_engine!(self, volumes => {
            vhost_user::Server::start(socket, access, volumes.shards(), identity, self.opener(volumes))
        })
    }

    /// What opens the array for a client that comes to a shard.
    fn opener<E: Engine>(
        &self,
        volumes: &Volumes<E>,
    ) -> impl Fn(&ShardContext) -> Rc<BalancedVolume<E>> + Clone + Send + Sync + use<E> {
        let (volumes, may_help) = (volumes.clone(), self.may_help);
        move |context| BalancedVolume::open(&volumes, context, may_help)
    }
}
