//! The server is killed (SIGKILL) under load, again and again, over file members. Nothing that was acknowledged is
//! lost, no block is anything but one of its versions, and after the resync every stripe's parity agrees.
//!
//! `TWILL_KILL_ROUNDS=100 cargo test -p twill --test program kill_9` is the long run. `TWILL_KILL_SEED` repeats a run
//! as far as a kill can be repeated.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::nbd::{Client, FLUSH, FUA, WRITE};
use crate::world::{MEMBER_BYTES, Server, World};

const MEMBERS: usize = 4;
const BLOCK: u64 = 4096;
/// Blocks that one writer has to itself, in turns with the other: a third of a stripe, so that both meet in stripes.
const TURN_BLOCKS: u64 = 16;
const WRITERS: u64 = 2;
const IN_FLIGHT: usize = 12;
const WRITE_BLOCKS_MAX: u64 = 8;

/// Xorshift: the tests of the program need no better one.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// What a writer knows of one block: the last version sent and the last one acknowledged. Version 0 is zeroes.
#[derive(Clone, Copy, Default)]
struct Block {
    sent: u64,
    acknowledged: u64,
    /// The last one that was acknowledged with FUA or before a flush that returned.
    durable: u64,
    in_flight: bool,
}

/// One write on its way.
struct Request {
    id: u64,
    first: u64,
    count: u64,
    fua: bool,
    /// A flush: the versions acknowledged when it was sent.
    covers: Option<Vec<(u64, u64)>>,
}

struct Writer {
    index: u64,
    random: Random,
    /// Of the whole array; a writer touches its own.
    blocks: Vec<Block>,
    next_id: u64,
}

fn contents(block: u64, version: u64) -> Vec<u8> {
    if version == 0 {
        return vec![0; BLOCK as usize];
    }
    let stamp = [block.to_le_bytes(), version.to_le_bytes()].concat();
    stamp.repeat(BLOCK as usize / 16)
}

impl Writer {
    /// Writes and flushes until the server is gone. Returns how many requests were acknowledged.
    fn load(&mut self, socket: &Path) -> u64 {
        // What an earlier server did not answer may be there or not: later versions tell which.
        self.blocks.iter_mut().for_each(|block| block.in_flight = false);
        let (mut acknowledged, mut on_their_way) = (0, Vec::new());
        let Ok(mut client) = Client::connect(socket) else { return 0 };
        loop {
            while on_their_way.len() < IN_FLIGHT {
                let Some(request) = self.send(&mut client) else { return acknowledged };
                on_their_way.push(request);
            }
            let Ok((id, error)) = client.reply() else { return acknowledged };
            assert_eq!(error, 0, "a healthy array takes writes");
            let at = on_their_way.iter().position(|request| request.id == id).expect("a request of ours");
            self.finish(&on_their_way.swap_remove(at));
            acknowledged += 1;
        }
    }

    fn send(&mut self, client: &mut Client) -> Option<Request> {
        self.next_id += 1;
        let id = self.next_id;
        if self.random.below(16) == 0 {
            client.send((FLUSH, 0), id, 0, 0, &[]).ok()?;
            let known =
                self.blocks.iter().enumerate().filter(|(_, block)| block.acknowledged > block.durable);
            let covers = known.map(|(at, block)| (at as u64, block.acknowledged)).collect();
            return Some(Request { id, first: 0, count: 0, fua: false, covers: Some(covers) });
        }
        let (first, count) = self.place();
        let fua = self.random.below(4) == 0;
        let mut data = Vec::new();
        for at in first..first + count {
            let block = &mut self.blocks[at as usize];
            (block.sent, block.in_flight) = (block.sent + 1, true);
            data.extend(contents(at, block.sent));
        }
        let flags = if fua { FUA } else { 0 };
        client.send((WRITE, flags), id, first * BLOCK, (count * BLOCK) as u32, &data).ok()?;
        Some(Request { id, first, count, fua, covers: None })
    }

    /// A place of this writer with no write on its way, so that versions have an order.
    fn place(&mut self) -> (u64, u64) {
        let turns = self.blocks.len() as u64 / (TURN_BLOCKS * WRITERS);
        loop {
            let turn = self.random.below(turns) * WRITERS + self.index;
            let start = self.random.below(TURN_BLOCKS);
            let count = (1 + self.random.below(WRITE_BLOCKS_MAX)).min(TURN_BLOCKS - start);
            let first = turn * TURN_BLOCKS + start;
            if (first..first + count).all(|at| !self.blocks[at as usize].in_flight) {
                return (first, count);
            }
        }
    }

    fn finish(&mut self, request: &Request) {
        for at in request.first..request.first + request.count {
            let block = &mut self.blocks[at as usize];
            (block.acknowledged, block.in_flight) = (block.sent, false);
            if request.fua {
                block.durable = block.sent;
            }
        }
        for (at, version) in request.covers.iter().flatten() {
            let block = &mut self.blocks[*at as usize];
            block.durable = block.durable.max(*version);
        }
    }

    /// Compares every block of this writer with what the server reads. What is there counts from now on.
    fn compare(&mut self, array: &[u8]) {
        let own = |at: u64| at / TURN_BLOCKS % WRITERS == self.index;
        for (at, block) in (0..).zip(&mut self.blocks).filter(|(at, _)| own(*at)) {
            let found = &array[(at * BLOCK) as usize..][..BLOCK as usize];
            let version = u64::from_le_bytes(found[8..16].try_into().expect("eight bytes"));
            assert!(found == contents(at, version), "block {at} is none of its versions");
            assert!(
                version >= block.durable,
                "block {at}: {version} is there, {} was durable",
                block.durable
            );
            // More than is promised: what was acknowledged is with the kernel, which goes on.
            let Block { acknowledged, sent, .. } = *block;
            assert!(
                (acknowledged..=sent).contains(&version),
                "block {at}: {version}, not {acknowledged}..={sent}"
            );
            *block = Block { sent, acknowledged: version, durable: version, in_flight: false };
        }
    }
}

/// The data areas of all members of a RAID-5 sum up to zero.
fn assert_parity_agrees(world: &World, members: &[String]) {
    let data_offset = world.twill(&["examine", "--json"], members).succeeds().json();
    let offset = data_offset["members"][0]["superblock"]["data_offset_bytes"].as_u64().expect("a place");
    let all: Vec<Vec<u8>> =
        members.iter().map(|name| fs::read(world.path(name)).expect("a member")).collect();
    let end =
        world.twill(&["examine", "--json"], members).json()["members"][0]["superblock"]["used_member_bytes"]
            .as_u64();
    let end = (offset + end.expect("a size")).min(MEMBER_BYTES);
    let agrees = |at: &u64| all.iter().fold(0, |sum, member| sum ^ member[*at as usize]) == 0;
    let wrong = (offset..end).find(|at| !agrees(at));
    assert_eq!(wrong, None, "the first byte whose parity does not agree");
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name)
        .map_or(otherwise, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

fn rounds() -> u64 {
    number("TWILL_KILL_ROUNDS", 5)
}

/// Serves these members, loads them and kills the server, `rounds` times; `check` looks after each. Returns how many
/// requests were acknowledged.
fn kill_under_load(
    world: &World,
    members: &[String],
    check: impl Fn(u64, &mut [Writer]),
) -> (u64, Vec<Writer>) {
    let seed = number("TWILL_KILL_SEED", 0x9e37_79b9);
    let socket = world.path("nbd.sock");
    let mut random = Random(seed);
    let mut writers: Vec<Writer> = Vec::new();
    let mut acknowledged = 0;
    for round in 0..rounds() {
        let server = world.serve(&["--shards", "2"], members);
        if writers.is_empty() {
            let blocks = Client::connect(&socket).expect("served").size_bytes / BLOCK;
            let writer = |index| Writer {
                index,
                random: Random(seed ^ (index + 1)),
                blocks: vec![Block::default(); blocks as usize],
                next_id: 0,
            };
            writers = (0..WRITERS).map(writer).collect();
        }
        let pid = Pid::from_child(&server.process);
        let delay = Duration::from_millis(5 + random.below(250));
        let killer = thread::spawn(move || {
            thread::sleep(delay);
            kill_process(pid, Signal::KILL).expect("it runs");
        });
        thread::scope(|scope| {
            let loads: Vec<_> =
                writers.iter_mut().map(|writer| scope.spawn(|| writer.load(&socket))).collect();
            acknowledged += loads.into_iter().map(|load| load.join().expect("no panic")).sum::<u64>();
        });
        killer.join().expect("no panic");
        drop(server);
        check(round, &mut writers);
    }
    println!("{} kills, {acknowledged} requests acknowledged", rounds());
    (acknowledged, writers)
}

#[test]
fn kill_9_under_load_loses_nothing_that_was_acknowledged() {
    let world = World::new();
    let members = world.array(MEMBERS);
    let (acknowledged, _) = kill_under_load(&world, &members, |round, writers| {
        // Every third time the next server is killed, too, while it makes parity agree.
        if round % 3 == 2 {
            drop(world.serve(&[], &members));
        }
        let server = world.serve(&[], &members);
        compare_all(&world, writers);
        server.wait_for("a resync", |status| status["rebuild"].is_null());
        server.stop();
        assert_parity_agrees(&world, &members);
    });
    assert!(acknowledged > rounds() * 10, "{acknowledged} requests in {} rounds are no load", rounds());
}

/// Without a member, what a half-written stripe held there is known to the redo log alone. No server needs force,
/// and none has a stripe in doubt.
#[test]
fn kill_9_with_a_member_missing_loses_nothing_either() {
    let world = World::new();
    let members = world.array(MEMBERS);
    let server = world.serve(&[], &members);
    server.twill(&["fail", &members[1]]).succeeds();
    assert_eq!(server.status()["redo_log"], "in-force", "an operator's failure waits for it");
    server.stop();
    let left: Vec<String> = members.iter().filter(|name| **name != members[1]).cloned().collect();
    let (acknowledged, mut writers) = kill_under_load(&world, &left, |_, writers| {
        let server = world.serve(&[], &left);
        compare_all(&world, writers);
        server.stop();
    });
    assert!(acknowledged > rounds() * 10, "{acknowledged} requests in {} rounds are no load", rounds());
    let server = world.serve(&[], &left);
    let spare = world.member("spare", MEMBER_BYTES);
    server.twill(&["add", &spare]).succeeds();
    let whole = |status: &serde_json::Value| {
        status["rebuild"].is_null()
            && status["members"].as_array().expect("members").iter().all(|m| m["state"] == "in-sync")
    };
    server.wait_for("a recovery", whole);
    compare_all(&world, &mut writers);
    server.stop();
    let all = [&left[..1], &[spare], &left[1..]].concat();
    assert_parity_agrees(&world, &all);
}

/// As md does it: nothing is logged, which `status` says, and after a crash stripes are in doubt.
#[test]
fn without_a_log_a_crash_with_a_member_missing_leaves_doubt() {
    let world = World::new();
    let members = world.array(MEMBERS);
    let server = world.serve(&["--no-redo-log"], &members);
    assert_eq!(server.status()["redo_log"], "unused");
    server.twill(&["fail", &members[1]]).succeeds();
    server.stop();
    let left: Vec<String> = members.iter().filter(|name| **name != members[1]).cloned().collect();
    let doubts = |options: &[&str]| {
        let server = world.serve(options, &left);
        let mut client = world.client();
        assert_eq!(client.write(0, &[7; 8192], 0).expect("served"), 0);
        drop(server); // killed
        let server = world.serve(options, &left);
        let doubts = server.status()["stripes_in_doubt"].as_u64().expect("a number");
        server.stop();
        doubts
    };
    assert_eq!(doubts(&[]), 0, "logged");
    assert!(doubts(&["--no-redo-log"]) > 0, "not logged");
}

/// The member is gone for good: an operator accepts what parity makes, first of one stripe, then of all, and a spare is filled.
#[test]
fn doubt_ends_by_an_operators_word() {
    let world = World::new();
    let members = world.array(MEMBERS);
    let server = world.serve(&["--no-redo-log"], &members);
    let refused = server.twill(&["accept-doubt", "--all"]).fails(6);
    assert!(refused.stderr.contains("no member is missing"), "{refused:?}");
    server.twill(&["fail", &members[1]]).succeeds();
    let mut client = world.client();
    assert_eq!(client.write(0, &[7; 8192], 0).expect("served"), 0);
    drop(server); // killed
    let left: Vec<String> = members.iter().filter(|name| **name != members[1]).cloned().collect();
    let server = world.serve(&["--no-redo-log"], &left);
    let doubts = |server: &Server<'_>| {
        let status = server.status();
        (status["stripes_in_doubt"].as_u64().expect("a number"), status["doubts"].clone())
    };
    let (before, ranges) = doubts(&server);
    let first = ranges[0]["first"].as_u64().expect("a stripe");
    assert!(before > 1, "{ranges}");
    for arguments in [&["status"][..], &["status", "--wait"]] {
        let run = server.twill(arguments).fails(20);
        let said = format!("{}{}", run.stdout, run.stderr);
        assert!(said.contains("in doubt") && said.contains("twill accept-doubt"), "{run:?}");
    }
    let spare = world.member("spare", MEMBER_BYTES);
    server.twill(&["add", &spare]).succeeds();
    let one = server.twill(&["accept-doubt", "--stripes", &first.to_string(), "--json"]).succeeds();
    assert_eq!((one.json()["stripes"].as_u64(), doubts(&server).0), (Some(1), before - 1));
    server.twill(&["accept-doubt", "--stripes", "9-3"]).fails(2);
    server.twill(&["accept-doubt", "--stripes", "99999999"]).fails(2);
    assert_eq!(doubts(&server).0, before - 1, "refusals change nothing");
    server.twill(&["accept-doubt", "--all"]).succeeds();
    let in_sync = |status: &serde_json::Value| {
        status["members"].as_array().expect("members").iter().all(|member| member["state"] == "in-sync")
    };
    server.wait_for("the spare", in_sync);
    server.twill(&["status", "--wait"]).succeeds();
    assert_eq!(client_reads(&world), 0);
    assert!(server.twill(&["events"]).succeeds().stdout.contains("by an operator's word"));
    server.stop();
}

/// How many reads fail.
fn client_reads(world: &World) -> usize {
    let mut client = world.client();
    let reads = (0..client.size_bytes).step_by(1 << 20);
    let failed = reads.filter(|at| {
        let bytes = (client.size_bytes - at).min(1 << 20) as u32;
        client.read(*at, bytes).expect("served").is_err()
    });
    failed.count()
}

/// An orderly stop had the superblocks name a resync that was due to stripes long since good, and all of them were in doubt
/// again at the next start.
#[test]
fn what_was_overwritten_is_not_in_doubt_after_an_orderly_stop() {
    let world = World::new();
    let members = world.array(MEMBERS);
    let left = &members[1..];
    let server = world.serve(&["--no-redo-log"], &members);
    server.twill(&["fail", &members[0]]).succeeds();
    let mut client = world.client();
    assert_eq!(client.write(0, &[7; 8192], 0).expect("served"), 0);
    drop(server); // killed
    let server = world.serve(&["--no-redo-log"], left);
    let doubts = |server: &Server<'_>| server.status()["stripes_in_doubt"].as_u64().expect("a number");
    assert!(doubts(&server) > 0);
    let mut client = world.client();
    for at in (0..client.size_bytes).step_by(1 << 20) {
        let bytes = (client.size_bytes - at).min(1 << 20) as usize;
        assert_eq!(client.write(at, &vec![9; bytes], 0).expect("served"), 0);
    }
    assert_eq!(doubts(&server), 0, "all was overwritten");
    server.stop();
    for options in [&[][..], &["--no-redo-log"], &[]] {
        let server = world.serve(options, left);
        assert_eq!(doubts(&server), 0, "{options:?}");
        let mut client = world.client();
        assert_eq!(client.read(0, 8192).expect("served"), Ok(vec![9; 8192]));
        server.stop();
    }
}

/// With this policy superblocks always say clean, so no start would replay the log.
#[test]
fn nothing_is_logged_where_superblocks_do_not_say_that_writes_are_under_way() {
    let world = World::new();
    let members = world.array(MEMBERS);
    let server = world.serve(&["--consistency-policy", "none"], &members);
    server.twill(&["fail", &members[1]]).succeeds();
    assert_eq!(server.status()["redo_log"], "unused");
    server.stop();
}

/// Every block is one of its versions, and none older than what was acknowledged.
fn compare_all(world: &World, writers: &mut [Writer]) {
    let mut client = world.client();
    let mut array = Vec::new();
    while (array.len() as u64) < client.size_bytes {
        let bytes = (client.size_bytes - array.len() as u64).min(1 << 20) as u32;
        array.extend(client.read(array.len() as u64, bytes).expect("served").expect("readable"));
    }
    writers.iter_mut().for_each(|writer| writer.compare(&array));
}
