//! Hosts that have to authenticate.

use nvme_tcp::HashFunction;
use nvme_tcp::auth::{DhGroup, Failure, HostSettings, Names, Secret};
use nvme_tcp::names::{DISCOVERY_NQN, Nqn};

use super::host_end::HostQueue;
use super::*;

const ANY_CONTROLLER: u16 = 0xffff;

fn secret(first: u8) -> Secret {
    Secret::new(Some(HashFunction::Sha256), &[first; 32]).expect("a secret")
}

/// Host 1 has a key, host 2 has none.
fn world() -> World {
    let hosts = [(host(1).nqn, secret(1))].into();
    let keys = HostKeys { hosts, controller: Some(secret(9)), ..HostKeys::default() };
    let options = ServerOptions { handshake_limit: Duration::from_secs(4), ..ServerOptions::default() };
    World::with(Rules { keys, options, ..Rules::default() })
}

fn settings(subsystem: &Nqn, own: u8, of_controller: Option<u8>) -> HostSettings {
    HostSettings {
        names: Names { host: host(1).nqn.to_string(), subsystem: subsystem.to_string() },
        secret: secret(own),
        subsystem_secret: of_controller.map(secret),
        functions: vec![HashFunction::Sha384],
        groups: vec![DhGroup::Null, DhGroup::Ffdhe2048],
    }
}

fn connected(world: &World) -> HostQueue {
    let mut admin = HostQueue::open(world.address);
    admin.connect(&subsystem(), &host(1), 0, ANY_CONTROLLER).expect("its name is allowed");
    admin
}

#[test]
fn nothing_is_answered_before_the_proof_on_any_queue() {
    let world = world();
    let mut admin = HostQueue::open(world.address);
    let controller = admin.connect(&subsystem(), &host(1), 0, ANY_CONTROLLER).expect("its name is allowed");
    assert_eq!(admin.configure(ENABLED), Status::AUTHENTICATION_REQUIRED);
    let mut io = HostQueue::open(world.address);
    assert!(io.connect(&subsystem(), &host(1), 1, controller).is_err(), "there is no controller yet");
    assert!(world.server.status().hosts.is_empty());
    assert_eq!(admin.authenticate(settings(&subsystem(), 1, None)), Ok(()));
    assert_eq!(admin.configure(ENABLED), Status::SUCCESS);
    let mut io = HostQueue::open(world.address);
    io.connect(&subsystem(), &host(1), 1, controller).expect("it has a controller");
    let read = |io: &mut HostQueue| io.call(Sqe::new(io::READ, 1), Payload::In { bytes: 4096 }, Vec::new()).0;
    assert_eq!(read(&mut io), Status::AUTHENTICATION_REQUIRED);
    assert_eq!(io.authenticate(settings(&subsystem(), 1, Some(9))), Ok(()));
    assert_eq!(read(&mut io), Status::SUCCESS);
    // Again, as a host does whose secret has changed, and its connection is still good.
    assert_eq!(admin.authenticate(settings(&subsystem(), 1, Some(9))), Ok(()));
    assert_eq!((admin.configure(ENABLED), read(&mut io)), (Status::SUCCESS, Status::SUCCESS));
    let hosts = world.server.status().hosts;
    assert_eq!((hosts.len(), &hosts[0].host, hosts[0].queues), (1, &host(1).nqn, 1));
}

#[test]
fn a_wrong_secret_ends_the_connection() {
    let world = world();
    let mut admin = connected(&world);
    assert_eq!(admin.authenticate(settings(&subsystem(), 2, None)), Err(Failure::NotAuthentic));
    assert!(admin.is_closed());
    let mut admin = connected(&world);
    assert_eq!(
        admin.authenticate(settings(&subsystem(), 1, Some(8))),
        Err(Failure::NotAuthentic),
        "the host does not believe the controller"
    );
    assert_eq!(admin.configure(ENABLED), Status::AUTHENTICATION_REQUIRED);
    assert!(admin.is_closed(), "its time is over");
    assert!(world.server.status().hosts.is_empty());
}

#[test]
fn discovery_asks_for_the_proof_too_and_hosts_without_a_key_are_not_asked() {
    let (world, discovery) = (world(), Nqn::new(DISCOVERY_NQN).expect("a name"));
    let mut admin = HostQueue::open(world.address);
    admin.connect(&discovery, &host(1), 0, ANY_CONTROLLER).expect("its name is allowed");
    assert_eq!(admin.configure(ENABLED), Status::AUTHENTICATION_REQUIRED);
    assert_eq!(admin.authenticate(settings(&discovery, 1, None)), Ok(()));
    assert_eq!(admin.configure(ENABLED), Status::SUCCESS);
    let mut other = world.connect(2);
    assert_eq!(read_status(&mut other), Status::SUCCESS);
}

/// Messages out of turn, cut short and too long are answered, and the server goes on.
#[test]
fn what_is_no_authentication_is_refused() {
    let world = world();
    for message in [vec![0; 1], vec![0xff; 72], vec![0; 4096]] {
        let mut admin = connected(&world);
        let bytes = message.len() as u32;
        let sent = admin.call(nvme_tcp::auth::transfer(true, bytes), Payload::Out { bytes }, message);
        assert_eq!(sent.0, Status::SUCCESS);
        let fetched =
            admin.call(nvme_tcp::auth::transfer(false, 4096), Payload::In { bytes: 4096 }, Vec::new());
        assert_eq!(fetched.0, Status::SUCCESS, "the reason");
        assert!(admin.is_closed());
    }
    let mut admin = connected(&world);
    let early = admin.call(nvme_tcp::auth::transfer(false, 4096), Payload::In { bytes: 4096 }, Vec::new());
    assert_eq!(early.0, Status::COMMAND_SEQUENCE_ERROR, "it is the host's turn");
}
