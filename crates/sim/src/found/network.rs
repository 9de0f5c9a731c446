//! Members on other machines.

use std::cell::Cell;
use std::rc::Rc;

use engine::members::MemberState;
use layout::geometry::Level;
use layout::units::{Slot, Stripe};

use super::{
    BLOCKS, agrees, assemble, disk, fail, finish, logged, quiet, read, run, run_until, start, write,
};
use crate::crash;
use crate::network::{Fault, NetworkPlan, take_all};
use crate::scenario::{Consistency, Scenario, Support};
use crate::workload::{self, Kind};
use crate::world::Ended;

fn remote(scenario: Scenario) -> Scenario {
    Scenario { network: Some(NetworkPlan::quiet(10, None)), ..scenario }
}

fn four_members() -> Scenario {
    remote(logged(quiet(Level::Raid5, 4, Support::None, 8, 4096)))
}

/// Another host takes the members while a request waits for what has to be on them first: a record of the redo log, a bit of the
/// bitmap, the superblocks that tell of a failure. It fails, as does what comes later (F-I7).
#[test]
fn no_request_of_a_fenced_host_waits_for_a_record_for_ever() {
    let with_room = remote(logged(quiet(Level::Raid5, 4, Support::None, 20, 4096)));
    let bitmap = Scenario { consistency: Consistency::Bitmap(4096), ..with_room };
    for (what, scenario, is_degraded) in [
        ("superblocks", remote(quiet(Level::Raid5, 4, Support::None, 8, 4096)), false),
        ("bitmap", bitmap, false),
        ("redo log", four_members(), true),
    ] {
        for after in 0..24 {
            let array = start(scenario.clone());
            if is_degraded {
                fail(&array, array.machine.geometry().data_member(Stripe::new(0), 1));
            }
            let begun = array.world.counts.borrow().network_commands;
            let (own, is_done) = (Rc::clone(&array), Rc::new(Cell::new(None)));
            let said = Rc::clone(&is_done);
            array.spawn(0, "a write", async move {
                said.set(Some(workload::write(&own, 0, Kind::Write, 0..4 * BLOCKS, true).await));
            });
            while is_done.get().is_none() && array.world.counts.borrow().network_commands < begun + after {
                assert_eq!(array.run(1), Ended::Steps, "{what}");
            }
            array.machine.excuses.fenced.set(true);
            let machine = Rc::clone(&array.machine);
            let disks = machine.all_disks.borrow().clone();
            array.spawn(
                0,
                "another host",
                async move { take_all(&machine.world, &machine.hosts, &disks).await },
            );
            finish(&array);
            assert!(is_done.get().is_some(), "{what}: a write that {after} commands had begun of");
            let own = Rc::clone(&array);
            array.spawn(0, "a later one", async move {
                assert!(!workload::write(&own, 0, Kind::Write, 0..BLOCKS, false).await);
                assert!(!workload::read(&own, 0, 0..BLOCKS).await);
            });
            finish(&array);
            assert!(array.shared.members.fenced(), "{what}");
            let failed =
                array.shared.members.states().iter().filter(|state| **state != MemberState::InSync).count();
            assert_eq!(failed, usize::from(is_degraded), "{what}: no member fails for it");
        }
    }
}

/// A machine restarts with a write that was answered and not flushed: its member fails, and what is read is made of the others
/// (F-I17). One whose writes were all flushed goes on.
#[test]
fn a_member_that_lost_unflushed_writes_is_not_read() {
    for is_flushed in [false, true] {
        let array = start(four_members());
        let slot = array.machine.geometry().data_member(Stripe::new(0), 0);
        let (own, first) = (Rc::clone(&array), disk(&array, slot));
        // In one go: an array that rests is flushed.
        run(&array, async move {
            assert!(workload::write(&own, 0, Kind::Write, 0..3 * BLOCKS, false).await);
            assert!(!is_flushed || workload::flush(&own, 0).await);
            own.machine.hosts.arm(Some((0, Fault::Restart)));
            assert!(workload::read(&own, 0, 0..BLOCKS).await);
        });
        read(&array, 0..3 * BLOCKS);
        assert_eq!(array.world.counts.borrow().network_restarts, 1);
        assert_eq!(first.gate.has_lost_writes.get(), !is_flushed);
        let state = array.shared.members.state(slot);
        assert_eq!(state, if is_flushed { MemberState::InSync } else { MemberState::Failed });
    }
}

/// What a lost connection left in the target's hands is over before the host writes there again (F-I4).
#[test]
fn a_write_that_was_cut_off_does_not_land_on_a_later_one() {
    for fault in [Fault::Lost, Fault::AnswerLost, Fault::Late] {
        for at in 0..6 {
            let array = start(four_members());
            write(&array, 0..3 * BLOCKS);
            array.machine.hosts.arm(Some((at, fault)));
            write(&array, 0..BLOCKS);
            write(&array, 0..BLOCKS);
            run_until(&array, |counts| counts.network_cuts == 1);
            read(&array, 0..3 * BLOCKS);
            let all = array.machine.geometry().slots().collect::<Vec<Slot>>();
            assert!(all.iter().all(|slot| array.shared.members.state(*slot) == MemberState::InSync));
        }
    }
}

/// The host's process is killed at any command of some writes. The next host makes the parity of what was under way, by what the targets
/// have recorded, and nothing else: no resync is due. A target that was restarted has recorded nothing (F-I14).
#[test]
fn the_next_host_makes_only_that_agree_which_was_under_way() {
    let (mut used, mut resynced) = (0, 0);
    for level in [Level::Raid5, Level::Raid6] {
        for (at, is_restarted) in (0..30).map(|at| (at, at % 5 == 4)) {
            let plan = NetworkPlan { ledgers: true, ..NetworkPlan::quiet(10, None) };
            let marked = Scenario {
                consistency: Consistency::Bitmap(4096),
                ..quiet(level, 5, Support::None, 20, 4096)
            };
            let array = start(Scenario { network: Some(plan), ..marked });
            let all = 0..u64::from(array.machine.geometry().data_chunks()) * BLOCKS;
            write(&array, all.clone());
            array.keep_ledgers(32);
            array.machine.hosts.arm(Some((at, Fault::Kill)));
            let own = Rc::clone(&array);
            array.spawn(0, "writes", async move {
                for block in [0, 2 * BLOCKS, BLOCKS + 1] {
                    workload::write(&own, 0, Kind::Write, block..block + 1, false).await;
                }
            });
            while array.machine.hosts.end_due.get().is_none() && array.run(1) == Ended::Steps {}
            if array.machine.hosts.end_due.take().is_none() {
                break; // there are no more commands
            }
            crash::end_process(&array);
            let machine = Rc::clone(&array.machine);
            drop(array);
            if is_restarted {
                machine.all_disks.borrow()[1].gate.ledger.take();
            }
            let before = machine.world.counts.borrow().ledgers_used;
            let next = assemble(&machine);
            let is_used = machine.world.counts.borrow().ledgers_used > before;
            let is_due = next.writer.resync_from_bytes().is_some();
            // Before the superblocks say dirty neither is.
            assert!(!(if is_restarted { is_used } else { is_due }), "{at}");
            (used, resynced) = (used + u32::from(is_used), resynced + u32::from(is_due));
            finish(&next);
            agrees(&next);
        }
    }
    assert!(used >= 20 && resynced >= 5, "{used} {resynced}");
}

/// A whole stripe is written while its parity's member is cut off, and others are written meanwhile, over and over. The host dies: the
/// stripe is still listed by the members that have their part of it (F-I14).
#[test]
fn a_write_that_waits_for_a_member_stays_listed_whatever_is_written_beside_it() {
    // An odd number of data chunks: versions of blocks differ in the same bits, which an even number of them cancels out in parity.
    let plan = NetworkPlan { ledgers: true, ..NetworkPlan::quiet(10, None) };
    let small = Scenario {
        consistency: Consistency::Bitmap(1 << 20),
        ..quiet(Level::Raid5, 6, Support::None, 20, 4096)
    };
    let array = start(Scenario { network: Some(plan), ..small });
    // Until it is answered, and no further: the bit stays set.
    let write_now = |blocks: std::ops::Range<u64>| {
        let (own, is_done) = (Rc::clone(&array), Rc::new(Cell::new(false)));
        let said = Rc::clone(&is_done);
        array.spawn(0, "a write", async move {
            said.set(workload::write(&own, 0, Kind::Write, blocks, false).await);
        });
        while !is_done.get() {
            assert_eq!(array.run(1), Ended::Steps);
        }
    };
    write_now(0..10 * BLOCKS);
    array.keep_ledgers(32);
    let (geometry, own) = (*array.machine.geometry(), Rc::clone(&array));
    let parity = geometry.p_member(Stripe::new(0)).expect("RAID-5 has it");
    let link = disk(&array, parity).link.borrow().clone().expect("it is on another machine");
    link.cut(5_000, false, false);
    array.spawn(0, "a whole stripe", async move {
        workload::write(&own, 0, Kind::Write, 0..5 * BLOCKS, false).await;
    });
    let is_beside = |chunk: &u32| geometry.data_member(Stripe::new(1), *chunk) != parity;
    for chunk in (0..5).filter(is_beside).cycle().take(12) {
        let first = (5 + u64::from(chunk)) * BLOCKS;
        write_now(first..first + 1);
    }
    crash::end_process(&array);
    let next = assemble(&array.machine);
    assert_eq!(array.world.counts.borrow().ledgers_used, 1);
    finish(&next);
    agrees(&next);
}
