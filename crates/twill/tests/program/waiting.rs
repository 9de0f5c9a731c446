//! `--wait-members`: a start waits for members that come late, and starts without those that do not come.

use std::fs;
use std::time::{Duration, Instant};

use crate::world::World;

/// Longer than any start here takes, and shorter than the longest wait asked for.
const LONG: Duration = Duration::from_secs(60);

/// While `act` runs, `member` is away for two seconds.
fn late<T>(world: &World, member: &str, act: impl FnOnce() -> T) -> T {
    let (here, away) = (world.path(member), world.path("away.part"));
    fs::create_dir_all(world.path("elsewhere")).expect("a folder");
    let away = world.path("elsewhere").join(away.file_name().expect("a name"));
    fs::rename(&here, &away).expect("renamed");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_secs(2));
            fs::rename(&away, &here).expect("renamed");
        });
        act()
    })
}

#[test]
fn a_start_waits_for_a_member_that_comes_late() {
    for (level, options) in
        [("5", &["--scan", ".", "--wait-members", "90s"][..]), ("1", &["--wait-members", "90", "m0", "m1"])]
    {
        let world = World::new();
        world.array_of(level, if level == "5" { 3 } else { 2 });
        let start = Instant::now();
        let server = late(&world, "m1", || world.serve(options, &[]));
        assert!(start.elapsed() >= Duration::from_secs(2), "it did not wait");
        assert!(start.elapsed() < LONG, "it waited although all were there");
        assert_eq!(server.announcement["warnings"], serde_json::json!([]), "level {level}");
        let log = server.log();
        assert!(log.contains("waiting up to 1m 30s for missing members (--wait-members)"), "{log}");
        server.stop();
    }
}

#[test]
fn after_the_wait_it_starts_degraded_and_says_so() {
    let world = World::new();
    let members = world.array(3);
    fs::remove_file(world.path("m1")).expect("removed");
    let start = Instant::now();
    let server = world.serve(&["--wait-members", "1s", "--scan", "."], &[]);
    assert!(start.elapsed() >= Duration::from_secs(1));
    let warnings = server.announcement["warnings"].to_string();
    assert!(warnings.contains("degraded: no member in slot 1"), "{warnings}");
    let log = server.log();
    assert!(log.contains("no member in slot 1, which the others call active"), "{log}");
    // A write marks the absent member as failed: from then on nobody waits for it.
    assert_eq!(world.client().write(0, &[1; 4096], 0).expect("served"), 0);
    server.stop();
    let start = Instant::now();
    let server = world.serve(&["--wait-members", "90s"], &[members[0].clone(), members[2].clone()]);
    assert!(start.elapsed() < LONG);
    let waits = server.log().matches("waiting up to").count();
    assert_eq!(waits, 1, "that of the first start");
    server.stop();
}

#[test]
fn a_search_that_finds_too_few_waits_five_seconds_by_itself() {
    let world = World::new();
    world.array(3);
    fs::remove_file(world.path("m1")).expect("removed");
    let server = late(&world, "m2", || world.serve(&["--scan", "."], &[]));
    assert!(server.log().contains("waiting up to 5s"), "{}", server.log());
    server.stop();
    let start = Instant::now();
    let run = world.twill(&["serve", "--scan", ".", "--wait-members", "0", "--no-degraded"], &[] as &[&str]);
    assert!(start.elapsed() < LONG && !run.stderr.contains("waiting"), "{run:?}");
    run.fails(5);
}

#[test]
fn assemble_waits_on_demand() {
    let world = World::new();
    world.array(3);
    let run = late(&world, "m1", || {
        world.twill(&["assemble", "--wait-members", "90s", "--scan", "."], &[] as &[&str])
    });
    assert!(run.stdout.contains("would start\n"), "{run:?}");
    assert!(run.stderr.contains("waiting up to 1m 30s"), "{run:?}");
    let run = world.twill(&["assemble", "--wait-members", "soon", "m0"], &[] as &[&str]).fails(2);
    assert!(run.stderr.contains("write it like 30s"), "{run:?}");
    // A member that is there and stale is not waited for.
    let server = world.serve(&[], &["m0".into(), "m1".into()]);
    assert_eq!(world.client().write(0, &[1; 4096], 0).expect("served"), 0);
    server.stop();
    let start = Instant::now();
    let run = world.twill(&["assemble", "--wait-members", "90s"], &["m0", "m1", "m2"]);
    assert!(start.elapsed() < LONG && run.stdout.contains("would start degraded, 1 missing"), "{run:?}");
}
