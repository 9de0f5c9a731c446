//! Models of the members' health (invariants 1 and 8): who acknowledges too early, and who waits for ever.

use super::*;
use crate::sync::models::{check, threads};
use layout::geometry::{Layout, Level};
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

    /// The order of `Keeper::write_round`: the version first, then the states that are written.
    async fn keep(&self) {
        while !(self.stopping.load(Relaxed) && self.members.is_settled()) {
            self.members.metadata_wanted().await;
            let version = self.members.metadata_version();
            let states = self.members.states();
            shuttle::thread::yield_now();
            *self.disk.lock().unwrap() = states;
            self.members.metadata_written(version);
        }
    }

    /// A write: planned with the states that it sees, acknowledged when what it relies on is on disk.
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

    /// The last one asks the keeper to end.
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
                0 => return block_on(world.keep()),
                1 => drop(world.members.fail(2, "a model")),
                _ => block_on(async {
                    world.members.want_metadata(); // the keeper has work already when the member fails
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
                return block_on(world.keep());
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
            let failing = members.fail(slot as u32, "a model");
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
