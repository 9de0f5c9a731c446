//! A machine and its guest: memory, one ring, and requests that are right or not.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vhost::vhost_user::message::{VhostUserInflight, VhostUserProtocolFeatures};
use vhost::vhost_user::{Frontend, VhostUserFrontend as _};
use vhost::{VhostBackend as _, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{Bytes as _, FileOffset, GuestAddress, GuestMemoryMmap, GuestRegionMmap, MmapRegion};
use vmm_sys_util::eventfd::EventFd;

const MEMORY_BYTES: u64 = 4 << 20;
/// Where the frontend says that it has the guest's memory.
const FRONTEND_AT: u64 = 0x7000_0000_0000;
pub const ENTRIES: u16 = 16;
pub const DESCRIPTORS: u64 = 0;
pub const AVAILABLE: u64 = 0x4000;
pub const USED: u64 = 0x8000;
const HEADER: u64 = 0x1_0000;
const STATUS: u64 = 0x1_1000;
const DATA: u64 = 0x2_0000;

/// What is negotiated: version 1, the extension of vhost-user, and a cache that is flushed.
const FEATURES: u64 = 1 << 32 | 1 << 30 | 1 << 9;

pub struct Guest {
    pub frontend: Frontend,
    pub memory: GuestMemoryMmap,
    file: File,
    kick: EventFd,
    call: EventFd,
    pub available: u16,
    pub in_flight: Option<(VhostUserInflight, File)>,
}

impl Guest {
    pub fn connect(path: &Path) -> Self {
        let file = File::from(memfd_create("guest", MemfdFlags::CLOEXEC).expect("a memfd"));
        ftruncate(&file, MEMORY_BYTES).expect("its size");
        Self::with_memory(path, file, None)
    }

    /// Connects with memory that there is already, and what is noted of requests under way.
    pub fn with_memory(path: &Path, file: File, in_flight: Option<(VhostUserInflight, File)>) -> Self {
        let mut frontend = Frontend::connect(path, 4).expect("connected");
        let map = FileOffset::new(file.try_clone().expect("a copy"), 0);
        let map = MmapRegion::from_file(map, MEMORY_BYTES as usize).expect("mapped");
        let region = GuestRegionMmap::new(map, GuestAddress(0)).expect("a region");
        let memory = GuestMemoryMmap::from_regions(vec![region]).expect("memory");
        frontend.set_owner().expect("owner");
        assert_eq!(frontend.get_features().expect("features") & FEATURES, FEATURES);
        let offered = frontend.get_protocol_features().expect("protocol features");
        let wanted = VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD
            | VhostUserProtocolFeatures::REPLY_ACK;
        frontend.set_protocol_features(offered & wanted).expect("set");
        frontend.set_features(FEATURES).expect("set");
        let in_flight = match in_flight {
            Some((told, file)) => {
                frontend.set_inflight_fd(&told, file.as_raw_fd()).expect("set");
                (told, file)
            }
            None => {
                frontend.get_inflight_fd(&VhostUserInflight::new(0, 0, 1, ENTRIES)).expect("memory for it")
            }
        };
        frontend.set_hdr_flags(vhost::vhost_user::message::VhostUserHeaderFlag::NEED_REPLY);
        let regions = [VhostUserMemoryRegionInfo {
            guest_phys_addr: 0,
            memory_size: MEMORY_BYTES,
            userspace_addr: FRONTEND_AT,
            mmap_offset: 0,
            mmap_handle: file.as_raw_fd(),
        }];
        frontend.set_mem_table(&regions).expect("set");
        let (kick, call) = (EventFd::new(0).expect("an event"), EventFd::new(0).expect("an event"));
        Guest { frontend, memory, file, kick, call, available: 0, in_flight: Some(in_flight) }
    }

    /// What outlives the server: its memory, and what is noted there.
    pub fn survive(mut self) -> (File, Option<(VhostUserInflight, File)>) {
        (self.file.try_clone().expect("a copy"), self.in_flight.take())
    }

    pub fn start(&mut self, base: u16) {
        let (at, error) = (|offset: u64| FRONTEND_AT + offset, "a ring");
        self.frontend.set_vring_num(0, ENTRIES).expect(error);
        let addresses = VringConfigData {
            queue_max_size: ENTRIES,
            queue_size: ENTRIES,
            flags: 0,
            desc_table_addr: at(DESCRIPTORS),
            used_ring_addr: at(USED),
            avail_ring_addr: at(AVAILABLE),
            log_addr: None,
        };
        self.frontend.set_vring_addr(0, &addresses).expect(error);
        self.frontend.set_vring_base(0, base).expect(error);
        self.available = base;
        self.frontend.set_vring_call(0, &self.call).expect(error);
        self.frontend.set_vring_kick(0, &self.kick).expect(error);
        self.frontend.set_vring_enable(0, true).expect(error);
    }

    /// Ends the ring. From where it goes on.
    pub fn stop(&mut self) -> u16 {
        let base = self.frontend.get_vring_base(0).expect("its place");
        u16::try_from(base).expect("an index")
    }

    /// Begins a request with `data`, which the guest gives or is to get. Head and status have a place for each head.
    pub fn begin(&mut self, head: u16, kind: u32, sector: u64, data: &[u8]) {
        let to_guest = matches!(kind, 0 | 8);
        let place = |start: u64| start + 64 * u64::from(head);
        self.memory.write_obj(kind.to_le(), GuestAddress(place(HEADER))).expect("inside");
        self.memory.write_obj(sector.to_le(), GuestAddress(place(HEADER) + 8)).expect("inside");
        self.memory.write_obj(0xffu8, GuestAddress(place(STATUS))).expect("inside");
        self.memory.write_slice(data, GuestAddress(DATA)).expect("inside");
        let length = u32::try_from(data.len()).expect("short");
        let mut parts = vec![(place(HEADER), 16, 0u16)];
        if !data.is_empty() {
            parts.push((DATA, length, if to_guest { 2 } else { 0 }));
        }
        parts.push((place(STATUS), 1, 2));
        let last = parts.len() - 1;
        for (number, (address, bytes, flags)) in parts.into_iter().enumerate() {
            let index = head + u16::try_from(number).expect("three");
            let (flags, next) = if number < last { (flags | 1, index + 1) } else { (flags, 0) };
            self.descriptor(index, address, bytes, flags, next);
        }
        self.offer(head);
    }

    pub fn descriptor(&self, index: u16, address: u64, bytes: u32, flags: u16, next: u16) {
        let words =
            [&address.to_le_bytes()[..], &bytes.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()];
        let at = GuestAddress(DESCRIPTORS + 16 * u64::from(index));
        self.memory.write_slice(&words.concat(), at).expect("inside");
    }

    /// Makes a head available and kicks.
    pub fn offer(&mut self, head: u16) {
        let at = GuestAddress(AVAILABLE + 4 + 2 * u64::from(self.available % ENTRIES));
        self.memory.write_obj(head.to_le(), at).expect("inside");
        self.available = self.available.wrapping_add(1);
        self.memory.store(self.available.to_le(), GuestAddress(AVAILABLE + 2), SeqCst).expect("inside");
        self.kick();
    }

    pub fn kick(&self) {
        self.kick.write(1).expect("kicked");
    }

    pub fn used(&self) -> u16 {
        self.memory.load(GuestAddress(USED + 2), SeqCst).expect("inside")
    }

    /// Waits until the used ring has as many as were offered.
    pub fn wait(&self) {
        let end = Instant::now() + Duration::from_secs(20);
        while self.used() != self.available {
            assert!(Instant::now() < end, "{} of {} requests are answered", self.used(), self.available);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn status(&self, head: u16) -> u8 {
        self.memory.read_obj(GuestAddress(STATUS + 64 * u64::from(head))).expect("inside")
    }

    pub fn data(&self, bytes: usize) -> Vec<u8> {
        let mut data = vec![0; bytes];
        self.memory.read_slice(&mut data, GuestAddress(DATA)).expect("inside");
        data
    }

    /// One request and its status.
    pub fn ask(&mut self, kind: u32, sector: u64, data: &[u8]) -> u8 {
        self.begin(0, kind, sector, data);
        self.wait();
        self.status(0)
    }
}
