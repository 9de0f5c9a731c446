//! Latent errors and bad places on arrays of fakes: a read returns right data or an error, and the bad block is repaired.

use std::rc::Rc;

use super::fake::{CHUNK, Fake, STRIPES, World, attached, recover_all};
use crate::bad_blocks::BadBlocks;
use crate::error::VolumeError;
use crate::events::Event;
use crate::members::MemberState::{Failed, InSync};
use layout::geometry::Level;
use layout::units::{MemberOffset, Slot, Stripe};

const LEVELS: [(Level, u32); 5] =
    [(Level::Raid5, 4), (Level::Raid6, 5), (Level::Raid1, 2), (Level::Raid1, 3), (Level::Raid10, 4)];
const BLOCK: u64 = 4096;

#[test]
fn a_latent_error_anywhere_is_made_from_the_others_and_written_again() {
    for (level, members) in LEVELS {
        let world = World::new(level, members);
        let pattern = world.fill();
        let before: Vec<Vec<u8>> = world.fakes.iter().map(Fake::area).collect();
        for (slot, fake) in world.fakes.iter().enumerate() {
            let offset = (slot as u64 * 3 % 32) * BLOCK;
            fake.break_block(MemberOffset::new(offset), false);
            // A mirror reads one copy after the other: a check reads them all.
            for _ in 0..members {
                assert_eq!(
                    world.read(0, pattern.len() as u64).expect("readable"),
                    pattern,
                    "{level} slot {slot}"
                );
            }
            check_all(&world);
            assert_eq!(fake.latent_sectors(), 0, "{level} slot {slot}: written again");
            assert_eq!(world.state(Slot::of_index(slot)), InSync, "{level} slot {slot}");
        }
        assert!(
            world.heard(|event| matches!(event, Event::BlockRewritten { bytes: 4096, .. }))
                >= members as usize
        );
        let after: Vec<Vec<u8>> = world.fakes.iter().map(Fake::area).collect();
        assert!(before == after, "{level}: what was there is there");
    }
}

fn check_all(world: &World) {
    let mode = crate::mismatch::ScrubMode::default();
    let parity = world.set.shared.geometry.parity_chunks() > 0;
    let count = if parity { STRIPES } else { world.set.regions() };
    for stripe in 0..count {
        let set = Rc::clone(&world.set);
        let checked = world.run(async move {
            if parity {
                set.check_stripe(Stripe::new(stripe), mode).await
            } else {
                set.check_region(stripe, mode).await
            }
        });
        assert_eq!(checked.expect("readable"), crate::mismatch::Checked::default(), "stripe {stripe}");
    }
}

#[test]
fn small_writes_over_and_beside_a_latent_error_keep_parity() {
    for (level, members) in LEVELS {
        let world = World::new(level, members);
        let mut pattern = world.fill();
        for (slot, fake) in world.fakes.iter().enumerate() {
            fake.break_block(MemberOffset::new((slot as u64 + 1) * BLOCK), false);
        }
        for at in (0..pattern.len()).step_by(3 * 4096 + 512) {
            let end = (at + 1536).min(pattern.len());
            pattern[at..end].fill(at as u8 | 1);
            world.write(at as u64, &pattern[at..end]).expect("written");
        }
        assert_eq!(world.read(0, pattern.len() as u64).expect("readable"), pattern, "{level}");
        check_all(&world);
        assert!(Slot::first(members).all(|slot| world.state(slot) == InSync), "{level}");
    }
}

#[test]
fn two_in_one_row_are_too_many_for_raid5_and_not_for_raid6() {
    for (level, members, enough) in [(Level::Raid5, 4, false), (Level::Raid6, 5, true)] {
        let world = World::new(level, members);
        let pattern = world.fill();
        world.fakes[0].break_block(MemberOffset::new(BLOCK), false);
        world.fakes[1].break_block(MemberOffset::new(BLOCK), false);
        match world.read(0, pattern.len() as u64) {
            Ok(read) => assert!(enough && read == pattern, "{level}"),
            Err(error) => {
                assert!(!enough && matches!(error, VolumeError::Unreadable { .. }), "{level}: {error}");
                assert_eq!(world.heard(|event| matches!(event, Event::MemberFailed { .. })), 0);
            }
        }
    }
}

#[test]
fn a_member_that_does_not_take_the_block_fails_and_so_does_one_with_too_many() {
    let world = World::new(Level::Raid5, 4);
    let pattern = world.fill();
    world.fakes[2].break_block(MemberOffset::START, true);
    assert_eq!(world.read(0, pattern.len() as u64).expect("readable"), pattern);
    assert_eq!(world.state(Slot::new(2)), Failed);

    let world = World::new(Level::Raid6, 5);
    let pattern = world.fill();
    for errors in 1..=21 {
        world.fakes[1].break_block(MemberOffset::START, false);
        assert_eq!(world.read(0, pattern.len() as u64).expect("readable"), pattern);
        check_all_or_degraded(&world);
        assert_eq!(
            world.state(Slot::new(1)),
            if errors <= 20 { InSync } else { Failed },
            "after {errors} errors"
        );
    }
}

fn check_all_or_degraded(world: &World) {
    let set = Rc::clone(&world.set);
    let _checked = world
        .run(async move { set.check_stripe(Stripe::new(0), crate::mismatch::ScrubMode::default()).await });
}

#[test]
fn nothing_is_made_from_parity_that_may_not_agree_and_nothing_written_read_only() {
    let world = World::new(Level::Raid5, 4);
    let pattern = world.fill();
    world.fakes[0].break_block(MemberOffset::START, false);
    world.set.shared.consistency.set_unsynced(Some(Stripe::new(0)));
    assert!(matches!(
        world.read(0, pattern.len() as u64),
        Err(VolumeError::Unreadable { member: Slot::FIRST, .. })
    ));
    world.set.shared.consistency.set_unsynced(None);
    world.set.shared.set_read_only();
    assert_eq!(world.read(0, pattern.len() as u64).expect("readable"), pattern);
    assert_eq!(world.fakes[0].latent_sectors(), 8, "not written");
}

/// md's way: what cannot be rebuilt is a bad block of the new member, an error to read until it is written.
#[test]
fn what_cannot_be_rebuilt_is_recorded_until_it_is_written() {
    for (level, members) in [(Level::Raid5, 4), (Level::Raid1, 2), (Level::Raid10, 4)] {
        let mut world = World::new(level, members);
        let mut pattern = world.fill();
        let shared = std::sync::Arc::clone(&world.set.shared);
        let health = &shared.members;
        health.fail(Slot::new(1), "for the test");
        assert!(health.remove(Slot::new(1)));
        let new = Fake::new("new".into(), shared.geometry.member_bytes());
        world.set.devices().attach(Slot::new(1), Some(attached(&new)));
        world.fakes[1] = new;
        health.begin_with(Slot::new(1), 0, BadBlocks::default(), 512);
        assert!(health.begin_recovery(Slot::new(1), 0));
        world.fakes[0].break_block(MemberOffset::new(2 * BLOCK), false);
        recover(&world, Slot::new(1)).expect("recovered");
        assert!(health.finish_recovery(Slot::new(1)), "{level}");
        assert_eq!(health.bad_blocks(Slot::new(1)).0.bytes(), BLOCK, "{level}");
        assert!(health.all_in_sync() && !health.plain());

        let failing: Vec<u64> = (0..pattern.len() as u64 / BLOCK)
            .filter(|block| world.read(block * BLOCK, BLOCK).is_err())
            .collect();
        // RAID-5 has lost the row of two members, one of which may hold its parity.
        let lost = if level == Level::Raid5 { 1..=2 } else { 1..=1 };
        assert!(lost.contains(&failing.len()), "{level}: {failing:?}");
        // A whole stripe, which reads nothing before.
        let stripe = shared.geometry.stripe_bytes().max(u64::from(CHUNK));
        let at = failing[0] * BLOCK / stripe * stripe;
        let new = vec![0x5a; stripe as usize];
        pattern[at as usize..(at + stripe) as usize].copy_from_slice(&new);
        world.write(at, &new).expect("written");
        assert!(health.bad_blocks(Slot::new(1)).0.is_empty(), "{level}: it holds something again");
        assert_eq!(world.read(0, pattern.len() as u64).expect("readable"), pattern, "{level}");
        check_all(&world);
    }
}

#[test]
fn without_room_in_the_log_a_recovery_stops() {
    let mut world = World::new(Level::Raid5, 4);
    world.fill();
    let shared = std::sync::Arc::clone(&world.set.shared);
    shared.members.fail(Slot::new(1), "for the test");
    assert!(shared.members.remove(Slot::new(1)));
    let new = Fake::new("new".into(), shared.geometry.member_bytes());
    world.set.devices().attach(Slot::new(1), Some(attached(&new)));
    world.fakes[1] = new;
    assert!(shared.members.begin_recovery(Slot::new(1), 0));
    world.fakes[0].break_block(MemberOffset::START, false);
    let ended = recover(&world, Slot::new(1));
    assert!(matches!(ended, Err(VolumeError::Unreadable { member: Slot::FIRST, .. })), "{ended:?}");
}

#[test]
fn a_flipped_byte_anywhere_is_repaired_where_it_can_be_located() {
    use crate::mismatch::{Outcome, ScrubMode, Wrong};
    for (level, members) in [(Level::Raid6, 5), (Level::Raid6, 4), (Level::Raid1, 3)] {
        let world = World::new(level, members);
        world.fill();
        let before: Vec<Vec<u8>> = world.fakes.iter().map(Fake::area).collect();
        for slot in Slot::first(members) {
            let offset = 5 * BLOCK + u64::from(slot.get());
            world.fakes[slot.index()].flip(MemberOffset::new(offset));
            let (set, stripe) = (Rc::clone(&world.set), Stripe::new(offset / u64::from(CHUNK)));
            let mode = ScrubMode { repair: true, trust_data: false };
            let checked = world.run(async move {
                if level == Level::Raid6 {
                    set.check_stripe(stripe, mode).await
                } else {
                    set.check_region(0, mode).await
                }
            });
            let found = checked.expect("readable").found;
            assert_eq!((found.len(), found[0].outcome), (1, Outcome::BlockRewritten), "{level} slot {slot}");
            assert_eq!(found[0].blocks[0].member, slot);
            assert_ne!(found[0].wrong, Wrong::Unknown);
        }
        let after: Vec<Vec<u8>> = world.fakes.iter().map(Fake::area).collect();
        assert!(before == after, "{level}: what was there is there");
    }
}

/// While a block is made from the others its member fails, is removed, and a spare takes the slot (found by the simulator,
/// RAID-5; while it is read itself, seed 611209): what the spare holds is not data.
#[test]
fn a_spare_that_takes_the_slot_meanwhile_is_not_read() {
    for (level, members) in LEVELS {
        for (nth, read_at) in (1..=16).flat_map(|nth| [(nth, 1), (nth, 2 % members as usize)]) {
            let world = World::new(level, members);
            let mut pattern = world.fill();
            world.fakes[1].break_block(MemberOffset::START, false);
            world.fakes[1].break_block(MemberOffset::new(2 * BLOCK), false);
            let (set, shared) = (Rc::clone(&world.set), std::sync::Arc::clone(&world.set.shared));
            world.fakes[read_at].at_read(nth, move || {
                shared.members.fail(Slot::new(1), "for the test");
                assert!(shared.members.remove(Slot::new(1)));
                let spare = Fake::new("spare".into(), shared.geometry.member_bytes());
                (0..shared.geometry.member_bytes() / BLOCK)
                    .for_each(|block| spare.flip(MemberOffset::new(block * BLOCK)));
                set.devices().attach(Slot::new(1), Some(attached(&spare)));
                assert!(shared.members.begin_recovery(Slot::new(1), 0));
            });
            // A part of every block of the chunk that member 1 holds in the first stripe: the old contents are read.
            let parity = shared_geometry(&world).parity_chunks() > 0;
            let at = if parity { CHUNK as usize } else { 0 } + 512;
            pattern[at..at + 3 * 4096].fill(0x77);
            world.write(at as u64, &pattern[at..at + 3 * 4096]).expect("written");
            for _ in 0..members {
                assert_eq!(world.read(0, pattern.len() as u64).expect("readable"), pattern, "{level} {nth}");
            }
        }
    }
}

fn shared_geometry(world: &World) -> layout::geometry::Geometry {
    world.set.shared.geometry
}

/// Fills the member in a slot, as a recovery of the whole array does.
fn recover(world: &World, slot: Slot) -> Result<(), VolumeError> {
    let set = Rc::clone(&world.set);
    world.run(async move {
        if set.shared.geometry.parity_chunks() > 0 {
            return recover_all(&set, slot).await;
        }
        for region in 0..set.regions() {
            set.copy_region(region, Some(slot)).await?;
        }
        Ok(())
    })
}
