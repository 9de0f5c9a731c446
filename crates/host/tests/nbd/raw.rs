//! A client that says anything, byte by byte.

use crate::memory::Memory;
use crate::serving::{MIB, Serving};
use host::export::nbd::protocol::{command, command_flag};
use host::export::nbd::{Address, ExportOptions, Limits, Removal, ServerOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;

struct Client {
    stream: UnixStream,
}

impl Client {
    fn connect(serving: &Serving) -> Self {
        let stream = UnixStream::connect(&serving.socket).expect("the server listens");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a time limit");
        let mut client = Client { stream };
        assert_eq!(client.receive(18), b"NBDMAGICIHAVEOPT\x00\x03");
        client
    }

    /// A client of "data" with simple replies.
    fn simple(serving: &Serving) -> Self {
        let mut client = Self::connect(serving);
        client.send(&[0, 0, 0, 3]);
        client.option(1, b"data");
        assert_eq!(client.receive(10)[..8], (64 * MIB as u64).to_be_bytes());
        client
    }

    /// A client of "data" with structured replies.
    fn structured(serving: &Serving) -> Self {
        let mut client = Self::connect(serving);
        client.send(&[0, 0, 0, 3]);
        client.option(8, b"");
        client.option(1, b"data");
        client.receive(20 + 10);
        client
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server reads");
    }

    fn receive(&mut self, bytes: usize) -> Vec<u8> {
        let mut buffer = vec![0; bytes];
        self.stream.read_exact(&mut buffer).expect("the server writes");
        buffer
    }

    fn option(&mut self, option: u32, data: &[u8]) {
        let length = u32::try_from(data.len()).expect("short");
        let head = [b"IHAVEOPT".as_slice(), &option.to_be_bytes(), &length.to_be_bytes()].concat();
        self.send(&[&head, data].concat());
    }

    fn request(&mut self, command: u16, flags: u16, cookie: u64, offset: u64, bytes: usize) {
        self.send(&request(command, flags, cookie, offset, bytes));
    }

    /// A simple reply without data: error and cookie.
    fn reply(&mut self) -> (u32, u64) {
        let bytes = self.receive(16);
        assert_eq!(bytes[..4], [0x67, 0x44, 0x66, 0x98]);
        let number =
            |range: std::ops::Range<usize>| bytes[range].iter().fold(0, |n, b| n << 8 | u64::from(*b));
        (u32::try_from(number(4..8)).expect("four bytes"), number(8..16))
    }

    /// The server closes: no byte more.
    fn expect_end(&mut self) {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => assert!(rest.is_empty(), "{rest:?}"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        }
    }

    /// The connection still works.
    fn expect_alive(&mut self, serving: &Serving) {
        self.request(command::READ, 0, 77, 8192, 512);
        assert_eq!(self.reply(), (0, 77));
        assert_eq!(self.receive(512), serving.memory.contents()[8192..8704]);
    }
}

fn request(command: u16, flags: u16, cookie: u64, offset: u64, bytes: usize) -> Vec<u8> {
    let mut wire = vec![0x25, 0x60, 0x95, 0x13];
    wire.extend(flags.to_be_bytes());
    wire.extend(command.to_be_bytes());
    wire.extend(cookie.to_be_bytes());
    wire.extend(offset.to_be_bytes());
    wire.extend(u32::try_from(bytes).expect("a length on the wire").to_be_bytes());
    wire
}

#[test]
fn reads_writes_and_goodbye() {
    let serving = Serving::start();
    let mut client = Client::simple(&serving);
    let data = vec![0xa5; 4096];
    client.request(command::WRITE, command_flag::FUA, 1, 4096, 4096);
    client.send(&data);
    assert_eq!(client.reply(), (0, 1));
    client.request(command::FLUSH, 0, 2, 0, 0);
    assert_eq!(client.reply(), (0, 2));
    client.request(command::READ, 0, 3, 0, 12288);
    assert_eq!(client.reply(), (0, 3));
    assert_eq!(client.receive(12288), serving.memory.contents()[..12288]);
    assert_eq!(serving.memory.contents()[4096..8192], data);
    client.request(command::DISC, 0, 4, 0, 0);
    client.expect_end();
    serving.wait_until_idle();
    let counts = (&serving.memory.flushes, &serving.memory.fua_writes);
    assert_eq!((counts.0.load(Ordering::Relaxed), counts.1.load(Ordering::Relaxed)), (1, 1));
    let export = &serving.server.status().exports[0];
    let totals = export.totals;
    assert_eq!((totals.reads, totals.writes, totals.flushes, totals.errors), (1, 1, 1, 0));
    assert_eq!((totals.read_bytes, totals.written_bytes, export.connections_total), (12288, 4096, 1));
}

#[test]
fn refused_requests_leave_the_connection_alive() {
    let serving = Serving::start();
    let mut client = Client::simple(&serving);
    let end = 64 * MIB as u64;
    let table = [
        (command::READ, 0, 1, 512, EINVAL),
        (command::READ, 0, end, 512, EINVAL),
        (command::READ, 0, 0, 33 * MIB, EINVAL),
        (command::READ, 0x8000, 0, 512, EINVAL),
        (command::WRITE, 0, 1, 511, EINVAL),
        (command::WRITE, 0, end - 512, 4096, ENOSPC),
        (command::WRITE, 0, 0, 40 * MIB, EINVAL),
        (command::TRIM, 0, end, 512, EINVAL),
        (command::WRITE_ZEROES, 0, u64::MAX - 511, 512, ENOSPC),
        (command::WRITE_ZEROES, command_flag::FAST_ZERO, 0, 512, 95),
        (command::BLOCK_STATUS, 0, 0, 512, EINVAL),
        (4711, 0, 0, 512, EINVAL),
    ];
    for (cookie, (kind, flags, offset, bytes, error)) in (1..).zip(table) {
        client.request(kind, flags, cookie, offset, bytes);
        if kind == command::WRITE {
            client.send(&vec![0xee; bytes]);
        }
        assert_eq!(client.reply(), (error, cookie), "command {kind} at {offset}");
        client.expect_alive(&serving);
    }
    assert_eq!(serving.server.status().connections[0].totals.errors, 12);
}

#[test]
fn empty_requests_succeed() {
    let serving = Serving::start();
    let mut client = Client::simple(&serving);
    for kind in [command::READ, command::WRITE, command::TRIM, command::WRITE_ZEROES, command::CACHE] {
        client.request(kind, 0, 5, 512, 0);
        assert_eq!(client.reply(), (0, 5), "command {kind}");
    }
    let mut client = Client::structured(&serving);
    client.request(command::READ, 0, 6, 0, 0);
    assert_eq!(
        client.receive(20),
        b"\x66\x8e\x33\xef\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x06\x00\x00\x00\x00"
    );
}

#[test]
fn malformed_bytes_end_only_their_own_connection() {
    let serving = Serving::start();
    let mut bystander = Client::simple(&serving);
    for junk in [b"\xff\xff\xff\xff".to_vec(), b"\x00\x00\x00\x03GET / HTTP/1.1\r\n\r\n".to_vec()] {
        let mut client = Client::connect(&serving);
        client.send(&junk);
        client.expect_end();
    }
    let mut client = Client::simple(&serving);
    client.send(b"not a request at all");
    client.expect_end();
    let mut client = Client::simple(&serving);
    client.request(command::WRITE, 0, 1, 0, 0xffff_fe00);
    client.expect_end();
    // Cut short in a header, in a payload, and in a payload that is thrown away.
    for bytes in [
        request(command::READ, 0, 1, 0, 512)[..20].to_vec(),
        [request(command::WRITE, 0, 1, 0, 1 << 20), vec![1; 5000]].concat(),
        [request(command::WRITE, 0, 1, 3, 1 << 20), vec![1; 5000]].concat(),
    ] {
        Client::simple(&serving).send(&bytes);
    }
    bystander.expect_alive(&serving);
    serving.wait_until("alone", |serving| serving.server.status().connections.len() == 1);
    assert_eq!(&serving.memory.contents()[..8], [0; 8], "a write that was cut short wrote nothing");
}

#[test]
fn arbitrary_bytes_never_hurt_the_server() {
    let serving = Serving::start();
    let mut seed = 0x1234_5678_9abc_def0u64;
    let mut random = move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        seed >> 33
    };
    for round in 0..200 {
        let mut client = if round % 2 == 0 { Client::connect(&serving) } else { Client::simple(&serving) };
        let mut bytes: Vec<u8> = (0..random() % 3000).map(|_| (random() & 0xff) as u8).collect();
        if round % 4 == 3 {
            // A right magic in front of anything. Writes are left out: their payload is anything, too.
            let kind = 2 + (random() % 9) as u16;
            bytes = [request(kind, random() as u16, random(), random(), random() as usize & 0xffff), bytes]
                .concat();
        }
        let _ = client.stream.write_all(&bytes);
    }
    Client::simple(&serving).expect_alive(&serving);
    serving.wait_until_idle();
}

#[test]
fn many_requests_in_one_packet_are_all_answered() {
    let serving = Serving::start();
    let mut client = Client::simple(&serving);
    let mut packet = Vec::new();
    for cookie in 0..200 {
        packet.extend(request(command::WRITE, 0, cookie, cookie * 1024, 1024));
        packet.extend([u8::try_from(cookie).expect("below 256"); 1024]);
    }
    client.send(&packet);
    let mut cookies: Vec<u64> =
        (0..200).map(|_| client.reply()).map(|(error, cookie)| cookie + u64::from(error) * 1000).collect();
    cookies.sort_unstable();
    assert_eq!(cookies, (0..200).collect::<Vec<_>>());
    let contents = serving.memory.contents();
    for (number, block) in contents[..200 * 1024].chunks(1024).enumerate() {
        assert!(block.iter().all(|byte| usize::from(*byte) == number), "block {number}");
    }
}

#[test]
fn requests_may_come_byte_by_byte_and_replies_overtake_each_other() {
    let memory = Memory::new(64 * MIB, 512).slow(0..512);
    let serving = Serving::of(memory, ServerOptions::default());
    let mut client = Client::simple(&serving);
    for byte in request(command::READ, 0, 1, 0, 512) {
        client.send(&[byte]);
    }
    client.request(command::READ, 0, 2, 512, 512);
    assert_eq!(client.reply(), (0, 2));
    client.receive(512);
    assert_eq!(client.reply(), (0, 1));
    client.receive(512);
}

#[test]
fn a_failed_read_is_an_error_with_a_message() {
    let memory = Memory::new(64 * MIB, 512).broken(4096..8192);
    let serving = Serving::of(memory, ServerOptions::default());
    let mut client = Client::structured(&serving);
    client.request(command::READ, 0, 9, 0, 8192);
    let head = client.receive(20);
    assert_eq!(head[..8], [0x66, 0x8e, 0x33, 0xef, 0, 1, 0x80, 1]);
    let text = client.receive(usize::from(head[19]));
    assert_eq!(text[..4], [0, 0, 0, 5]);
    assert_eq!(&text[6..], b"I/O error: two members too many are gone");
    let mut simple = Client::simple(&serving);
    simple.request(command::WRITE_ZEROES, 0, 3, 4096, 512);
    assert_eq!(simple.reply(), (5, 3));
}

#[test]
fn a_client_that_never_reads_stops_itself() {
    let limits = ServerOptions::default();
    let serving = Serving::of(Memory::new(64 * MIB, 512), limits);
    let mut client = Client::simple(&serving);
    client.stream.set_write_timeout(Some(Duration::from_millis(500))).expect("a time limit");
    // 10,000 reads of 1 MiB. The server may not even take all these requests, less so hold their data.
    let mut taken = 0;
    for cookie in 0..10_000 {
        if client.stream.write_all(&request(command::READ, 0, cookie, 0, MIB)).is_err() {
            break;
        }
        taken = cookie;
    }
    std::thread::sleep(Duration::from_millis(300));
    let status = serving.server.status();
    let in_flight = status.connections[0].in_flight;
    assert!((1..=65).contains(&in_flight), "{in_flight} of {taken} requests of 1 MiB hold memory");
    // It wakes up and gets what it asked for. How much the socket has taken depends on how soon the server read.
    for _ in 0..taken.min(500) {
        assert_eq!(client.reply().0, 0);
        client.receive(MIB);
    }
    drop(client);
    serving.wait_until_idle();
}

#[test]
fn a_handshake_has_a_time_limit_and_so_has_a_goodbye() {
    let short = Duration::from_millis(200);
    let options = ServerOptions { handshake_limit: short, finish_limit: short, ..ServerOptions::default() };
    let serving = Serving::of(Memory::new(64 * MIB, 512), options);
    let mut chosen = Client::simple(&serving);
    let start = Instant::now();
    let mut idle = Client::connect(&serving);
    let mut slow = Client::connect(&serving);
    slow.send(&[0, 0, 0, 3]);
    slow.option(3, b"");
    slow.receive(20 + 4 + 4 + 9 + 20);
    idle.expect_end();
    slow.expect_end();
    assert!(start.elapsed() >= short && start.elapsed() < Duration::from_secs(5));
    chosen.expect_alive(&serving);
    // A goodbye with replies that the client does not take.
    for cookie in 0..40 {
        chosen.request(command::READ, 0, cookie, 0, MIB);
    }
    chosen.request(command::DISC, 0, 0, 0, 0);
    serving.wait_until_idle();
}

#[test]
fn a_client_that_ends_its_side_still_gets_its_replies() {
    let memory = Memory::new(64 * MIB, 512).slow(0..512);
    let serving = Serving::of(memory, ServerOptions::default());
    let mut client = Client::simple(&serving);
    client.request(command::READ, 0, 1, 0, 512);
    client.stream.shutdown(std::net::Shutdown::Write).expect("half closed");
    assert_eq!(client.reply(), (0, 1));
    client.receive(512);
    client.expect_end();
}

#[test]
fn a_stop_finishes_what_is_in_flight() {
    let memory = Memory::new(64 * MIB, 512).slow(0..512);
    let serving = Serving::of(memory, ServerOptions::default());
    let mut client = Client::simple(&serving);
    client.expect_alive(&serving);
    client.request(command::READ, 0, 1, 0, 512);
    serving.wait_until("in flight", |serving| serving.server.status().connections[0].in_flight == 1);
    assert_eq!(serving.server.stop(Duration::from_secs(5)), Removal::Done);
    assert_eq!(client.reply(), (0, 1));
    client.receive(512);
    client.expect_end();
    assert!(UnixStream::connect(&serving.socket).is_err(), "no server listens");
}

#[test]
fn requests_after_a_stop_are_told_so() {
    let limits = Limits { requests_max: 1, bytes_max: MIB };
    let options = ServerOptions { limits, ..ServerOptions::default() };
    let serving = Serving::of(Memory::new(64 * MIB, 512).slow(0..512), options);
    let mut client = Client::simple(&serving);
    // The first takes its time, the second has been read and waits for room, the third is read after the stop.
    let reads: Vec<u8> = (1..=3).flat_map(|cookie| request(command::READ, 0, cookie, 0, 512)).collect();
    client.send(&reads);
    serving.wait_until("in flight", |serving| serving.server.status().connections[0].in_flight == 1);
    assert_eq!(serving.server.stop(Duration::from_secs(5)), Removal::Done);
    for cookie in 1..=2 {
        assert_eq!(client.reply(), (0, cookie));
        client.receive(512);
    }
    assert_eq!(client.reply(), (108, 3));
    client.expect_end();
}

#[test]
fn the_server_ends_with_its_shards() {
    let memory = Memory::new(64 * MIB, 512).slow(0..512);
    let serving = Serving::of(memory, ServerOptions::default());
    let mut client = Client::simple(&serving);
    let mut undecided = Client::connect(&serving);
    client.expect_alive(&serving);
    client.request(command::READ, 0, 1, 0, 512);
    serving.wait_until("in flight", |serving| serving.server.status().connections[0].in_flight == 1);
    let Serving { server, shards, socket, .. } = serving;
    let start = Instant::now();
    shards.stop().expect("no shard failed");
    assert!(start.elapsed() < Duration::from_secs(5), "the server waited for nothing else");
    assert_eq!(client.reply(), (0, 1));
    client.receive(512);
    client.expect_end();
    undecided.expect_end();
    assert!(server.status().connections.is_empty());
    assert!(UnixStream::connect(&socket).is_err(), "no server listens");
}

#[test]
fn exports_come_and_go_while_clients_are_connected() {
    let serving = Serving::start();
    let mut data = Client::simple(&serving);
    let logs = Arc::new(Memory::new(MIB, 512));
    let options = ExportOptions { read_only: true, ..ExportOptions::default() };
    serving.server.exports().add("logs", options.clone(), Memory::opener(&logs)).expect("a new name");
    assert!(serving.server.exports().add("logs", options, Memory::opener(&logs)).is_err());
    let mut client = Client::connect(&serving);
    client.send(&[0, 0, 0, 3]);
    client.option(1, b"logs");
    assert_eq!(client.receive(10)[8..], [5, 7], "read-only");
    client.request(command::WRITE, 0, 1, 0, 512);
    client.send(&[0; 512]);
    assert_eq!(client.reply(), (1, 1), "EPERM");
    assert_eq!(serving.server.remove_export("logs", Duration::from_secs(5)), Removal::Done);
    assert_eq!(serving.server.remove_export("logs", Duration::ZERO), Removal::Unknown);
    client.expect_end();
    data.expect_alive(&serving);
    let mut late = Client::connect(&serving);
    late.send(&[0, 0, 0, 3]);
    late.option(1, b"logs");
    late.expect_end();
}

#[test]
fn unix_sockets_are_replaced_only_when_dead() {
    let serving = Serving::start();
    let again = serving.server.listen(&Address::Unix(serving.socket.clone()));
    assert_eq!(again.expect_err("in use").kind(), ErrorKind::AddrInUse);
    let dead = serving.folder.path().join("dead");
    drop(std::os::unix::net::UnixListener::bind(&dead).expect("a socket"));
    serving.server.listen(&Address::Unix(dead.clone())).expect("a dead socket is replaced");
    let file = serving.folder.path().join("file");
    std::fs::write(&file, "precious").expect("a file");
    assert!(serving.server.listen(&Address::Unix(file.clone())).is_err());
    assert_eq!(std::fs::read(&file).expect("still there"), b"precious");
}

#[test]
fn connections_are_limited_and_spread() {
    // One peer gets half.
    let options = ServerOptions { connections_max: 6, ..ServerOptions::default() };
    let serving = Serving::of(Memory::new(64 * MIB, 512), options);
    let _clients: Vec<Client> = (0..3).map(|_| Client::simple(&serving)).collect();
    // One that is still in its handshake would make room.
    serving.wait_until("served", |serving| {
        serving.server.status().connections.iter().all(|connection| connection.export.is_some())
    });
    let shards: Vec<usize> =
        serving.server.status().connections.iter().map(|connection| connection.shard).collect();
    assert_eq!(shards.iter().sum::<usize>(), 1, "two on one shard, one on the other: {shards:?}");
    let mut fourth = UnixStream::connect(&serving.socket).expect("the server listens");
    let mut nothing = Vec::new();
    fourth.read_to_end(&mut nothing).expect("closed at once");
    assert!(nothing.is_empty());
}

#[test]
fn silent_clients_make_room_and_idle_ones_stay() {
    let options = ServerOptions { connections_max: 6, ..ServerOptions::default() };
    let serving = Serving::of(Memory::new(64 * MIB, 512), options);
    let mut idle = Client::simple(&serving);
    let mut silent: Vec<Client> = (0..2).map(|_| Client::connect(&serving)).collect();
    for _ in 0..20 {
        let newcomer = Client::connect(&serving);
        silent.push(newcomer);
        silent.remove(0).expect_end();
    }
    let mut served = Client::simple(&serving);
    silent.remove(0).expect_end();
    served.expect_alive(&serving);
    idle.expect_alive(&serving);
}

#[test]
fn a_payload_that_does_not_come_ends_its_connection_only() {
    let short = Duration::from_millis(150);
    let options = ServerOptions { payload_limit: short, ..ServerOptions::default() };
    let serving = Serving::of(Memory::new(64 * MIB, 512), options);
    let mut idle = Client::simple(&serving);
    let mut slow = Client::simple(&serving);
    slow.request(command::WRITE, 0, 1, 0, 3 * MIB);
    for _ in 0..3 {
        slow.send(&vec![7; MIB]); // slowly, but it comes
        std::thread::sleep(short * 3 / 4);
    }
    assert_eq!(slow.reply(), (0, 1));
    let mut stalled = Client::simple(&serving);
    stalled.request(command::WRITE, 0, 1, 0, 3 * MIB);
    stalled.send(&vec![7; MIB + 5]);
    stalled.expect_end();
    std::thread::sleep(short * 3);
    for client in [&mut idle, &mut slow] {
        client.expect_alive(&serving);
    }
}

#[test]
fn a_request_without_memory_is_enomem_and_the_connection_goes_on() {
    const ENOMEM: u32 = 12;
    let (memory_bytes_max, memory_limit) = (16 * MIB, Duration::from_millis(100));
    let options = ServerOptions { memory_bytes_max, memory_limit, ..ServerOptions::default() };
    let serving = Serving::of(Memory::new(64 * MIB, 512), options);
    let mut client = Client::simple(&serving);
    client.request(command::READ, 0, 1, 0, 32 * MIB);
    assert_eq!(client.reply(), (ENOMEM, 1));
    client.request(command::WRITE, 0, 2, 0, 32 * MIB);
    client.send(&vec![7; 32 * MIB]);
    assert_eq!(client.reply(), (ENOMEM, 2));
    assert_eq!(serving.memory.contents()[..8], [0; 8]);
    client.expect_alive(&serving);
    client.request(command::READ, 0, 3, 0, 8 * MIB);
    assert_eq!(client.reply(), (0, 3));
    client.receive(8 * MIB);
}

#[test]
fn clients_that_read_nothing_leave_memory_for_others() {
    let (memory_bytes_max, memory_limit) = (64 * MIB, Duration::from_millis(100));
    let options = ServerOptions { memory_bytes_max, memory_limit, ..ServerOptions::default() };
    let serving = Serving::of(Memory::new(64 * MIB, 512), options);
    let silent: Vec<Client> = (0..3)
        .map(|_| {
            let mut client = Client::simple(&serving);
            (0..64).for_each(|cookie| client.request(command::READ, 0, cookie, 0, MIB));
            client
        })
        .collect();
    std::thread::sleep(Duration::from_millis(300));
    let mut client = Client::simple(&serving);
    client.request(command::READ, 0, 1, 0, 4 * MIB);
    assert_eq!(client.reply(), (0, 1));
    client.receive(4 * MIB);
    drop(silent);
}

#[test]
fn tcp_too() {
    let serving = Serving::start();
    let any = Address::Tcp("127.0.0.1:0".parse().expect("an address"));
    let Ok(Address::Tcp(bound)) = serving.server.listen(&any) else { panic!("a free port") };
    let mut stream = std::net::TcpStream::connect(bound).expect("the server listens");
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).expect("the server greets");
    assert_eq!(&greeting[..8], b"NBDMAGIC");
    assert!(serving.server.status().connections[0].peer.starts_with("127.0.0.1:"));
}
