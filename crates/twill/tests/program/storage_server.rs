//! The array runs on a storage server, beside one of its members (D12 of dRAID): a host has it as a namespace, and sends each byte
//! once. Here the host has another array, of which that is a member.

use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use crate::load::{Writer, compare_all};
use crate::nbd::Client;
use crate::targets::Target;
use crate::world::{Server, World};

const NQN: &str = "nqn.2026-11.test:store";
const MEMBER_BYTES: u64 = 12 << 20;

/// Serves the array at the same place again and again.
fn export<'a>(storage: &'a World, port: u16, members: &[String]) -> Server<'a> {
    let address = format!("127.0.0.1:{port}");
    let exports = ["--nvme-tcp", &address, "--nvme-nqn", NQN, "--reservations-new", "--allow-any"];
    storage.serve(&[&["--fabric", "peer"], &exports[..]].concat(), members)
}

/// The server is killed while the host writes. Its successor goes by what the targets have recorded, and the host's connection comes
/// back: no request has failed, and both arrays agree in themselves.
#[test]
fn a_host_has_an_array_of_a_storage_server_that_is_killed() {
    let (storage, host) = (World::new(), World::new());
    let files: Vec<String> = (0..4).map(|at| format!("t{at}")).collect();
    let targets: Vec<Target<'_>> =
        files.iter().map(|file| Target::of(&storage, &[file.as_str()], MEMBER_BYTES)).collect();
    let members: Vec<String> = targets.iter().flat_map(Target::members).collect();
    let create = ["create", "--level", "5", "--name", "store", "--chunk", "16K", "--bitmap", "internal"];
    storage.twill(&[&create[..], &["--assume-clean"]].concat(), &members).succeeds();
    let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port();
    let server = export(&storage, port, &members);
    let remote = format!("nvme://127.0.0.1:{port}/{NQN}");
    let both = [remote, host.member("local", 3 * MEMBER_BYTES)];
    host.twill(&["create", "--level", "1", "--name", "test", "--size", "32M", "--assume-clean"], &both)
        .succeeds();
    let above = host.serve(&["--member-time-limit", "30"], &both);
    let bytes = Client::connect(&host.path("nbd.sock")).expect("served").size_bytes;
    let mut writers = Writer::all(bytes, 0xd12);
    server.wait_for("complete ledgers", |status| status["writes_recorded"] == true);
    let socket = host.path("nbd.sock");
    let next = thread::scope(|scope| {
        let loads: Vec<_> = writers.iter_mut().map(|writer| scope.spawn(|| writer.load(&socket))).collect();
        thread::sleep(Duration::from_millis(500));
        let steps = server.status()["counters"]["peer_steps"].as_u64();
        assert!(steps.is_some_and(|steps| steps > 0), "the targets make parity: {steps:?}");
        drop(server); // killed
        let next = export(&storage, port, &members);
        let events = next.twill(&["events", "--json"]).succeeds().stdout;
        assert!(events.contains("ledgers-used"), "{events}");
        thread::sleep(Duration::from_millis(500));
        let status = above.status();
        assert_eq!(status["members"][0]["state"], "in-sync", "no request has failed: {status:#}");
        drop(above); // killed, which ends the load
        for load in loads {
            assert!(load.join().expect("no panic") > 100, "requests are acknowledged");
        }
        next
    });
    let above = host.serve(&[], &both);
    compare_all(&host, &mut writers);
    above.wait_for("a resync that is over", |status| status["rebuild"].is_null());
    for server in [&above, &next] {
        let check = server.twill(&["check", "--json"]).succeeds().json();
        assert_eq!(check["report"]["mismatch_sectors"], 0, "{check:#}");
    }
    above.stop();
    next.stop();
}
