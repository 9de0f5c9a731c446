//! `assemble`: which members are taken, and never a wrong array.

use std::fs;

use crate::nbd::FUA;
use crate::world::{MEMBER_BYTES, World};

#[test]
fn an_array_is_found_in_any_order_and_by_a_search() {
    let world = World::new();
    let mut members = world.array(4);
    members.reverse();
    let run = world.twill(&["assemble", "--explain"], &members).succeeds();
    assert!(run.stdout.contains("m0: slot 0") && run.stdout.contains("would start"), "{run:?}");
    assert!(run.stdout.contains("says Active device 0"), "{run:?}");
    world.member("other", MEMBER_BYTES);
    let run = world.twill::<&str>(&["assemble", "--json", "--scan", "."], &[]).succeeds();
    assert_eq!(run.json()["arrays"][0]["candidates"].as_array().unwrap().len(), 4);
    let uuid = run.json()["arrays"][0]["uuid"].as_str().unwrap().to_owned();
    world.twill(&["assemble", "--uuid", &uuid], &members).succeeds();
    world.twill(&["assemble", "--name", "test"], &members).succeeds();
    world.refused(4, &["named \"other\""], &["assemble", "--name", "other"], &members);
    world.refused(2, &["no UUID"], &["assemble", "--uuid", "1234"], &members);
    world.refused::<&str>(2, &["--scan"], &["assemble"], &[]);
    world.refused::<&str>(8, &["nowhere"], &["assemble", "nowhere"], &[]);
}

#[test]
fn the_json_answer_keeps_its_names() {
    let world = World::new();
    let members = world.array(3);
    let names = world.twill(&["assemble", "--json"], &members[..2]).succeeds().names();
    let wanted = "arrays[].candidates[].basis.clean arrays[].candidates[].basis.device_role \
        arrays[].candidates[].basis.device_uuid arrays[].candidates[].basis.events \
        arrays[].candidates[].basis.update_unix_s arrays[].candidates[].path arrays[].candidates[].slot \
        arrays[].candidates[].state arrays[].candidates[].verdict arrays[].chunk_bytes arrays[].events \
        arrays[].in_doubt_reason arrays[].layout arrays[].level arrays[].missing_slots[] arrays[].name arrays[].raid_devices \
        arrays[].redo_records arrays[].refusal arrays[].refusal_kind arrays[].resync_from_bytes arrays[].size_bytes arrays[].uuid \
        arrays[].would_start";
    assert_eq!(names, wanted.split_whitespace().collect::<Vec<_>>());
}

#[test]
fn too_few_members_are_refused() {
    let world = World::new();
    let members = world.array(4);
    world.twill(&["assemble"], &members[..3]).succeeds();
    let run =
        world.refused(5, &["2 of 4", "slots 2, 3 are missing"], &["assemble", "--explain"], &members[..2]);
    assert!(run.stdout.contains("m0: slot 0") && run.stdout.contains("slot 3: empty"), "{run:?}");
    let serve = ["serve", "--control", "c.sock", "--unix", "n.sock"];
    world.refused(5, &["2 of 4"], &serve, &members[..2]);
    world.refused(5, &["2 of 4"], &[&serve[..], &["--daemon"]].concat(), &members[..2]);
    world.refused(5, &["2 of 4"], &[&serve[..], &["--force"]].concat(), &members[..2]);
}

/// It was passed over, and the answer that there is no array.
#[test]
fn a_search_where_nothing_is_says_so() {
    let world = World::new();
    world.array(3);
    world.refused::<&str>(8, &["nowhere: No such file"], &["assemble", "--scan", ".", "nowhere"], &[]);
    world.refused::<&str>(8, &["nowhere: No such file"], &["serve", "--scan", "nowhere"], &[]);
}

/// The exit code was that of an array which would start.
#[test]
fn members_that_are_served_would_not_start() {
    let world = World::new();
    let members = world.array(4);
    let server = world.serve(&[], &members);
    let run = world.twill(&["assemble"], &members);
    assert!(run.code == 6 && run.stdout.contains("would not start: members are in use"), "{run:?}");
    assert!(run.stderr.contains("m3: is locked by another program"), "{run:?}");
    let run = world.twill(&["assemble", "--json"], &members);
    let array = &run.json()["arrays"][0];
    assert_eq!((run.code, &array["would_start"]), (6, &false.into()), "{array:#}");
    assert_eq!(
        (&array["refusal_kind"], &array["in_use"][3]["member"]),
        (&"member-in-use".into(), &"m3".into())
    );
    server.stop();
    world.twill(&["assemble"], &members).succeeds();
}

#[test]
fn a_copy_and_a_second_name_are_refused() {
    let world = World::new();
    let members = world.array(4);
    fs::copy(world.path("m0"), world.path("copy")).unwrap();
    fs::hard_link(world.path("m1"), world.path("hard")).unwrap();
    for (other, says) in
        [("copy", "copy: is a copy of m0"), ("hard", "hard: is the same file"), ("m2", "m2: is the same")]
    {
        let given = [&members[..], &[other.to_owned()]].concat();
        for command in [&["assemble"][..], &["serve", "--control", "c.sock", "--unix", "n.sock"]] {
            world.refused(13, &[says], command, &given);
        }
    }
    // A search finds the copy too, and cannot know which is right; a second name does no harm.
    world.refused::<&str>(13, &["copies"], &["assemble", "--scan", "."], &[]);
    fs::remove_file(world.path("copy")).unwrap();
    world.twill::<&str>(&["assemble", "--scan", "."], &[]).succeeds();
}

#[test]
fn members_of_another_array_are_told_apart() {
    let world = World::new();
    let members = world.array(4);
    let others: Vec<String> = (0..3).map(|i| world.member(&format!("o{i}"), MEMBER_BYTES)).collect();
    world.twill(&["create", "--level", "5", "--name", "other"], &others).succeeds();
    let mixed = [&members[..3], &others[..1]].concat();
    let serve = ["serve", "--control", "c.sock", "--unix", "n.sock"];
    world.refused(13, &["2 arrays", "--uuid"], &serve, &mixed);
    let run = world.twill(&["assemble", "--name", "test"], &mixed).succeeds();
    assert!(run.stdout.contains("o0: not taken: it belongs to the array"), "{run:?}");
    // Without a choice the other array is too few, and the code says so.
    world.refused(5, &["1 of 3"], &["assemble"], &mixed);
}

#[test]
fn damaged_members_are_left_out_with_a_reason() {
    let world = World::new();
    let members = world.array(4);
    world.damage("m1", 4096 + 200);
    let run = world.twill(&["assemble", "--explain"], &members).succeeds();
    assert!(run.stdout.contains("m1: not taken") && run.stdout.contains("checksum"), "{run:?}");
    assert!(run.stdout.contains("would start degraded"), "{run:?}");
    fs::File::options().write(true).open(world.path("m2")).unwrap().set_len(4 << 20).unwrap();
    let run = world.refused(5, &["2 of 4"], &["assemble"], &members);
    assert!(run.stdout.contains("m2: not taken"), "{run:?}");
    world.damage("m0", 4096);
    world.damage("m3", 4096 + 100);
    world.refused(4, &["no array"], &["assemble"], &members);
}

#[test]
fn a_stale_member_is_left_out() {
    let world = World::new();
    let members = world.array(4);
    // The events of all but one go up by ten, and the checksum with them.
    for member in &members[1..] {
        let word = |at: u64| u32::from_le_bytes(world.bytes(member, at, 4).try_into().unwrap());
        let (events, checksum) = (word(4096 + 200), word(4096 + 216));
        world.write(member, 4096 + 200, &(events + 10).to_le_bytes());
        world.write(member, 4096 + 216, &checksum.wrapping_add(10).to_le_bytes());
    }
    let run = world.twill(&["assemble"], &members).succeeds();
    assert!(run.stdout.contains("m0: not taken: its event count 0 is behind the array's 10"), "{run:?}");
    world.refused(5, &["2 of 4"], &["assemble"], &[&members[0], &members[1], &members[2]]);
}

#[test]
fn a_degraded_array_that_was_not_stopped_names_what_is_in_doubt() {
    let world = World::new();
    let members = world.members(4);
    world.write("m0", 8 << 20, b"something");
    world.twill(&["create", "--level", "5", "--force"], &members).succeeds();
    world.twill(&["assemble"], &members).succeeds();
    let run = world.twill(&["assemble"], &members[..3]).succeeds();
    assert!(run.stdout.contains("are in doubt") && run.stdout.contains("--force"), "{run:?}");
    let run = world.twill(&["assemble", "--json"], &members[..3]).succeeds();
    let answer: serde_json::Value = serde_json::from_str(&run.stdout).expect("JSON");
    let doubt = &answer["arrays"][0]["in_doubt"][0];
    assert!(doubt["first"] == 0 && doubt["end"].as_u64() > Some(1), "{answer}");
    let run = world.twill(&["assemble", "--force"], &members[..3]).succeeds();
    assert!(!run.stdout.contains("doubt"), "{run:?}");
}

/// Serves some members with the others away, and writes.
fn go_on(world: &World, members: &[String], byte: u8) {
    let server = world.serve(&[], members);
    let mut client = world.client();
    assert_eq!(client.write(0, &[byte; 4096], FUA).expect("served"), 0);
    drop(client);
    server.stop();
}

/// The half that was named first was served, and its answer did not say that the other held writes of its own.
#[test]
fn halves_of_a_mirror_that_went_on_apart_are_not_served_as_one() {
    let world = World::new();
    let members = world.members(2);
    world.twill(&["create", "--level", "1", "--wait", "--name", "test"], &members).succeeds();
    for (half, byte) in [(0, 1), (1, 2)] {
        go_on(&world, &members[half..=half], byte);
    }
    let serve = ["serve", "--control", "c.sock", "--unix", "n.sock"];
    for order in [["m0", "m1"], ["m1", "m0"]] {
        for command in [&["assemble"][..], &serve] {
            world.refused(3, &["went on", "one side"], command, &order);
        }
        let run = world.twill(&["assemble", "--force"], &order).succeeds();
        let verdict = run.stdout.lines().find(|line| line.contains("not taken")).expect("one of them");
        assert!(verdict.contains("it went on without m") && verdict.contains("without it;"), "{verdict}");
    }
    world.twill(&["assemble"], &members[..1]).succeeds();
    world.twill(&["assemble"], &members[1..]).succeeds();
}

#[test]
fn force_takes_a_member_that_the_others_call_failed() {
    let world = World::new();
    let members = world.array(4);
    go_on(&world, &members[1..], 1);
    let serve = ["serve", "--control", "c.sock", "--unix", "n.sock"];
    for command in [&["assemble"][..], &serve] {
        world.refused(5, &["2 of 4", "--force"], command, &members[..3]);
    }
    let run = world.twill(&["assemble", "--force"], &members[..3]).succeeds();
    assert!(run.stdout.contains("m0: slot 0"), "{run:?}");
    let said = "member 0 was taken by --force although it is stale: it has ";
    assert!(run.stdout.contains(said) && run.stdout.contains("[m0]"), "{run:?}");
    assert!(
        !world.twill(&["assemble"], &members[1..]).succeeds().stdout.contains("--force"),
        "none is stale"
    );
    // What all hold that are named is enough without it.
    let run = world.twill(&["assemble", "--force"], &members).succeeds();
    assert!(run.stdout.contains("m0: not taken"), "{run:?}");
    // Whoever looks later learns it: in log, event and status.
    let server = world.serve(&["--force"], &members[..3]);
    let told = [
        server.log(),
        server.twill(&["status"]).succeeds().stdout,
        server.twill(&["detail"]).succeeds().stdout,
        server.twill(&["events"]).succeeds().stdout,
        server.announcement["warnings"].to_string(),
    ];
    for text in told {
        assert!(text.contains(said) && text.contains("m0]") && text.contains("last written at"), "{text}");
    }
    server.stop();
}

#[test]
fn a_raid_0_that_lost_a_member_is_not_clean() {
    let world = World::new();
    let members = world.array_of("0", 3);
    let server = world.serve(&[], &members);
    assert_eq!(server.status()["clean"], true);
    fs::File::options().write(true).open(world.path("m1")).and_then(|file| file.set_len(4096)).expect("cut");
    let mut client = world.client();
    for at in 0..24 {
        let _refused = client.read(at << 16, 4096).expect("served");
    }
    let status = server.status();
    assert_eq!((&status["clean"], &status["failing"]), (&false.into(), &true.into()), "{status:#}");
    for command in ["status", "detail"] {
        let words = server.twill(&[command]).succeeds().stdout;
        assert!(words.contains("FAILING") && !words.contains("clean"), "{words}");
    }
    drop(client);
    drop(server);
}

#[test]
fn a_stop_says_what_is_left_to_resync() {
    let world = World::new();
    let members = world.members(3);
    world.write("m0", 8 << 20, b"something");
    world.twill(&["create", "--level", "5", "--force", "--name", "test"], &members).succeeds();
    let mut server = world.serve(&["--read-only"], &members);
    let client = world.client();
    let refused = server.twill(&["stop"]);
    assert!(
        refused.code == 18 && refused.stderr.contains("1 client is connected to nbd+unix:"),
        "{refused:?}"
    );
    assert_eq!(server.status()["exports"][0]["connections"], 1, "it is served as before");
    let answer = server.twill(&["stop", "--force", "--json"]).succeeds().json();
    assert_eq!((&answer["clean"], &answer["connections"]), (&false.into(), &1.into()), "{answer}");
    assert_eq!(server.end(), Some(0));
    drop(client);
    world.twill(&["create", "--level", "5", "--force", "--wait", "--name", "test"], &members).succeeds();
    let mut server = world.serve(&[], &members);
    let run = server.twill(&["stop"]).succeeds();
    assert_eq!(run.stdout, "stopped; the array is clean on its members\n");
    assert_eq!(server.end(), Some(0));
}
