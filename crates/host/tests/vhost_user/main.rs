//! The vhost-user export with a frontend and a guest of the test's own: what QEMU does not do. tests/clients/virtual-machine.sh
//! has real machines.

mod guest;
#[path = "../nbd/memory.rs"]
#[allow(dead_code)]
mod memory;

use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::volume::Volume as _;
use guest::{AVAILABLE, DESCRIPTORS, ENTRIES, Guest, USED};
use host::export::vhost_user::{Identity, Server};
use host::shard::{ShardContext, ShardOptions, Shards};
use host::socket::SocketAccess;
use memory::Memory;
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use vhost::VhostBackend as _;
use vhost::VringConfigData;
use vm_memory::{Bytes as _, GuestAddress};

const MIB: usize = 1 << 20;
const READ: u32 = 0;
const WRITE: u32 = 1;
const FLUSH: u32 = 4;
const SERIAL: u32 = 8;
const DISCARD: u32 = 11;
const ZEROES: u32 = 13;

struct Serving {
    server: Server,
    _shards: Shards,
    memory: Arc<Memory>,
    path: PathBuf,
    _folder: tempfile::TempDir,
}

impl Serving {
    fn of(memory: Memory) -> Self {
        let shards = Shards::start(2, &ShardOptions { pin: false, ..ShardOptions::default() }, |_| {});
        let (shards, folder) = (shards.expect("two shards"), tempfile::tempdir().expect("a folder"));
        let (path, memory) = (folder.path().join("machine"), Arc::new(memory));
        let opener = Arc::new(Memory::opener(&memory));
        let of_shard = Arc::clone(&opener);
        let info = shards.run_on(0, move |shard| async move { of_shard(&shard).info() });
        let identity = Identity { info: info.expect("the shard runs"), serial: *b"0123456789abcdefghij" };
        let open = move |shard: &ShardContext| opener(shard);
        let server = Server::start(&path, SocketAccess::OWNER, &shards.handle(), identity, open);
        Serving { server: server.expect("it listens"), _shards: shards, memory, path, _folder: folder }
    }

    fn guest(&self) -> Guest {
        let mut guest = Guest::connect(&self.path);
        guest.start(0);
        guest
    }
}

#[test]
fn requests_are_carried_out() {
    let serving = Serving::of(Memory::new(4 * MIB, 512).broken(MIB as u64..MIB as u64 + 512));
    let mut guest = serving.guest();
    let data: Vec<u8> = (0..8192u32).map(|i| (i % 251) as u8).collect();
    assert_eq!(guest.ask(WRITE, 8, &data), 0);
    assert_eq!(serving.memory.contents()[4096..12288], data);
    assert_eq!((guest.ask(READ, 8, &[0; 8192]), guest.data(8192)), (0, data));
    assert_eq!(guest.ask(FLUSH, 0, &[]), 0);
    assert_eq!(serving.memory.flushes.load(Ordering::SeqCst), 1);
    assert_eq!((guest.ask(SERIAL, 0, &[0; 20]), guest.data(20)), (0, b"0123456789abcdefghij".to_vec()));
    let range = [&8u64.to_le_bytes()[..], &8u32.to_le_bytes(), &0u32.to_le_bytes()].concat();
    assert_eq!(guest.ask(ZEROES, 0, &range), 0);
    assert_eq!(serving.memory.contents()[4096..8192], [0; 4096]);
    assert_eq!(guest.ask(DISCARD, 0, &range), 0);
    assert_eq!(guest.ask(READ, (MIB / 512) as u64, &[0; 512]), 1, "a place that cannot be read");
    assert_eq!(guest.ask(READ, u64::MAX, &[0; 512]), 1, "beyond all sectors");
    assert_eq!(guest.ask(99, 0, &[]), 2, "no such request");
    assert_eq!(serving.server.errors(), 3);
    assert_eq!(guest.stop(), guest.available);
    guest.start(guest.available);
    assert_eq!(guest.ask(FLUSH, 0, &[]), 0, "the ring goes on where it was");
}

/// The former server is what this test writes: of four requests that were available it had answered the first, begun the next two
/// in the other order, and noted the second as last answered before it was killed.
#[test]
fn what_a_killed_server_had_begun_the_next_one_carries_out() {
    let serving = Serving::of(Memory::new(4 * MIB, 512));
    let mut guest = Guest::connect(&serving.path);
    for head in [0, 3, 6, 9] {
        guest.begin(head, WRITE, u64::from(head), &[0x40; 512]);
    }
    guest.memory.write_obj(1u16.to_le(), GuestAddress(USED + 2)).expect("inside");
    let (memory, in_flight) = guest.survive();
    let (told, noted) = in_flight.expect("it has asked for it");
    let note = |at: u64, bytes: &[u8]| noted.write_all_at(bytes, at).expect("written");
    note(8, &[1, 0, ENTRIES as u8, 0, 0, 0, 1, 0]);
    for (order, head) in [(7u64, 6u64), (8, 3)] {
        note(16 + 16 * head, &[1]);
        note(16 + 16 * head + 8, &order.to_ne_bytes());
    }
    let mut guest = Guest::with_memory(&serving.path, memory, Some((told, noted)));
    guest.start(1);
    guest.available = 4;
    guest.wait();
    assert_eq!([0, 3, 6, 9].map(|head| guest.status(head)), [0xff, 0, 0, 0], "the first had its answer");
    let written = |sector: usize| serving.memory.contents()[sector * 512] == 0x40;
    assert_eq!([0, 3, 6, 9].map(written), [false, true, true, true]);
    assert_eq!(guest.ask(READ, 3, &[0; 512]), 0, "the ring goes on behind them");
}

#[test]
fn rings_outside_of_the_memory_are_refused() {
    let serving = Serving::of(Memory::new(MIB, 512));
    let guest = Guest::connect(&serving.path);
    let addresses = |address: u64| VringConfigData {
        queue_max_size: ENTRIES,
        queue_size: ENTRIES,
        flags: 0,
        desc_table_addr: address,
        used_ring_addr: address,
        avail_ring_addr: address,
        log_addr: None,
    };
    for address in [0, u64::MAX - 15, 0x7000_0000_0000 + (4 << 20)] {
        assert!(guest.frontend.set_vring_addr(0, &addresses(address)).is_err(), "{address:#x}");
    }
    assert!(guest.frontend.set_vring_num(0, 15).is_err(), "no power of two");
    assert!(guest.frontend.set_vring_base(3, 0).is_ok());
    drop(guest);
    assert_eq!(serving.guest().ask(FLUSH, 0, &[]), 0);
}

/// A guest writes what it likes into its memory; the server answers or leaves the ring alone, and serves the next machine.
#[test]
fn a_hostile_guest_breaks_only_its_own_ring() {
    let serving = Serving::of(Memory::new(MIB, 512));
    for seed in 0..200 {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut guest = serving.guest();
        for _ in 0..random.random_range(1..20) {
            for index in 0..ENTRIES {
                let address = match random.random_range(0..4) {
                    0 => random.random(),
                    1 => u64::MAX - random.random_range(0..64),
                    _ => random.random_range(0..4 << 20),
                };
                let bytes = if random.random() { random.random_range(0..9000) } else { random.random() };
                guest.descriptor(
                    index,
                    address,
                    bytes,
                    random.random_range(0..8),
                    random.random_range(0..ENTRIES + 2),
                );
            }
            let words: Vec<u8> = (0..64).map(|_| random.random()).collect();
            guest.memory.write_slice(&words, GuestAddress(0x1_0000)).expect("inside");
            match random.random_range(0..4) {
                0 => {
                    let start = random.random_range(AVAILABLE..AVAILABLE + 40);
                    guest.memory.write_obj(random.random::<u16>(), GuestAddress(start)).expect("inside");
                    guest.kick();
                }
                1 => guest.offer(random.random()),
                _ => guest.offer(random.random_range(0..ENTRIES)),
            }
        }
        guest.memory.write_slice(&[0xff; 256], GuestAddress(DESCRIPTORS)).expect("inside");
        guest.kick();
        if random.random() {
            guest.stop();
        }
    }
    let mut guest = serving.guest();
    assert_eq!(guest.ask(WRITE, 8, &[5; 512]), 0);
    assert_eq!(serving.memory.contents()[4096..4608], [5; 512]);
}
