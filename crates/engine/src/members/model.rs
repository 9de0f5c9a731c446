//! Models of the members' health (invariants 1 and 8): no write is acknowledged too early, and no wait lasts for ever.

use super::health::*;
use super::replacement::Replacing;
use crate::bad_blocks::BadBlocks;
use crate::error::MetadataLost;
use crate::sync::models::{check, threads};
use layout::geometry::{Geometry, Layout, Level};
use layout::units::{MemberOffset, Slot};
use shuttle::future::block_on;
use std::sync::Mutex as StdMutex;
use std::sync::atomic::{AtomicBool as Flag, AtomicUsize, Ordering::Relaxed};

fn members() -> Members {
    let layout = Layout::default_for(Level::Raid5);
    let geometry = Geometry::new(Level::Raid5, layout, 3, 64 << 10, 1 << 30).expect("an array");
    Members::new(geometry, &[MemberState::InSync; 3], Box::new(|_| {}))
}

/// Members, and what the superblocks say of them.
struct World {
    members: Members,
    disk: StdMutex<Vec<MemberState>>,
    users: AtomicUsize,
    stopping: Flag,
}

impl World {
    fn new(users: usize) -> Self {
        let members = members();
        let disk = StdMutex::new(members.states());
        World { members, disk, users: AtomicUsize::new(users), stopping: Flag::new(false) }
    }

    /// Writes in the order of the superblock writer: the version first, then the states.
    async fn write_superblocks(&self) {
        while !(self.stopping.load(Relaxed) && self.members.is_settled()) {
            self.members.metadata_wanted().await;
            let version = self.members.metadata_version();
            let states = self.members.states();
            shuttle::thread::yield_now();
            *self.disk.lock().unwrap() = states;
            self.members.metadata_written(version);
        }
    }

    /// A write: planned with the states that it sees, acknowledged once those states are on disk.
    async fn write(&self) {
        let planned = self.members.states();
        shuttle::thread::yield_now();
        if !self.members.is_settled() {
            self.members.settled().await.expect("not lost");
        }
        let disk = self.disk.lock().unwrap();
        for (slot, state) in planned.iter().enumerate() {
            assert!(
                *state == MemberState::InSync || disk[slot] == *state,
                "acknowledged before it was on disk"
            );
        }
    }

    /// The last user asks the superblock writer to end.
    fn leave(&self) {
        if self.users.fetch_sub(1, Relaxed) == 1 {
            self.stopping.store(true, Relaxed);
            self.members.want_metadata();
        }
    }
}

#[test]
fn what_a_write_relies_on_is_on_disk_before_it_is_acknowledged() {
    check(|| {
        let world = World::new(3);
        threads(4, move |thread| {
            match thread {
                0 => return block_on(world.write_superblocks()),
                1 => drop(world.members.fail(Slot::new(2), "a model")),
                _ => block_on(async {
                    world.members.want_metadata(); // the superblock writer is busy already when the member fails
                    world.write().await;
                    world.write().await;
                }),
            }
            world.leave();
        });
    });
}

#[test]
fn whoever_waits_for_superblocks_is_woken() {
    check(|| {
        let world = World::new(2);
        threads(3, move |thread| {
            if thread == 0 {
                return block_on(world.write_superblocks());
            }
            world.members.want_metadata();
            block_on(world.members.settled()).expect("not lost");
            world.leave();
        });
    });
}

#[test]
fn of_two_members_that_fail_at_once_raid_5_keeps_one() {
    check(|| {
        let (members, failed) = (members(), AtomicUsize::new(0));
        threads(2, move |slot| {
            let failing = members.fail(Slot::of_index(slot), "a model");
            failed.fetch_add(usize::from(failing == Failing::Failed), Relaxed);
            assert!(members.serving());
            assert!(!members.all_in_sync() || failed.load(Relaxed) == 0);
        });
    });
}

#[test]
fn whoever_waits_for_superblocks_that_are_lost_is_told() {
    check(|| {
        let members = members();
        threads(3, move |thread| match thread {
            0 => block_on(async {
                members.metadata_wanted().await;
                members.metadata_lost();
            }),
            _ => {
                members.want_metadata();
                assert_eq!(block_on(members.settled()), Err(MetadataLost));
            }
        });
    });
}

const OLD: Slot = Slot::new(2);
const COPIED: u64 = 64 << 10;

fn at(bytes: u64) -> MemberOffset {
    MemberOffset::new(bytes)
}

/// A member's replacement takes its slot after a read was planned: the read goes to neither device, or to one that holds
/// the range.
#[test]
fn a_read_planned_for_a_member_does_not_go_to_a_replacement_that_lacks_it() {
    check(|| {
        let members = members();
        assert!(members.begin_replacement(OLD, COPIED, 0));
        threads(2, move |thread| match thread {
            0 => drop(members.fail(OLD, "a model")),
            _ => {
                let planned = members.in_sync_to(OLD, at(2 * COPIED));
                shuttle::thread::yield_now();
                let step = members.step_to_read(OLD, at(2 * COPIED));
                let goes_to_replacement = step.is_some_and(Replacing::has_slot);
                assert!(!(planned && goes_to_replacement), "the replacement has no copy of that");
                assert!(
                    members.step_to_read(OLD, at(COPIED)).is_some()
                        || members.replacing(OLD) != Replacing::No
                );
            }
        });
    });
}

/// The bad blocks that a read checks are those of the device that it reads, whenever the replacement takes the slot.
#[test]
fn bad_places_are_those_of_the_device_that_is_read() {
    check(|| {
        let members = members();
        members.begin_with(OLD, 0, BadBlocks::default(), 1);
        assert!(members.set_bad(OLD, at(0)..at(4096)));
        assert!(members.begin_replacement(OLD, 0, 1));
        assert!(members.set_bad_on_replacement(OLD, at(8192)..at(12288)));
        threads(2, move |thread| match thread {
            0 => assert!(members.hand_over(OLD)),
            _ => {
                let Some(step) = members.step_to_read(OLD, at(4096)) else { return };
                let (of_old, of_new) =
                    (members.is_bad(OLD, &(at(0)..at(4096))), members.is_bad(OLD, &(at(8192)..at(12288))));
                if members.replacing(OLD) == step {
                    assert_eq!((of_old, of_new), (!step.has_slot(), step.has_slot()));
                }
            }
        });
    });
}

/// A replacement that fails is not used any more, in whatever order things happen: it fails as the replacement, or as the
/// member that it has become.
#[test]
fn a_replacement_fails_as_itself_or_as_the_member() {
    check(|| {
        let members = members();
        assert!(members.begin_replacement(OLD, COPIED, 0));
        let version = members.metadata_version();
        threads(3, move |thread| match thread {
            0 => drop(members.hand_over(OLD)),
            1 => drop(members.fail(OLD, "a model")),
            _ => {
                if !members.fail_replacement(OLD, "a model") {
                    assert!(members.replacing(OLD).has_slot(), "it is the member");
                }
                assert!(
                    members.metadata_version() > version,
                    "superblocks are asked for before a write relies on them"
                );
            }
        });
    });
}
