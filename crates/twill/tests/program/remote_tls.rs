//! Members on other machines under TLS: keys in files, at `twill target` and at its hosts; and targets among themselves.

use crate::nbd::FUA;
use crate::targets::{MEMBER_BYTES, Target};
use crate::world::{Run, World};

const BLOCK: usize = 4096;
const HOST: &str = "nqn.2026-11.test:host";
const PEER: &str = "nqn.2026-11.test:peer";
/// Keys as nvme gen-tls-key makes them, of either hash function.
const KEY: &str = "NVMeTLSkey-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
const OTHER_KEY: &str =
    "NVMeTLSkey-1:02:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vcSEgBQ==:";

fn world() -> World {
    let world = World::new();
    for (name, text) in [("key", KEY), ("other", OTHER_KEY), ("cut", &KEY[..30])] {
        std::fs::write(world.path(name), format!("{text}\n")).expect("written");
    }
    world
}

fn create(world: &World, secret: &str, members: &[String]) -> Run {
    let create = ["create", "--level", "5", "--name", "test", "--chunk", "64K", "--bitmap", "internal"];
    let host = ["--assume-clean", "--hostnqn", HOST, "--tls-secret", secret];
    world.twill(&[&create[..], &host].concat(), members)
}

fn places() -> impl Iterator<Item = u64> {
    (0..100u64).map(|at| at * 37 % 4096 * BLOCK as u64)
}

#[test]
fn an_array_is_served_from_targets_under_tls_and_no_other_way() {
    let world = world();
    let access = format!("{HOST}=key");
    let mut target = Target::with_access(&world, &["a", "b", "c"], MEMBER_BYTES, &["--tls-key", &access]);
    let members = target.members();
    let says = |run: Run, words: &str| {
        let said = format!("{}{}", run.stdout, run.stderr);
        assert!(run.code != 0 && said.contains(words), "{run:?}");
    };
    says(create(&world, "other", &members), "compare the key of --tls-secret");
    says(create(&world, "cut", &members), "cut: no key of TLS");
    says(create(&world, "missing", &members), "missing");
    let plain = world.twill(&["examine", "--hostnqn", HOST], &members);
    says(plain, "--tls-secret");
    create(&world, "key", &members).succeeds();
    let address = format!("127.0.0.1:{}", target.port);
    let discover = ["discover", "--json", "--hostnqn", HOST, "--tls-secret", "key", &address];
    let found = world.twill::<&str>(&discover, &[]).succeeds();
    assert!(found.stdout.contains(&members[2]), "{}", found.stdout);

    let server = world.serve(&["--hostnqn", HOST, "--tls-secret", "key"], &members);
    assert_eq!(server.status()["members"][0]["remote"]["tls"], true, "{}", server.log());
    let mut client = world.client();
    for at in places() {
        assert_eq!(client.write(at, &vec![(at / BLOCK as u64) as u8; BLOCK], 0).expect("an answer"), 0);
    }
    target.kill();
    let mut writer = world.client();
    let waiting =
        std::thread::spawn(move || writer.write(1 << 20, &vec![7; 1 << 17], FUA).expect("an answer"));
    server.wait_for("the loss", |status| status["members"][1]["remote"]["state"] == "away");
    target.restart();
    assert_eq!(waiting.join().expect("no panic"), 0, "{}", server.log());
    assert_eq!(client.read(1 << 20, 1 << 17).expect("an answer").expect("data"), vec![7; 1 << 17]);
    for at in places().filter(|at| !(1 << 20..(1 << 20) + (1 << 17)).contains(at)) {
        let read = client.read(at, BLOCK as u32).expect("an answer").expect("data");
        assert_eq!(read, vec![(at / BLOCK as u64) as u8; BLOCK], "at {at}");
    }
    drop(client);
    server.stop();
}

#[test]
fn targets_send_each_other_parts_of_parity_under_tls() {
    let world = world();
    let (host, peer) = (format!("{HOST}=key"), format!("{PEER}=other"));
    let access = [
        "--tls-key",
        &host,
        "--tls-key",
        &peer,
        "--peer-allow",
        PEER,
        "--peer-hostnqn",
        PEER,
        "--peer-tls-secret",
        "other",
    ];
    let targets: Vec<Target<'_>> = ["a", "b", "c", "d"]
        .iter()
        .map(|file| Target::with_access(&world, &[file], MEMBER_BYTES, &access))
        .collect();
    let members: Vec<String> = targets.iter().flat_map(Target::members).collect();
    create(&world, "key", &members).succeeds();
    let server = world.serve(&["--fabric", "peer", "--hostnqn", HOST, "--tls-secret", "key"], &members);
    server.wait_for("attached targets", |status| {
        (0..4).all(|slot| status["members"][slot]["remote"]["unreached_targets"] == 0)
    });
    let mut client = world.client();
    let steps = || server.status()["counters"]["peer_steps"].as_u64().expect("a count");
    let before = steps();
    for at in places() {
        assert_eq!(client.write(at, &vec![(at / BLOCK as u64) as u8; BLOCK], 0).expect("an answer"), 0);
    }
    assert_eq!(steps() - before, 100);
    server.twill(&["check"]).succeeds();
    drop(client);
    server.stop();
}
