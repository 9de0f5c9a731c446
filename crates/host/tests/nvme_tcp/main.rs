//! The NVMe/TCP server over a socket, both ends in this process: reservations, proofs, limits and a stop as hosts see them.

mod events;
mod host_end;
mod limits;
mod paused;
mod proof;
mod tls;

use host::export::nvme_tcp::{
    HostKeys, KeptReservations, NewNamespace, NewSubsystem, Server, ServerOptions, Subsystems,
};
use host::shard::{ShardOptions, Shards};
use nvme_tcp::command::{Sqe, admin, io};
use nvme_tcp::initiator::Payload;
use nvme_tcp::names::{Host, HostId, Nqn};
use nvme_tcp::reservation::{Acquisition, Persistence, Registration, ReservationCommand, ReservationType};
use nvme_tcp::status::Status;
use nvme_tcp::subsystem::AllowList;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use zerocopy::little_endian::U32;

use host_end::{Connected, ENABLED};
use paused::Memory;

const NAMESPACE: [u8; 16] = [9; 16];
const SMALL: usize = 4096;
const LARGE: usize = 64 << 10;

struct World {
    // Ends before the shards that it runs on.
    server: Server,
    _shards: Shards,
    address: SocketAddr,
    subsystems: Arc<Subsystems>,
    memory: Arc<Memory>,
    folder: tempfile::TempDir,
}

fn subsystem() -> Nqn {
    Nqn::new("nqn.2026-11.example:drive").expect("a name")
}

fn host(number: u8) -> Host {
    Host {
        id: HostId([number; 16]),
        nqn: Nqn::new(&format!("nqn.2026-11.example:{number}")).expect("a name"),
    }
}

/// How a world is served.
struct Rules {
    is_first: bool,
    allow: AllowList,
    keys: HostKeys,
    options: ServerOptions,
}

impl Default for Rules {
    /// For the first time, to every host, and no host has a key.
    fn default() -> Self {
        Rules {
            is_first: true,
            allow: AllowList::Any,
            keys: HostKeys::default(),
            options: ServerOptions::default(),
        }
    }
}

impl World {
    fn new() -> World {
        World::with(Rules::default())
    }

    fn with(rules: Rules) -> World {
        let folder = tempfile::tempdir().expect("a folder");
        let memory = Memory::new(1 << 20);
        let (server, shards, address, subsystems) = serve(folder.path(), &memory, rules);
        World { server, _shards: shards, address, subsystems, memory, folder }
    }

    /// The server ends, and another begins with what the first has kept.
    fn restart(self) -> World {
        let World { server, _shards, folder, memory, subsystems, .. } = self;
        drop((server, _shards, subsystems));
        let rules = Rules { is_first: false, ..Rules::default() };
        let (server, shards, address, subsystems) = serve(folder.path(), &memory, rules);
        World { server, _shards: shards, address, subsystems, memory, folder }
    }

    fn connect(&self, number: u8) -> Connected {
        assert!(self.server.connections() < 100);
        Connected::new(self.address, &subsystem(), &host(number))
    }
}

fn serve(folder: &Path, memory: &Arc<Memory>, rules: Rules) -> (Server, Shards, SocketAddr, Arc<Subsystems>) {
    let Rules { is_first, allow, keys, options } = rules;
    let shards = Shards::start(2, &ShardOptions::default(), |_| {}).expect("shards");
    let subsystems = Arc::new(Subsystems::with_keys(keys).expect("a thread"));
    let (serial, drives) = ("1".to_owned(), String::new());
    let new = NewSubsystem { nqn: subsystem(), serial, allow, drives, peers: None, peer_memory: 0 };
    subsystems.add(new).expect("the first");
    let kept = KeptReservations::open(folder, NAMESPACE, is_first).expect("reservations");
    let namespace = NewNamespace { id: 1, uuid: NAMESPACE };
    subsystems
        .add_namespace(&subsystem(), &namespace, &shards.handle(), kept, Memory::opener(memory))
        .expect("a namespace");
    let server = Server::new(shards.handle(), Arc::clone(&subsystems), options);
    let address = server.listen(SocketAddr::from(([127, 0, 0, 1], 0))).expect("an address");
    (server, shards, address, subsystems)
}

fn register(new_key: u64) -> ReservationCommand {
    let registration = Registration::Register { new_key };
    ReservationCommand::Register { registration, persistence: Persistence::Unchanged }
}

fn acquire(key: u64) -> ReservationCommand {
    let kind = ReservationType::ExclusiveAccess;
    ReservationCommand::Acquire { key, kind, acquisition: Acquisition::Acquire }
}

fn preempt(key: u64, victims_key: u64) -> ReservationCommand {
    let acquisition = Acquisition::Preempt { victims_key, abort: true };
    ReservationCommand::Acquire { key, kind: ReservationType::ExclusiveAccess, acquisition }
}

/// A write of `byte` to the first blocks.
fn write(byte: u8, bytes: usize) -> (Sqe, Payload, Vec<u8>) {
    let mut sqe = Sqe::new(io::WRITE, 1);
    sqe.cdw12 = U32::new((bytes / 4096 - 1) as u32);
    (sqe, Payload::Out { bytes: bytes as u32 }, vec![byte; bytes])
}

fn write_status(host: &mut Connected, byte: u8) -> Status {
    let (sqe, payload, data) = write(byte, SMALL);
    host.io.call(sqe, payload, data).0
}

fn read_status(host: &mut Connected) -> Status {
    host.io.call(Sqe::new(io::READ, 1), Payload::In { bytes: 4096 }, Vec::new()).0
}

/// The first host holds the namespace, the second is registered.
fn held() -> (World, Connected, Connected) {
    let world = World::new();
    let (mut first, mut second) = (world.connect(1), world.connect(2));
    assert_eq!(first.io.reserve(&register(11)), Status::SUCCESS);
    assert_eq!(first.io.reserve(&acquire(11)), Status::SUCCESS);
    assert_eq!(second.io.reserve(&register(22)), Status::SUCCESS);
    (world, first, second)
}

#[test]
fn commands_ask_the_reservation() {
    let (world, mut first, mut second) = held();
    assert_eq!(write_status(&mut first, 1), Status::SUCCESS);
    assert_eq!(write_status(&mut second, 2), Status::RESERVATION_CONFLICT);
    assert_eq!(read_status(&mut second), Status::RESERVATION_CONFLICT);
    let flush = second.io.call(Sqe::new(io::FLUSH, 1), Payload::None, Vec::new());
    assert_eq!(flush.0, Status::RESERVATION_CONFLICT);
    assert_eq!(second.io.reserve(&acquire(22)), Status::RESERVATION_CONFLICT);
    let report = second.io.report();
    let held: Vec<_> = report.registrants.iter().filter(|one| one.holds).map(|one| one.key).collect();
    assert_eq!(
        (held, report.kind, report.persists),
        (vec![11], Some(ReservationType::ExclusiveAccess), true)
    );
    assert_eq!(world.memory.byte(0), 1);
}

#[test]
fn a_preempt_is_answered_when_what_began_before_it_has_ended() {
    let (world, mut first, mut second) = held();
    world.memory.paused.store(true, Ordering::SeqCst);
    let (sqe, payload, data) = write(1, SMALL);
    first.io.begin(sqe, payload, data);
    let since = Instant::now();
    while world.memory.waiting.load(Ordering::SeqCst) == 0 {
        assert!(since.elapsed() < Duration::from_secs(20), "the write begins");
        std::thread::sleep(Duration::from_millis(1));
    }
    second.io.begin_reserve(&preempt(22, 11));
    assert!(second.io.is_silent_for(Duration::from_millis(300)), "the victim's write is still at work");
    world.memory.paused.store(false, Ordering::SeqCst);
    assert_eq!(second.io.end().status, Status::SUCCESS);
    assert_eq!(world.memory.byte(0), 1, "F-I6: its end came before the answer");
    assert_eq!(first.io.end().status, Status::SUCCESS);
    assert_eq!(write_status(&mut first, 3), Status::RESERVATION_CONFLICT);
    assert_eq!(write_status(&mut second, 2), Status::SUCCESS);
    assert_eq!(world.memory.byte(0), 2);
}

#[test]
fn data_that_comes_after_a_preempt_is_not_written() {
    let (world, mut first, mut second) = held();
    let (sqe, payload, data) = write(1, LARGE);
    first.io.begin(sqe, payload, data);
    let wanted = first.io.wanted();
    assert_eq!(second.io.reserve(&preempt(22, 11)), Status::SUCCESS, "it waits for no host");
    assert_eq!(write_status(&mut second, 2), Status::SUCCESS);
    first.io.send_wanted(&wanted);
    assert_eq!(first.io.end().status, Status::RESERVATION_CONFLICT);
    assert_eq!(world.memory.byte(0), 2);
}

#[test]
fn a_victim_hears_of_its_loss_at_once() {
    /// Asynchronous event: of an I/O command set, reservation log page available, page 80h.
    const RESERVATION_EVENT: u64 = 0x0080_0006;
    let (_world, mut first, mut second) = held();
    first.admin.begin(Sqe::new(admin::ASYNC_EVENT_REQUEST, 0), Payload::None, Vec::new());
    assert!(first.admin.is_silent_for(Duration::from_millis(100)));
    assert_eq!(second.io.reserve(&preempt(22, 11)), Status::SUCCESS);
    assert_eq!(first.admin.end().value, RESERVATION_EVENT);
}

#[test]
fn a_reservation_outlives_its_server() {
    let (world, first, second) = held();
    drop((first, second));
    let world = world.restart();
    let (mut first, mut stranger) = (world.connect(1), world.connect(3));
    assert_eq!(write_status(&mut stranger, 3), Status::RESERVATION_CONFLICT);
    assert_eq!(write_status(&mut first, 1), Status::SUCCESS);
    assert_eq!(first.io.report().registrants.len(), 2);
}

#[test]
fn a_reservation_that_is_not_to_persist_ends_with_its_server() {
    let (world, mut first, second) = held();
    let mut persistence = Sqe::new(admin::SET_FEATURES, 1);
    persistence.cdw10 = U32::new(0x83);
    assert_eq!(first.admin.call(persistence, Payload::None, Vec::new()).0, Status::SUCCESS);
    assert!(!first.io.report().persists);
    drop((first, second));
    let world = world.restart();
    let mut stranger = world.connect(3);
    assert_eq!(write_status(&mut stranger, 3), Status::SUCCESS);
    assert!(stranger.io.report().registrants.is_empty());
}

/// As Linux disconnects: it closes its I/O queues, then shuts the controller down. It waited a minute for the answer.
#[test]
fn an_io_queue_that_is_closed_in_order_ends_by_itself_and_one_that_fails_ends_all() {
    const SHUT_DOWN: u32 = ENABLED | 1 << 14;
    let world = World::new();
    let Connected { mut admin, io } = world.connect(1);
    drop(io);
    std::thread::sleep(Duration::from_millis(200)); // the server sees it
    assert_eq!(admin.configure(SHUT_DOWN), Status::SUCCESS);
    let Connected { mut admin, mut io } = world.connect(1);
    io.send_bytes(&[0xff; 128]);
    assert!(admin.is_closed());
}
