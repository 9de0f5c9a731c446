//! `check`, `repair` and `scrub`: planted damage is named by member and block, repaired, and gone.

use serde_json::{Value, json};

use crate::world::{MEMBER_BYTES, Server, World};

const BLOCK: u64 = 4096;

impl World {
    fn data_offset(&self, member: &str) -> u64 {
        let examined = self.twill(&["examine", "--json"], &[member]).succeeds().json();
        examined["members"][0]["superblock"]["data_offset_bytes"].as_u64().expect("an offset")
    }
}

impl Server<'_> {
    /// A check, or a repair with more words, its exit code and report.
    fn scrub(&self, arguments: &[&str], code: i32) -> Value {
        let run = self.twill(&[arguments, &["--json"]].concat());
        assert_eq!(run.code, code, "{arguments:?}: {run:?}");
        run.json()
    }
}

#[test]
fn raid6_names_the_block_and_repairs_just_that() {
    let world = World::new();
    let members = world.array_of("6", 5);
    let start = world.data_offset("m0");
    let server = world.serve(&[], &members);
    server.scrub(&["check"], 0);
    let before = world.bytes("m2", 0, MEMBER_BYTES as usize);
    let bad = start + 5 * BLOCK;
    world.damage("m2", bad + 100);
    let report = server.scrub(&["check"], 16);
    let found = &report["report"]["found"];
    assert_eq!(found[0]["blocks"], json!([{ "member": 2, "offset_bytes": bad }]), "{report:#}");
    assert_eq!((&found[0]["outcome"], &found[1]), (&json!("found"), &Value::Null));
    assert_eq!(report["report"]["mismatch_sectors"], 8);
    let said = server.twill(&["scrub", "report"]);
    assert!(
        said.stdout.contains(&format!("member 2 ({}/m2) at byte {bad}", world.folder.path().display())),
        "{said:?}"
    );

    let report = server.scrub(&["repair"], 0);
    assert_eq!(report["report"]["found"][0]["outcome"], "block-rewritten");
    assert_eq!((&report["report"]["repaired"], &report["report"]["left"]), (&json!(1), &json!(0)));
    let clean = |bytes: &[u8]| bytes[start as usize..].to_vec(); // superblocks change
    assert!(clean(&before) == clean(&world.bytes("m2", 0, MEMBER_BYTES as usize)), "as it was");
    assert_eq!(server.scrub(&["check"], 0)["report"]["mismatch_sectors"], 0);
    let events = server.twill(&["events"]);
    assert!(events.stdout.contains("rewritten from the others and read back"), "{events:?}");
    server.stop();
}

#[test]
fn raid6_leaves_two_wrong_blocks_of_a_row_to_a_person() {
    let world = World::new();
    let members = world.array_of("6", 5);
    let bad = world.data_offset("m0") + 3 * BLOCK;
    let server = world.serve(&[], &members);
    world.damage("m1", bad);
    world.damage("m3", bad + 9);
    let report = server.scrub(&["repair"], 16);
    assert_eq!(report["report"]["found"][0]["wrong"], "unknown", "{report:#}");
    assert_eq!(report["report"]["left"], 1);
    let report = server.scrub(&["repair", "--trust-data"], 0);
    assert_eq!(report["report"]["found"][0]["outcome"], "parity-rewritten", "{report:#}");
    server.scrub(&["check"], 0);
    server.stop();
}

#[test]
fn raid5_names_the_stripe_and_makes_parity_as_md_does() {
    let world = World::new();
    let members = world.array_of("5", 4);
    let bad = world.data_offset("m0") + 2 * (64 << 10) + 7 * BLOCK;
    let server = world.serve(&[], &members);
    // Three blocks side by side are one place.
    (0..3).for_each(|block| world.damage("m1", bad + block * BLOCK + 5));
    let report = server.scrub(&["check"], 16);
    let found = &report["report"]["found"];
    assert_eq!((&found[0]["stripe"], &found[0]["row_bytes"]), (&json!(2), &json!(7 * BLOCK)), "{report:#}");
    assert_eq!(
        (&found[0]["bytes"], &found[0]["blocks"], &found[1]),
        (&json!(3 * BLOCK), &json!([]), &Value::Null)
    );
    let report = server.scrub(&["repair"], 0);
    assert_eq!(report["report"]["found"][0]["outcome"], "parity-rewritten");
    server.scrub(&["check"], 0);
    server.stop();
}

#[test]
fn mirrors_name_copies_and_three_vote() {
    for (level, count, wrong, outcome) in [
        ("1", 3, "copy", "block-rewritten"),
        ("1", 2, "unknown", "copies-rewritten"),
        ("10", 4, "unknown", "copies-rewritten"),
    ] {
        let world = World::new();
        let names = world.array_of(level, count);
        let bad = world.data_offset("m1") + 70 * BLOCK;
        let server = world.serve(&[], &names);
        world.damage("m1", bad + 1);
        let report = server.scrub(&["check"], 16);
        let found = &report["report"]["found"];
        assert_eq!((&found[0]["wrong"], &found[1]), (&json!(wrong), &Value::Null), "{level}: {report:#}");
        let blamed = found[0]["blocks"].as_array().expect("places");
        assert!(blamed.contains(&json!({ "member": 1, "offset_bytes": bad })), "{level}: {report:#}");
        assert_eq!(blamed.len(), if wrong == "copy" { 1 } else { 2 });
        assert_eq!(server.scrub(&["repair"], 0)["report"]["found"][0]["outcome"], outcome);
        server.scrub(&["check"], 0);
        server.stop();
    }
}

#[test]
fn a_scrub_is_paused_over_a_restart_and_goes_on_where_it_was() {
    let world = World::new();
    let members = world.array_of("6", 5);
    let server = world.serve(&[], &members);
    let all = server.scrub(&["check"], 0)["report"]["stripes_checked"].as_u64().expect("a count");
    server.stop();
    // As an earlier run would have left it, half way.
    let folder = world.path("state");
    let mut files =
        std::fs::read_dir(&folder).expect("the folder").map(|entry| entry.expect("an entry").path());
    let is_state = |path: &std::path::PathBuf| path.extension().is_some_and(|extension| extension == "json");
    let file = files.find(is_state).expect("a file"); // beside the log of events
    let mut state: Value = serde_json::from_slice(&std::fs::read(&file).expect("the file")).expect("JSON");
    assert_eq!(state["phase"], "finished");
    (state["phase"], state["next_stripe"], state["report"]["stripes_checked"]) =
        (json!("paused"), json!(50), json!(50));
    world.damage("m3", world.data_offset("m0") + 10); // before that place: not seen
    std::fs::write(&file, state.to_string()).expect("writable");

    let server = world.serve(&[], &members);
    assert_eq!(server.status()["scrub"]["phase"], "paused");
    let refused = server.twill(&["repair"]);
    assert_eq!(refused.code, 9, "{refused:?}");
    assert!(refused.stderr.contains("a check is paused"), "{refused:?}");
    let report = server.scrub(&["check"], 0);
    assert_eq!(report["report"]["stripes_checked"], all, "the rest was checked: {report:#}");
    server.scrub(&["check", "--restart"], 16);
    assert_eq!(server.twill(&["scrub", "pause"]).code, 8, "nothing is under way");
    server.stop();
}

#[test]
fn a_scrub_waits_for_members_and_is_cancelled() {
    let world = World::new();
    let members = world.array_of("6", 5);
    let server = world.serve(&[], &members);
    server.twill(&["set", "--rate", "1M"]).succeeds();
    server.twill(&["check", "--no-wait"]).succeeds();
    server.twill(&["fail", "2"]).succeeds();
    server.wait_for("the check to wait", |status| status["rebuild"]["pending"] == true);
    assert_eq!(server.status()["scrub"]["phase"], "running");
    server.twill(&["scrub", "pause"]).succeeds();
    server.twill(&["scrub", "resume"]).succeeds();
    server.twill(&["scrub", "cancel"]).succeeds();
    assert_eq!(server.status()["scrub"]["phase"], "cancelled");
    server.stop();
    let limited = World::new();
    let members = limited.array_of("5", 3);
    let server = limited.serve(&[], &members);
    server.twill(&["set", "--rate", "1M", "--p99-budget", "5ms"]).succeeds();
    server.twill(&["check", "--no-wait"]).succeeds();
    server.twill(&["scrub", "pause"]).succeeds();
    let state = server.scrub(&["scrub", "report"], 0);
    assert_eq!(state["phase"], "paused");
    assert!(state["next_stripe"].as_u64() < Some(100), "a megabyte a second: {state:#}");
    assert_eq!(server.status()["p99_budget_ns"], 5_000_000);
    server.twill(&["set", "--rate", "0"]).succeeds();
    server.twill(&["scrub", "resume"]).succeeds();
    server.scrub(&["check"], 0);
    server.stop();
    let none = World::new();
    let striped = none.array_of("0", 2);
    let server = none.serve(&[], &striped);
    assert_eq!(server.twill(&["check"]).code, 12, "nothing to compare with");
    server.stop();
}

/// They said that nothing was found until 64 batches were done, and what a check found before it was cancelled was lost.
#[test]
fn what_is_found_is_told_while_a_check_goes_on_and_kept_when_it_is_cancelled() {
    let world = World::new();
    let members = world.array_of("6", 4);
    let server = world.serve(&[], &members);
    world.damage("m1", world.data_offset("m1") + BLOCK);
    server.twill(&["set", "--rate", "1M"]).succeeds();
    server.twill(&["check", "--no-wait"]).succeeds();
    server.wait_for("a mismatch", |status| status["scrub"]["mismatch_sectors"] == 8);
    assert_eq!(server.status()["scrub"]["phase"], "running");
    let report = server.scrub(&["scrub", "report"], 16);
    assert_eq!(report["report"]["mismatch_sectors"], 8, "{report:#}");
    assert!(report["report"]["stripes_checked"].as_u64() > Some(0), "{report:#}");
    for (wish, phase) in [("pause", "paused"), ("cancel", "cancelled")] {
        server.twill(&["scrub", wish]).succeeds();
        let report = server.scrub(&["scrub", "report"], 16);
        assert_eq!((&report["phase"], &report["report"]["mismatch_sectors"]), (&json!(phase), &json!(8)));
    }
    let said = server.twill(&["scrub", "report"]);
    assert!(said.stderr.contains("1 mismatch\n"), "{said:?}");
    server.stop();
}

/// Who waits for a check that somebody cancels is not told that all blocks agree.
#[test]
fn a_check_that_is_cancelled_while_somebody_waits_has_not_passed() {
    let world = World::new();
    let members = world.array_of("5", 3);
    let server = world.serve(&[], &members);
    server.twill(&["set", "--rate", "1M"]).succeeds();
    let waiting = world.command().args(["check", "--control", "control.sock"]).spawn().expect("the program");
    server.wait_for("the check", |status| status["scrub"]["phase"] == "running");
    server.twill(&["scrub", "cancel"]).succeeds();
    let waited = waiting.wait_with_output().expect("a child");
    assert_eq!(waited.status.code(), Some(130), "{waited:?}");
    server.stop();
}

/// It was accepted and waited at 0 % for ever, and so did `status --wait`.
#[test]
fn what_will_not_go_on_is_refused_or_pending() {
    let world = World::new();
    let members = world.array_of("5", 4);
    let server = world.serve(&[], &members);
    server.twill(&["fail", "m1"]).succeeds();
    let run = server.twill(&["check"]);
    assert!(run.code == 6 && run.stderr.contains("members are missing"), "{run:?}");
    server.stop();
    let dirty = world.members(3);
    world.write("m0", 8 << 20, b"something");
    world.twill(&["create", "--level", "5", "--force", "--name", "dirty"], &dirty).succeeds();
    let server = world.serve(&["--read-only"], &dirty);
    let run = server.twill(&["status"]).succeeds();
    assert!(run.stdout.contains("resync pending until the array is not read-only"), "{run:?}");
    server.twill(&["status", "--wait"]).succeeds();
    let run = server.twill(&["check"]);
    assert!(run.code == 6 && run.stderr.contains("not stopped cleanly"), "{run:?}");
    server.stop();
}
