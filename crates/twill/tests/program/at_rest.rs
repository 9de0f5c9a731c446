//! Commands on members of arrays that are not served: `list`, `rename`, `zero-superblock`, `correct-size`.

use std::fs::File;
use std::path::Path;

use crate::world::{MEMBER_BYTES, World, tool};

#[test]
fn a_cleared_member_belongs_to_no_array() {
    let world = World::new();
    let members = world.array(3);
    let before = world.bytes("m0", 4096 + 4096, 1 << 20);
    let run = world.twill(&["zero-superblock"], &members).succeeds();
    assert!(run.stdout.contains("m0: superblock 1.2 of array") && run.stdout.contains(":test"), "{run:?}");
    for member in &members {
        let said = world.twill(&["examine"], &[member]);
        assert!(said.code == 4 && said.stderr.contains("has no md superblock"), "{said:?}");
    }
    assert!(before == world.bytes("m0", 4096 + 4096, 1 << 20), "nothing beside the superblock is written");
    // md's tools agree, and the member may be taken again.
    if let Some(mdadm) = tool("mdadm") {
        let examined =
            std::process::Command::new(mdadm).arg("--examine").arg(world.path("m0")).output().unwrap();
        assert!(String::from_utf8_lossy(&examined.stderr).contains("No md superblock"), "{examined:?}");
    }
}

#[test]
fn nothing_is_cleared_unless_all_can_be() {
    let world = World::new();
    let members = world.array(3);
    world.member("blank", MEMBER_BYTES);
    world.refused(4, &["blank: has no md superblock"], &["zero-superblock"], &["m0", "blank"]);
    world.refused(8, &["gone"], &["zero-superblock"], &["m0", "gone"]);
    world.damage("m1", 4096 + 200);
    world.refused(3, &["m1: its superblock 1.2 is not usable", "--force"], &["zero-superblock"], &members);
    world.twill(&["zero-superblock", "--force"], &members).succeeds();

    let world = World::new();
    let members = world.array(3);
    let server = world.serve(&[], &members);
    world.refused(6, &["m0: is locked"], &["zero-superblock", "--force"], &["m0"]);
    server.stop();
}

#[test]
fn a_renamed_array_is_found_by_its_new_name() {
    let world = World::new();
    let members = world.array(3);
    let old = world.twill(&["examine", "--json"], &members[..1]).succeeds().json();
    let old = &old["members"][0]["superblock"];
    world.refused(2, &["no name for an array"], &["rename", "a/b"], &members);
    let run = world.twill(&["rename", "--json", "archive"], &members).succeeds().json();
    let full = old["name"].as_str().unwrap().replace("test", "archive");
    assert_eq!(
        (&run["name"], &run["old_name"], &run["uuid"]),
        (&full.into(), &old["name"], &old["array_uuid"])
    );
    for member in &members {
        let new = world.twill(&["examine", "--json"], &[member]).succeeds().json();
        let new = &new["members"][0]["superblock"];
        assert_eq!((&new["name"], &new["events"]), (&run["name"], &old["events"]), "{member}");
    }
    world.refused(4, &["no array named"], &["assemble", "--name", "test"], &members);
    let server = world.serve(&["--name", "archive"], &members);
    world.refused(6, &["m0: is locked"], &["rename", "other"], &members);
    server.stop();
}

#[test]
fn members_of_two_arrays_are_not_renamed() {
    let world = World::new();
    let mut members = world.array(3);
    let others: Vec<String> = (0..2).map(|i| world.member(&format!("o{i}"), MEMBER_BYTES)).collect();
    world.twill(&["create", "--level", "1", "--name", "other"], &others).succeeds();
    members.extend(others);
    world.refused(13, &["2 arrays", "other"], &["rename", "new"], &members);
    world.member("blank", MEMBER_BYTES);
    world.refused(4, &["blank"], &["rename", "new"], &["m0", "m1", "m2", "blank"]);
}

#[test]
fn a_member_that_missed_the_renaming_gets_the_name_with_the_array() {
    let world = World::new();
    let members = world.array(3);
    let run = world.twill(&["rename", "new"], &members[..2]).succeeds();
    assert!(run.stdout.contains("missing keep the old name"), "{run:?}");
    // Whichever name the newest superblock has, the members are one array.
    let assembled = world.twill(&["assemble", "--json"], &members).succeeds().json();
    assert_eq!(assembled["arrays"].as_array().unwrap().len(), 1, "{assembled:#}");
}

#[test]
fn a_device_that_is_a_little_shorter_is_put_right() {
    let world = World::new();
    let members = world.members(3);
    world.twill(&["create", "--level", "5", "--name", "test", "--size", "8M"], &members).succeeds();
    let cut =
        |bytes: u64| File::options().write(true).open(world.path("m1")).unwrap().set_len(bytes).unwrap();
    cut(MEMBER_BYTES - 4096);
    let says = ["m1: has", "was it cut short?", "twill correct-size m1"];
    let run = world.twill(&["examine"], &["m1"]);
    assert!(run.code == 11 && says.iter().all(|words| run.stderr.contains(words)), "{run:?}");
    let run = world.twill(&["correct-size", "--json"], &["m1"]).succeeds().json();
    let member = &run["members"][0];
    let less = member["former_data_bytes"].as_u64().unwrap() - member["data_bytes"].as_u64().unwrap();
    assert_eq!(less, 4096, "{run:#}");
    world.twill(&["assemble"], &members).succeeds();
    world.serve(&["--no-degraded"], &members).stop();

    // What the array uses is gone: no superblock makes that right.
    cut(8 << 20);
    world.refused(11, &["m1", "was it cut short?"], &["correct-size"], &["m1"]);
}

#[test]
fn arrays_are_listed_served_and_found() {
    let world = World::new();
    let run = world.twill::<&str>(&["list"], &[]).succeeds();
    assert!(run.stdout.contains("no array is served") && run.stdout.contains("--scan"), "{run:?}");
    let members = world.array(4);
    let found =
        |members: &[String]| world.twill(&["list", "--json"], members).succeeds().json()["found"][0].clone();
    let ready = found(&members);
    assert_eq!((&ready["state"], &ready["name"]), (&"ready".into(), &"test".into()));
    assert_eq!(found(&members[1..])["state"], "degraded");
    let refused = found(&members[2..]);
    assert_eq!((&refused["state"], &refused["present_devices"]), (&"refused".into(), &2.into()));
    assert!(refused["refusal"].as_str().unwrap().contains("needs more members"), "{refused:#}");

    // One that is served elsewhere has members in use; one that commands find is served.
    let server = world.serve(&[], &members);
    assert_eq!(found(&members)["state"], "in-use");
    server.stop();
    let daemon = world.twill(&["serve", "--daemon", "--shards", "1", "--json"], &members).succeeds().json();
    let listed = world.twill(&["list", "--json"], &members).succeeds().json();
    assert_eq!(listed["found"][0]["state"], "served");
    assert_eq!(listed["served"][0]["pid"], daemon["pid"]);
    assert_eq!(listed["served"][0]["working_devices"], 4);
    let uuid = listed["served"][0]["uuid"].as_str().unwrap();
    for word in [uuid, &uuid.replace(':', "").to_uppercase(), "m2", "./m2"] {
        assert_eq!(world.twill(&["detail", "--json"], &[word]).succeeds().json()["name"], "test", "{word}");
    }
    let run = world.refused(8, &["no array named", "served: test"], &["detail"], &["m9"]);
    assert!(run.stdout.is_empty());
    assert!(Path::new(listed["served"][0]["control"].as_str().unwrap()).exists());
    world.twill(&["stop"], &["test"]).succeeds();
}

#[test]
fn a_server_that_hangs_hides_no_other() {
    let world = World::new();
    let serve = |name: &str, members: &[String]| {
        world.twill(&["create", "-l1", "-N", name], members).succeeds();
        let daemon = ["serve", "--daemon", "--shards", "1", "--json"];
        world.twill(&daemon, members).succeeds().json()["pid"].as_u64().unwrap().to_string()
    };
    let members: Vec<String> = (0..4).map(|i| world.member(&format!("h{i}"), MEMBER_BYTES)).collect();
    let hanging = serve("hanging", &members[..2]);
    serve("well", &members[2..]);
    let signal = |name: &str| {
        assert!(std::process::Command::new("kill").args([name, &hanging]).status().unwrap().success());
    };
    signal("-STOP");
    for command in ["status", "list"] {
        let start = std::time::Instant::now();
        let run = world.twill::<&str>(&[command], &[]);
        let says = format!("does not answer within 3 s (pid {hanging})");
        assert!(run.code == 7 && run.stdout.contains("well") && run.stderr.contains(&says), "{run:?}");
        assert!(start.elapsed().as_secs() < 10, "{:?}", start.elapsed());
    }
    signal("-CONT");
    world.twill(&["stop"], &["hanging"]).succeeds();
    world.twill(&["stop"], &["well"]).succeeds();
}

#[test]
fn a_script_learns_from_the_exit_code_how_an_array_is() {
    let world = World::new();
    let members = world.array(3);
    let server = world.serve(&[], &members);
    server.twill(&["status", "--test"]).succeeds();
    let detail = server.twill(&["detail", "--json"]).succeeds().json();
    assert_eq!((&detail["state"], &detail["degraded"]), (&"clean".into(), &false.into()));
    server.twill(&["fail", "m1"]).succeeds();
    server.twill(&["status"]).succeeds();
    let run = server.twill(&["status", "--test"]);
    assert!(run.code == 21 && run.stderr.contains("degraded: test"), "{run:?}");
    let status = server.twill(&["status", "--json"]).succeeds().json();
    assert_eq!(status["arrays"][0]["degraded"], true);
    server.stop();
}

#[test]
fn mdadms_lines_are_answered_and_nothing_is_done() {
    let world = World::new();
    let members = world.members(2);
    let create = ["--create", "/dev/md77", "--level=1", "--raid-devices=2"];
    let run =
        world.refused(2, &["twill create --name md77 --level 1 --raid-devices 2 m0 m1"], &create, &members);
    assert!(run.stdout.is_empty(), "{run:?}");
    let run = world.refused(2, &[], &[&["--json"], &create[..]].concat(), &members);
    assert!(run.json()["error"]["help"].as_str().unwrap().starts_with("twill create "), "{run:?}");
    world.refused(2, &["twill stop md77"], &["stop"], &["/dev/md77"]);
    world.refused(2, &["102400K", "102400B"], &["create", "-l1", "-z", "102400"], &members);
}

#[test]
fn create_says_what_to_type_next() {
    let world = World::new();
    let members = world.members(2);
    let made = world.twill(&["create", "-l1", "-N", "next", "--json"], &members).succeeds().json();
    let next = made["next"].as_str().unwrap();
    assert!(next.starts_with("twill serve --daemon") && next.ends_with(" m0 m1"), "{next}");
}
