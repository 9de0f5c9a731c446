//! `top` without a terminal: a frame as text, and the numbers.

use crate::nbd::Client;
use crate::world::World;

#[test]
fn one_frame_and_its_numbers() {
    let world = World::new();
    let members = world.array(4);
    let server = world.serve(&[], &members);
    let mut client = Client::connect(&world.path("nbd.sock")).expect("an export");
    server.twill(&["fail", "m2"]).succeeds();
    let writer = std::thread::spawn(move || {
        for round in 0..4000u64 {
            assert_eq!(client.write(round % 64 * 4096, &[7; 4096], 0).expect("a reply"), 0);
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    });
    let frame = server.twill(&["top", "--once"]).succeeds().stdout;
    for words in ["test: raid5 [4/3] [UU_U]", "degraded", "99 % <", "faulty", "m2 failed", "twill add", "m0"]
    {
        assert!(frame.contains(words), "no {words} in\n{frame}");
    }
    let numbers = server.twill(&["top", "--json", "--interval", "500ms"]).succeeds().json();
    let rates = &numbers["arrays"][0]["rates"];
    for of in ["writes", "write_bytes", "p50_ns", "p99_ns"] {
        assert!(rates[of].as_u64().is_some_and(|rate| rate > 0), "{of}: {rates}");
    }
    let written = |slot: usize| rates["members"][slot]["write_bytes"].as_u64().expect("a number");
    assert!(written(0) > 0 && written(2) == 0, "{rates}");
    assert_eq!(numbers["arrays"][0]["status"]["degraded"], true);
    // Without a terminal it says what else there is.
    let refused = server.twill(&["top"]).fails(2).stderr;
    assert!(refused.contains("--once"), "{refused}");
    writer.join().expect("writes");
    server.stop();
}
