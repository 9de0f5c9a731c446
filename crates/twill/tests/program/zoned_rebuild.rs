//! A member of a zoned array is made again, and the server is killed meanwhile, again and again.

use std::thread;
use std::time::Duration;

use crate::world::{Server, World};
use crate::zoned::{assert_holds, create, fill, holds, kill, wait_whole, write};

const BYTES: u64 = 96 << 20;
/// Kills that have to find the member half made.
const KILLS: u64 = 10;
/// Blocks that clients write while it is made.
const CHANGED: u64 = 100;

fn is_behind(server: &Server, slot: usize) -> bool {
    server.status()["members"][slot]["state"] != "in-sync"
}

/// The one that is made takes part in what is written meanwhile, and each start goes on with what segments still lack. In the end as many
/// others may go as the level survives.
#[test]
fn a_rebuild_that_is_killed_at_ten_places_goes_on_and_ends_right() {
    for (level, lost) in [("5", &["m0"][..]), ("6", &["m0", "m3"]), ("10", &["m0"])] {
        let world = World::new();
        let mut paths: Vec<String> = (0..4).map(|at| world.member(&format!("m{at}"), BYTES)).collect();
        let blocks = create(&world, level, &paths)["size_bytes"].as_u64().expect("a size") / 4096;
        let mut server = world.serve(&[], &paths);
        let mut client = world.client();
        fill(&mut client, blocks, 1);
        assert_eq!(client.flush().expect("served"), 0);
        let (mut found_behind, mut devices, mut version) = (0, 0, 1);
        for round in 0..10 * KILLS {
            if !is_behind(&server, 1) {
                // It was made in time: another one is.
                devices += 1;
                let gone = paths[1].clone();
                server.twill(&["fail", &gone]).succeeds();
                server.twill(&["remove", &gone]).succeeds();
                paths[1] = format!("new{devices}");
                world.member(&paths[1], BYTES);
                server.twill(&["add", &paths[1]]).succeeds();
            }
            thread::sleep(Duration::from_millis(round * 37 % 90));
            version += 1;
            write(&mut client, 0, CHANGED, version, 0);
            assert_eq!(client.flush().expect("served"), 0);
            drop(client);
            kill(&mut server);
            server = world.serve(&["--shards", if round % 2 == 0 { "2" } else { "1" }], &paths);
            client = world.client();
            assert_holds(&mut client, 0, CHANGED, version);
            found_behind += u64::from(is_behind(&server, 1));
            if found_behind == KILLS {
                break;
            }
        }
        assert_eq!(found_behind, KILLS, "level {level}: {devices} devices were made whole before the kill");
        wait_whole(&server);
        lost.iter().for_each(|path| _ = server.twill(&["fail", path]).succeeds());
        assert_holds(&mut client, 0, CHANGED, version);
        (CHANGED..blocks)
            .step_by(100)
            .for_each(|at| assert_holds(&mut client, at, (blocks - at).min(100), 1));
        // And what is written from here on has what it needs as well.
        fill(&mut client, blocks, version + 1);
        holds(&mut client, blocks, version + 1);
        drop(client);
        server.stop();
    }
}
