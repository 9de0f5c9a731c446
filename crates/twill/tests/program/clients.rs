//! What a client cannot do to the server and to other clients.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::nbd::{Client, READ, WRITE};
use crate::world::{World, tool};

const MIB: u64 = 1 << 20;
const WRITE_ZEROES: u16 = 6;
const NO_HOLE: u16 = 2;

/// Their zeroes went on for minutes after the client had left, and no stop was clean.
#[test]
fn zeroes_without_end_go_on_neither_for_a_client_that_left_nor_at_a_stop() {
    let world = World::new();
    let members: Vec<String> = (0..4).map(|i| world.member(&format!("m{i}"), 2048 * MIB)).collect();
    world.twill(&["create", "--level", "5", "--assume-clean", "--name", "test"], &members).succeeds();
    for is_there in [false, true] {
        let mut server = world.serve(&["--parity-cache", "0"], &members);
        let mut greedy = world.client();
        let bytes = u32::try_from(greedy.size_bytes.min(u64::from(u32::MAX)) / 4096 * 4096).expect("32 bits");
        for id in 0..512 {
            greedy.send((WRITE_ZEROES, NO_HOLE), id, 0, bytes, &[]).expect("the server reads");
        }
        let mut other = world.client();
        let start = Instant::now();
        assert_eq!(other.write(4096, &[7; 4096], 0).expect("served"), 0);
        assert!(start.elapsed() < Duration::from_secs(5), "another client waited {:?}", start.elapsed());
        drop(other);
        let mut stop = vec!["stop", "--json"];
        if is_there {
            stop.push("--force");
        } else {
            drop(greedy);
        }
        let start = Instant::now();
        let stopped = server.twill(&stop).succeeds().json();
        assert!(start.elapsed() < Duration::from_secs(9), "the stop took {:?}", start.elapsed());
        assert_eq!(stopped["clean"], true);
        assert_eq!(server.end(), Some(0), "{}", server.log());
    }
}

/// The server ended, with the array dirty, where one request asked for more memory than there was.
#[test]
fn where_memory_is_short_requests_fail_and_the_server_lives() {
    let Some(prlimit) = tool("prlimit") else { return };
    let world = World::new();
    let members: Vec<String> = (0..3).map(|i| world.member(&format!("m{i}"), 256 * MIB)).collect();
    world.twill(&["create", "--level", "5", "--assume-clean", "--name", "test"], &members).succeeds();
    let place = ["--control", "control.sock", "--unix", "nbd.sock", "--log", "log"];
    // A server without optimisation maps 240 MiB before the first request.
    let started = Command::new(prlimit)
        .arg(format!("--as={}", 256 * MIB))
        .arg(env!("CARGO_BIN_EXE_twill"))
        .args(["serve", "--daemon", "--shards", "1"])
        .args(place)
        .args(&members)
        .current_dir(world.folder.path())
        .env("TWILL_STATE_DIR", world.path("state"))
        .output()
        .expect("the program");
    assert!(started.status.success(), "{started:?}");
    let (mut no_memory, mut done) = (0, 0);
    let payload = vec![7; usize::try_from(32 * MIB).expect("small")];
    for _ in 0..2 {
        // Each sends more than it reads the replies of.
        let mut clients: Vec<Client> = (0..6).map(|_| world.client()).collect();
        for (id, client) in (0..).zip(&mut clients) {
            client.send((WRITE, 0), id, 32 * MIB * (id % 8), 32 << 20, &payload).expect("the server reads");
        }
        for client in &mut clients {
            match client.reply().expect("the server lives").1 {
                0 => done += 1,
                12 => no_memory += 1,
                other => panic!("error {other}"),
            }
        }
        for (id, client) in (0..).zip(&mut clients) {
            (0..4).for_each(|_| client.send((READ, 0), id, 0, 32 << 20, &[]).expect("the server reads"));
        }
        std::thread::sleep(Duration::from_secs(1));
    }
    let mut client = world.client();
    assert_eq!(client.write(0, &[9; 4096], 0).expect("served"), 0);
    assert_eq!(client.read(0, 4096).expect("served"), Ok(vec![9; 4096]));
    drop(client);
    assert!(done + no_memory == 12 && no_memory > 0, "{done} done, {no_memory} without memory");
    let stop = ["stop", "--control", "control.sock", "--json"];
    let stopped = world.twill::<&str>(&stop, &[]).succeeds().json();
    assert_eq!(stopped["clean"], true);
}
