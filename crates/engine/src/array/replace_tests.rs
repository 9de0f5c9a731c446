//! Members that are replaced: which device is read, blocks that no device can read, and writes during the copy.

use std::rc::Rc;
use std::sync::Arc;

use layout::geometry::Level;
use layout::units::{MemberOffset, Slot, Stripe};

use super::progress::{Ended, FullSpeed, Progress};
use super::replace::copy;
use crate::counters::CounterTotals;
use crate::error::VolumeError;
use crate::events::Event;
use crate::in_place::InPlace;
use crate::members::MemberState::{InSync, Recovering};
use crate::members::Replacing;
use crate::stripe::fake::{CHUNK, Fake, STRIPES, World, attached};
use crate::volume::{Space, ZeroFlags};

const LEVELS: [(Level, u32); 6] = [
    (Level::Raid4, 3),
    (Level::Raid5, 4),
    (Level::Raid6, 5),
    (Level::Raid1, 2),
    (Level::Raid1, 3),
    (Level::Raid10, 4),
];
const OLD: Slot = Slot::new(1);
const BLOCK: u64 = 4096;

/// An array that holds a pattern, whose member 1 is being replaced by a device that holds something else.
fn replacing(level: Level, members: u32, bad_room: usize) -> (World, Vec<u8>, Fake) {
    let world = World::new(level, members);
    let pattern = world.fill();
    let new = Fake::new("new".into(), world.set.shared.geometry.member_bytes());
    (0..world.set.shared.geometry.member_bytes()).step_by(512).for_each(|at| new.flip(MemberOffset::new(at)));
    world.set.devices().attach_replacement(OLD, Some(attached(&new)));
    assert!(world.set.shared.members.begin_replacement(OLD, 0, bad_room));
    (world, pattern, new)
}

fn copied(world: &World) -> Ended {
    let set = Rc::clone(&world.set);
    world.run(async move { copy(&set, OLD, &Progress::default(), &FullSpeed).await })
}

fn member_reads(world: &World) -> u64 {
    CounterTotals::of(&world.set.shared.counters).member_read_bytes
}

fn is_replacement_event(event: &Event) -> bool {
    matches!(event, Event::ReplacementFailed { .. } | Event::MemberFailed { .. })
}

#[test]
fn only_the_member_itself_is_read_while_it_can_be() {
    for (level, members) in LEVELS {
        let (world, _, new) = replacing(level, members, 0);
        let before = member_reads(&world);
        assert_eq!(copied(&world), Ended::Finished, "{level}");
        assert!(new.area() == world.fakes[OLD.index()].area(), "{level}: the same contents");
        let read = member_reads(&world) - before;
        assert_eq!(read, world.set.shared.geometry.member_bytes(), "{level}: each byte once, of one member");
    }
}

#[test]
fn what_the_member_cannot_read_is_made_from_the_others_and_not_written_back() {
    for (level, members) in LEVELS {
        let (world, _, new) = replacing(level, members, 0);
        let old = world.fakes[OLD.index()].area();
        [0, 3 * BLOCK, u64::from(CHUNK)]
            .into_iter()
            .for_each(|at| world.fakes[OLD.index()].break_block(MemberOffset::new(at), false));
        let broken = world.fakes[OLD.index()].latent_sectors();
        assert_eq!(copied(&world), Ended::Finished, "{level}");
        assert!(new.area() == old, "{level}: what the member held before it broke");
        if level != Level::Raid1 && level != Level::Raid10 {
            assert_eq!(world.fakes[OLD.index()].latent_sectors(), broken, "{level}: it is about to go");
        }
    }
}

#[test]
fn what_nobody_can_read_is_recorded_as_bad_or_ends_the_replacement() {
    for bad_room in [0, 8] {
        let (world, pattern, new) = replacing(Level::Raid5, 4, bad_room);
        // The same rows of two members.
        world.fakes[OLD.index()].break_block(MemberOffset::new(BLOCK), true);
        world.fakes[2].break_block(MemberOffset::new(BLOCK), true);
        let members = &world.set.shared.members;
        if bad_room == 0 {
            assert!(matches!(copied(&world), Ended::Failed(_)));
            continue;
        }
        assert_eq!(copied(&world), Ended::Finished);
        assert_eq!(members.copied_without_bad(OLD, u64::MAX), BLOCK, "a later run begins there");
        assert!(members.hand_over(OLD));
        assert_eq!(members.bad_blocks(OLD).0.bytes(), BLOCK);
        assert_eq!(members.state(OLD), InSync);
        let unreadable =
            (0..pattern.len() as u64 / BLOCK).filter(|at| world.read(at * BLOCK, BLOCK).is_err());
        assert!(unreadable.count() <= 2, "one block of each, if it is data");
        assert!(new.area()[2 * BLOCK as usize..] == world.fakes[OLD.index()].area()[2 * BLOCK as usize..]);
    }
}

#[test]
fn both_get_what_is_written_until_one_has_the_slot_alone() {
    for (level, members) in LEVELS {
        let (world, pattern, new) = replacing(level, members, 0);
        let written: Vec<u8> = pattern.iter().map(|byte| !byte).collect();
        let (half, quarter) = (pattern.len() as u64 / 2, pattern.len() / 4);
        world.write(0, &written[..half as usize]).unwrap();
        assert_eq!(copied(&world), Ended::Finished, "{level}");
        world.write(half, &written[half as usize..][..quarter]).unwrap();
        let shared = &world.set.shared;
        assert!(shared.members.hand_over(OLD), "{level}");
        world.write(half + quarter as u64, &written[half as usize + quarter..]).unwrap();
        let old = world.fakes[OLD.index()].area();
        assert!(new.area() == old, "{level}: the same contents");
        shared.members.let_go(OLD);
        world.write(0, &pattern).unwrap();
        assert!(world.fakes[OLD.index()].area() == old, "{level}: it gets no writes any more");
        assert!(world.read(0, pattern.len() as u64).unwrap() == pattern, "{level}");
        world.set.devices().promote_replacement(OLD);
        shared.members.end_replacement(OLD);
        assert!(world.read(0, pattern.len() as u64).unwrap() == pattern, "{level}");
        assert_eq!(world.heard(is_replacement_event), 0, "{level}");
    }
}

#[test]
fn a_replacement_that_fails_is_the_end_of_that_and_of_nothing_else() {
    for (level, members) in LEVELS {
        let (world, pattern, new) = replacing(level, members, 0);
        (0..STRIPES * u64::from(CHUNK))
            .step_by(BLOCK as usize)
            .for_each(|at| new.break_block(MemberOffset::new(at), true));
        let shared = &world.set.shared;
        let version = shared.members.metadata_version();
        world.write(0, &pattern).unwrap();
        assert_eq!(shared.members.replacing(OLD), Replacing::No, "{level}");
        assert!(shared.members.metadata_version() > version, "{level}: on disk before anyone relies on it");
        assert_eq!(world.heard(|event| matches!(event, Event::ReplacementFailed { .. })), 1, "{level}");
        assert_eq!(world.heard(|event| matches!(event, Event::MemberFailed { .. })), 0, "{level}");
        assert!(matches!(copied(&world), Ended::Failed(_)), "{level}");
        assert!(!shared.members.hand_over(OLD), "{level}");
    }
}

#[test]
fn the_replacement_of_a_member_that_fails_has_what_was_copied() {
    let (world, pattern, new) = replacing(Level::Raid5, 4, 0);
    let members = &world.set.shared.members;
    // Half of it is copied when the member goes; a read fails it.
    let set = Rc::clone(&world.set);
    let (old, half) = (world.fakes[OLD.index()].clone(), STRIPES / 2);
    world.run(async move { set.copy_run(Stripe::FIRST..Stripe::new(half), OLD).await }).expect("copied");
    members.copied_to(OLD, MemberOffset::new(half * u64::from(CHUNK)));
    let before = new.area();
    members.fail(OLD, "it was about to");
    assert_eq!((members.state(OLD), members.replacing(OLD)), (Recovering, Replacing::Alone));
    assert_eq!(members.recovered_bytes(OLD), half * u64::from(CHUNK));
    members.copied_to(OLD, MemberOffset::new(STRIPES * u64::from(CHUNK)));
    assert_eq!(members.recovered_bytes(OLD), half * u64::from(CHUNK), "nothing is copied any more");
    assert!(world.read(0, pattern.len() as u64).unwrap() == pattern, "the rest is made from the others");
    let stripe_bytes = 3 * u64::from(CHUNK);
    let written: Vec<u8> = pattern.iter().map(|byte| byte ^ 0x5a).collect();
    world.write(0, &written[..(half * stripe_bytes) as usize]).unwrap();
    let copied = (half * u64::from(CHUNK)) as usize;
    let held = old.area();
    assert!(new.area()[..copied] != before[..copied], "below its cursor it gets writes");
    assert!(held == old.area());
    let mut whole = pattern;
    whole[..(half * stripe_bytes) as usize].copy_from_slice(&written[..(half * stripe_bytes) as usize]);
    assert!(world.read(0, whole.len() as u64).unwrap() == whole);
    let set = Rc::clone(&world.set);
    let ended =
        world.run(async move { super::rebuild::recover(&set, OLD, &Progress::default(), &FullSpeed).await });
    assert_eq!((ended, members.state(OLD)), (Ended::Finished, InSync));
    assert!(world.read(0, whole.len() as u64).unwrap() == whole);
}

/// A write fails because the old member is full; the new one is not. What was read before must be what is read after (seed
/// 612286: parity was made to agree with the old member, and then the new one got the slot).
#[test]
fn a_replacement_holds_no_more_than_its_member_took() {
    for (level, members) in LEVELS {
        for zeroes in [false, true] {
            let (world, pattern, new) = replacing(level, members, 0);
            assert_eq!(copied(&world), Ended::Finished, "{level}");
            let old = &world.fakes[OLD.index()];
            old.set_full(true);
            let inverted: Vec<u8> = pattern.iter().map(|byte| !byte).collect();
            let set = Rc::clone(&world.set);
            let result = match zeroes {
                false => world.write(0, &inverted),
                true => world.run(async move {
                    let bytes = set.shared.geometry.array_bytes();
                    set.write_zeroes(0, bytes, ZeroFlags { may_unmap: true, fua: false }).await
                }),
            };
            assert!(matches!(result, Err(VolumeError::NoSpace { member: OLD })), "{level}: {result:?}");
            assert_eq!(world.set.shared.members.replacing(OLD), Replacing::Copying, "{level}");
            assert!(new.area() == old.area(), "{level}, zeroes: {zeroes}");
        }
    }
}

/// What reads an array in which one block of member 2 cannot be read.
async fn read_everything(set: &Rc<InPlace<Fake>>, resync: bool) -> Result<(), VolumeError> {
    if !resync {
        return set.read(0, set.shared.geometry.array_bytes()).await.map(drop);
    }
    if set.shared.geometry.parity_chunks() > 0 {
        for stripe in Stripe::first(STRIPES) {
            set.resync_stripe(stripe).await?;
        }
    }
    Ok(())
}

/// A read on its way to the old member fails when another device has the slot: it is no error of that one, and no chunk
/// is missing (seed 611223).
#[test]
fn a_read_that_fails_at_the_old_member_goes_to_the_new_one() {
    let mut moved = 0;
    for (level, members) in LEVELS {
        for (nth, resync) in (1..12).flat_map(|nth| [(nth, false), (nth, true)]) {
            let (world, _, _) = replacing(level, members, 0);
            assert_eq!(copied(&world), Ended::Finished, "{level}");
            let old = &world.fakes[OLD.index()];
            old.break_block(MemberOffset::START, true);
            (level != Level::Raid1).then(|| world.fakes[2].break_block(MemberOffset::START, false));
            let shared = Arc::clone(&world.set.shared);
            old.at_read(nth, move || assert!(shared.members.hand_over(OLD)));
            let set = Rc::clone(&world.set);
            let mut result = world.run(async move { read_everything(&set, resync).await });
            if resync && matches!(result, Err(VolumeError::Unreadable { .. })) {
                // It had just found that no device can read the block, and asked the member for others. The next try finds it.
                let set = Rc::clone(&world.set);
                result = world.run(async move { read_everything(&set, resync).await });
            }
            let is_moved = world.set.shared.members.replacing(OLD) == Replacing::Taken;
            moved += usize::from(is_moved);
            if is_moved {
                assert_eq!(result, Ok(()), "{level}, read {nth}, resync: {resync}");
            }
        }
    }
    assert!(moved > 30, "{moved} tried");
}
