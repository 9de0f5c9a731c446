//! A zoned array over software zones in memory, made anew for each run over the same memory.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use engine::array::volume::VolumeMode;
use engine::array::zoned::assemble::{ZonedCandidate, assemble_zoned};
use engine::array::zoned::plan::{DeviceZones, NewZonedArray, Wanted, plan};
use engine::array::zoned::superblock_log::{MemberLog, empty_log};
use engine::buffer::{Buffer, Gather, Slice};
use engine::device::DeviceError;
use engine::error::VolumeError;
use engine::executor::join_all;
use engine::log::config::{MapLimits, OpenCounts, ReclaimOptions};
use engine::log::reclaim::choose::ReclaimPolicy;
use engine::volume::Space as _;
use engine::zone_device::ZoneDevice as _;
use host::device::memory::Memory;
use host::device::zoned::SharedZones;
use host::device::{DeviceSpec, SharedDevice};
use host::machine::check_memory;
use host::shard::{ShardContext, ShardOptions, Shards};
use host::zoned_array::{ZonedArray, ZonedStart};
use layout::zoned::{ArrayPlan, BLOCK_BYTES, MapEntryBytes, MemberZones, Superblock};

use super::plan::{Plan, columns};
use crate::Error;
use crate::array::shards_failed;
use crate::random::{Random, mix};
use crate::setting::Setting;
use crate::workload::Workload;

/// Requests that fill an array.
const FILL_BYTES: u64 = 128 << 10;
/// Fills, or overwrites, in flight.
const FILLS: u64 = 32;

/// Members in memory, and the array that is made of them.
pub(super) struct ZonedMemory {
    memories: Vec<Arc<Memory>>,
    members: Vec<SharedZones>,
    plan: ArrayPlan,
    zones: MemberZones,
    policy: ReclaimPolicy,
}

/// An array that serves.
pub(super) struct Array {
    pub(super) zoned: ZonedArray,
    /// Dropped last: the array holds handles to them.
    pub(super) shards: Shards,
}

impl ZonedMemory {
    pub(super) fn new(wanted: &Plan) -> Result<Self, Error> {
        let mut memories = Vec::new();
        let mut members = Vec::new();
        for spec in wanted.array.specs()? {
            let DeviceSpec::Memory { bytes, .. } = &spec else { continue };
            check_memory(*bytes).map_err(|error| Error::Setting(error.to_string()))?;
            let of_memory = |error| Error::Setting(format!("memory for members: {error}"));
            let memory = Memory::that_keeps_discarded(*bytes, spec.to_string()).map_err(of_memory)?;
            memory.populate().map_err(of_memory)?;
            memories.push(Arc::clone(&memory));
            members.push(SharedZones::place(SharedDevice::Memory(memory), wanted.zone_bytes)?);
        }
        let columns = columns(&wanted.array.level, members.len())?;
        let (reserve_percent, map_entry) = (wanted.reserve_percent, MapEntryBytes::Eight);
        let policy = wanted.reclaim;
        let wanted = Wanted {
            columns,
            small_blocks: None,
            large_blocks: None,
            group: None,
            open: OpenCounts::ONE,
            reserve_percent,
            map_entry,
            carrier: None,
        };
        let shards = shards(1)?;
        let looked = members.clone();
        let devices = shards.run_on(0, move |context| async move {
            let zones = |member: &SharedZones| {
                let device = member.attach(&context.ring).expect("memory needs no commands of its own");
                DeviceZones {
                    name: member.info().name.as_str().to_owned(),
                    logical_block_bytes: member.info().logical_block_bytes,
                    zoned: device.zoned().clone(),
                }
            };
            looked.iter().map(zones).collect::<Vec<_>>()
        });
        let planned = plan(&wanted, &devices.map_err(shards_failed)?);
        let (plan, zones) = planned.map_err(|refusal| Error::Setting(refusal.to_string()))?;
        Ok(ZonedMemory { memories, members, plan, zones, policy })
    }

    /// How the array is laid out.
    pub(super) fn plan(&self) -> &ArrayPlan {
        &self.plan
    }

    /// The members' memory by slot.
    pub(super) fn memories(&self) -> &[Arc<Memory>] {
        &self.memories
    }

    /// A new array, which serves.
    pub(super) fn start(&self, setting: &Setting, map_limits: MapLimits) -> Result<Array, Error> {
        let shards = shards(setting.shards)?;
        let superblocks = self.create(&shards)?;
        self.serve(shards, superblocks, map_limits)
    }

    /// The array that the members hold, which serves.
    pub(super) fn start_again(&self, setting: &Setting, map_limits: MapLimits) -> Result<Array, Error> {
        let shards = shards(setting.shards)?;
        let mut superblocks = Vec::new();
        for member in &self.members {
            let member = member.clone();
            let read = shards.run_on(0, move |context: ShardContext| async move {
                let device = member.attach(&context.ring).expect("memory needs no commands of its own");
                MemberLog::read(&device, &context.pool).await
            });
            let read = read.map_err(shards_failed)?.map_err(|error| Error::Request(error.to_string()))?;
            let (superblock, _) = read.ok_or_else(|| Error::Request("a member has no superblock".into()))?;
            superblocks.push(superblock);
        }
        self.serve(shards, superblocks, map_limits)
    }

    /// Writes the superblocks of a new array.
    fn create(&self, shards: &Shards) -> Result<Vec<Superblock>, Error> {
        let new = NewZonedArray {
            set_uuid: uuid(),
            name: "bench".to_owned(),
            devices: self.members.iter().map(|_| uuid()).collect(),
            plan: self.plan.clone(),
            zones: self.zones,
            now_unix_s: 1,
            random: random(),
        };
        let superblocks: Vec<Superblock> = (0..self.members.len()).map(|slot| new.superblock(slot)).collect();
        for (member, superblock) in self.members.iter().zip(&superblocks) {
            let (member, superblock, zones) = (member.clone(), superblock.clone(), self.zones);
            let written = shards.run_on(0, move |context| write(context, member, superblock, zones));
            written.map_err(shards_failed)?.map_err(|error| Error::Request(error.to_string()))?;
        }
        Ok(superblocks)
    }

    fn serve(
        &self,
        shards: Shards,
        superblocks: Vec<Superblock>,
        map_limits: MapLimits,
    ) -> Result<Array, Error> {
        let candidate = |superblock: &Superblock| ZonedCandidate {
            name: "memory".to_owned(),
            superblock: superblock.clone(),
        };
        let candidates: Vec<ZonedCandidate> = superblocks.iter().map(candidate).collect();
        let assembly = assemble_zoned(&candidates, false).remove(0);
        let start = ZonedStart {
            assembly,
            members: self.members.iter().cloned().map(Some).collect(),
            map_limits,
            reclaim: ReclaimOptions { policy: self.policy, idle_ns: None },
            chosen: superblocks.into_iter().map(Some).collect(),
            events: Box::new(|_| {}),
            clock: || 1,
            random,
        };
        let zoned = ZonedArray::start(&shards.handle(), Arc::new(VolumeMode::default()), start);
        Ok(Array { zoned: zoned.map_err(|why| Error::Request(why.to_string()))?, shards })
    }
}

/// A member's first superblock, over whatever it held.
async fn write(
    context: ShardContext,
    member: SharedZones,
    superblock: Superblock,
    zones: MemberZones,
) -> Result<(), DeviceError> {
    let device = member.attach(&context.ring).expect("memory needs no commands of its own");
    empty_log(&device, &context.pool, &zones).await?;
    for zone in layout::zoned::superblock_log::LOG_ZONES..zones.zones {
        device.reset(zone).await?;
    }
    MemberLog::new(&zones).write(&device, &context.pool, &superblock).await
}

impl Array {
    /// Fills the array, and writes `times` as much as it has again, in the way that is measured then.
    pub(super) fn age(&self, setting: &Setting, times: u64) -> Result<(), Error> {
        let volumes = self.zoned.volumes().clone();
        let setting = Setting { shards: 1, seed: !setting.seed, ..setting.clone() };
        let job = async move |context: ShardContext| {
            let size = volumes.here().engine().0.port.shared.config.logical_blocks * BLOCK_BYTES as u64;
            let data = random_data(setting.bs.max(FILL_BYTES) as usize);
            let workload = Rc::new(Workload::new(&setting, 0, size, None));
            let requests = size * times / setting.bs / FILLS;
            let writer = |number: u64| {
                let (volume, data, workload) = (volumes.here(), data.clone(), Rc::clone(&workload));
                context.executor.spawn_with_result(async move {
                    for at in (number * FILL_BYTES..size).step_by((FILLS * FILL_BYTES) as usize) {
                        let bytes = (size - at).min(FILL_BYTES) as usize;
                        volume.write(at, Gather::from(data.part(0, bytes)), false).await?;
                    }
                    for _ in 0..requests {
                        let request = workload.next(0).expect("a workload without an end");
                        let part = data.part(0, request.bytes as usize);
                        volume.write(request.offset, Gather::from(part), false).await?;
                    }
                    Ok(())
                })
            };
            join_all((0..FILLS).map(writer)).await.into_iter().collect::<Result<(), VolumeError>>()
        };
        let aged = self.shards.run_on(0, job).map_err(shards_failed)?;
        aged.map_err(|error| Error::Request(error.to_string()))
    }

    /// Fills the first `blocks` blocks, one request after the other, overwrites `again` of them at random, and flushes.
    pub(super) fn write(&self, blocks: u64, again: u64) -> Result<(), Error> {
        let volumes = self.zoned.volumes().clone();
        let job = async move |_: ShardContext| {
            let (volume, data) = (volumes.here(), random_data(FILL_BYTES as usize));
            for at in (0..blocks * BLOCK_BYTES as u64).step_by(FILL_BYTES as usize) {
                volume.write(at, Gather::from(data.clone()), false).await?;
            }
            let mut random = Random::new(blocks);
            for _ in 0..again {
                let at = random.below(blocks) * BLOCK_BYTES as u64;
                volume.write(at, Gather::from(data.part(0, BLOCK_BYTES)), false).await?;
            }
            volume.flush().await
        };
        let written = self.shards.run_on(0, job).map_err(shards_failed)?;
        written.map_err(|error| Error::Request(error.to_string()))
    }

    pub(super) fn stop(self) -> Result<(), Error> {
        let stopped = self.zoned.stop().map_err(shards_failed)?;
        stopped.map_err(|error| Error::Request(error.to_string()))
    }
}

/// Contents that no member can compress.
pub(super) fn random_data(bytes: usize) -> Slice {
    let (mut random, mut data) = (Random::new(1), Buffer::new(bytes));
    let words = data.bytes_mut().chunks_exact_mut(8);
    words.for_each(|word| word.copy_from_slice(&random.next().to_le_bytes()));
    data.freeze()
}

fn shards(count: usize) -> Result<Shards, Error> {
    Shards::start(count, &ShardOptions::default(), |_| {}).map_err(shards_failed)
}

/// Numbers that no array of this process had before; nothing else reads this memory.
fn random() -> u64 {
    static DRAWN: AtomicU64 = AtomicU64::new(1);
    mix(DRAWN.fetch_add(1, Relaxed)).max(1)
}

fn uuid() -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&random().to_le_bytes());
    bytes[8..].copy_from_slice(&random().to_le_bytes());
    bytes
}
