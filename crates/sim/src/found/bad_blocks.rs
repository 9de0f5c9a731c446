//! Blocks that cannot be reconstructed, and the logs that list them.

use super::*;
use crate::start::bad_blocks;
use layout::units::{MemberOffset, Slot, Stripe};

const BLOCK: u64 = 4096;

fn with_log(scenario: Scenario) -> Rc<Array> {
    start(Scenario { bad_log: true, ..scenario })
}

/// The member cannot read the block at the start of its stripe `stripe`.
fn break_block(array: &Array, slot: Slot, stripe: Stripe) {
    let disk = disk(array, slot);
    let first = array.machine.geometry().member_offset(stripe).on_device(disk.places.data).get() / 512;
    disk.faults.borrow_mut().bad.extend(first..first + BLOCK / 512);
    may_lose(&array.machine, &disk, |_| true);
}

/// Seeds 4421 and 11892: a block was recorded as bad after the logs of a round were written and before its superblocks. They
/// said that there is a log with entries where none had ever been written, and the next start would have refused the member.
#[test]
fn a_superblock_tells_of_no_log_that_was_not_written() {
    for steps in 0.. {
        let array = with_log(quiet(Level::Raid5, 3, Support::None, 8, 4096));
        array.shared.members.want_metadata();
        let ended = (0..steps).any(|_| array.run(1) == Ended::Idle);
        assert!(array.shared.members.set_bad(Slot::new(1), MemberOffset::START..MemberOffset::new(BLOCK)));
        loop {
            for disk in array.machine.connected() {
                let mut bytes = vec![0; SUPERBLOCK_BYTES_MAX];
                disk.peek_device(disk.places.superblock, &mut bytes);
                let superblock =
                    Superblock::parse(&bytes, MinorVersion::V1_2, disk.places.size).expect("one");
                let listed = bad_blocks(&disk, &superblock); // panics if the log makes no sense
                assert!(listed.is_empty() || disk.number == 1, "after {steps} steps");
            }
            if array.run(1) != Ended::Steps {
                break;
            }
        }
        let array = cut(&array, 100);
        assert_eq!(array.shared.members.bad_blocks(Slot::new(1)).0.bytes(), BLOCK, "after {steps} steps");
        if ended {
            break;
        }
    }
}

/// A resync stopped at such a block, and all that lay behind it stayed as the crash had left it.
#[test]
fn a_resync_ends_behind_a_block_that_nobody_can_make() {
    for consistency in [Consistency::Resync, Consistency::Bitmap(CHUNK)] {
        let array = with_log(Scenario {
            consistency,
            data_offset: 64 << 10,
            ..quiet(Level::Raid5, 4, Support::None, 64, 4096)
        });
        write(&array, 0..8 * 3 * BLOCKS);
        let own = Rc::clone(&array);
        array.spawn(0, "a write", async move {
            let first = 2 * 3 * BLOCKS;
            workload::write(&own, 0, Kind::Write, first..first + 1, false).await;
        });
        let before = array.world.counts.borrow().blocks_on_acknowledgement;
        while array.world.counts.borrow().blocks_on_acknowledgement == before {
            assert_eq!(array.run(1), Ended::Steps);
        }
        let slot = array.machine.geometry().data_member(Stripe::new(2), 0);
        break_block(&array, slot, Stripe::new(2));
        let array = cut(&array, 50);
        finish(&array);
        assert_eq!(array.writer.resync_from_bytes(), None, "{consistency:?}: it has ended");
        assert_eq!(array.world.counts.borrow().bad_blocks_recorded, 1, "{consistency:?}");
        check::at_rest(&array);
        agrees(&array);
        read(&array, 0..2 * 3 * BLOCKS);
        read(&array, 2 * 3 * BLOCKS + BLOCKS..8 * 3 * BLOCKS);
        let errors = array.world.counts.borrow().request_errors;
        read(&array, 2 * 3 * BLOCKS..2 * 3 * BLOCKS + 1);
        assert_eq!(array.world.counts.borrow().request_errors, errors + 1);

        // Also in a later run, and without the member: what the parity holds is not taken for data.
        let array = cut(&array, 100);
        fail(&array, slot);
        read(&array, 2 * 3 * BLOCKS..2 * 3 * BLOCKS + 1);
        assert_eq!(array.world.counts.borrow().request_errors, errors + 2);
        replace(&array, slot);
        assert!(array.shared.members.all_in_sync(), "{consistency:?}");
        write(&array, 2 * 3 * BLOCKS..3 * 3 * BLOCKS);
        read(&array, 0..8 * 3 * BLOCKS);
        assert_eq!(array.world.counts.borrow().request_errors, errors + 2);
        assert!(Slot::first(4).all(|slot| array.shared.members.bad_blocks(slot).0.is_empty()));
    }
}

/// Seed 189: a device was taken out while it was rebuilt, and then a block that could not be made for it was recorded as bad on
/// an empty slot, at a place counted from the start of a device.
#[test]
fn a_member_that_is_gone_gets_no_bad_places() {
    let recorded = |array: &Array| array.world.counts.borrow().bad_blocks_recorded;
    let mut kinds = [0, 0];
    for steps in 0.. {
        let quiet = quiet(Level::Raid5, 3, Support::None, 8, 4096);
        let array = with_log(Scenario { data_offset: 64 << 10, ..quiet });
        fail(&array, Slot::new(1));
        break_block(&array, Slot::new(0), Stripe::new(2));
        replace_until(&array, Slot::new(1), MemberState::Recovering);
        for _ in 0..steps {
            array.run(1);
        }
        if array.shared.members.state(Slot::new(1)) == MemberState::InSync {
            break;
        }
        let before = recorded(&array);
        assert_eq!(array.shared.members.fail(Slot::new(1), "by hand"), Failing::Failed);
        let own = Rc::clone(&array);
        run(&array, async move { assert!(own.manager.membership().remove(Slot::new(1)).await) });
        assert_eq!(recorded(&array), before, "after {steps} steps");
        kinds[usize::from(before > 0)] += 1;
    }
    assert!(kinds.iter().all(|&histories| histories > 0), "gone before and after it was recorded: {kinds:?}");
}
