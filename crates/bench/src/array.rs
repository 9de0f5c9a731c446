//! The array under test: members without superblocks, on real shards.

use std::fs::File;
use std::future::Future;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;
use std::time::Duration;

use engine::array::volume::VolumeMode;
use engine::device::Device;
use engine::members::load::Clock;
use engine::members::{MemberState, Members};
use engine::stripe::Shared;
use engine::stripe::intent::Intent;
use host::array::{HostArray, MemberDevice};
use host::device::memory::Memory;
use host::device::{DeviceSpec, OpenOptions, SharedDevice};
use host::ring::{RingBackend, RingOptions};
use host::shard::{ShardContext, ShardOptions, Shards};
use layout::geometry::Geometry;
use layout::units::{DeviceOffset, Slot};

use crate::clock::now_ns;
use crate::setting::{Consistency, Setting};
use crate::stages::StageTimes;
use crate::{Error, bitmap};

/// How long work that still runs at the end, such as an export's clients, may take.
const STOP_GRACE: Duration = Duration::from_secs(1);

/// How long an idle shard polls with `--poll`.
const POLL: Duration = Duration::from_micros(100);

/// Bytes of a block device that are read to see whether it holds something; files are read as a whole.
const LOOKED_AT_BYTES: u64 = 64 << 20;

/// Zeroed in one operation.
const ZEROED_BYTES: u64 = 64 << 20;

/// An array on shards.
pub(crate) struct Array {
    pub(crate) geometry: Geometry,
    pub(crate) host: HostArray,
    pub(crate) devices: Vec<SharedDevice>,
    pub(crate) stages: Arc<StageTimes>,
    /// Unit of addressing in bytes.
    pub(crate) unit: u64,
    /// Dropped last: the fields above hold handles to the shards.
    pub(crate) shards: Shards,
}

/// Members that are open, for one array after the other.
pub(crate) struct OpenMembers {
    devices: Vec<SharedDevice>,
    /// Those that hold something.
    occupied: Vec<usize>,
}

impl OpenMembers {
    /// Opens what the setting names.
    pub(crate) fn open(setting: &Setting) -> Result<Self, Error> {
        let specs = setting.specs()?;
        let occupied = occupied(&specs)?;
        if let (Some(first), false) = (occupied.first(), setting.force) {
            return Err(match &specs[*first] {
                DeviceSpec::Remote(address) => Error::NotLookedAt { member: address.to_string() },
                other => Error::Occupied { path: other.to_string().into() },
            });
        }
        let options = OpenOptions { remote: setting.remote.clone(), ..OpenOptions::default() };
        let devices =
            specs.iter().map(|spec| spec.open(&options)).collect::<Result<Vec<SharedDevice>, _>>()?;
        let members = OpenMembers { devices, occupied };
        setting.check(&members.geometry(setting)?)?;
        members.devices.iter().for_each(populate);
        Ok(members)
    }

    /// The same members without regard for what they hold: parity does not agree with data. For speed alone.
    pub(crate) fn of_any_contents(self) -> Self {
        OpenMembers { occupied: Vec::new(), ..self }
    }

    /// The number of members.
    pub(crate) fn count(&self) -> usize {
        self.devices.len()
    }

    /// The members' memory by slot, if all are memory that stores.
    pub(crate) fn memories(&self) -> Option<Vec<Arc<Memory>>> {
        memories(&self.devices)
    }

    fn geometry(&self, setting: &Setting) -> Result<Geometry, Error> {
        let size = self.devices.iter().map(|device| device.info().size_bytes).min();
        // The bitmap's room begins at a multiple of its size.
        let behind =
            |size: u64| (size / bitmap::ROOM_BYTES * bitmap::ROOM_BYTES).saturating_sub(bitmap::ROOM_BYTES);
        let size = match setting.consistency {
            Consistency::Bitmap => behind(size.unwrap_or(0)),
            _ => size.unwrap_or(0),
        };
        setting.geometry(self.devices.len(), size)
    }
}

impl Array {
    /// Starts the array. Its contents are zeroes, unless the members are memory that another array has used.
    pub(crate) fn start(setting: &Setting, members: &OpenMembers) -> Result<Self, Error> {
        let OpenMembers { devices, occupied } = members;
        let geometry = members.geometry(setting)?;
        setting.check(&geometry)?;
        devices.iter().for_each(|device| set_cost(device, setting));
        let busy_poll = if setting.poll { POLL } else { Duration::ZERO };
        let backend = if setting.io_uring { RingBackend::Auto } else { RingBackend::Threads };
        let ring = RingOptions { backend, ..RingOptions::default() };
        let options = ShardOptions { ring, busy_poll, stop_grace: STOP_GRACE, ..ShardOptions::default() };
        let shards = Shards::start(setting.shards, &options, |_| {}).map_err(shards_failed)?;
        // Whatever members without redundancy hold agrees.
        for at in occupied.iter().filter(|_| geometry.losses_survived() > 0 || setting.verify) {
            zero(&shards, &devices[*at])?;
        }
        let stages = Arc::new(StageTimes::new(setting.shards));
        let shared = shared(setting, geometry, &stages);
        let fitted = |(slot, device): (Slot, &SharedDevice)| {
            let member = MemberDevice { device: device.clone(), data_offset: DeviceOffset::START };
            (!setting.fail.contains(&slot)).then_some(member)
        };
        let members: Vec<Option<MemberDevice>> = Slot::all().zip(devices).map(fitted).collect();
        let host = HostArray::start(
            shards.handle(),
            Arc::clone(&shared),
            Arc::new(VolumeMode::default()),
            &members,
            512,
        );
        if shared.intent.has_bitmap() {
            let (shared, devices) = (Arc::clone(&shared), devices.clone());
            shards.handle().spawn_on(0, move |context| bitmap::keep(context, shared, devices));
        }
        shards.handle().spawn_on(0, move |context| keep(context, shared));
        let unit =
            devices.iter().map(|device| u64::from(device.info().logical_block_bytes)).max().unwrap_or(512);
        Ok(Array {
            geometry,
            host: host.map_err(shards_failed)?,
            devices: devices.clone(),
            stages,
            unit,
            shards,
        })
    }

    /// The members' memory by slot, if all are memory that stores.
    pub(crate) fn memories(&self) -> Option<Vec<Arc<Memory>>> {
        memories(&self.devices)
    }

    /// Slots that are not in use.
    pub(crate) fn missing(&self) -> Vec<Slot> {
        let members = &self.host.shared.members;
        self.geometry.slots().filter(|slot| members.state(*slot) != MemberState::InSync).collect()
    }
}

impl Drop for Array {
    /// Members on other machines have tasks on the shards, which end with the array.
    fn drop(&mut self) {
        self.host.close();
    }
}

fn memories(devices: &[SharedDevice]) -> Option<Vec<Arc<Memory>>> {
    let memory = |device: &SharedDevice| match device {
        SharedDevice::Memory(memory) if memory.stores() => Some(Arc::clone(memory)),
        SharedDevice::Memory(_) | SharedDevice::Block(_) | SharedDevice::Remote(_) => None,
    };
    devices.iter().map(memory).collect()
}

fn shared(setting: &Setting, geometry: Geometry, stages: &Arc<StageTimes>) -> Arc<Shared> {
    let state = |slot| if setting.fail.contains(&slot) { MemberState::Failed } else { MemberState::InSync };
    let states: Vec<MemberState> = geometry.slots().map(state).collect();
    let members = Members::new(geometry, &states, Box::new(|_| {}));
    let is_marked = geometry.losses_survived() > 0;
    let intent = match setting.consistency {
        Consistency::Bitmap if is_marked => {
            Intent::with_bitmap(bitmap::mapping(setting, &geometry), true, setting.bitmap_locks)
        }
        policy => Intent::new(setting.shards, is_marked && policy == Consistency::Resync, true),
    };
    let cache = usize::try_from(setting.parity_cache).unwrap_or(usize::MAX);
    let shared = Shared::new(geometry, members, intent, setting.shards, cache);
    shared.two_phase.store(setting.two_phase, Relaxed);
    shared.loads.set_clock(Arc::new(Monotonic));
    shared.loads.set_parity_agrees(true); // all of it is zeroes
    shared.loads.set_policy(setting.update_policy);
    let observer: Arc<StageTimes> = Arc::clone(stages);
    assert!(shared.observer.set(observer).is_ok(), "nobody else observes");
    shared
}

/// The engine's clock.
struct Monotonic;

impl Clock for Monotonic {
    fn now_ns(&self) -> u64 {
        now_ns()
    }
}

/// There are no superblocks: every change of the members counts as durable at once.
async fn keep(context: ShardContext, shared: Arc<Shared>) {
    let mut stopping = context.stopping();
    loop {
        let mut wanted = std::pin::pin!(shared.members.metadata_wanted());
        let next = std::future::poll_fn(|task| match Pin::new(&mut stopping).poll(task) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => wanted.as_mut().poll(task).map(Some),
        });
        let Some(version) = next.await else { return };
        shared.members.metadata_written(version);
    }
}

pub(crate) fn shards_failed(error: impl std::fmt::Display) -> Error {
    Error::Shards(error.to_string())
}

fn set_cost(device: &SharedDevice, setting: &Setting) {
    if let SharedDevice::Memory(memory) = device {
        memory.set_read_cost(Duration::from_micros(setting.member_read_us));
        memory.set_speed(setting.member_rate);
    }
}

/// Touches all memory of the members, so that the system provides it before anything is timed; unless it would
/// take most of what is free.
fn populate(device: &SharedDevice) {
    let free = available_bytes();
    if let SharedDevice::Memory(memory) = device
        && memory.stores()
        && memory.info().size_bytes < free / 2 + free / 4
    {
        let _slower = memory.populate();
    }
}

fn available_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().split(' ').next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// Which members hold something: files and devices that do, and all on other machines, whose contents are not looked at.
fn occupied(specs: &[DeviceSpec]) -> Result<Vec<usize>, Error> {
    let mut occupied = Vec::new();
    for (at, spec) in specs.iter().enumerate() {
        let is_occupied = match spec {
            DeviceSpec::Path(path) => {
                holds_something(path).map_err(|source| Error::Io { path: path.clone(), source })?
            }
            DeviceSpec::Remote(_) => true,
            DeviceSpec::Memory { .. } | DeviceSpec::Null { .. } => false,
        };
        if is_occupied {
            occupied.push(at);
        }
    }
    Ok(occupied)
}

fn holds_something(path: &Path) -> std::io::Result<bool> {
    let metadata = std::fs::metadata(path)?;
    if metadata.is_file() && metadata.blocks() == 0 {
        return Ok(false);
    }
    let mut file = File::open(path)?;
    let end = file.seek(SeekFrom::End(0))?;
    let head = if metadata.file_type().is_block_device() { LOOKED_AT_BYTES } else { end };
    Ok(has_nonzero(&mut file, 0, head)?
        || has_nonzero(&mut file, end.saturating_sub(LOOKED_AT_BYTES).max(head), end)?)
}

fn has_nonzero(file: &mut File, from: u64, to: u64) -> std::io::Result<bool> {
    file.seek(SeekFrom::Start(from))?;
    let (mut part, mut left) = (vec![0; 1 << 20], to.saturating_sub(from));
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(part.len());
        let got = file.read(&mut part[..most])?;
        if got == 0 {
            return Ok(false);
        }
        if part[..got].iter().any(|byte| *byte != 0) {
            return Ok(true);
        }
        left -= got as u64;
    }
    Ok(false)
}

/// Parity has to agree with the data from the start: all zeroes do.
fn zero(shards: &Shards, device: &SharedDevice) -> Result<(), Error> {
    let device = device.clone();
    let job = async move |context: ShardContext| {
        let (size, on_shard) = (device.info().size_bytes, device.attach(&context.ring));
        for at in (0..size).step_by(ZEROED_BYTES as usize) {
            let bytes = ZEROED_BYTES.min(size - at);
            on_shard
                .write_zeroes(DeviceOffset::new(at), bytes, true)
                .await
                .map_err(|error| Error::Request(error.to_string()))?;
        }
        Ok(())
    };
    shards.run_on(0, job).map_err(shards_failed)?
}
