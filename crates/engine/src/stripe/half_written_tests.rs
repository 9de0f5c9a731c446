//! Writes that some members took and others did not, and what becomes of the rest of their stripes.

use std::rc::Rc;

use layout::geometry::Level;
use layout::units::{ArrayOffset, Slot, Stripe};

use super::fake::{CHUNK, World};
use crate::code::chunk_set::{Chunk, ChunkSet};
use crate::counters::CounterTotals;
use crate::device::Device;
use crate::error::VolumeError;
use crate::in_place::InPlace;
use crate::members::{Failing, MemberState};
use crate::mismatch::ScrubMode;

const BLOCK: u64 = 4096;

/// Where a data chunk of a stripe is: its member, and its offset in the array.
fn chunk_at<D: Device>(set: &InPlace<D>, stripe: Stripe, index: u32) -> (Slot, u64) {
    let geometry = &set.shared.geometry;
    (geometry.data_member(stripe, index), geometry.array_offset(stripe, index, 0).get())
}

/// A write meets ENOSPC at one member, and later another member fails: data that was acknowledged long before was lost.
#[test]
fn a_write_without_room_takes_nothing_else_with_it() {
    for (level, members) in [(Level::Raid4, 4), (Level::Raid5, 4), (Level::Raid6, 5), (Level::Raid6, 6)] {
        for bytes in [BLOCK, u64::from(CHUNK) + BLOCK] {
            let world = World::new(level, members);
            let mut pattern = world.fill();
            let (full, at) = chunk_at(&world.set, Stripe::new(2), 0);
            world.fakes[full.index()].set_full(true);
            let result = world.write(at, &vec![7; bytes as usize]);
            assert!(matches!(result, Err(VolumeError::NoSpace { .. })), "{result:?}");
            assert_eq!(world.set.shared.consistency.suspects(), 0, "{level:?} of {members}");
            // What was written may be there or not: the other one of its chunks is, if there were two.
            let written = &mut pattern[at as usize..][..bytes as usize];
            written.copy_from_slice(&world.read(at, bytes).expect("readable"));
            let (failing, _) = chunk_at(&world.set, Stripe::new(2), 1);
            assert_eq!(world.set.shared.members.fail(failing, "a test"), Failing::Failed);
            assert!(world.read(0, pattern.len() as u64) == Ok(pattern), "{level:?} of {members}");
        }
    }
}

/// As above, but the parity has no room: it is made when there is some.
#[test]
fn parity_without_room_is_made_later() {
    let world = World::new(Level::Raid5, 4);
    world.fill();
    let ((_, at), shared) = (chunk_at(&world.set, Stripe::new(2), 0), &world.set.shared);
    let parity = shared.geometry.p_member(Stripe::new(2)).expect("parity");
    world.fakes[parity.index()].set_full(true);
    assert!(matches!(world.write(at, &[7; BLOCK as usize]), Err(VolumeError::NoSpace { .. })));
    assert_eq!(shared.consistency.suspect_units(), [Stripe::new(2).into()]);
    world.fakes[parity.index()].set_full(false);
    let set = Rc::clone(&world.set);
    world.run(async move { set.resync_stripe(Stripe::new(2)).await }).expect("room again");
    assert_eq!(shared.consistency.suspects(), 0);
}

/// With data of it missing such a stripe could be neither written nor rebuilt until the next start.
#[test]
fn a_stripe_with_missing_data_is_in_doubt_and_no_worse() {
    for (level, members) in [(Level::Raid5, 4), (Level::Raid6, 6)] {
        let world = World::logging(level, members);
        if level == Level::Raid6 {
            world.set.shared.members.fail(Slot::new(1), "a test");
        }
        let chunk_bytes = u64::from(CHUNK);
        let stripe_bytes = world.set.shared.geometry.stripe_bytes();
        let stripe = Stripe::new(1);
        world.write(stripe.get() * stripe_bytes, &vec![1; stripe_bytes as usize]).expect("written");
        let data = 0..world.set.shared.geometry.data_chunks();
        let is_there = |index: &u32| {
            world.state(world.set.shared.geometry.data_member(stripe, *index)) == MemberState::InSync
        };
        let (there, missing): (Vec<u32>, Vec<u32>) = data.partition(is_there);
        assert!(!missing.is_empty());
        let (full, at) = chunk_at(&world.set, stripe, there[0]);
        world.fakes[full.index()].set_full(true);
        assert!(matches!(world.write(at, &[2; BLOCK as usize]), Err(VolumeError::NoSpace { .. })));
        world.fakes[full.index()].set_full(false);
        let is_suspect = || {
            world.set.shared.consistency.is_suspect(stripe)
                || world.set.shared.consistency.is_in_doubt(stripe)
        };
        assert!(is_suspect());

        world.write(at + BLOCK, &[3; BLOCK as usize]).expect("what is there can be written");
        assert_eq!(world.read(at + BLOCK, BLOCK), Ok(vec![3; BLOCK as usize]));
        let lost = chunk_at(&world.set, stripe, missing[0]).1;
        if missing.len() == 1 {
            world.write(lost, &[4; BLOCK as usize]).expect("and what is missing");
            assert!(world.read(lost, BLOCK).is_err() && is_suspect(), "it may still be wrong elsewhere");
            world.write(lost, &vec![5; chunk_bytes as usize]).expect("whole");
            assert!(!is_suspect(), "{level:?}: what is missing was overwritten whole");
            assert_eq!(world.read(lost, chunk_bytes), Ok(vec![5; chunk_bytes as usize]));
        } else {
            // The other one would be made of parity that does not tell it, and from then on both parities would.
            world.write(lost, &[4; BLOCK as usize]).expect_err("nothing tells the other missing chunk");
            world.write(lost, &vec![5; chunk_bytes as usize]).expect_err("nor whole");
            assert!(world.read(lost, BLOCK).is_err() && is_suspect());
        }
        let set = Rc::clone(&world.set);
        let whole = move || vec![6; set.shared.geometry.stripe_bytes() as usize];
        world.write(stripe.get() * stripe_bytes, &whole()).expect("whole");
        assert!(!is_suspect() && world.read(stripe.get() * stripe_bytes, stripe_bytes) == Ok(whole()));
    }
}

/// A member fails after its old data and parity that does not agree were read: the new parity of the chunk that is written
/// whole must not come from them.
#[test]
fn what_was_read_before_a_failure_makes_no_doubtful_parity_good() {
    let world = World::new(Level::Raid5, 4);
    world.fill();
    let (shared, stripe) = (Rc::clone(&world.set), Stripe::new(2));
    let shared = &shared.shared;
    let parity = shared.geometry.p_member(stripe).expect("parity");
    let base = shared.geometry.member_offset(stripe);
    (0..u64::from(CHUNK)).step_by(512).for_each(|at| world.fakes[parity.index()].flip(base + at));
    shared.cache.clear();
    shared.consistency.set_unsynced(Some(Stripe::new(0)));
    // Parity cannot be made to agree before: a block of another chunk cannot be read, and no log has room.
    let (unreadable, _) = chunk_at(&world.set, stripe, 2);
    world.fakes[unreadable.index()].break_block(base + BLOCK, false);
    let (failing, at) = chunk_at(&world.set, stripe, 0);
    let set = Rc::clone(&world.set);
    world.fakes[parity.index()].at_read(1, move || {
        assert_eq!(set.shared.members.fail(failing, "a test"), Failing::Failed);
    });
    let new = vec![7; CHUNK as usize];
    let written = world.write(at, &new);
    assert_eq!(world.state(failing), MemberState::Failed, "while it was written");
    let lost = ChunkSet::one(0 as Chunk);
    assert_eq!(shared.missing(stripe), lost);
    for start in (0..u64::from(CHUNK)).step_by(BLOCK as usize) {
        match world.read(at + start, BLOCK) {
            Ok(read) => assert!(read == new[..BLOCK as usize], "wrong data at {start}, write {written:?}"),
            Err(error) => assert!(written.is_err(), "acknowledged, and: {error}"),
        }
    }
}

/// The array needs a member for other data, and it does not answer: the copy of another one is as good.
#[test]
fn another_copy_is_read_where_a_needed_member_does_not_answer() {
    let world = World::new(Level::Raid10, 5);
    let pattern = world.fill();
    assert_eq!(world.set.shared.members.fail(Slot::new(1), "a test"), Failing::Failed);
    world.fakes[2].set_gone();
    let mut refused = 0;
    for at in (0..pattern.len() as u64).step_by(BLOCK as usize) {
        let copies = world.set.shared.geometry.copies(ArrayOffset::new(at), BLOCK);
        let is_left = copies.places.iter().any(|place| ![1, 2].contains(&place.member.get()));
        for _ in 0..2 {
            match world.read(at, BLOCK) {
                Ok(read) => assert!(is_left && read == pattern[at as usize..][..BLOCK as usize]),
                Err(error) => assert!(!is_left, "{at}: {error}"),
            }
        }
        refused += usize::from(!is_left);
    }
    assert!(refused > 0 && world.state(Slot::new(2)) == MemberState::InSync, "it is needed");
}

/// A crash now would find parity that may not agree, and data missing: the stripe stays in doubt after it.
#[test]
fn a_write_to_a_suspect_stripe_with_missing_data_leaves_it_in_doubt() {
    let world = World::new(Level::Raid6, 6);
    world.fill();
    let (consistency, stripe) = (&world.set.shared.consistency, Stripe::new(2));
    let (lost, _) = chunk_at(&world.set, stripe, 0);
    let (_, there) = chunk_at(&world.set, stripe, 1);
    assert!(consistency.suspect(stripe));
    assert_eq!(world.set.shared.members.fail(lost, "a test"), Failing::Failed);
    assert!(!consistency.is_in_doubt(stripe));
    world.write(there, &[3; BLOCK as usize]).expect("what is there can be written");
    assert!(consistency.is_in_doubt(stripe));
}

/// New parity of some rows, made from all data, says nothing of the other rows of the missing chunk.
#[test]
fn a_write_of_a_part_of_a_lost_chunk_ends_no_doubt() {
    let world = World::new(Level::Raid5, 3);
    world.fill();
    let (consistency, stripe) = (&world.set.shared.consistency, Stripe::new(2));
    let chunk_bytes = u64::from(world.set.shared.geometry.chunk_bytes());
    let (lost, at) = chunk_at(&world.set, stripe, 0);
    assert_eq!(world.set.shared.members.fail(lost, "a test"), Failing::Failed);
    consistency.doubt_stripe(stripe);
    world.write(at, &[3; BLOCK as usize]).expect("written");
    assert_eq!(CounterTotals::of(&world.set.shared.counters).rmw, 0, "made from all data of the rows");
    assert!(consistency.is_in_doubt(stripe));
    world.write(at, &vec![4; chunk_bytes as usize]).expect("written");
    assert!(!consistency.is_in_doubt(stripe), "all that was lost is overwritten");
}

/// With all data there a write makes the parity of the whole stripe agree before it builds on it.
#[test]
fn a_write_of_a_part_of_a_doubtful_stripe_whose_data_is_all_there_makes_its_parity_agree_first() {
    let world = World::new(Level::Raid5, 3);
    world.fill();
    let (consistency, stripe) = (&world.set.shared.consistency, Stripe::new(2));
    let (lost, at) = chunk_at(&world.set, stripe, 0);
    let (there, other) = chunk_at(&world.set, stripe, 1);
    let in_chunk = world.set.shared.geometry.chunk_bytes() as usize;
    let parity = Slot::first(3).find(|member| ![lost, there].contains(member)).expect("the third of three");
    world.fakes[parity.index()].flip(world.set.shared.geometry.member_offset(stripe));
    consistency.doubt_stripe(stripe);
    let before = world.read(at, in_chunk as u64).expect("all members are there");
    world.write(other, &[3; BLOCK as usize]).expect("written");
    assert!(!consistency.is_in_doubt(stripe));
    assert_eq!(world.set.shared.members.fail(lost, "a test"), Failing::Failed);
    assert!(world.read(at, in_chunk as u64).expect("made from parity") == before);
}

/// Where a write failed half way, data and parity differ for a reason that is known: a repair that located a wrong block would
/// guess.
#[test]
fn a_scrub_leaves_suspect_stripes_alone() {
    for (level, members) in [(Level::Raid5, 4), (Level::Raid6, 6)] {
        let world = World::new(level, members);
        world.fill();
        let (stripe, set) = (Stripe::new(2), Rc::clone(&world.set));
        let shared = &world.set.shared;
        let (member, _) = chunk_at(&world.set, stripe, 0);
        world.fakes[member.index()].flip(shared.geometry.member_offset(stripe));
        assert!(shared.consistency.suspect(stripe));
        let mode = ScrubMode { repair: true, trust_data: false };
        let checked = world.run(async move { set.check_stripe(stripe, mode).await }).expect("readable");
        assert!(checked.skipped && checked.found.is_empty(), "{level:?}: {checked:?}");
    }
}
