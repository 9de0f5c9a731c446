//! What a frontend, a virtual machine monitor, has set up: memory, features and rings. Its messages come on a thread of their own
//! (`server`); rings run on shards.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{self, Receiver};

use engine::volume::VolumeInfo;
use parking_lot::Mutex;
use rustix::fs::OFlags;
use vhost::VhostUserMemoryRegionBase;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};
use virtio_queue::{Queue, QueueT as _};
use vm_memory::{GuestAddress, GuestMemoryMmap, GuestRegionMmap};

use super::in_flight::InFlightMemory;
use super::request::{self, SERIAL_BYTES, WRITE_CACHE_AT, feature};
use super::ring::{Call, RingSetup, RingShared, SharedMemory};

/// Most rings of a device.
pub(super) const RINGS_MAX: u16 = 128;

/// Most entries of a ring.
const ENTRIES_MAX: u16 = 1024;

/// Regions of memory, each of which is a slot of a memory module that can be plugged: as many as the kernel's vhost takes.
const REGIONS_MAX: u64 = 509;

/// What the device is, and how a ring is started on a shard.
pub(super) struct Device {
    /// The socket that machines connect to.
    pub path: PathBuf,
    pub info: VolumeInfo,
    pub serial: [u8; SERIAL_BYTES],
    pub start: Box<dyn Fn(RingSetup) + Send + Sync>,
    /// Requests that were answered with an error.
    pub errors: Arc<AtomicU64>,
}

/// The state of one connection.
pub(super) struct Frontend {
    device: Arc<Device>,
    acknowledged: u64,
    /// The guest may turn the cache off and on.
    write_cache: bool,
    writes_through: Arc<AtomicBool>,
    memory: Arc<SharedMemory>,
    mappings: Vec<Mapping>,
    in_flight: Option<Arc<InFlightMemory>>,
    rings: Vec<Vring>,
}

/// A region of the guest's memory: where the frontend has it, and where the guest.
struct Mapping {
    frontend: u64,
    bytes: u64,
    guest: u64,
}

/// A ring as the frontend has set it up.
#[derive(Default)]
struct Vring {
    entries: u16,
    descriptors: u64,
    available: u64,
    used: u64,
    /// Index of the available ring from which on nothing was begun.
    base: u16,
    kick: Option<OwnedFd>,
    call: Arc<Call>,
    is_enabled: bool,
    running: Option<Running>,
}

struct Running {
    shared: Arc<RingShared>,
    ended: Receiver<u16>,
}

fn refused(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::ReqHandlerError(io::Error::other(error))
}

impl Frontend {
    pub fn new(device: Arc<Device>) -> Self {
        Frontend {
            device,
            acknowledged: 0,
            write_cache: true,
            writes_through: Arc::default(),
            memory: Arc::new(Mutex::new(Arc::new(GuestMemoryMmap::new()))),
            mappings: Vec::new(),
            in_flight: None,
            rings: Vec::new(),
        }
    }

    /// Ends all rings, each after what it has under way.
    pub fn stop_all(&mut self) {
        (0..self.rings.len()).for_each(|index| self.stop(index));
    }

    fn ring(&mut self, index: usize) -> Result<&mut Vring> {
        if index >= usize::from(RINGS_MAX) {
            return Err(Error::InvalidParam);
        }
        if self.rings.len() <= index {
            self.rings.resize_with(index + 1, Vring::default);
        }
        Ok(&mut self.rings[index])
    }

    /// Starts a ring once it is set up whole and enabled.
    fn start_if_ready(&mut self, index: usize) -> Result<()> {
        let ring = self.ring(index)?;
        let Some(kick) = ring.kick.as_ref().filter(|_| ring.is_enabled && ring.running.is_none()) else {
            return Ok(());
        };
        let kick = kick.try_clone().map_err(Error::ReqHandlerError)?;
        let (memory, ring) = (Arc::clone(&self.memory.lock()), &self.rings[index]);
        let mut queue = self.queue(ring).map_err(|error| refused(error.to_string()))?;
        if !queue.is_valid(&*memory) {
            return Err(refused(format!("ring {index} is not inside the guest's memory")));
        }
        let used = queue.used_idx(&*memory, SeqCst).map_err(|error| refused(error.to_string()))?;
        queue.set_next_used(used.0);
        let number = u16::try_from(index).expect("at most RINGS_MAX");
        let mut in_flight = self.in_flight.as_ref().and_then(|memory| memory.ring(number, ring.entries));
        let again = in_flight.as_mut().map(|in_flight| in_flight.take_over(used)).unwrap_or_default();
        if !again.is_empty() {
            // Of what was available all was begun that the used ring has, and what is to be begun again.
            let begun = u16::try_from(again.len()).expect("at most as many as entries");
            queue.set_next_avail(used.0.wrapping_add(begun));
        }
        let shared = Arc::new(RingShared {
            path: self.device.path.clone(),
            stop: AtomicBool::new(false),
            writes_through: Arc::clone(&self.writes_through),
            errors: Arc::clone(&self.device.errors),
            serial: self.device.serial,
        });
        let (sender, ended) = mpsc::channel();
        (self.device.start)(RingSetup {
            index: number,
            queue,
            memory: Arc::clone(&self.memory),
            kick,
            call: Arc::clone(&ring.call),
            in_flight,
            again,
            shared: Arc::clone(&shared),
            ended: sender,
        });
        self.rings[index].running = Some(Running { shared, ended });
        Ok(())
    }

    fn queue(&self, ring: &Vring) -> std::result::Result<Queue, virtio_queue::Error> {
        let mut queue = Queue::new(ENTRIES_MAX)?;
        queue.try_set_size(ring.entries)?;
        queue.try_set_desc_table_address(GuestAddress(ring.descriptors))?;
        queue.try_set_avail_ring_address(GuestAddress(ring.available))?;
        queue.try_set_used_ring_address(GuestAddress(ring.used))?;
        queue.set_event_idx(self.acknowledged & feature::EVENT_INDEX != 0);
        queue.set_next_avail(ring.base);
        queue.set_ready(true);
        Ok(queue)
    }

    /// Ends a ring after what it has under way: its members answer or fail in time. Where its shard is gone nothing is.
    fn stop(&mut self, index: usize) {
        let Some(ring) = self.rings.get_mut(index) else { return };
        let Some(Running { shared, ended }) = ring.running.take() else { return };
        shared.stop.store(true, SeqCst);
        if let Some(kick) = &ring.kick {
            let _full_is_as_good = rustix::io::write(kick, &1u64.to_ne_bytes());
        }
        if let Ok(base) = ended.recv() {
            ring.base = base;
        }
    }

    fn set_enabled(&mut self, index: usize, is_enabled: bool) -> Result<()> {
        self.ring(index)?.is_enabled = is_enabled;
        match is_enabled {
            true => self.start_if_ready(index),
            false => {
                self.stop(index);
                Ok(())
            }
        }
    }

    fn set_memory(&mut self, memory: GuestMemoryMmap) {
        *self.memory.lock() = Arc::new(memory);
    }

    /// Where the guest has what the frontend has there.
    fn guest_address(&self, frontend: u64) -> Result<u64> {
        let is_there = |mapping: &&Mapping| {
            frontend.checked_sub(mapping.frontend).is_some_and(|inside| inside < mapping.bytes)
        };
        let mapping = self.mappings.iter().find(is_there).ok_or(Error::InvalidParam)?;
        Ok(frontend - mapping.frontend + mapping.guest)
    }

    fn note_cache(&self) {
        let flushes = self.acknowledged & feature::FLUSH != 0;
        self.writes_through.store(!(flushes && self.write_cache), SeqCst);
    }
}

fn mapped(region: &VhostUserMemoryRegion, file: File) -> Result<(GuestRegionMmap, Mapping)> {
    let map = region.mmap_region(file)?;
    let guest = GuestRegionMmap::new(map, GuestAddress(region.guest_phys_addr)).ok_or(Error::InvalidParam)?;
    let mapping =
        Mapping { frontend: region.user_addr, bytes: region.memory_size, guest: region.guest_phys_addr };
    Ok((guest, mapping))
}

/// An event of the frontend's, which this process never waits at.
fn event(file: Option<File>) -> Result<Option<OwnedFd>> {
    let Some(file) = file else { return Ok(None) };
    let flags = rustix::fs::fcntl_getfl(&file).map_err(io::Error::from);
    flags
        .and_then(|flags| Ok(rustix::fs::fcntl_setfl(&file, flags | OFlags::NONBLOCK)?))
        .map_err(Error::ReqHandlerError)?;
    Ok(Some(file.into()))
}

impl VhostUserBackendReqHandlerMut for Frontend {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.reset_device()
    }

    fn reset_device(&mut self) -> Result<()> {
        self.stop_all();
        self.rings.clear();
        self.acknowledged = 0;
        self.write_cache = true;
        self.note_cache();
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(request::features(&self.device.info))
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        if features & !request::features(&self.device.info) != 0 {
            return Err(Error::InvalidParam);
        }
        self.acknowledged = features;
        self.note_cache();
        // Without the extension there is no message that enables a ring.
        if features & feature::PROTOCOL == 0 {
            for index in 0..self.rings.len() {
                self.set_enabled(index, true)?;
            }
        }
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        postcopy: Option<bool>,
    ) -> Result<Option<Vec<VhostUserMemoryRegionBase>>> {
        if postcopy.is_some() {
            return Err(Error::InvalidOperation("postcopy is not offered"));
        }
        let all: Result<Vec<_>> =
            regions.iter().zip(files).map(|(region, file)| mapped(region, file)).collect();
        let (regions, mappings): (Vec<_>, Vec<_>) = all?.into_iter().unzip();
        self.set_memory(GuestMemoryMmap::from_regions(regions).map_err(refused)?);
        self.mappings = mappings;
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, entries: u32) -> Result<()> {
        let fits = u16::try_from(entries).ok().filter(|fits| *fits <= ENTRIES_MAX && fits.is_power_of_two());
        let entries = fits.ok_or(Error::InvalidParam)?;
        self.ring(index as usize)?.entries = entries;
        Ok(())
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        descriptors: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        let [descriptors, used, available] =
            [descriptors, used, available].map(|address| self.guest_address(address));
        let (descriptors, used, available) = (descriptors?, used?, available?);
        let ring = self.ring(index as usize)?;
        (ring.descriptors, ring.used, ring.available) = (descriptors, used, available);
        Ok(())
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        let base = u16::try_from(base).map_err(|_| Error::InvalidParam)?;
        self.ring(index as usize)?.base = base;
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        self.stop(index as usize);
        let ring = self.ring(index as usize)?;
        ring.kick = None;
        *ring.call.lock() = None;
        Ok(VhostUserVringState::new(index, u32::from(ring.base)))
    }

    fn set_vring_kick(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let index = usize::from(index);
        self.stop(index);
        let kick = event(file)?;
        let is_enabled_by_itself = self.acknowledged & feature::PROTOCOL == 0;
        let ring = self.ring(index)?;
        ring.kick = kick;
        ring.is_enabled |= is_enabled_by_itself;
        self.start_if_ready(index)
    }

    fn set_vring_call(&mut self, index: u8, file: Option<File>) -> Result<()> {
        let call = event(file)?;
        *self.ring(usize::from(index))?.call.lock() = call;
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, _file: Option<File>) -> Result<()> {
        self.ring(usize::from(index)).map(|_| ())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD
            | VhostUserProtocolFeatures::RESET_DEVICE
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS)
    }

    fn set_protocol_features(&mut self, _features: u64) -> Result<()> {
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(u64::from(RINGS_MAX))
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.set_enabled(index as usize, enable)
    }

    fn get_config(&mut self, offset: u32, size: u32, _flags: VhostUserConfigFlags) -> Result<Vec<u8>> {
        Ok(request::config(&self.device.info, RINGS_MAX, self.write_cache, offset, size))
    }

    fn set_config(&mut self, offset: u32, bytes: &[u8], _flags: VhostUserConfigFlags) -> Result<()> {
        match (offset, bytes) {
            (WRITE_CACHE_AT, [cache @ (0 | 1)]) => {
                self.write_cache = *cache == 1;
                self.note_cache();
                Ok(())
            }
            _ => Err(Error::InvalidParam),
        }
    }

    fn get_inflight_fd(&mut self, asked: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        let (rings, entries) = (asked.num_queues, asked.queue_size);
        if !(1..=RINGS_MAX).contains(&rings) || !(1..=ENTRIES_MAX).contains(&entries) {
            return Err(Error::InvalidParam);
        }
        let (memory, file, area) = InFlightMemory::new(rings, entries).map_err(Error::ReqHandlerError)?;
        self.in_flight = Some(Arc::new(memory));
        Ok((area, file))
    }

    fn set_inflight_fd(&mut self, kept: &VhostUserInflight, file: File) -> Result<()> {
        let memory = InFlightMemory::open(kept, file).map_err(Error::ReqHandlerError)?;
        self.in_flight = Some(Arc::new(memory));
        Ok(())
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(REGIONS_MAX)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        postcopy: Option<bool>,
    ) -> Result<Option<VhostUserMemoryRegionBase>> {
        if postcopy.is_some() {
            return Err(Error::InvalidOperation("postcopy is not offered"));
        }
        let (region, mapping) = mapped(region, file)?;
        let memory = self.memory.lock().insert_region(Arc::new(region)).map_err(refused)?;
        self.set_memory(memory);
        self.mappings.push(mapping);
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let (start, bytes) = (GuestAddress(region.guest_phys_addr), region.memory_size);
        let (memory, _) = self.memory.lock().remove_region(start, bytes).map_err(refused)?;
        self.set_memory(memory);
        self.mappings.retain(|mapping| mapping.guest != region.guest_phys_addr);
        Ok(())
    }

    fn set_gpu_socket(&mut self, _gpu: GpuBackend) -> Result<()> {
        Err(not_offered())
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Result<File> {
        Err(not_offered())
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _file: File,
    ) -> Result<Option<File>> {
        Err(not_offered())
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(not_offered())
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(not_offered())
    }

    fn set_log_base(&mut self, _log: &VhostUserLog, _file: File) -> Result<()> {
        Err(not_offered())
    }
}

fn not_offered() -> Error {
    Error::InvalidOperation("it is not offered")
}
