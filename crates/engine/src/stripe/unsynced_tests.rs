//! What clients do while a resync is due: what is acknowledged survives a failed member as ever, and what was read stays.

use layout::geometry::Level;
use layout::redo_log::StripeRange;
use layout::units::{ArrayOffset, MemberOffset, Slot, Stripe};

use super::fake::{CHUNK, STRIPES, World};
use crate::error::VolumeError;
use crate::members::Failing;

const BLOCK: u64 = 4096;
const PARITY: [(Level, u32); 4] =
    [(Level::Raid4, 4), (Level::Raid5, 4), (Level::Raid6, 5), (Level::Raid6, 6)];

/// An array whose parity was never made.
fn unsynced(level: Level, members: u32) -> (World, Vec<u8>) {
    let world = World::new(level, members);
    let pattern = world.fill();
    let geometry = world.set.shared.geometry;
    for stripe in Stripe::first(STRIPES) {
        // At other bytes in P than in Q: a chance that makes both agree about what is lost is none to count on.
        for (at, member) in [geometry.p_member(stripe), geometry.q_member(stripe)].into_iter().enumerate() {
            let Some(member) = member else { continue };
            let start = geometry.member_offset(stripe) + at as u64;
            (0..u64::from(CHUNK)).step_by(512).for_each(|at| world.fakes[member.index()].flip(start + at));
        }
    }
    world.set.shared.cache.clear();
    world.set.shared.consistency.set_unsynced(Some(Stripe::new(0)));
    (world, pattern)
}

/// Each block of these stripes is read right, and each lost block of others is refused.
fn only_these_are_known(world: &World, pattern: &[u8], known: &[u64]) {
    let stripe_bytes = world.set.shared.geometry.stripe_bytes();
    let mut refused = 0;
    for at in (0..pattern.len() as u64).step_by(BLOCK as usize) {
        match world.read(at, BLOCK) {
            Ok(read) => assert!(read == pattern[at as usize..][..BLOCK as usize], "{at}"),
            Err(VolumeError::Io { reason }) => {
                assert!(
                    reason.contains("in doubt") && !known.contains(&(at / stripe_bytes)),
                    "{at}: {reason}"
                );
                refused += 1;
            }
            Err(error) => panic!("{at}: {error}"),
        }
    }
    assert!(refused > 0, "others are still in doubt");
}

#[test]
fn what_is_written_before_the_resync_comes_survives_a_failed_member() {
    for (level, members) in PARITY {
        let (world, mut pattern) = unsynced(level, members);
        let stripe_bytes = world.set.shared.geometry.stripe_bytes();
        let mut write = |at: u64, bytes: u64| {
            let new = vec![at as u8 | 1; bytes as usize];
            world.write(at, &new).expect("written");
            pattern[at as usize..][..new.len()].copy_from_slice(&new);
        };
        write(stripe_bytes + 3 * BLOCK, BLOCK); // read, modify, write
        write(stripe_bytes + BLOCK, BLOCK); // again
        write(3 * stripe_bytes, stripe_bytes); // whole
        write(5 * stripe_bytes - BLOCK, 2 * BLOCK); // parts of two stripes
        assert_eq!(world.set.shared.members.fail(Slot::new(1), "a test"), Failing::Failed);
        only_these_are_known(&world, &pattern, &[1, 3, 4, 5]);
    }
}

#[test]
fn what_was_read_at_a_member_stays_though_both_parities_know_a_torn_write_of_it() {
    for members in [4, 5, 6] {
        let world = World::new(Level::Raid6, members);
        let pattern = world.fill();
        let geometry = world.set.shared.geometry;
        // P and Q have a write of the first block that its member never got.
        let place = geometry.locate(ArrayOffset::START);
        let member = geometry.data_member(place.stripe, place.data_index);
        world.fakes[member.index()].flip(geometry.member_offset(place.stripe));
        world.set.shared.cache.clear();
        world.set.shared.consistency.set_unsynced(Some(Stripe::new(0)));
        world.set.shared.loads.set_parity_agrees(false);
        let read = world.read(0, BLOCK).expect("its member is there");
        assert!(read != pattern[..BLOCK as usize], "the write is not there");
        assert!(
            world.read(BLOCK, BLOCK).expect("it is there, too")
                == pattern[BLOCK as usize..][..BLOCK as usize]
        );
        assert_eq!(world.set.shared.members.fail(member, "a test"), Failing::Failed);
        match world.read(0, BLOCK) {
            Err(VolumeError::Io { reason }) => assert!(reason.contains("in doubt"), "{reason}"),
            other => panic!("{} bytes of {members} members: {:?}", BLOCK, other.map(|new| new == read)),
        }
        let next = world.read(BLOCK, BLOCK).expect("P and Q agree with what was read");
        assert!(next == pattern[BLOCK as usize..][..BLOCK as usize]);
    }
}

#[test]
fn a_place_that_cannot_be_read_is_made_from_parity_that_a_write_has_made_good() {
    for (level, members) in PARITY {
        let (world, mut pattern) = unsynced(level, members);
        world.write(BLOCK, &[7; BLOCK as usize]).expect("written");
        pattern[BLOCK as usize..2 * BLOCK as usize].fill(7);
        let geometry = world.set.shared.geometry;
        let place = geometry.locate(ArrayOffset::START);
        world.fakes[geometry.data_member(place.stripe, place.data_index).index()]
            .break_block(MemberOffset::START, false);
        assert_eq!(world.read(0, 2 * BLOCK).expect("readable"), pattern[..2 * BLOCK as usize]);
    }
}

/// A write failed half way at a start: the copies differ, and a resync will write the first one over the others.
#[test]
fn the_copy_that_is_read_is_the_one_that_stays() {
    for (level, members) in [(Level::Raid1, 2), (Level::Raid1, 3), (Level::Raid10, 4), (Level::Raid10, 5)] {
        let world = World::with_intent(level, members, 400, super::intent::Intent::new(1, false, false));
        let shared = &world.set.shared;
        shared.loads.set_parity_agrees(false);
        let bytes = shared.geometry.array_bytes();
        let places: Vec<u64> = (0..bytes).step_by(100 * BLOCK as usize).collect();
        for (member, fake) in world.fakes.iter().enumerate() {
            (0..shared.geometry.member_bytes())
                .step_by(512)
                .for_each(|at| fake.flip(MemberOffset::new(at + member as u64)));
        }
        let read = || places.iter().map(|&at| world.read(at, BLOCK).expect("readable")).collect::<Vec<_>>();
        let before = read();
        let set = std::rc::Rc::clone(&world.set);
        let resync = async move {
            for region in 0..set.regions() {
                set.copy_region(region, None).await.expect("copied");
            }
        };
        world.run(resync);
        assert!(read() == before, "{level:?} of {members}");
        shared.loads.set_parity_agrees(true);
        assert!(read() == before, "{level:?} of {members}");
    }
}

/// A crash left P of some stripes, or Q of others, older than their data in one block; members were read one by one since.
#[test]
fn two_parities_tell_where_they_agree_what_a_lost_chunk_holds() {
    for (members, lost, other) in [(4, 0, 1), (5, 1, 2), (6, 3, 4)] {
        let (lost, other) = (Slot::new(lost), Slot::new(other));
        let world = World::new(Level::Raid6, members);
        let pattern = world.fill();
        let geometry = world.set.shared.geometry;
        for stripe in Stripe::first(STRIPES) {
            let torn = [geometry.p_member(stripe), geometry.q_member(stripe)][stripe.get() as usize % 2];
            world.fakes[torn.expect("a parity").index()].flip(geometry.member_offset(stripe) + 7);
        }
        world.set.shared.cache.clear();
        world.set.shared.consistency.doubt(StripeRange { first: 0, end: STRIPES });
        assert_eq!(world.set.shared.members.fail(lost, "a test"), Failing::Failed);
        let is_lost = |at: u64| {
            let place = geometry.locate(ArrayOffset::new(at));
            geometry.data_member(place.stripe, place.data_index) == lost
        };
        let (mut refused, mut told) = (0, 0);
        for at in (0..pattern.len() as u64).step_by(BLOCK as usize) {
            let is_torn =
                is_lost(at) && u64::from(geometry.locate(ArrayOffset::new(at)).chunk_offset) < BLOCK;
            match world.read(at, BLOCK) {
                Ok(read) => {
                    assert!(read == pattern[at as usize..][..BLOCK as usize] && !is_torn, "{at}");
                    told += u32::from(is_lost(at));
                }
                Err(error) => {
                    assert!(is_torn && error.to_string().contains("in doubt"), "{at}: {error}");
                    refused += 1;
                }
            }
        }
        assert!(refused > 0 && told > refused, "{members}: {refused} {told}");
        // With another member missing nothing tells.
        assert_eq!(world.set.shared.members.fail(other, "a test"), Failing::Failed);
        let mut blocks = (0..pattern.len() as u64).step_by(BLOCK as usize);
        let of_lost = blocks.find(|at| is_lost(*at)).expect("a block") + BLOCK;
        assert!(world.read(of_lost, BLOCK).is_err());
    }
}
