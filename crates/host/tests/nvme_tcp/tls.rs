//! Hosts that have a key of TLS. Those of these tests use OpenSSL by another way than the server does: its callback for keys of
//! SHA-256, which offers both cipher suites, the larger first.

use nvme_tcp::HashFunction;
use nvme_tcp::auth::Secret;
use nvme_tcp::discovery::DiscoveryLog;
use nvme_tcp::log_page::{LogRequest, page};
use nvme_tcp::names::DISCOVERY_NQN;
use nvme_tcp::psk::{ConfiguredPsk, Derivation, IdentityVersion, TlsPsk};
use openssl::ssl::{Ssl, SslContext, SslMethod, SslStream, SslVersion};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use super::host_end::{HostQueue, Stream, connect};
use super::*;
use host::device::nvme_tcp::{Portal, RemoteAddress, RemoteOptions, discover, look_at};

const ANY_CONTROLLER: u16 = 0xffff;
const LIMIT: Duration = Duration::from_secs(2);

impl Stream for SslStream<TcpStream> {
    fn tcp(&self) -> &TcpStream {
        self.get_ref()
    }
}

fn configured(function: HashFunction, first: u8) -> ConfiguredPsk {
    let bytes = if function == HashFunction::Sha256 { 32 } else { 48 };
    ConfiguredPsk::new(Some(function), &vec![first; bytes]).expect("a key")
}

/// Hosts 1 and 2 have keys of either hash function, host 3 has none.
fn world() -> World {
    let keys = [(1, HashFunction::Sha256), (2, HashFunction::Sha384)];
    let tls = keys.map(|(number, function)| (host(number).nqn, configured(function, number))).into();
    let options = ServerOptions { handshake_limit: LIMIT, ..ServerOptions::default() };
    World::with(Rules { keys: HostKeys { tls, ..HostKeys::default() }, options, ..Rules::default() })
}

/// The key of host 1 for a subsystem.
fn key(subsystem: &Nqn) -> TlsPsk {
    let (version, derivation) = (IdentityVersion::V1, Derivation::Rfc8446);
    let key = configured(HashFunction::Sha256, 1);
    key.tls_psk(host(1).nqn.as_str(), subsystem.as_str(), version, derivation).expect("short names")
}

/// A connection under TLS with a key; none: the server refuses it.
fn encrypted(address: SocketAddr, key: TlsPsk) -> Option<SslStream<TcpStream>> {
    let mut context = SslContext::builder(SslMethod::tls_client()).expect("a context");
    context.set_min_proto_version(Some(SslVersion::TLS1_3)).expect("known");
    context.set_psk_client_callback(move |_, _, identity, secret| {
        identity[..key.identity.len()].copy_from_slice(key.identity.as_bytes());
        identity[key.identity.len()] = 0;
        secret[..key.key.len()].copy_from_slice(&key.key);
        Ok(key.key.len())
    });
    let ssl = Ssl::new(&context.build()).expect("a connection");
    let mut stream = SslStream::new(ssl, connect(address)).expect("a stream");
    stream.connect().ok().map(|()| stream)
}

fn open(world: &World, key: TlsPsk) -> HostQueue {
    HostQueue::over(Box::new(encrypted(world.address, key).expect("its key is known")))
}

#[test]
fn a_host_with_a_key_reads_and_writes_under_tls_on_every_queue() {
    let world = world();
    let mut admin = open(&world, key(&subsystem()));
    let controller = admin.connect(&subsystem(), &host(1), 0, ANY_CONTROLLER).expect("its key is its own");
    assert_eq!(admin.configure(ENABLED), Status::SUCCESS);
    let mut io = open(&world, key(&subsystem()));
    io.connect(&subsystem(), &host(1), 1, controller).expect("it has a controller");
    for bytes in [SMALL, LARGE, 1 << 19] {
        let (sqe, payload, data) = write(9, bytes);
        assert_eq!(io.call(sqe, payload, data).0, Status::SUCCESS);
        let mut sqe = Sqe::new(io::READ, 1);
        sqe.cdw12 = U32::new(bytes as u32 / 4096 - 1);
        let (status, _, data) = io.call(sqe, Payload::In { bytes: bytes as u32 }, Vec::new());
        assert_eq!((status, data == vec![9; bytes]), (Status::SUCCESS, true));
    }
    assert_eq!(world.memory.byte(0), 9);
    // A host without a key is served as before, at the same port.
    let mut plain = world.connect(3);
    assert_eq!(read_status(&mut plain), Status::SUCCESS);
}

#[test]
fn every_derivation_of_a_key_is_known() {
    let world = world();
    for key in configured(HashFunction::Sha256, 1).tls_psks(host(1).nqn.as_str(), subsystem().as_str()) {
        let mut admin = open(&world, key);
        admin.connect(&subsystem(), &host(1), 0, ANY_CONTROLLER).expect("its key is its own");
    }
}

#[test]
fn a_host_with_a_key_that_comes_without_tls_is_refused() {
    let world = world();
    let discovery = Nqn::new(DISCOVERY_NQN).expect("a name");
    for subsystem in [&subsystem(), &discovery] {
        let mut admin = HostQueue::open(world.address);
        let refused = admin.connect(subsystem, &host(1), 0, ANY_CONTROLLER);
        assert_eq!(refused, Err(Status::CONNECT_INVALID_HOST));
    }
    assert!(world.server.status().hosts.is_empty());
}

#[test]
fn a_key_is_good_for_its_host_and_subsystem_alone() {
    let world = world();
    let discovery = Nqn::new(DISCOVERY_NQN).expect("a name");
    for (of, subsystem, number) in [
        (subsystem(), subsystem(), 2),
        (subsystem(), subsystem(), 3),
        (discovery.clone(), subsystem(), 1),
        (subsystem(), discovery.clone(), 1),
    ] {
        let mut admin = open(&world, key(&of));
        let refused = admin.connect(&subsystem, &host(number), 0, ANY_CONTROLLER);
        assert_eq!(refused, Err(Status::CONNECT_INVALID_HOST), "{of} {subsystem} {number}");
    }
    // An I/O queue that another host makes under its own key to the controller of the first.
    let mut admin = open(&world, key(&subsystem()));
    let controller = admin.connect(&subsystem(), &host(1), 0, ANY_CONTROLLER).expect("its key is its own");
    assert_eq!(admin.configure(ENABLED), Status::SUCCESS);
    let mut plain = HostQueue::open(world.address);
    let refused = plain.connect(&subsystem(), &host(1), 1, controller);
    assert_eq!(refused, Err(Status::CONNECT_INVALID_HOST));
}

#[test]
fn wrong_keys_and_unknown_identities_get_no_connection() {
    let world = world();
    let right = key(&subsystem());
    let mut other_secret = right.clone();
    other_secret.key[0] ^= 1;
    let mut other_name = right.clone();
    other_name.identity = right.identity.replace(":1 ", ":7 ");
    let mut no_identity = right.clone();
    no_identity.identity = "Client_identity".to_owned();
    for wrong in [other_secret, other_name, no_identity] {
        assert!(encrypted(world.address, wrong.clone()).is_none(), "{}", wrong.identity);
    }
    assert!(encrypted(world.address, right).is_some(), "the server goes on");
}

#[test]
fn a_handshake_that_is_slow_or_cut_ends_and_stops_no_other_host() {
    let world = world();
    let mut slow = connect(world.address);
    slow.write_all(&[0x16, 3, 1, 2]).expect("sent"); // a record's beginning
    let mut cut = connect(world.address);
    cut.write_all(&[0x16, 3, 1, 2]).expect("sent");
    drop(cut);
    let mut silent = connect(world.address);
    let mut other = connect(world.address);
    other.write_all(&[0x16; 4096]).expect("sent");
    let since = Instant::now();
    while matches!(other.read(&mut [0; 100]), Ok(count) if count > 0) {} // it may be told why
    assert!(since.elapsed() < LIMIT, "it is no TLS, so that it ends at once");
    let mut admin = open(&world, key(&subsystem()));
    admin.connect(&subsystem(), &host(1), 0, ANY_CONTROLLER).expect("its key is its own");
    assert!(since.elapsed() < LIMIT, "those that wait hold nobody up");
    for waiting in [&mut slow, &mut silent] {
        assert!(matches!(waiting.read(&mut [0]), Ok(0) | Err(_)), "its time is over");
    }
    assert!(since.elapsed() >= LIMIT - Duration::from_millis(500) && since.elapsed() < 3 * LIMIT);
    let end = Instant::now() + LIMIT;
    while world.server.connections() > 1 && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(world.server.connections(), 1);
}

#[test]
fn a_host_under_tls_may_have_to_authenticate_too() {
    let keys = HostKeys {
        hosts: [(host(1).nqn, Secret::new(None, &[3; 32]).expect("a secret"))].into(),
        controller: None,
        tls: [(host(1).nqn, configured(HashFunction::Sha256, 1))].into(),
    };
    let world = World::with(Rules { keys, ..Rules::default() });
    let mut admin = open(&world, key(&subsystem()));
    admin.connect(&subsystem(), &host(1), 0, ANY_CONTROLLER).expect("its key is its own");
    assert_eq!(admin.configure(ENABLED), Status::AUTHENTICATION_REQUIRED);
}

#[test]
fn discovery_says_that_a_host_with_a_key_has_to_use_tls() {
    let world = world();
    let discovery = Nqn::new(DISCOVERY_NQN).expect("a name");
    let read = |admin: &mut HostQueue| {
        assert_eq!(admin.configure(ENABLED), Status::SUCCESS);
        let request =
            LogRequest { page: page::DISCOVERY, specific: 0, keeps_event: false, offset: 0, bytes: 4096 };
        let mut sqe = Sqe::new(admin::GET_LOG_PAGE, 0);
        [sqe.cdw10, sqe.cdw11, sqe.cdw12, sqe.cdw13] = request.encode().map(U32::new);
        let (status, _, data) = admin.call(sqe, Payload::In { bytes: 4096 }, Vec::new());
        assert_eq!(status, Status::SUCCESS);
        DiscoveryLog::parse(&data).expect("a page").entries.iter().map(|entry| entry.tls).collect::<Vec<_>>()
    };
    let mut admin = open(&world, key(&discovery));
    admin.connect(&discovery, &host(1), 0, ANY_CONTROLLER).expect("its key is its own");
    assert_eq!(read(&mut admin), [true]);
    let mut admin = HostQueue::open(world.address);
    admin.connect(&discovery, &host(3), 0, ANY_CONTROLLER).expect("it is allowed");
    assert_eq!(read(&mut admin), [false]);
}

/// Twill's own host, with the right key, another, and none, of both hash functions.
#[test]
fn members_are_reached_over_tls() {
    let world = world();
    let address =
        RemoteAddress::parse(&format!("nvme://{}/{}", world.address, subsystem())).expect("an address");
    let options = |number: u8, tls_key: Option<ConfiguredPsk>| RemoteOptions {
        tls_key,
        time_limit: Duration::from_secs(5),
        ..RemoteOptions::new(host(number).nqn, [number; 8])
    };
    let (one, two) = (configured(HashFunction::Sha256, 1), configured(HashFunction::Sha384, 2));
    for good in [options(1, Some(one.clone())), options(2, Some(two.clone()))] {
        look_at(&address, &good).expect("its key is known");
        let portal = Portal::parse(&world.address.to_string(), 4420).expect("a place");
        assert_eq!(discover(&portal, &good).expect("a log").entries.len(), 1);
    }
    for (wrong, words) in [
        (options(1, Some(two)), "no TLS with the target"),
        (options(3, Some(one)), "no TLS with the target"),
        (options(1, None), "the host is not allowed"),
    ] {
        let error = look_at(&address, &wrong).map(drop).expect_err("it has not the key");
        assert!(error.to_string().contains(words), "{error}");
    }
    // A target without TLS is sent no command.
    let plain = World::new();
    let address =
        RemoteAddress::parse(&format!("nvme://{}/{}", plain.address, subsystem())).expect("an address");
    let error = look_at(&address, &options(1, Some(configured(HashFunction::Sha256, 1)))).map(drop);
    let error = error.expect_err("it has no TLS").to_string();
    assert!(error.contains("no TLS with the target"), "{error}");
    assert!(plain.server.status().hosts.is_empty());
}

#[test]
fn a_target_that_is_silent_or_leaves_during_the_handshake_is_no_wrong_key() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("an address");
    let place = listener.local_addr().expect("an address");
    let address = RemoteAddress::parse(&format!("nvme://{place}/{}", subsystem())).expect("an address");
    let options = RemoteOptions {
        tls_key: Some(configured(HashFunction::Sha256, 1)),
        time_limit: Duration::from_secs(1),
        ..RemoteOptions::new(host(1).nqn, [1; 8])
    };
    let look = || look_at(&address, &options).map(drop).expect_err("no target is there").to_string();
    let since = Instant::now();
    assert!(look().contains("no answer within 1 s"));
    assert!(since.elapsed() < Duration::from_secs(4));
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let mut socket = socket.expect("a connection");
            let _begun = socket.read(&mut [0; 100]);
        }
    });
    let error = look();
    assert!(!error.contains("no TLS with the target"), "{error}");
}
