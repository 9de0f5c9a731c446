//! Members that come back: what the bitmap marks is recovered, all of it and nothing else.

use std::collections::BTreeSet;
use std::rc::Rc;

use layout::geometry::Level;
use layout::md_bitmap::Mapping;
use layout::units::{ArrayOffset, MemberOffset, Slot, Stripe};

use super::progress::{Ended, FullSpeed, Pace, Progress};
use super::rebuild::{keep_rebuilt, recover};
use crate::bad_blocks::BadBlocks;
use crate::members::MemberState::{InSync, Recovering};
use crate::mismatch::{Checked, ScrubMode};
use crate::stripe::fake::{CHUNK, World};
use crate::stripe::unit_number::UnitNumber;
use crate::volume::Space;

/// Level, members, what a bit stands for (of mirrors a region is copied whole), and whether that is spread.
const LEVELS: [(Level, u32, (u32, bool)); 7] = [
    (Level::Raid5, 4, (16 << 10, false)),
    (Level::Raid6, 5, (32 << 10, false)),
    (Level::Raid5, 3, (32 << 10, true)),
    (Level::Raid6, 4, (64 << 10, true)),
    (Level::Raid1, 2, (256 << 10, false)),
    (Level::Raid1, 3, (256 << 10, false)),
    (Level::Raid10, 4, (256 << 10, false)),
];
const STRIPES: u64 = 320;
const BLOCK: u64 = 4096;
const AWAY: Slot = Slot::new(1);

pub(super) fn drawn(seed: &mut u64, below: u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed % below
}

/// An array that holds a pattern, with no bit set, whose member 1 has gone.
fn without_one(level: Level, members: u32, (bitmap_chunk, spread): (u32, bool)) -> (World, Vec<u8>) {
    let mapping = match spread {
        true => Mapping::spread(CHUNK, bitmap_chunk, STRIPES * u64::from(CHUNK)),
        false => Mapping::contiguous(bitmap_chunk),
    };
    let world = World::with_bitmap(level, members, STRIPES, mapping);
    let pattern = world.fill();
    let shared = &world.set.shared;
    shared.intent.take_idle_bits(false);
    assert!(!shared.intent.take_idle_bits(false).is_empty(), "{level}: what was written was marked");
    assert_eq!(shared.intent.next_marked(0, shared.geometry.array_bytes()), None);
    shared.members.fail(AWAY, "its cable was loose");
    assert!(shared.members.remove(AWAY));
    (world, pattern)
}

fn write_some(world: &World, pattern: &mut [u8], seed: &mut u64, count: usize) {
    for _ in 0..count {
        let at = drawn(seed, pattern.len() as u64 / 512) * 512;
        let bytes = ((drawn(seed, 40) + 1) * 512).min(pattern.len() as u64 - at);
        let range = at as usize..(at + bytes) as usize;
        let fill = drawn(seed, 256) as u8;
        pattern[range.clone()].fill(fill);
        world.write(at, &pattern[range]).expect("written");
    }
}

/// Blocks of the member's data area that a set bit covers.
fn marked_blocks(world: &World) -> BTreeSet<u64> {
    let (geometry, intent) = (&world.set.shared.geometry, &world.set.shared.intent);
    let is_marked = |at: u64| intent.next_marked(at, at + BLOCK).is_some();
    if geometry.level() != Level::Raid10 {
        return (0..geometry.member_bytes() / BLOCK).filter(|block| is_marked(block * BLOCK)).collect();
    }
    let marked = (0..geometry.array_bytes()).step_by(BLOCK as usize).filter(|&at| is_marked(at));
    let places = marked.flat_map(|at| geometry.copies(ArrayOffset::new(at), BLOCK).places);
    places.filter(|place| place.member == AWAY).map(|place| place.member_offset.get() / BLOCK).collect()
}

fn recovered(world: &World) -> Ended {
    let set = Rc::clone(&world.set);
    world.run(async move { recover(&set, AWAY, &Progress::default(), &FullSpeed).await })
}

fn agrees(world: &World) -> bool {
    disagreeing(world).is_none()
}

/// The first stripe or region whose parity or copies do not agree.
pub(super) fn disagreeing(world: &World) -> Option<u64> {
    let parity = world.set.shared.geometry.parity_chunks() > 0;
    let count = if parity { world.set.shared.geometry.stripes() } else { world.set.regions() };
    (0..count).find(|at| {
        let (set, unit) = (Rc::clone(&world.set), UnitNumber::new(*at));
        let checked = world.run(async move { set.check(unit, ScrubMode::default()).await });
        checked.expect("readable") != Checked::default()
    })
}

#[test]
fn what_is_marked_is_recovered_and_nothing_else_is_touched() {
    for (number, (level, members, bitmap_chunk)) in LEVELS.into_iter().enumerate() {
        for round in 1..=4 {
            let (world, mut pattern) = without_one(level, members, bitmap_chunk);
            let mut seed = 77 * round + number as u64;
            write_some(&world, &mut pattern, &mut seed, round as usize * 2);
            let marked = marked_blocks(&world);
            // A recovery that touched a block that is not marked would make it right again.
            let wrong = |block: &u64| block * BLOCK + 17;
            let member = &world.fakes[AWAY.index()];
            let blocks = world.set.shared.geometry.member_bytes() / BLOCK;
            let unmarked: Vec<u64> = (0..blocks).filter(|block| !marked.contains(block)).collect();
            assert!(!marked.is_empty() && !unmarked.is_empty(), "{level}: some of both");
            unmarked.iter().for_each(|block| member.flip(MemberOffset::new(wrong(block))));
            let before = member.area();
            assert!(world.set.shared.members.begin_catching_up(AWAY, 0, BadBlocks::default(), true));
            assert_eq!(recovered(&world), Ended::Finished);
            assert_eq!(world.state(AWAY), InSync);
            let after = member.area();
            for block in unmarked {
                let range = (block * BLOCK) as usize..((block + 1) * BLOCK) as usize;
                assert!(before[range.clone()] == after[range], "{level}: block {block} is not marked");
                member.flip(MemberOffset::new(wrong(&block)));
            }
            assert!(agrees(&world), "{level} round {round}: what was marked is as it should be");
            assert_eq!(world.read(0, pattern.len() as u64).expect("readable"), pattern, "{level}");
        }
    }
}

#[test]
fn what_clients_write_meanwhile_is_on_the_member_too() {
    for (number, (level, members, bitmap_chunk)) in LEVELS.into_iter().enumerate() {
        for round in 0..6 {
            let (world, mut pattern) = without_one(level, members, bitmap_chunk);
            let mut seed = 991 * (round + 1) + number as u64;
            write_some(&world, &mut pattern, &mut seed, 3);
            assert!(world.set.shared.members.begin_catching_up(AWAY, 0, BadBlocks::default(), true));
            for at in (0..pattern.len() as u64).step_by(37 * 512) {
                let range = at as usize..(at as usize + 1024).min(pattern.len());
                pattern[range.clone()].fill(at as u8 ^ 5);
                let data = crate::buffer::Slice::from_bytes(&pattern[range]);
                let set = Rc::clone(&world.set);
                let order = drawn(&mut seed, 30);
                world.set.executor.spawn(async move {
                    for _ in 0..order {
                        crate::executor::yield_now().await;
                    }
                    set.write(at, data.into(), false).await.expect("written");
                });
            }
            assert_eq!(recovered(&world), Ended::Finished);
            world.run(async {});
            assert!(agrees(&world), "{level} round {round}");
            assert_eq!(world.read(0, pattern.len() as u64).expect("readable"), pattern, "{level}");
        }
    }
}

/// Stops after the first batch that had work.
struct Once<'a>(&'a Progress);

impl Pace for Once<'_> {
    async fn after(&self, _bytes: u64) {
        self.0.stop.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

#[test]
fn it_goes_on_where_it_was_and_a_later_failure_is_recovered_in_full() {
    let (world, mut pattern) = without_one(Level::Raid5, 4, (16 << 10, false));
    let chunk = pattern.len() as u64 / STRIPES;
    for stripe in [3, 200] {
        let at = (stripe * chunk) as usize;
        pattern[at..at + 4096].fill(0xa5);
        world.write(at as u64, &pattern[at..at + 4096]).expect("written");
    }
    let members = &world.set.shared.members;
    assert!(members.begin_catching_up(AWAY, 0, BadBlocks::default(), true));
    let set = Rc::clone(&world.set);
    let ended = world.run(async move {
        let progress = Progress::default();
        recover(&set, AWAY, &progress, &Once(&progress)).await
    });
    assert_eq!((ended, world.state(AWAY)), (Ended::Stopped, Recovering));
    let cursor = members.recovered_bytes(AWAY);
    assert!(cursor > 3 * (16 << 10) && cursor < 200 * (16 << 10), "{cursor}");
    members.resume_recovery(AWAY, cursor, true);
    assert_eq!(recovered(&world), Ended::Finished);
    assert!(agrees(&world));
    // A spare in the same slot lacks everything.
    members.fail(AWAY, "for good");
    assert!(members.remove(AWAY));
    world.fakes[AWAY.index()].flip(MemberOffset::new(50 * 16384));
    assert!(members.begin_recovery(AWAY, 0) && !members.lacks_only_marked(AWAY));
    assert_eq!(recovered(&world), Ended::Finished);
    assert!(agrees(&world));
}

/// Records that one member has a copy of are not counted on once superblocks call the other one in sync.
#[test]
fn what_was_logged_is_done_with_before_a_rebuilt_member_is_in_sync() {
    let world = World::logging(Level::Raid5, 4);
    world.write(CHUNK.into(), &[1; BLOCK as usize]).expect("written");
    let redo = &world.set.shared.redo;
    assert!(redo.has_record(Stripe::new(0)));
    let set = Rc::clone(&world.set);
    world.run(async move { keep_rebuilt(&set).await }).expect("durable");
    assert!(redo.in_force() && !redo.has_record(Stripe::new(0)));
}
