//! Connections that cost and give nothing, names that are not allowed, and a server that stops.

use std::io::Read;
use std::net::TcpStream;

use super::host_end::{COMMANDS, HostQueue};
use super::*;
use nvme_tcp::names::DISCOVERY_NQN;

const ANY_CONTROLLER: u16 = 0xffff;
const CONNECTIONS_MAX: usize = 40;

fn small() -> World {
    let options = ServerOptions {
        handshake_limit: Duration::from_millis(2500),
        connections_max: CONNECTIONS_MAX,
        ..ServerOptions::default()
    };
    World::with(Rules { options, ..Rules::default() })
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let since = Instant::now();
    while !holds() {
        assert!(since.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// More than may be open, each in another half of its handshake: the server keeps to its limit, and to the time.
#[test]
fn connections_that_become_no_queue_end_and_make_room() {
    let world = small();
    let mut idle: Vec<TcpStream> = Vec::new();
    for number in 0..3 * CONNECTIONS_MAX {
        let mut socket = TcpStream::connect(world.address).expect("a listener");
        // The beginning of an ICReq, cut at any byte.
        let _ = std::io::Write::write_all(&mut socket, &[0, 0, 128, 0, 128, 0, 0, 0][..number % 9]);
        idle.push(socket);
        assert!(world.server.connections() <= CONNECTIONS_MAX);
    }
    until("all of them end", || world.server.connections() == 0);
    for socket in &mut idle {
        assert!(!matches!(socket.read(&mut [0]), Ok(1)), "it is closed, and nothing was said");
    }
    let mut host = world.connect(1);
    assert_eq!(read_status(&mut host), Status::SUCCESS);
    std::thread::sleep(Duration::from_millis(2800));
    assert_eq!(read_status(&mut host), Status::SUCCESS, "a queue has no such limit");
}

#[test]
fn a_host_that_is_not_allowed_learns_nothing_but_that() {
    let world = World::with(Rules { allow: AllowList::Named([host(1).nqn].into()), ..Rules::default() });
    let unknown = Nqn::new("nqn.2026-11.example:nothing").expect("a name");
    let discovery = Nqn::new(DISCOVERY_NQN).expect("a name");
    for name in [&subsystem(), &unknown, &discovery] {
        for (queue, controller) in [(0, ANY_CONTROLLER), (1, 1), (1, 77)] {
            let mut one = HostQueue::open(world.address);
            let refused = one.connect(name, &host(2), queue, controller);
            assert_eq!(refused, Err(Status::CONNECT_INVALID_HOST), "{name}, queue {queue} of {controller}");
            assert_eq!(one.configure(ENABLED), Status::COMMAND_SEQUENCE_ERROR);
        }
    }
    let mut host = world.connect(1);
    assert_eq!(read_status(&mut host), Status::SUCCESS);
}

#[test]
fn a_host_without_digests_is_refused_where_they_are_required() {
    let options = ServerOptions { digests_required: true, ..ServerOptions::default() };
    let world = World::with(Rules { options, ..Rules::default() });
    let mut one = HostQueue::open(world.address);
    let refused = one.connect(&subsystem(), &host(1), 0, ANY_CONTROLLER);
    assert_eq!(refused, Err(Status::CONNECT_INVALID_PARAMETERS));
}

/// A host whose write waits for the memory.
fn with_a_write_at_work(address: SocketAddr, memory: &Memory) -> Connected {
    let mut host = Connected::new(address, &subsystem(), &host(1));
    memory.paused.store(true, Ordering::SeqCst);
    let (sqe, payload, data) = write(7, SMALL);
    host.io.begin(sqe, payload, data);
    until("the write begins", || memory.waiting.load(Ordering::SeqCst) > 0);
    host
}

#[test]
fn a_server_that_stops_answers_what_is_at_work() {
    let World { server, _shards, address, memory, subsystems: _subsystems, folder: _folder } = World::new();
    let mut host = with_a_write_at_work(address, &memory);
    let stopping = std::thread::spawn(move || server.stop(Duration::from_secs(20)));
    assert!(host.io.is_silent_for(Duration::from_millis(300)) && !stopping.is_finished());
    memory.paused.store(false, Ordering::SeqCst);
    assert_eq!(host.io.end().status, Status::SUCCESS);
    assert!(host.io.is_closed() && host.admin.is_closed());
    assert_eq!(stopping.join().expect("no panic"), 0, "none was cut off");
    assert_eq!(memory.byte(0), 7);
}

#[test]
fn a_stop_cuts_off_what_does_not_end() {
    let World { server, _shards, address, memory, subsystems: _subsystems, folder: _folder } = World::new();
    let _host = with_a_write_at_work(address, &memory);
    let since = Instant::now();
    assert_eq!(server.stop(Duration::from_millis(300)), 2, "both of its queues");
    assert!(since.elapsed() < Duration::from_secs(10));
    memory.paused.store(false, Ordering::SeqCst);
}

/// A host that reads nothing: its reads hold the memory of the connection and what sockets take, the last ones wait, and such
/// a one can be given up. None is answered twice or lost.
#[test]
fn a_command_that_waits_for_memory_can_be_aborted_and_one_that_has_begun_cannot() {
    const READ_BYTES: u32 = 1 << 20;
    let world = World::new();
    let mut host = world.connect(1);
    let ids: Vec<u16> = (0..COMMANDS).map(|_| host.io.begin_read(READ_BYTES)).collect();
    let mut abort = |queue: u32, cid: u16| {
        let mut sqe = Sqe::new(admin::ABORT, 0);
        sqe.cdw10 = U32::new(u32::from(cid) << 16 | queue);
        let (status, value, _) = host.admin.call(sqe, Payload::None, Vec::new());
        assert_eq!(status, Status::SUCCESS);
        value == 0
    };
    std::thread::sleep(Duration::from_millis(500)); // as many begin as have memory
    assert!(abort(1, ids[COMMANDS - 1]), "it waits");
    assert!(!abort(1, ids[COMMANDS - 1]), "it has ended");
    assert!(!abort(1, ids[0]), "it has begun");
    assert!(!abort(7, ids[1]) && !abort(0, 77), "there is no such queue, and no such command");
    let ends: Vec<Status> = (0..COMMANDS).map(|_| host.io.end_passing_over()).collect();
    let aborted = ends.iter().filter(|status| **status == Status::ABORT_REQUESTED).count();
    let read = ends.iter().filter(|status| status.is_success()).count();
    assert_eq!((aborted, read), (1, COMMANDS - 1));
    assert_eq!(read_status(&mut host), Status::SUCCESS);
}
