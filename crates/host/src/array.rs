//! An array on the shards of this machine: on each its own volume, over devices that all shards share.

use std::rc::Rc;
use std::sync::Arc;

use engine::array::volume::{ArrayVolume, VolumeMode};
use engine::in_place::InPlace;
use engine::members::Attached;
use engine::stripe::Shared;

use crate::device::nvme_tcp::PeerGroup;
use crate::device::{HostDevice, SharedDevice};
use crate::shard::{Handle, ShardContext, ShardGone};
use crate::volumes::Volumes;
use layout::units::{DeviceOffset, Slot};

/// The volume of an array on one shard.
pub type HostVolume = ArrayVolume<InPlace<HostDevice>>;

/// A member's device and where its data area starts.
#[derive(Clone)]
pub struct MemberDevice {
    /// The open device.
    pub device: SharedDevice,
    /// Where the data area starts.
    pub data_offset: DeviceOffset,
}

impl MemberDevice {
    /// The shard's way to it.
    fn on(&self, context: &ShardContext) -> Attached<HostDevice> {
        Attached { device: self.device.attach(&context.ring), data_offset: self.data_offset }
    }
}

/// An array that all shards serve. Clones are handles to the same one.
#[derive(Clone)]
pub struct HostArray {
    volumes: Volumes<InPlace<HostDevice>>,
    /// The state that the engine shares between shards.
    pub shared: Arc<Shared>,
    /// Whether the array is read-only or stopping, for all shards.
    pub mode: Arc<VolumeMode>,
    /// Unit of addressing of the array: the largest that a member had at the start, or what its superblocks say.
    pub logical_block_bytes: u32,
    /// Members' targets work together.
    peers: Option<Arc<PeerGroup>>,
}

impl HostArray {
    /// Sets the array up on every shard; `members` in slot order. The unit of addressing is `block_bytes_min`, or larger where a
    /// member's is. Not for use on a shard.
    ///
    /// # Errors
    /// A shard has ended.
    pub fn start(
        shards: Handle,
        shared: Arc<Shared>,
        mode: Arc<VolumeMode>,
        members: &[Option<MemberDevice>],
        block_bytes_min: u32,
    ) -> Result<Self, ShardGone> {
        let block =
            |member: &Option<MemberDevice>| member.as_ref().map(|m| m.device.info().logical_block_bytes);
        let logical_block_bytes = members.iter().filter_map(block).fold(block_bytes_min, u32::max);
        let volumes = Volumes::new(shards, Arc::clone(&mode), logical_block_bytes);
        let (on_shard, members) = (Arc::clone(&shared), members.to_vec());
        volumes.set_up(move |context, shard| {
            let attached = members.iter().map(|member| Some(member.as_ref()?.on(context))).collect();
            let (pool, executor) = (Arc::clone(&context.pool), context.executor.clone());
            InPlace::new(Arc::clone(&on_shard), shard, pool, executor, attached)
        })?;
        Ok(HostArray { volumes, shared, mode, logical_block_bytes, peers: None })
    }

    /// The same with the targets of its members working together, of these and of those that come.
    #[must_use]
    pub fn with_peers(mut self, group: PeerGroup, members: &[Option<MemberDevice>]) -> Self {
        self.peers = Some(Arc::new(group));
        members.iter().flatten().for_each(|member| self.join(member));
        self
    }

    fn join(&self, member: &MemberDevice) {
        if let (Some(peers), Some(remote)) = (&self.peers, member.device.remote()) {
            peers.join(remote, member.data_offset);
        }
    }

    /// Its volumes, for exports.
    pub fn volumes(&self) -> &Volumes<InPlace<HostDevice>> {
        &self.volumes
    }

    /// The array's volume on the calling shard.
    ///
    /// # Panics
    /// If the caller is not a task of one of the array's shards.
    pub fn volume(&self) -> Rc<HostVolume> {
        self.volumes.here()
    }

    /// Puts a device into a slot on every shard, or takes it out. For tasks on a shard.
    ///
    /// # Errors
    /// A shard has ended.
    pub async fn attach(&self, slot: Slot, member: Option<MemberDevice>) -> Result<(), ShardGone> {
        member.iter().for_each(|member| self.join(member));
        let member = move |context: &ShardContext| member.as_ref().map(|member| member.on(context));
        self.on_all(move |set, context| set.devices().attach(slot, member(context))).await
    }

    /// Puts a device beside the member in a slot on every shard, or takes it away. For tasks on a shard.
    ///
    /// # Errors
    /// A shard has ended.
    pub async fn attach_replacement(
        &self,
        slot: Slot,
        device: Option<MemberDevice>,
    ) -> Result<(), ShardGone> {
        device.iter().for_each(|device| self.join(device));
        let device = move |context: &ShardContext| device.as_ref().map(|device| device.on(context));
        self.on_all(move |set, context| set.devices().attach_replacement(slot, device(context))).await
    }

    /// Puts the device beside the member in a slot into the member's place on every shard. For tasks on a shard.
    ///
    /// # Errors
    /// A shard has ended.
    pub async fn promote_replacement(&self, slot: Slot) -> Result<(), ShardGone> {
        self.on_all(move |set, _| set.devices().promote_replacement(slot)).await
    }

    async fn on_all(
        &self,
        change: impl Fn(&InPlace<HostDevice>, &ShardContext) + Clone + Send + 'static,
    ) -> Result<(), ShardGone> {
        let shards = self.volumes.shards();
        for shard in 0..shards.count() {
            let (array, change) = (self.clone(), change.clone());
            let changed = shards.call(shard, move |context| async move {
                change(array.volume().engine(), &context);
            });
            changed.await?;
        }
        Ok(())
    }

    /// Takes the array off every shard. Not for use on a shard.
    pub fn close(&self) {
        self.volumes.close();
    }
}
