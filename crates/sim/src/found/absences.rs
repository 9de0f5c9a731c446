//! A member that was away while stripes were in doubt comes back: all that it held is readable (invariant 11), whatever was
//! written meanwhile, and whenever the power goes on the way.

use super::*;
use crate::scenario::DATA_OFFSET_WITH_ABSENCES;
use layout::units::Slot;

const LEVELS: [(Level, u32); 4] =
    [(Level::Raid4, 4), (Level::Raid5, 4), (Level::Raid6, 5), (Level::Raid5, 3)];
const STRIPES: u64 = 16;
const AWAY: Slot = Slot::new(1);

fn marked(level: Level, members: u32) -> Scenario {
    Scenario {
        consistency: Consistency::Bitmap(8 * CHUNK),
        redo_log: true,
        data_offset: DATA_OFFSET_WITH_ABSENCES,
        ..quiet(level, members, Support::All, STRIPES, 4096)
    }
}

fn started(level: Level, members: u32, case: u64) -> Rc<Array> {
    let world = World::new(Random::new(case), 1000);
    assemble(&machine_with_array(world, marked(level, members)))
}

/// Writes of one to four blocks all over the array, some with FUA, by two clients.
fn some_writes(array: &Rc<Array>, count: u64) {
    let blocks = array.machine.geometry().array_bytes() / array.machine.unit();
    for _ in 0..2 {
        let own = Rc::clone(array);
        array.spawn(0, "writes", async move {
            for _ in 0..count {
                let first = own.world.random().below(blocks - 4);
                let end = first + own.world.random().pick(&[1, 1, 2, 4]);
                let fua = own.world.random().one_in(3);
                workload::write(&own, 0, Kind::Write, first..end, fua).await;
            }
        });
    }
}

fn all_blocks(array: &Array) -> std::ops::Range<u64> {
    0..array.machine.geometry().array_bytes() / array.machine.unit()
}

/// Some steps, unless the world comes to rest before.
fn steps(array: &Array, count: u64) {
    for _ in 0..count {
        if array.run(1) != Ended::Steps {
            break;
        }
    }
    assert_eq!(array.world.failure(), None, "{}", array.world.trace_tail().join("\n"));
}

/// An array that is full, in the middle of some more writes.
fn interrupted(level: Level, members: u32, case: u64) -> Rc<Array> {
    let array = started(level, members, case);
    write(&array, all_blocks(&array));
    some_writes(&array, 6);
    steps(&array, 20 + case * 7 % 90);
    array
}

/// Takes the member back if it is there, and goes on for some steps.
fn take_back(array: &Rc<Array>, away: &Rc<Disk>, count: u64) {
    let is_missing = array.shared.members.state(AWAY) == MemberState::Missing;
    if is_missing && away.is_connected() {
        let (own, away) = (Rc::clone(array), Rc::clone(away));
        array.spawn(0, "a member is taken back", async move {
            operator::re_add(&own, &away).await;
        });
    }
    steps(array, count);
}

/// All members are there, and nothing is going on: each block is read, without an excuse.
fn is_whole(array: &Rc<Array>, away: &Rc<Disk>, case: &str) {
    take_back(array, away, 0);
    finish(array);
    let (states, told) = (array.shared.members.states(), array.world.trace_tail());
    assert!(array.shared.members.all_in_sync(), "{case}: {states:?}\n{}", told.join("\n"));
    array.machine.excuses.doubted.borrow_mut().clear();
    read(array, all_blocks(array));
    check::at_rest(array);
    finish(array);
    assert!(!array.has_doubts(), "{case}");
}

/// A power cut, and the member is late at the next start; that run is cut or stopped, also in the middle of the member's return.
#[test]
fn a_member_that_is_late_after_a_crash_brings_back_what_it_held() {
    let (mut doubted, mut kept) = (0, 0);
    for (level, members) in LEVELS {
        for case in 0..120u64 {
            let array = interrupted(level, members, case);
            let away = disk(&array, AWAY);
            away.plug(false);
            let array = cut(&array, 50);
            doubted += u64::from(array.has_doubts());
            let mut array = array;
            for round in 0..2 + case % 3 {
                some_writes(&array, case % 5);
                steps(&array, case * 13 % 120 + round * 40);
                kept += array.shared.absences.sectors().0;
                if case % 4 == 0 {
                    finish(&array);
                }
                away.plug(round > 0 || case % 2 == 0);
                array = cut(&array, 50);
                take_back(&array, &away, case * 11 % 150);
            }
            away.plug(true);
            let array = cut(&array, 100);
            is_whole(&array, &away, &format!("{level} of {members}, case {case}"));
        }
    }
    assert!(doubted > 100 && kept > 1000, "{doubted} starts with doubts, {kept} sectors");
}

/// A member is taken out while a resync after a crash is under way, and comes back: at once, or after a crash.
#[test]
fn a_member_that_fails_during_a_resync_brings_back_what_it_held() {
    let mut kept = 0;
    for (level, members) in LEVELS {
        for case in 0..120u64 {
            let array = interrupted(level, members, case);
            let array = cut(&array, 50);
            some_writes(&array, case % 4);
            steps(&array, case * 5 % 80);
            let away = disk(&array, AWAY);
            let own = Rc::clone(&array);
            array.spawn(0, "an operator", async move {
                own.manager.membership().fail(AWAY, "an operator said so").await;
            });
            steps(&array, 60);
            some_writes(&array, case % 3);
            steps(&array, case * 3 % 100);
            kept += array.shared.absences.sectors().0;
            let array = match case % 3 {
                0 => array,
                _ => cut(&array, 50),
            };
            finish(&array);
            let own = Rc::clone(&array);
            run(&array, async move {
                own.manager.membership().remove(AWAY).await;
            });
            take_back(&array, &away, case * 7 % 60);
            let array = if case % 2 == 0 { array } else { cut(&array, 50) };
            is_whole(&array, &away, &format!("{level} of {members}, case {case}"));
        }
    }
    assert!(kept > 1000, "{kept} sectors");
}
