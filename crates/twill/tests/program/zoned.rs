//! Zoned arrays over files that are cut into software zones: made, served, stopped, killed, degraded, refused.

use std::fs;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::nbd::{Client, FUA, WRITE};
use crate::world::{Server, World};

pub const MEMBER_BYTES: u64 = 24 << 20;
const BLOCK: u64 = 4096;
const TRIM: u16 = 4;
const WRITE_ZEROES: u16 = 6;

pub fn members(world: &World, count: usize) -> Vec<String> {
    (0..count).map(|i| world.member(&format!("m{i}"), MEMBER_BYTES)).collect()
}

pub fn create(world: &World, level: &str, members: &[String]) -> Value {
    let arguments = [
        "create",
        "--json",
        "--metadata",
        "zoned",
        "--zone-size",
        "512K",
        "--level",
        level,
        "--name",
        "test",
    ];
    world.twill(&arguments, members).succeeds().json()
}

/// Contents of a block that tell which write they are of.
pub fn contents(block: u64, version: u64) -> Vec<u8> {
    if version == 0 {
        return vec![0; BLOCK as usize];
    }
    [block.to_le_bytes(), version.to_le_bytes()].concat().repeat(BLOCK as usize / 16)
}

pub fn write(client: &mut Client, block: u64, count: u64, version: u64, flags: u16) {
    let data: Vec<u8> = (block..block + count).flat_map(|block| contents(block, version)).collect();
    assert_eq!(client.write(block * BLOCK, &data, flags).expect("served"), 0);
}

fn read(client: &mut Client, block: u64, count: u64) -> Vec<u8> {
    client.read(block * BLOCK, (count * BLOCK) as u32).expect("served").expect("readable")
}

#[track_caller]
pub fn assert_holds(client: &mut Client, block: u64, count: u64, version: u64) {
    let found = read(client, block, count);
    for (at, found) in (block..).zip(found.chunks(BLOCK as usize)) {
        assert!(found == contents(at, version), "block {at} is not its version {version}");
    }
}

/// Writes the first `blocks` blocks.
pub fn fill(client: &mut Client, blocks: u64, version: u64) {
    for block in (0..blocks).step_by(100) {
        write(client, block, (blocks - block).min(100), version, 0);
    }
}

/// The first `blocks` blocks hold this version.
#[track_caller]
pub fn holds(client: &mut Client, blocks: u64, version: u64) {
    for block in (0..blocks).step_by(100) {
        assert_holds(client, block, (blocks - block).min(100), version);
    }
}

fn discard(client: &mut Client, kind: u16, block: u64, count: u64) {
    client.send((kind, 0), 9, block * BLOCK, (count * BLOCK) as u32, &[]).expect("served");
    assert_eq!(client.reply().expect("served"), (9, 0));
}

#[test]
fn every_level_keeps_what_was_written_over_stops() {
    for (level, count) in [("5", 4), ("6", 5), ("4", 3), ("0", 2), ("10", 4)] {
        let world = World::new();
        let members = members(&world, count);
        let made = create(&world, level, &members);
        assert_eq!(
            (&made["metadata"], &made["access"], &made["carrier"]),
            (&"zoned".into(), &"placed".into(), &"inband".into())
        );
        let size = made["size_bytes"].as_u64().expect("a size");
        for round in 1..=3 {
            let server = world.serve(&[], &members);
            let mut client = world.client();
            assert_eq!(client.size_bytes, size);
            let last = size / BLOCK - 1;
            if round > 1 {
                assert_holds(&mut client, 0, 64, round - 1);
                assert_holds(&mut client, 200, 1, round - 1);
                assert_holds(&mut client, last, 1, round - 1);
                assert_holds(&mut client, 300, 16, 0);
            }
            write(&mut client, 0, 64, round, 0);
            write(&mut client, 200, 1, round, FUA);
            write(&mut client, last, 1, round, 0);
            write(&mut client, 300, 16, round, 0);
            assert_eq!(client.flush().expect("served"), 0);
            assert_holds(&mut client, 300, 16, round);
            discard(&mut client, if round == 2 { TRIM } else { WRITE_ZEROES }, 300, 16);
            assert_holds(&mut client, 300, 16, 0);
            assert_holds(&mut client, 0, 64, round);
            server.stop();
        }
        let examined = world.twill(&["examine", "--json"], &members).succeeds().json();
        let superblock = &examined["members"][0]["zoned_superblock"];
        assert_eq!(superblock["clean"], true, "{superblock:#}");
        assert_eq!(superblock["epoch"], superblock["served_epoch"], "{superblock:#}");
    }
}

#[test]
fn what_operators_see_of_it() {
    let world = World::new();
    let members = members(&world, 4);
    create(&world, "5", &members);
    let explained = world.twill(&["assemble", "--explain"], &members).succeeds().stdout;
    for words in ["test: raid5 over 4 members", "would start", "slot 3", "epoch"] {
        assert!(explained.contains(words), "no {words:?} in {explained}");
    }
    let server = world.serve(&[], &members);
    let status = server.status();
    assert_eq!(
        (&status["metadata"], &status["level"], &status["clean"]),
        (&"zoned".into(), &"raid5".into(), &true.into())
    );
    assert_eq!((&status["zoned"]["access"], &status["zoned"]["zones"]), (&"placed".into(), &48.into()));
    let free = status["zoned"]["free_zones"].as_u64();
    let mut client = world.client();
    write(&mut client, 0, 1, 1, 0);
    let status = server.status();
    assert!(status["zoned"]["free_zones"].as_u64() < free, "{:#}", status["zoned"]);
    assert_eq!(status["zoned"]["live_bytes"], 4096);
    let words = server.twill(&["status"]).succeeds().stdout;
    assert!(words.contains("zones: ") && words.contains(" free"), "{words}");
    let detail = server.twill(&["detail"]).succeeds().stdout;
    for words in ["Version : zoned", "Raid Level : raid5", "Zones", "Epoch", "active sync"] {
        assert!(detail.contains(words), "no {words:?} in {detail}");
    }
    world.member("m9", MEMBER_BYTES);
    // While it is served its members are in use.
    let in_use = world.twill(&["assemble"], &members).fails(6);
    assert!(in_use.stdout.contains("in use"), "{in_use:?}");
    for (command, rest) in [("replace", &["m0", "--with", "m9"][..]), ("set", &["--rate", "1M"])] {
        let refused = server.twill(&[&[command], rest].concat()).fails(12);
        assert!(refused.stderr.contains("is not for this zoned array"), "{refused:?}");
    }
    assert!(server.twill(&["add", "m9"]).fails(6).stderr.contains("every slot has a member in use"));
    assert!(server.twill(&["re-add", "m0"]).fails(6).stderr.contains("m0"));
    server.stop();
}

/// Waits until no member is behind.
pub fn wait_whole(server: &Server) -> Value {
    for _ in 0..600 {
        let status = server.status();
        let states = status["members"].as_array().expect("members");
        if states.iter().all(|member| member["state"] == "in-sync") {
            return status;
        }
        thread::sleep(Duration::from_millis(50));
    }
    panic!("a member stays behind: {:#}", server.status());
}

#[test]
fn a_new_member_and_one_that_was_away_are_made_whole() {
    for level in ["5", "6", "10"] {
        let world = World::new();
        let members = members(&world, 4);
        create(&world, level, &members);
        let server = world.serve(&[], &members);
        let mut client = world.client();
        write(&mut client, 0, 300, 1, 0);
        // Away for a while.
        server.twill(&["fail", "m1"]).succeeds();
        write(&mut client, 50, 40, 2, FUA);
        server.twill(&["re-add", "m1"]).succeeds();
        wait_whole(&server);
        server.twill(&["fail", "m2"]).succeeds();
        assert_holds(&mut client, 0, 50, 1);
        assert_holds(&mut client, 50, 40, 2);
        // Gone for good.
        server.twill(&["remove", "m2"]).succeeds();
        fs::write(world.path("text"), "not empty".repeat(1000)).expect("a file");
        world.member("m9", MEMBER_BYTES);
        world.member("small", MEMBER_BYTES / 2);
        assert!(server.twill(&["add", "small"]).fails(10).stderr.contains("zones"));
        server.twill(&["add", "m9"]).succeeds();
        let status = wait_whole(&server);
        assert!(status["members"][2]["path"].as_str().is_some_and(|path| path.contains("m9")), "{status:#}");
        server.twill(&["fail", "m0"]).succeeds();
        assert_holds(&mut client, 0, 50, 1);
        assert_holds(&mut client, 50, 40, 2);
        assert_holds(&mut client, 90, 210, 1);
        assert_eq!(client.flush().expect("served"), 0);
        drop(client);
        server.stop();
        // The one that was exchanged is no member any more; the new one is.
        let now: Vec<String> = ["m1", "m9", "m3"].map(str::to_owned).to_vec();
        let server = world.serve(&[], &now);
        let mut client = world.client();
        assert_holds(&mut client, 90, 210, 1);
        let refused = server.twill(&["re-add", "m2"]);
        assert!(refused.code != 0 && refused.stderr.contains("does not list it"), "{refused:?}");
        server.twill(&["re-add", "m0"]).succeeds();
        wait_whole(&server);
        assert_holds(&mut client, 50, 40, 2);
        drop(client);
        server.stop();
    }
}

#[test]
fn a_repair_makes_a_bad_block_again_elsewhere() {
    let world = World::new();
    let members = members(&world, 4);
    create(&world, "5", &members);
    let server = world.serve(&[], &members);
    let mut client = world.client();
    write(&mut client, 0, 200, 1, 0);
    drop(client);
    server.stop();
    let mut bytes = fs::read(world.path("m2")).expect("a member");
    let block = (0..200).find_map(|block| {
        let wanted = contents(block, 1);
        bytes.chunks(BLOCK as usize).position(|found| found == wanted)
    });
    let at = block.expect("a data block on the member") * BLOCK as usize;
    bytes[at + 77] ^= 4;
    fs::write(world.path("m2"), bytes).expect("a member");
    let server = world.serve(&[], &members);
    let found = server.twill(&["check"]);
    assert!(found.code != 0 && found.stdout.contains("m2"), "{found:?}");
    let repaired = server.twill(&["repair"]).succeeds();
    assert!(repaired.stdout.contains("made again elsewhere"), "{repaired:?}");
    server.twill(&["check"]).succeeds();
    assert_holds(&mut world.client(), 0, 200, 1);
    server.stop();
}

#[test]
fn a_member_that_failed_is_left_out_and_stale_from_then_on() {
    let world = World::new();
    let members = members(&world, 4);
    create(&world, "5", &members);
    let server = world.serve(&[], &members);
    let mut client = world.client();
    write(&mut client, 0, 100, 1, 0);
    server.twill(&["remove", "1"]).fails(6);
    server.twill(&["fail", "m1"]).succeeds();
    assert_holds(&mut client, 0, 100, 1);
    // New segments are narrower, and as redundant as the level says.
    write(&mut client, 50, 100, 2, FUA);
    assert_holds(&mut client, 50, 100, 2);
    assert_eq!(server.twill(&["fail", "2"]).code, 14, "the array would be lost");
    let status = server.status();
    assert_eq!(status["members"][1]["state"], "failed");
    assert!(server.twill(&["status"]).succeeds().stdout.contains("[4/3] [U_UU]"));
    let events = server.twill(&["events"]).succeeds().stdout;
    assert!(events.contains("m1") && events.contains("an operator said so"), "{events}");
    server.twill(&["remove", "failed"]).succeeds();
    assert_eq!(server.status()["members"][1]["state"], "missing");
    drop(client);
    server.stop();

    let explained = world.twill(&["assemble", "--explain"], &members).succeeds().stdout;
    assert!(explained.contains("m1: not taken: stale: the others call it failed since event"), "{explained}");
    assert!(explained.contains("would start degraded, 1 missing"), "{explained}");
    let without: Vec<String> = members.iter().filter(|name| *name != "m1").cloned().collect();
    for present in [&members, &without] {
        let before = fs::read(world.path("m1")).expect("m1");
        let server = world.serve(&[], present);
        let mut client = world.client();
        assert_holds(&mut client, 0, 50, 1);
        assert_holds(&mut client, 50, 100, 2);
        drop(client);
        server.stop();
        assert!(
            before == fs::read(world.path("m1")).expect("m1"),
            "a member that is not taken is not written"
        );
    }
    // The stale one and one other are too few, and nothing is changed.
    let says = ["1 of 4 members are in sync, and 3 are needed", "stale: "];
    world.refused(5, &says, &["serve"], &["m1", "m2"]);
}

#[test]
fn each_single_member_may_be_missing_and_no_zone_is_lost() {
    let world = World::new();
    let members = members(&world, 4);
    create(&world, "5", &members);
    let server = world.serve(&[], &members);
    let mut client = world.client();
    write(&mut client, 0, 300, 1, FUA);
    drop(client);
    server.stop();
    let saved: Vec<Vec<u8>> =
        members.iter().map(|name| fs::read(world.path(name)).expect("a member")).collect();
    for absent in 0..4 {
        for (name, bytes) in members.iter().zip(&saved) {
            fs::write(world.path(name), bytes).expect("put back");
        }
        let mut present = members.clone();
        let name = present.remove(absent);
        // Named, but empty: another device took its name.
        fs::write(world.path(&name), vec![0; MEMBER_BYTES as usize]).expect("emptied");
        let server = world.serve(&[], &members);
        let mut client = world.client();
        assert_holds(&mut client, 0, 300, 1);
        drop(client);
        server.stop();
        assert!(
            fs::read(world.path(&name)).expect("it").iter().all(|byte| *byte == 0),
            "the empty one is not written"
        );
    }
}

#[test]
fn each_thread_has_as_many_segments_open_as_create_was_told() {
    for (small, large) in [("3", "0"), ("0", "2"), ("2", "2")] {
        let world = World::new();
        let members = members(&world, 4);
        let zoned = ["create", "--metadata", "zoned", "-l", "5", "--zone-size", "512K", "--name", "test"];
        world
            .twill(&[&zoned[..], &["--open-small", small, "--open-large", large]].concat(), &members)
            .succeeds();
        let examined = world.twill(&["examine", "--json"], &members[..1]).succeeds().json().to_string();
        for said in [format!("\"open_small\":{small}"), format!("\"open_large\":{large}")] {
            assert!(examined.contains(&said), "{said}: {examined}");
        }
        for round in 1..=2 {
            let server = world.serve(&[], &members);
            let mut client = world.client();
            for (block, count) in [(0, 1), (7, 1), (64, 200), (300, 1)] {
                if round == 2 {
                    assert_holds(&mut client, block, count, 1);
                }
                write(&mut client, block, count, round, 0);
                assert_holds(&mut client, block, count, round);
            }
            drop(client);
            server.stop();
        }
    }
}

#[test]
fn open_segments_that_make_no_array_are_refused() {
    let world = World::new();
    let own = members(&world, 4);
    let create = ["create", "-l", "5"];
    let zoned = [&create[..], &["--metadata", "zoned", "--zone-size", "1M"]].concat();
    for (code, says, arguments) in [
        (2, "nothing could be written", [&zoned[..], &["--open-small", "0", "--open-large", "0"]].concat()),
        (
            10,
            "has 24 zones; 40 are needed",
            [&zoned[..], &["--open-small", "16", "--open-large", "16"]].concat(),
        ),
        (2, "--open-small is for zoned arrays only", [&create[..], &["--open-small", "2"]].concat()),
    ] {
        world.refused(code, &[says], &arguments, &own);
    }
}

#[test]
fn refusals_name_what_is_wrong_and_change_nothing() {
    let world = World::new();
    let own = members(&world, 4);
    let zoned = ["create", "--metadata", "zoned", "--level", "5", "--zone-size", "512K"];
    let with = |more: &[&'static str]| [&zoned[..], more].concat();
    world.member("tiny", 2 << 20);
    world.refused(10, &["tiny has 4 zones", "--zone-size"], &zoned, &["m0", "m1", "tiny"]);
    world.refused(
        10,
        &["a power of two from 256K to 2G"],
        &["create", "--metadata", "zoned", "-l", "5", "--zone-size", "300K"],
        &own,
    );
    world.refused(
        10,
        &["makes no zoned array"],
        &["create", "--metadata", "zoned", "-l", "6"],
        &["m0", "m1"],
    );
    world.refused(
        10,
        &["makes no zoned array"],
        &["create", "--metadata", "zoned", "-l", "1"],
        &["m0", "m1"],
    );
    world.refused(10, &["no 64 bytes of metadata"], &with(&["--carrier", "oob"]), &own);
    world.refused(2, &["--chunk is not for a zoned array"], &with(&["--chunk", "64K"]), &own);
    world.refused(2, &["--spare-devices is not"], &with(&["-x", "1"]), &own);
    world.refused(2, &["missing is not"], &zoned, &["m0", "missing", "m2"]);
    world.refused(
        2,
        &["--zone-size is for zoned arrays only"],
        &["create", "-l", "5", "--zone-size", "1M"],
        &own,
    );
    world.refused(13, &["is the same file"], &zoned, &["m0", "m1", "./m0"]);

    create(&world, "5", &own);
    world.refused(3, &["m0: has a superblock of a zoned array", "--force"], &zoned, &own);
    world.refused(12, &["not served read-only"], &["serve", "--read-only"], &own);
    world.refused(2, &["--avoid-slow is not for a zoned array"], &["serve", "--avoid-slow"], &own);
    world.refused(5, &["would start degraded"], &["serve", "--no-degraded"], &["m0", "m1", "m2"]);
    world.refused(5, &["2 of 4 members are in sync, and 3 are needed"], &["serve"], &["m0", "m1"]);
    fs::copy(world.path("m2"), world.path("copy")).expect("copied");
    world.refused(13, &["is a copy of another member"], &["serve"], &["m0", "m1", "m2", "m3", "copy"]);
    fs::remove_file(world.path("copy")).expect("removed");
    // A member of another array is not taken, and the array starts without it.
    let foreign: Vec<String> = (0..3).map(|i| world.member(&format!("f{i}"), MEMBER_BYTES)).collect();
    world
        .twill(
            &["create", "--metadata", "zoned", "--level", "5", "--zone-size", "512K", "--name", "other"],
            &foreign,
        )
        .succeeds();
    world.refused(13, &["belong to 2 arrays"], &["serve"], &["m0", "m1", "m2", "f0", "f1", "f2"]);
    // Two members that swapped their names are each in its own slot.
    fs::rename(world.path("m0"), world.path("swap")).expect("renamed");
    fs::rename(world.path("m3"), world.path("m0")).expect("renamed");
    fs::rename(world.path("swap"), world.path("m3")).expect("renamed");
    let server = world.serve(&[], &own);
    assert!(server.status()["members"][3]["path"].as_str().is_some_and(|path| path.ends_with("m0")));
    server.stop();
    world.twill(&with(&["--force"]), &own).succeeds();
}

/// What a client wrote of one block, in order: the version that was acknowledged last, and the one sent last.
#[derive(Clone, Copy, Default)]
struct Known {
    durable: u64,
    sent: u64,
}

const BLOCKS: u64 = 96;
const IN_FLIGHT: u64 = 8;

/// Writes until the server is gone, or `most` requests are sent; each block has one write on its way at most.
fn load(world: &World, known: &mut [Known], version: &mut u64, most: u64, seed: u64) -> u64 {
    let Ok(mut client) = Client::connect(&world.path("nbd.sock")) else { return 0 };
    let (mut on_their_way, mut sent, mut done) = (Vec::<u64>::new(), 0, 0);
    let mut random = seed | 1;
    loop {
        while (on_their_way.len() as u64) < IN_FLIGHT && sent < most {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let block = (random >> 33) % BLOCKS;
            if on_their_way.contains(&block) {
                continue;
            }
            *version += 1;
            known[block as usize].sent = *version;
            let data = contents(block, *version);
            if client.send((WRITE, FUA), block, block * BLOCK, BLOCK as u32, &data).is_err() {
                return done;
            }
            on_their_way.push(block);
            sent += 1;
        }
        if on_their_way.is_empty() {
            return done;
        }
        let Ok((block, error)) = client.reply() else { return done };
        assert_eq!(error, 0, "the array takes writes");
        on_their_way.retain(|other| *other != block);
        known[block as usize].durable = known[block as usize].sent;
        done += 1;
    }
}

/// Every block is the version that was acknowledged last, or one that was on its way.
fn compare(client: &mut Client, known: &mut [Known]) {
    let found = read(client, 0, BLOCKS);
    for (at, (found, known)) in (0..).zip(found.chunks(BLOCK as usize).zip(known)) {
        let version = u64::from_le_bytes(found[8..16].try_into().expect("eight bytes"));
        assert!(found == contents(at, version), "block {at} is none of its versions");
        assert!(
            (known.durable..=known.sent).contains(&version),
            "block {at}: {version}, not {}..={}",
            known.durable,
            known.sent
        );
        *known = Known { durable: version, sent: version };
    }
}

pub fn kill(server: &mut Server<'_>) {
    let pid = Pid::from_raw(server.process.id() as i32).expect("a process");
    kill_process(pid, Signal::KILL).expect("killed");
    server.end();
}

#[test]
fn kill_9_under_load_loses_nothing_that_was_acknowledged() {
    let rounds = std::env::var("TWILL_KILL_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(4);
    let world = World::new();
    let members: Vec<String> = (0..4).map(|i| world.member(&format!("m{i}"), 96 << 20)).collect();
    create(&world, "5", &members);
    let mut known = vec![Known::default(); BLOCKS as usize];
    let (mut version, mut acknowledged) = (0, 0);
    for round in 0..rounds {
        let mut server = world.serve(&["--shards", if round % 2 == 0 { "1" } else { "2" }], &members);
        compare(&mut world.client(), &mut known);
        thread::scope(|scope| {
            let loading = scope.spawn(|| load(&world, &mut known, &mut version, 2000, round + 77));
            thread::sleep(Duration::from_millis(100 + round * 37 % 300));
            kill(&mut server);
            acknowledged += loading.join().expect("the load ends");
        });
    }
    assert!(acknowledged > 0, "nothing was tried");
    let server = world.serve(&[], &members);
    compare(&mut world.client(), &mut known);
    server.stop();
    // After a clean stop the same is there, also without any one member.
    for absent in 0..4 {
        let present: Vec<String> = (0..4).filter(|at| *at != absent).map(|at| members[at].clone()).collect();
        if absent == 0 {
            let server = world.serve(&[], &present);
            compare(&mut world.client(), &mut known);
            server.stop();
        } else {
            world.twill(&["assemble"], &members).succeeds();
        }
    }
}
