//! Peer mode over real processes: targets and the host are killed, paused and cut off at random under load. No write that was
//! acknowledged is lost, every block is one of its versions, and parity of every stripe agrees afterwards.
//!
//! `TWILL_KILL_ROUNDS=100 cargo test -p twill-raid --test program fabric_kills` is the long run. `TWILL_KILL_SEED` repeats a
//! run as far as a kill can be repeated.

use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::load::{Random, Writer, compare_all, number};
use crate::nbd::Client;
use crate::targets::Target;
use crate::world::{Server, World};

/// With room for a reserve, and read whole after each round.
const MEMBER_BYTES: u64 = 12 << 20;
/// After which a member fails that does not answer.
const MEMBER_LIMIT_S: u64 = 2;

/// Acts on targets in a round before the host is killed.
const ACTS: u64 = 3;

struct Setting<'a> {
    world: &'a World,
    members: Vec<String>,
    /// Targets that may be away at once.
    survives: u64,
}

/// A run that fails can hardly be had again.
impl Drop for Setting<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let log = std::fs::read_to_string(self.world.path("server.log")).unwrap_or_default();
            println!("the servers' log:\n{log}");
        }
    }
}

impl Setting<'_> {
    fn serve(&self) -> Server<'_> {
        let limit = MEMBER_LIMIT_S.to_string();
        let options = ["--fabric", "peer", "--member-time-limit", &limit, "--re-add"];
        self.world.serve(&options, &self.members)
    }

    fn is_whole(&self, status: &Value) -> bool {
        let members = status["members"].as_array().expect("members");
        members.len() == self.members.len()
            && members.iter().all(|member| {
                member["state"] == "in-sync"
                    && member["remote"]["state"] == "connected"
                    && member["remote"]["unreached_targets"] == 0
            })
    }
}

/// What happens to a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    Killed,
    Paused,
    /// Its connections are lost, and the target goes on.
    Cut,
}

/// Kills or pauses targets or cuts their links, no more of them at once than the level survives, and lets all of them run again.
fn trouble(setting: &Setting<'_>, targets: &mut [Target<'_>], random: &mut Random) {
    let count = 1 + random.below(setting.survives);
    let first = random.below(targets.len() as u64);
    let chosen: Vec<(usize, Trouble)> = (first..first + count)
        .map(|at| {
            let trouble = [Trouble::Killed, Trouble::Paused, Trouble::Cut][random.below(3) as usize];
            (at as usize % targets.len(), trouble)
        })
        .collect();
    println!("{chosen:?}");
    for (at, trouble) in &chosen {
        match trouble {
            Trouble::Killed => targets[*at].kill(),
            Trouble::Paused => targets[*at].signal(Signal::STOP),
            Trouble::Cut => targets[*at].cut(),
        }
    }
    // Once in three beyond the limit: the member fails, and is taken back.
    let limit_ms = MEMBER_LIMIT_S * 1000;
    let away = if random.below(3) == 0 { limit_ms + random.below(1000) } else { random.below(limit_ms / 2) };
    thread::sleep(Duration::from_millis(away));
    for (at, trouble) in &chosen {
        match trouble {
            Trouble::Killed => targets[*at].restart(),
            Trouble::Paused => targets[*at].signal(Signal::CONT),
            // Again as soon as it may be connected.
            Trouble::Cut => targets[*at].cut(),
        }
    }
}

/// One life of the host under load. How many requests were acknowledged.
fn round(
    setting: &Setting<'_>,
    targets: &mut [Target<'_>],
    writers: &mut [Writer],
    random: &mut Random,
) -> u64 {
    let server = setting.serve();
    server.wait_for("attached targets", |status| setting.is_whole(status));
    let socket = setting.world.path("nbd.sock");
    let acknowledged = thread::scope(|scope| {
        let loads: Vec<_> = writers.iter_mut().map(|writer| scope.spawn(|| writer.load(&socket))).collect();
        for _ in 0..ACTS {
            thread::sleep(Duration::from_millis(random.below(300)));
            trouble(setting, targets, random);
            server.wait_for("all members", |status| setting.is_whole(status));
        }
        // Sometimes while a target is away, too.
        let victim = random.below(targets.len() as u64) as usize;
        let is_with_target = random.below(2) == 0;
        if is_with_target {
            targets[victim].kill();
            // Before the member fails, or when the redo log is in force without it. A host that dies in between leaves what it was
            // writing in doubt, which at RAID-5 is to be said, and is no matter of targets.
            let limit_ms = MEMBER_LIMIT_S * 1000;
            let away = if random.below(2) == 0 { random.below(limit_ms - 200) } else { limit_ms + 2500 };
            thread::sleep(Duration::from_millis(away));
        }
        drop(server); // killed
        if is_with_target {
            targets[victim].restart();
        }
        loads.into_iter().map(|load| load.join().expect("no panic")).sum()
    });
    let server = setting.serve();
    compare_all(setting.world, writers);
    server.wait_for("all members", |status| setting.is_whole(status) && status["rebuild"].is_null());
    let check = server.twill(&["check", "--json"]).succeeds().json();
    assert_eq!(check["report"]["mismatch_sectors"], 0, "{check:#}");
    assert_eq!(server.status()["stripes_in_doubt"], 0);
    server.stop();
    acknowledged
}

/// An array over targets whose links can be cut, with the names of its members.
fn array_over_targets<'a>(world: &'a World, level: &str, count: usize) -> (Vec<Target<'a>>, Vec<String>) {
    let files: Vec<String> = (0..count).map(|at| format!("t{at}")).collect();
    let targets: Vec<Target<'_>> =
        files.iter().map(|file| Target::linked(world, file, MEMBER_BYTES)).collect();
    let members: Vec<String> = targets.iter().flat_map(Target::members).collect();
    let create = ["create", "--level", level, "--name", "test", "--chunk", "16K", "--bitmap", "internal"];
    world.twill(&[&create[..], &["--assume-clean"]].concat(), &members).succeeds();
    (targets, members)
}

/// The host is killed under load, and the next one goes by what the targets have recorded: no resync, and all parity agrees. Unless
/// a target was restarted in between: then the bitmap says what is resynced.
fn the_next_host_goes_by_ledgers(level: &str, count: usize) {
    let world = World::new();
    let (mut targets, members) = array_over_targets(&world, level, count);
    let setting = Setting { world: &world, members, survives: 1 };
    let server = setting.serve();
    let bytes = Client::connect(&world.path("nbd.sock")).expect("served").size_bytes;
    let mut writers = Writer::all(bytes, 0x1ed9_e75e);
    let mut server = Some(server);
    let (mut by_ledgers, mut resyncs) = (0, 0);
    for is_restarted in [false, true, false] {
        let own = server.take().expect("it serves");
        own.wait_for("complete ledgers", |status| status["writes_recorded"] == true);
        let socket = world.path("nbd.sock");
        thread::scope(|scope| {
            let loads: Vec<_> =
                writers.iter_mut().map(|writer| scope.spawn(|| writer.load(&socket))).collect();
            thread::sleep(Duration::from_millis(700));
            drop(own); // killed
            for load in loads {
                assert!(load.join().expect("no panic") > 0, "requests are acknowledged");
            }
        });
        if is_restarted {
            targets[1].kill();
            targets[1].restart();
        }
        let next = setting.serve();
        compare_all(&world, &mut writers);
        next.wait_for("a resync that is over", |status| status["rebuild"].is_null());
        let events = next.twill(&["events", "--json"]).succeeds().stdout;
        resyncs += usize::from(is_restarted);
        by_ledgers += usize::from(!is_restarted);
        assert_eq!(events.matches("ledgers-used").count(), by_ledgers, "{events}");
        assert_eq!(events.matches("resync-started").count(), resyncs, "{events}");
        next.wait_for("all members", |status| setting.is_whole(status));
        let check = next.twill(&["check", "--json"]).succeeds().json();
        assert_eq!(check["report"]["mismatch_sectors"], 0, "{check:#}");
        server = Some(next);
    }
    server.expect("it serves").stop();
}

#[test]
fn after_a_killed_host_raid5_goes_by_what_its_targets_have_recorded() {
    the_next_host_goes_by_ledgers("5", 4);
}

#[test]
fn after_a_killed_host_raid6_goes_by_what_its_targets_have_recorded() {
    the_next_host_goes_by_ledgers("6", 5);
}

fn targets_and_hosts_are_killed(level: &str, count: usize, survives: u64) {
    let world = World::new();
    let (mut targets, members) = array_over_targets(&world, level, count);
    let setting = Setting { world: &world, members, survives };
    let server = setting.serve();
    let seed = number("TWILL_KILL_SEED", 0x51f1_5eed);
    let bytes = Client::connect(&world.path("nbd.sock")).expect("served").size_bytes;
    let (mut writers, mut random) = (Writer::all(bytes, seed), Random(seed));
    server.stop();
    let (rounds, mut acknowledged) = (number("TWILL_KILL_ROUNDS", 1), 0);
    for at in 0..rounds {
        acknowledged += round(&setting, &mut targets, &mut writers, &mut random);
        println!("RAID-{level}: {} of {rounds} rounds, {acknowledged} requests acknowledged", at + 1);
    }
    assert!(acknowledged > rounds * 50, "{acknowledged} requests in {rounds} rounds are no load");
}

#[test]
fn raid5_loses_nothing_where_targets_and_hosts_are_killed() {
    targets_and_hosts_are_killed("5", 4, 1);
}

#[test]
fn raid6_loses_nothing_where_targets_and_hosts_are_killed() {
    targets_and_hosts_are_killed("6", 5, 2);
}
