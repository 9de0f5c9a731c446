//! Short sequences of acts at tiny arrays, by enumeration, and that it finds what is planted.

use layout::geometry::Level;
use sim::acts::{Plan, Planted, Records, Scheme, Tried, plans, replay, search};

fn plan(level: Level, scheme: Scheme, depth: usize) -> Plan {
    Plan { level, records: Records::All, at_rest: true, scheme, depth, seed: 1, planted: Planted::default() }
}

fn finds_nothing(plan: &Plan) -> Tried {
    search(plan, |_, _| {}).unwrap_or_else(|wrong| panic!("{wrong}"))
}

fn ends_whole(plan: &Plan, history: &str) {
    let mut told = Vec::new();
    let done = replay(plan, history, |line| told.push(line));
    assert!(done.is_ok(), "{history}: {done:?}");
    assert!(told.last().is_some_and(|line| line.contains("Whole")), "{history}: {told:?}");
}

fn ends_refused(plan: &Plan, history: &str) {
    let mut told = Vec::new();
    replay(plan, history, |line| told.push(line)).expect("a refusal");
    assert!(told.last().is_some_and(|line| line.ends_with("refused")), "{history}: {told:?}");
}

#[test]
fn two_acts_at_every_level_leave_nothing_unreadable() {
    for plan in plans(&sim::acts::LEVELS, 2, 1).iter().filter(|plan| plan.scheme == Scheme::Any) {
        let tried = finds_nothing(plan);
        assert!(tried.states > 5, "{plan:?}: {tried:?}");
    }
}

/// A new device gets the number of a member of the other side, and superblocks without generations tell by numbers only.
#[test]
fn a_planted_reuse_of_device_numbers_is_found() {
    let planted = Planted { numbers_are_reused: true };
    let plan = Plan { planted, records: Records::BitmapOnly, ..plan(Level::Raid1, Scheme::TwoSides, 6) };
    let wrong = search(&plan, |_, _| {}).expect_err("members of two sides are mixed");
    assert!(wrong.contains("raid1: start") && wrong.contains("add"), "{wrong}");
    finds_nothing(&Plan { planted: Planted::default(), ..plan });
}

/// With one mark for "parity may not agree" and "this member lacks writes", a device that was late at the start after a crash
/// leaves stripes in doubt though it is back: `start 0+1+2, crash with data only, start 0+2`.
#[test]
fn no_doubt_stays_once_all_drives_are_back() {
    for level in [Level::Raid4, Level::Raid5] {
        finds_nothing(&plan(level, Scheme::Any, 3));
        finds_nothing(&plan(level, Scheme::TwoSides, 6));
        finds_nothing(&Plan { records: Records::NoBitmap, ..plan(level, Scheme::Any, 3) });
    }
}

/// Each recovers parity that needs data of the other, in one stripe or another: all are in doubt.
#[test]
fn two_members_that_come_back_to_a_raid6_do_not_wait_for_each_other() {
    let plan = Plan { records: Records::NoBitmap, ..plan(Level::Raid6, Scheme::Any, 1) };
    for history in [
        "start 0+1+2+3, crash with data only, start 0+1",
        "start 0+1+2+3, crash with data only, start 0+1, write 0",
        "start 0+1+2+3, crash with data only, start 2+3, write 2",
    ] {
        ends_whole(&plan, history);
    }
}

/// Histories that once ended with garbage, in doubt, with a member that lacks a write, or with a read that did not last.
#[test]
fn what_raid6_went_through_ends_whole() {
    let plan = plan(Level::Raid6, Scheme::Any, 1);
    for history in [
        "start 0+1+2+3, crash with data only, start 0+1+3, write 0, fail 1",
        "start 0+1+2+3, crash with data only, start 0+1+3, write 0, start 0+1+2+3, fail 1",
        "start 0+1+3, replace 0, crash with data only",
        // Parity makes the old contents, a client reads them, and the member is back with the new ones.
        "start 0+1+2+3, crash with data only, start 0+2+3",
    ] {
        ends_whole(&plan, history);
    }
    // What force mixed agrees once all drives are back.
    let at_once = Plan { at_rest: false, ..plan };
    let history = "start 0+1, re-add 2, write 0, force 0+2+3";
    replay(&at_once, history, |_| {}).unwrap_or_else(|wrong| panic!("{history}: {wrong}"));
    // The other side goes on without a write only where nothing tells it of one: what force chose is on the members.
    ends_refused(&plan, "start 0+1, write 0, force 0+2, start 2+3");
}

/// Below what a member had got when its recovery was cut short, parity may disagree with what force accepted: superblocks say so
/// until a resync has made it agree.
#[test]
fn what_force_accepted_below_a_recovery_is_resynced() {
    for level in [Level::Raid4, Level::Raid5] {
        let plan = Plan { at_rest: false, ..plan(level, Scheme::Any, 1) };
        ends_whole(&plan, "start 0+1, replace 0, crash with all but data, force 1+2+3");
    }
}

/// A member is missing, and Q disagrees with the stripes in doubt that force accepted.
#[test]
fn parity_that_is_left_agrees_with_what_force_accepted() {
    let plan = Plan { records: Records::NoBitmap, ..plan(Level::Raid6, Scheme::Any, 1) };
    ends_whole(&plan, "start 0+1+2+3, crash with data only, start 0+1+2, force 0+1+2");
    ends_whole(&plan, "start 0+1+2+3, crash with data only, force 0+1+2, start 0+1+2");
}

/// Before the start by force is over its superblocks are there; a member that was as new as the newest one then is from before.
#[test]
fn what_force_chose_outlives_a_crash_and_another_start() {
    let at_once = |level| Plan { at_rest: false, ..plan(level, Scheme::Any, 1) };
    ends_refused(&at_once(Level::Raid10), "start 0+2, write 0, force 1+2, crash, start 1+3");
    ends_whole(&plan(Level::Raid5, Scheme::Any, 1), "start 0+1, write 0, force 0+2, replace 0, crash");
    ends_whole(&plan(Level::Raid10, Scheme::Any, 1), "start 0+2, write 0, force 0+3, replace 0, crash");
    ends_whole(&at_once(Level::Raid5), "start 0+1, write 0, force 0+2, start 0+1+2, replace 0");
}

/// The member that was late is back, and the crash comes before the others' superblocks tell of it.
#[test]
fn a_late_member_holds_what_it_did_after_a_crash_in_its_return() {
    for level in [Level::Raid4, Level::Raid5] {
        let plan = Plan { at_rest: false, ..plan(level, Scheme::Any, 1) };
        ends_whole(&plan, "start 0+1+2, crash with data only, start 0+2, re-add 1, crash");
    }
}

/// What was to replace a member that told what is in doubt has its slot at the start after the crash.
#[test]
fn a_replaced_member_holds_what_it_did_when_its_slot_is_another_devices() {
    for level in [Level::Raid4, Level::Raid5] {
        let plan = Plan { at_rest: false, ..plan(level, Scheme::Any, 1) };
        ends_whole(&plan, "start 0+1+2, crash with data only, start 0+1+2, replace 0, start 1+2+3");
    }
}

/// Of superblocks that are alike that of a device which has just begun to replace a member had no record of generations yet, and
/// spoke for the array.
#[test]
fn a_replacement_that_has_just_begun_hides_no_split() {
    let plan = Plan { at_rest: false, ..plan(Level::Raid1, Scheme::Any, 1) };
    ends_refused(&plan, "start 0, replace 0, start 1, re-add 2, start 0+1+3");
}

/// Superblocks after a start by force name a member that is being taken back, and the power fails before its own does: what it was
/// before does not speak against them.
#[test]
fn a_member_that_is_coming_back_deserts_nobody() {
    let plan = Plan { at_rest: false, ..plan(Level::Raid10, Scheme::Any, 1) };
    ends_whole(&plan, "start 0+2, write 0, replace 0, force 1+2, start 1+2+4");
}

#[test]
fn a_search_counts_the_same_each_time() {
    let plan = plan(Level::Raid6, Scheme::Any, 2);
    assert_eq!(finds_nothing(&plan), finds_nothing(&plan));
}
