//! Devices that come to an array, replace its members, or come back.

use engine::array::assemble::Candidate;

use super::*;
use crate::start as starting;
use layout::units::Slot;

/// Seed 600193: a replacement failed after a round of superblocks had begun and before it was written, and the member that
/// it was to replace got none. After the next round had come to half of the others it was two events behind.
#[test]
fn every_member_gets_every_round_whenever_a_replacement_fails() {
    for steps in 0..200 {
        let scenario = Scenario {
            consistency: Consistency::Bitmap(CHUNK),
            ..quiet(Level::Raid5, 3, Support::All, 16, 4096)
        };
        let array = start(scenario);
        let own = Rc::clone(&array);
        array.spawn(0, "beginning to replace a member", async move {
            operator::begin_replacement(&own, Slot::new(1)).await;
        });
        let members = &array.shared.members;
        while members.replacing(Slot::new(1)) == Replacing::No {
            assert_eq!(array.run(1), Ended::Steps);
        }
        let ended = (0..steps).any(|_| array.run(1) == Ended::Idle);
        members.fail_replacement(Slot::new(1), "by hand");
        loop {
            let candidates = recorded::candidates(&array.machine);
            let superblocks = candidates.iter().filter_map(|candidate| candidate.superblock.as_ref().ok());
            let of_members = superblocks.filter(|superblock| {
                matches!(superblock.role(), DeviceRole::Active(_)) && !superblock.is_replacement()
            });
            let events: Vec<u64> = of_members.map(Superblock::events).collect();
            let (least, most) = (events.iter().min().unwrap(), events.iter().max().unwrap());
            assert!(ended || most - least <= 1, "after {steps} steps: {events:?}");
            if array.run(1) != Ended::Steps {
                break;
            }
        }
        finish(&array);
        if ended {
            break; // it had replaced the member
        }
    }
}

/// Seed 601439: a member failed while the superblocks that call the other one rebuilt were being written, was taken out and
/// added again. Its superblock as a spare was written first: on the members both were out.
#[test]
fn a_device_is_a_spare_only_when_superblocks_do_not_call_it_a_member() {
    let array = array(Level::Raid5, 3, Support::All);
    fail(&array, Slot::new(0));
    replace_until(&array, Slot::new(0), MemberState::InSync);
    assert!(!array.shared.members.is_settled(), "no superblock says so yet");
    disk(&array, Slot::new(0)).faults.borrow_mut().slow = 1000;
    let second = disk(&array, Slot::new(1));
    assert_eq!(array.shared.members.fail(Slot::new(1), "by hand"), Failing::Failed);
    let own = Rc::clone(&array);
    run(&array, async move {
        assert!(own.manager.membership().remove(Slot::new(1)).await);
        operator::add_spare(&own, &second).await;
    });
    check::at_rest(&array);
    finish(&array);
    assert!(array.shared.members.all_in_sync());
}

/// Seed 657683: a device was added while the program had not come to a replacement that a crash had cut short. It got that
/// one's number.
#[test]
fn a_replacement_keeps_its_number_through_a_crash() {
    for order in 0..20 {
        let array = array(Level::Raid5, 3, Support::All);
        write(&array, 0..2 * 8 * BLOCKS);
        for slot in Slot::first(2) {
            disk(&array, slot).faults.borrow_mut().slow = 300; // it is copied for long
            let own = Rc::clone(&array);
            array.spawn(0, "a replacement", async move { operator::begin_replacement(&own, slot).await });
        }
        let is_replacement =
            |found: &&Candidate| found.superblock.as_ref().is_ok_and(Superblock::is_replacement);
        while recorded::candidates(&array.machine).iter().filter(is_replacement).count() < 2 {
            assert_eq!(array.run(1), Ended::Steps);
        }
        Slot::first(2).for_each(|slot| disk(&array, slot).mend());
        let array = cut(&array, 100);
        (0..order).for_each(|_| _ = array.world.random().next()); // tasks run in another order
        let own = Rc::clone(&array);
        run(&array, async move { _ = operator::add_spare(&own, &own.machine.new_disk(true)).await });
        let members = Slot::all().map_while(|slot| array.writer.superblocks().try_superblock(slot)).flatten();
        let mut numbers: Vec<u32> = members.map(|member| member.dev_number()).collect();
        numbers.extend(spare_numbers(&array));
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 4, "order {order}: {numbers:?}");
        check::at_rest(&array);
        finish(&array);
        assert!(!numbers.contains(&1), "the members were not replaced");
    }
}

/// Seed 701073: members were being replaced when the power went, and the array was clean. Clients wrote again before the
/// program had come to all of these replacements: past the devices, which were taken for whole as far as they had been.
#[test]
fn what_is_written_before_a_replacement_goes_on_is_copied() {
    const SLOTS: u32 = 7;
    let mut past = 0;
    for order in 0..20 {
        let array = start(Scenario { shards: 4, ..quiet(Level::Raid5, 8, Support::All, 64, 4096) });
        let all = 0..7 * 64 * BLOCKS;
        write(&array, all.clone());
        for slot in Slot::first(SLOTS) {
            disk(&array, slot).faults.borrow_mut().slow = 300; // it is copied for long
            let own = Rc::clone(&array);
            array.spawn(0, "a replacement", async move { operator::begin_replacement(&own, slot).await });
        }
        let copied = |slot: Slot| Some(array.writer.superblocks().incoming(slot)?.recovery_offset()?.bytes());
        while !Slot::first(SLOTS).all(|slot| copied(slot).is_some_and(|bytes| bytes > 0)) {
            assert_eq!(array.run(1), Ended::Steps);
        }
        Slot::first(SLOTS).for_each(|slot| disk(&array, slot).mend());
        let array = cut(&array, 100);
        (0..order).for_each(|_| _ = array.world.random().next()); // tasks run in another order
        let (own, spare) = (Rc::clone(&array), array.machine.new_disk(true));
        spare.faults.borrow_mut().slow = 300; // replacements wait for it where it comes first
        array.spawn(0, "a spare", async move { _ = operator::add_spare(&own, &spare).await });
        let (own, written) = (Rc::clone(&array), Rc::new(Cell::new(false)));
        let told = Rc::clone(&written);
        array.spawn(0, "a write", async move {
            workload::write(&own, 0, Kind::Write, 0..7 * BLOCKS, false).await;
            told.set(true);
        });
        while !written.get() {
            assert_eq!(array.run(1), Ended::Steps);
        }
        let goes_on = |slot: Slot| array.shared.members.replacing(slot) != Replacing::No;
        past += u32::from(!Slot::first(SLOTS).any(goes_on));
        finish(&array);
        assert!(Slot::first(SLOTS).all(|slot| array.shared.members.replacing(slot) == Replacing::No));
        agrees(&array);
        read(&array, all);
    }
    assert!(past > 0, "replacements always went on before the write");
}

/// Seed 647929: what is to replace a member had got superblocks that say clean, and the members not yet, when the power was
/// cut. The next ones, dirty, had the same event count.
#[test]
fn superblocks_are_newer_than_those_of_a_replacement() {
    let (mut ahead, all) = (0, 0..2 * 16 * BLOCKS);
    for steps in (0..400).step_by(4) {
        let array = start(quiet(Level::Raid5, 3, Support::All, 16, 4096));
        write(&array, all.clone());
        let slow = |slot| disk(&array, slot).faults.borrow_mut().slow = 300;
        slow(Slot::FIRST); // it is copied for long
        let own = Rc::clone(&array);
        array.spawn(0, "a replacement", async move { operator::begin_replacement(&own, Slot::new(0)).await });
        run_until(&array, |counts| counts.replaced_working > 0);
        Slot::first(3).skip(1).for_each(slow);
        let own = Rc::clone(&array);
        array.spawn(0, "a write", async move {
            workload::write(&own, 0, Kind::Write, 0..BLOCKS, false).await;
            own.writer.want_close();
        });
        (0..steps).for_each(|_| _ = array.run(1));
        Slot::first(3).for_each(|slot| disk(&array, slot).mend());
        let array = cut(&array, 0);
        let newest = |replacements: bool| {
            let found =
                recorded::candidates(&array.machine).into_iter().filter_map(|found| found.superblock.ok());
            found.filter(|found| found.is_replacement() == replacements).map(|found| found.events()).max()
        };
        let (of_replacement, of_members) = (newest(true), newest(false));
        ahead += u32::from(of_replacement > of_members);
        write(&array, all.clone());
        assert!(newest(false) > of_replacement, "two different superblocks have one event count");
        agrees(&array);
        finish(&array);
    }
    assert!(ahead > 0, "no replacement was ahead of the members");
}

/// Seed 655179: what is being rebuilt was zeroed where the recovery had not come to, and then written to, which its member
/// did not get yet. The recovery made that good and said so; the redo log still had the zeroes for it, and nothing more.
#[test]
fn what_was_rebuilt_outlives_the_redo_log() {
    const STRIPES: u64 = 256; // several windows
    let (all, mut replayed) = (0..2 * STRIPES * BLOCKS, 0);
    for steps in (100..800).step_by(5) {
        let quiet = quiet(Level::Raid5, 3, Support::All, STRIPES, 4096);
        // Looks are far apart: superblocks that say clean would empty the log.
        let array = start(Scenario { look: 2000, ..logged(quiet) });
        write(&array, all.clone());
        fail(&array, Slot::new(0));
        replace_until(&array, Slot::new(0), MemberState::Recovering);
        let own = Rc::clone(&array);
        array.spawn(0, "zeroes and a write", async move {
            let stripe = 2 * BLOCKS;
            workload::write(&own, 0, Kind::Zeroes, 160 * stripe..192 * stripe, false).await;
            let first = 180 * stripe; // of the member that is being rebuilt
            workload::write(&own, 0, Kind::Write, first..first + BLOCKS, false).await;
        });
        (0..steps).for_each(|_| _ = array.run(1));
        let before = array.world.counts.borrow().records_replayed;
        let array = cut(&array, 100);
        finish(&array);
        replayed += array.world.counts.borrow().records_replayed - before;
        read(&array, all.clone());
        agrees(&array);
        finish(&array);
    }
    assert!(replayed > 0, "no record was made again");
}

/// A recovery stopped because the device had no space. It goes on once there is space, without a word from the operator.
#[test]
fn a_recovery_that_found_no_space_is_tried_again_after_a_while() {
    let mut stopped = 0;
    for stripes in 2..12 {
        let array = start(quiet(Level::Raid5, 3, Support::None, stripes, 4096));
        write(&array, 0..2 * stripes * BLOCKS);
        fail(&array, Slot::new(0));
        let new = array.machine.new_disk(true);
        new.faults.borrow_mut().full_one_in = 2; // which not every write feels
        let (own, disk) = (Rc::clone(&array), Rc::clone(&new));
        run(&array, async move {
            assert!(own.manager.membership().remove(Slot::new(0)).await);
            operator::add_spare(&own, &disk).await;
        });
        let members = &array.shared.members;
        stopped += u32::from(members.state(Slot::new(0)) == MemberState::Recovering);
        new.faults.borrow_mut().full_one_in = 0;
        let mut steps = 0..100_000;
        while members.state(Slot::new(0)) == MemberState::Recovering && steps.next().is_some() {
            assert_eq!(array.run(2), Ended::Steps); // more than one: else looks are not waited for
        }
        finish(&array);
        assert!(members.all_in_sync());
        check::at_rest(&array);
        read(&array, 0..2 * stripes * BLOCKS);
    }
    assert!(stopped > 0, "there was space");
}

/// Seed 615619: a replacement failed while what it held was made durable, and another one began. That got the slot with
/// nothing copied.
#[test]
fn only_what_was_copied_gets_a_slot() {
    let mut replaced = 0;
    for steps in 0..400 {
        let array = array(Level::Raid5, 4, Support::All);
        write(&array, 0..3 * 8 * BLOCKS);
        for _ in 0..2 {
            let own = Rc::clone(&array);
            run(&array, async move {
                operator::add_spare(&own, &own.machine.new_disk(true)).await;
            });
        }
        let numbers = spare_numbers(&array);
        disk(&array, Slot::new(3)).faults.borrow_mut().slow = 50;
        let replace = |number: u32| {
            let own = Rc::clone(&array);
            array.spawn(0, "a member is replaced", async move {
                // It may be refused: the end of the first one is under way.
                let _ = own.manager.replacements().replace(Slot::new(1), number).await;
            });
        };
        replace(numbers[0]);
        let members = &array.shared.members;
        while members.replacing(Slot::new(1)) == Replacing::No {
            assert_eq!(array.run(1), Ended::Steps);
        }
        (0..steps).for_each(|_| _ = array.run(1));
        replaced += u32::from(members.fail_replacement(Slot::new(1), "by hand"));
        replace(numbers[1]);
        finish(&array);
        read(&array, 0..3 * 8 * BLOCKS);
        agrees(&array);
        check::at_rest(&array);
        finish(&array);
    }
    assert!(replaced > 50, "{replaced} were under way");
}

/// Found beside seed 615619: a member came back to its slot while the recovery of another device there was being made durable.
/// That called the one that came back in sync.
#[test]
fn a_recovery_calls_only_its_own_device_in_sync() {
    let mut came_back = 0;
    for steps in (0..1000).step_by(4) {
        let scenario = Scenario {
            consistency: Consistency::Bitmap(CHUNK),
            ..quiet(Level::Raid5, 3, Support::All, 16, 4096)
        };
        let array = start(scenario);
        write(&array, 0..2 * 16 * BLOCKS);
        let superblock = array.writer.superblocks().try_superblock(Slot::new(1)).flatten().expect("a member");
        let old = disk(&array, Slot::new(1));
        fail(&array, Slot::new(1));
        write(&array, 0..16 * BLOCKS);
        disk(&array, Slot::new(2)).faults.borrow_mut().slow = 50;
        replace_until(&array, Slot::new(1), MemberState::Recovering);
        let members = &array.shared.members;
        (0..steps).for_each(|_| _ = array.run(1));
        let was_recovering = members.state(Slot::new(1)) == MemberState::Recovering;
        assert_eq!(members.fail(Slot::new(1), "by hand"), Failing::Failed);
        let (own, taken) = (Rc::clone(&array), Rc::new(Cell::new(false)));
        let told = Rc::clone(&taken);
        array.spawn(0, "the first one again", async move {
            own.manager.membership().remove(Slot::new(1)).await;
            let device = Rc::new(SimDevice::new(&old));
            let record = starting::record(&device.0, &superblock);
            let re_added =
                own.manager.membership().re_add(device, superblock, record, BadBlocks::default()).await;
            told.set(re_added.is_ok());
        });
        finish(&array);
        came_back += u32::from(taken.get());
        if members.all_in_sync() {
            read(&array, 0..2 * 16 * BLOCKS);
            agrees(&array);
            finish(&array);
        }
        if !was_recovering {
            break;
        }
    }
    assert!(came_back > 0, "no member came back");
}

/// Found beside seed 611237: two devices that were added at once got the same number.
#[test]
fn two_devices_that_are_added_at_once_get_two_numbers() {
    let array = array(Level::Raid5, 3, Support::All);
    for _ in 0..2 {
        let own = Rc::clone(&array);
        array.spawn(0, "a spare", async move {
            assert!(operator::add_spare(&own, &own.machine.new_disk(true)).await.is_some());
        });
    }
    finish(&array);
    let numbers = spare_numbers(&array);
    assert!(numbers.len() == 2 && numbers[0] != numbers[1], "{numbers:?}");
}

/// A device may have the superblock of a spare although its write failed. Another device with its number would be taken for it.
#[test]
fn the_number_of_a_spare_that_was_not_written_is_not_given_away_again() {
    let array = array(Level::Raid5, 3, Support::All);
    let (own, tried) = (Rc::clone(&array), Rc::new(Cell::new(None)));
    let tell = Rc::clone(&tried);
    run(&array, async move {
        let broken = own.machine.new_disk(true);
        broken.faults.borrow_mut().no_superblocks = true;
        let number_for = |number| {
            tell.set(Some(number));
            number
        };
        assert_eq!(operator::add_spare_with(&own, &broken, number_for).await, None);
        assert!(operator::add_spare(&own, &own.machine.new_disk(true)).await.is_some());
    });
    let numbers = spare_numbers(&array);
    assert!(numbers.len() == 1 && Some(numbers[0]) != tried.get(), "{numbers:?}, after {:?}", tried.get());
}

/// A spare that was being attached to a free slot was taken for a replacement, too: one device then had the writes of two.
#[test]
fn a_spare_gets_one_slot() {
    let mut refused = 0;
    for steps in 0..400 {
        let array = array(Level::Raid6, 4, Support::All);
        let own = Rc::clone(&array);
        array.spawn(0, "a spare", async move {
            assert!(operator::add_spare(&own, &own.machine.new_disk(true)).await.is_some());
        });
        finish(&array);
        let number = spare_numbers(&array)[0];
        assert_eq!(array.shared.members.fail(Slot::new(3), "by hand"), Failing::Failed);
        (0..steps).for_each(|_| _ = array.run(1));
        let (own, told) = (Rc::clone(&array), Rc::new(Cell::new(None)));
        let tell = Rc::clone(&told);
        array.spawn(0, "a replacement", async move {
            tell.set(Some(own.manager.replacements().replace(Slot::new(1), number).await.is_ok()));
        });
        finish(&array);
        let has_it = |slot| disk(&array, slot).number == number;
        assert!(has_it(Slot::new(1)) != has_it(Slot::new(3)), "after {steps} steps");
        refused += u32::from(told.get() == Some(false));
        agrees(&array);
    }
    assert!(refused > 20, "{refused}");
}

/// Whether a crash now leaves stripes in doubt.
fn leaves_doubt(array: &Array) -> bool {
    let machine = &array.machine;
    let candidates = recorded::candidates(machine);
    let Some(assembly) = recorded::one_array(machine, &candidates, false) else { return true };
    let inspection = starting::inspection(machine, &candidates, &assembly);
    !inspection.redo(None, false, false).repair.doubts.is_empty()
}

/// Seed 1027: the only two members that were left were replaced side by side, and both let their logs go before one of the
/// replacements had one. No header went with the superblocks then: after a crash all stripes were in doubt.
#[test]
fn replacements_that_end_together_leave_a_log_on_some_member() {
    let mut ended = 0;
    for seed in 0..30 {
        let scenario = logged(quiet(Level::Raid5, 3, Support::None, 16, 4096));
        let machine = machine_with_array(World::new(Random::new(seed), 100), scenario);
        let array = assemble(&machine);
        write(&array, 0..6 * BLOCKS);
        fail(&array, Slot::new(2));
        for slot in Slot::first(2) {
            let own = Rc::clone(&array);
            array.spawn(0, "a replacement", async move { operator::begin_replacement(&own, slot).await });
            let own = Rc::clone(&array);
            array.spawn(0, "writes", async move {
                for block in 0..20 {
                    let block = block * 2 + u64::from(slot.get());
                    workload::write(&own, 0, Kind::Write, block..block + 1, block % 8 == 0).await;
                }
            });
        }
        while array.run(1) == Ended::Steps {
            assert!(!array.is_all_logged() || !leaves_doubt(&array), "seed {seed} at {}", array.world.now());
        }
        finish(&array);
        ended += Slot::first(2).filter(|slot| disk(&array, *slot).number > 2).count();
    }
    assert_eq!(ended, 60, "all are replaced");
}

/// The array starts without a member that no superblock calls failed, and with it again after `between`. Its state then.
fn away_for_a_run(
    level: Level,
    members: u32,
    consistency: Consistency,
    redo_log: bool,
    between: impl FnOnce(&Rc<Array>),
) -> (Rc<Array>, MemberState) {
    let scenario = Scenario { consistency, ..quiet(level, members, Support::All, 16, 4096) };
    let array = start(if redo_log { logged(scenario) } else { scenario });
    write(&array, 0..4 * BLOCKS);
    stop(&array);
    let away = disk(&array, Slot::new(1));
    away.plug(false);
    let array = cut(&array, 100);
    between(&array);
    away.plug(true);
    let array = cut(&array, 100);
    let state = array.shared.members.state(Slot::new(1));
    (array, state)
}

fn stop(array: &Rc<Array>) {
    let own = Rc::clone(array);
    run(array, async move { assert_eq!(own.running.stop().await, Ok(true)) });
}

const LEVELS: [(Level, u32); 4] =
    [(Level::Raid1, 2), (Level::Raid10, 4), (Level::Raid5, 3), (Level::Raid6, 4)];

/// Only an orderly stop recorded on the others that they had gone on without the member.
#[test]
fn a_member_that_was_away_is_stale_after_writes_that_nobody_wrote_down() {
    for (level, members) in LEVELS {
        for consistency in [Consistency::None, Consistency::Resync, Consistency::Bitmap(CHUNK)] {
            let write_then = |array: &Rc<Array>| write(array, 0..4 * BLOCKS);
            let (array, state) = away_for_a_run(level, members, consistency, false, write_then);
            assert_ne!(state, MemberState::InSync, "{level} {consistency:?}");
            finish(&array);
            read(&array, 0..4 * BLOCKS);
        }
    }
}

/// It had to be rebuilt, though nothing had happened.
#[test]
fn a_member_that_was_forgotten_while_nothing_was_written_is_none_the_older_for_it() {
    for (level, members) in LEVELS {
        for redo_log in [false, true] {
            for consistency in [Consistency::Resync, Consistency::Bitmap(CHUNK)] {
                let only_look = |array: &Rc<Array>| {
                    read(array, 0..4 * BLOCKS);
                    stop(array);
                };
                let (array, state) = away_for_a_run(level, members, consistency, redo_log, only_look);
                assert_eq!(state, MemberState::InSync, "{level} {consistency:?}");
                write(&array, 0..2 * BLOCKS);
                finish(&array);
                agrees(&array);
            }
        }
    }
}

/// The writes that a redo log asks for are made without a member that is away, and the log that follows does not have them.
#[test]
fn a_member_that_was_away_when_writes_were_made_again_is_stale() {
    let mut replayed = 0;
    for steps in 0..150 {
        let scenario = Scenario {
            consistency: Consistency::Bitmap(CHUNK),
            ..logged(quiet(Level::Raid6, 5, Support::All, 16, 4096))
        };
        let array = start(scenario);
        write(&array, 0..12 * BLOCKS);
        fail(&array, Slot::new(3));
        let own = Rc::clone(&array);
        array.spawn(0, "writes", async move {
            for block in 0..12 {
                workload::write(&own, 0, Kind::Write, block * BLOCKS..block * BLOCKS + 1, true).await;
            }
        });
        (0..steps).for_each(|_| _ = array.run(1));
        disk(&array, Slot::new(1)).plug(false);
        let away = disk(&array, Slot::new(1));
        let before = array.world.counts.borrow().logs_replayed;
        let array = cut(&array, 50);
        let is_replayed = array.world.counts.borrow().logs_replayed > before;
        finish(&array);
        away.plug(true);
        let array = cut(&array, 100);
        if is_replayed {
            replayed += 1;
            assert_ne!(array.shared.members.state(Slot::new(1)), MemberState::InSync, "after {steps} steps");
        }
        finish(&array);
    }
    assert!(replayed > 20, "{replayed}");
}
