//! Blocks that can be neither read nor reconstructed, met by a resync and by writes: the rest goes on, no read returns
//! wrong data, and a block that is overwritten is whole again.

use std::rc::Rc;

use layout::geometry::{Geometry, Level};
use layout::redo_log::StripeRange;
use layout::units::{ArrayOffset, MemberOffset, Slot, Stripe};

use super::fake::{Fake, STRIPES, World, attached, recover_all};
use crate::bad_blocks::BadBlocks;
use crate::error::VolumeError;
use crate::members::MemberState::{Failed, InSync};
use crate::mismatch::{Checked, ScrubMode, Wrong};

const PARITY: [(Level, u32); 4] =
    [(Level::Raid4, 4), (Level::Raid5, 4), (Level::Raid6, 5), (Level::Raid6, 6)];
const COPIES: [(Level, u32); 3] = [(Level::Raid1, 2), (Level::Raid1, 3), (Level::Raid10, 4)];
const BLOCK: u64 = 4096;
const LOG_ROOM: usize = 512;

/// After a crash parity, or the second copy, does not agree in a row of which a block of data cannot be read.
struct Lost {
    world: World,
    pattern: Vec<u8>,
    /// Where the block is in the array.
    at: u64,
}

impl Lost {
    fn new(level: Level, members: u32, log_room: usize) -> Self {
        let world = World::new(level, members);
        let pattern = world.fill();
        let (at, geometry) = (17 * BLOCK, world.set.shared.geometry);
        for slot in Slot::first(members) {
            world.set.shared.members.begin_with(slot, 0, BadBlocks::default(), log_room);
        }
        for (slot, offset) in holders(&geometry, at) {
            world.fakes[slot.index()].break_block(offset, false);
        }
        for (slot, offset) in redundant(&geometry, at) {
            world.fakes[slot.index()].flip(offset + 7);
        }
        Lost { world, pattern, at }
    }

    fn resync(&self) -> Result<(), VolumeError> {
        let set = Rc::clone(&self.world.set);
        set.shared.consistency.set_unsynced(Some(Stripe::new(0)));
        let result = self.world.run(async move {
            if set.shared.geometry.parity_chunks() > 0 {
                return set.resync_run(Stripe::FIRST..Stripe::new(STRIPES)).await;
            }
            for region in 0..set.regions() {
                set.copy_region(region, None).await?;
            }
            Ok(())
        });
        if result.is_ok() {
            self.world.set.shared.consistency.set_unsynced(None);
        }
        result
    }

    fn bad_bytes(&self) -> u64 {
        let members = &self.world.set.shared.members;
        Slot::all().take(self.world.fakes.len()).map(|slot| members.bad_blocks(slot).0.bytes()).sum()
    }

    /// Each block holds what was written last, but for the one.
    fn only_it_is_lost(&self) {
        for at in (0..self.pattern.len() as u64).step_by(BLOCK as usize) {
            match self.world.read(at, BLOCK) {
                Ok(read) => {
                    assert!(read == self.pattern[at as usize..][..BLOCK as usize], "{at}");
                    assert_ne!(at, self.at);
                }
                Err(error) => {
                    assert!(matches!(error, VolumeError::Unreadable { .. }), "{error}");
                    assert_eq!(at, self.at);
                }
            }
        }
    }

    fn write(&mut self, at: u64, bytes: u64, fill: u8) -> Result<(), VolumeError> {
        let new = vec![fill; bytes as usize];
        self.world.write(at, &new)?;
        self.pattern[at as usize..][..new.len()].copy_from_slice(&new);
        Ok(())
    }

    fn all_agrees(&self) {
        assert!(self.world.read(0, self.pattern.len() as u64).expect("readable") == self.pattern);
        let parity = self.world.set.shared.geometry.parity_chunks() > 0;
        for stripe in 0..if parity { STRIPES } else { self.world.set.regions() } {
            let set = Rc::clone(&self.world.set);
            let mode = ScrubMode::default();
            let checked = self.world.run(async move {
                if parity {
                    set.check_stripe(Stripe::new(stripe), mode).await
                } else {
                    set.check_region(stripe, mode).await
                }
            });
            assert_eq!(checked.expect("readable"), Checked::default(), "stripe {stripe}");
        }
        assert_eq!(self.bad_bytes(), 0);
    }

    /// A block of another chunk in the same row.
    fn neighbour(&self) -> u64 {
        let geometry = &self.world.set.shared.geometry;
        let place = geometry.locate(ArrayOffset::new(self.at));
        let chunk_bytes = u64::from(geometry.chunk_bytes());
        if place.data_index == 0 { self.at + chunk_bytes } else { self.at - chunk_bytes }
    }
}

/// Where a block of data is: one place, or all its copies.
fn holders(geometry: &Geometry, at: u64) -> Vec<(Slot, MemberOffset)> {
    match geometry.parity_chunks() {
        0 => geometry
            .copies(ArrayOffset::new(at), BLOCK)
            .places
            .iter()
            .map(|copy| (copy.member, copy.member_offset))
            .collect(),
        _ => {
            let place = geometry.locate(ArrayOffset::new(at));
            let offset = geometry.member_offset(place.stripe) + u64::from(place.chunk_offset);
            vec![(geometry.data_member(place.stripe, place.data_index), offset)]
        }
    }
}

/// What could speak for it, if it agreed.
fn redundant(geometry: &Geometry, at: u64) -> Vec<(Slot, MemberOffset)> {
    if geometry.parity_chunks() == 0 {
        return holders(geometry, at).split_off(1);
    }
    let (stripe, offset) = (geometry.locate(ArrayOffset::new(at)).stripe, holders(geometry, at)[0].1);
    let members = [geometry.p_member(stripe), geometry.q_member(stripe)];
    members.into_iter().flatten().map(|member| (member, offset)).collect()
}

/// It stopped there before, and what lies behind stayed as the crash left it.
#[test]
fn a_resync_goes_on_past_a_block_that_nobody_can_make() {
    for (level, members) in PARITY.into_iter().chain(COPIES) {
        let mut lost = Lost::new(level, members, LOG_ROOM);
        let geometry = lost.world.set.shared.geometry;
        lost.resync().expect("resynced");
        let marked = redundant(&geometry, lost.at);
        assert_eq!(lost.bad_bytes(), BLOCK * marked.len() as u64, "{level}");
        for (slot, offset) in marked {
            let range = offset..offset + BLOCK;
            assert!(lost.world.set.shared.members.is_all_bad(slot, &range), "{level} member {slot}");
        }
        lost.only_it_is_lost();
        lost.write(lost.at, BLOCK, 0x5a).expect("nothing old is needed");
        lost.all_agrees();
    }
}

#[test]
fn without_room_in_the_log_a_resync_stops_there() {
    for (level, members) in PARITY.into_iter().chain(COPIES) {
        let lost = Lost::new(level, members, 0);
        let result = lost.resync();
        assert!(matches!(result, Err(VolumeError::Unreadable { .. })), "{level}: {result:?}");
        assert_eq!(lost.bad_bytes(), 0, "{level}");
    }
}

#[test]
fn other_blocks_of_the_row_are_written_and_it_stays_lost() {
    for (level, members) in PARITY {
        let mut lost = Lost::new(level, members, LOG_ROOM);
        lost.resync().expect("resynced");
        let (bad, neighbour) = (lost.bad_bytes(), lost.neighbour());
        for (fill, (at, bytes)) in
            [(neighbour, BLOCK), (neighbour + 512, 1024), (neighbour - BLOCK, 3 * BLOCK)]
                .into_iter()
                .enumerate()
        {
            lost.write(at, bytes, fill as u8 | 0x80)
                .unwrap_or_else(|error| panic!("{level} at {at}: {error}"));
            lost.only_it_is_lost();
        }
        assert_eq!(lost.bad_bytes(), bad, "{level}: the parity of the rows around it is good");
        // A part of it, then all.
        lost.write(lost.at + 512, 512, 1).expect("written");
        assert_eq!(lost.world.read(lost.at + 512, 512).expect("that part is known"), [1; 512]);
        assert!(lost.world.read(lost.at, 512).is_err());
        lost.write(lost.at - 512, BLOCK + 1024, 2).expect("written");
        lost.all_agrees();
    }
}

/// Two members cannot read the same row, of an array that agrees otherwise.
#[test]
fn a_write_beside_two_latent_errors_gives_up_the_parity_of_that_row_only() {
    let mut lost = Lost::new(Level::Raid5, 4, LOG_ROOM);
    let geometry = lost.world.set.shared.geometry;
    for (slot, offset) in redundant(&geometry, lost.at) {
        lost.world.fakes[slot.index()].break_block(offset, false);
    }
    lost.write(lost.neighbour() - BLOCK, 3 * BLOCK, 3).expect("written");
    assert_eq!(lost.bad_bytes(), BLOCK);
    lost.only_it_is_lost();
    lost.write(lost.at, BLOCK, 4).expect("written");
    lost.all_agrees();
}

#[test]
fn a_member_that_fails_takes_only_its_block_of_the_row_with_it() {
    for (level, members) in [(Level::Raid5, 4), (Level::Raid6, 5)] {
        let mut lost = Lost::new(level, members, LOG_ROOM);
        lost.resync().expect("resynced");
        let geometry = lost.world.set.shared.geometry;
        let shared = std::sync::Arc::clone(&lost.world.set.shared);
        let neighbour = lost.neighbour();
        let slot = holders(&geometry, neighbour)[0].0;
        shared.members.fail(slot, "for the test");
        for at in (0..lost.pattern.len() as u64).step_by(BLOCK as usize) {
            match lost.world.read(at, BLOCK) {
                Ok(read) => assert!(read == lost.pattern[at as usize..][..BLOCK as usize], "{level} {at}"),
                Err(VolumeError::Unreadable { .. }) => {
                    assert!([lost.at, neighbour].contains(&at), "{level} {at}");
                }
                Err(error) => panic!("{level} {at}: {error}"),
            }
        }
        // Its new contents would have no place.
        assert!(lost.write(neighbour, BLOCK, 5).is_err(), "{level}");
        let stripe = geometry.locate(ArrayOffset::new(lost.at)).stripe;
        let third = (0..geometry.data_chunks())
            .map(|index| geometry.array_offset(stripe, index, 0).get())
            .map(|chunk| chunk + u64::from(geometry.locate(ArrayOffset::new(lost.at)).chunk_offset))
            .find(|at| ![lost.at, neighbour].contains(at))
            .expect("three chunks");
        lost.write(third, BLOCK, 6).expect("nothing more is lost by that");
        assert!(lost.world.read(third, BLOCK).expect("readable") == [6; BLOCK as usize]);

        assert!(shared.members.remove(slot));
        let new = Fake::new("new".into(), geometry.member_bytes());
        lost.world.set.devices().attach(slot, Some(attached(&new)));
        shared.members.begin_with(slot, 0, BadBlocks::default(), LOG_ROOM);
        assert!(shared.members.begin_recovery(slot, 0));
        let set = Rc::clone(&lost.world.set);
        lost.world.run(async move { recover_all(&set, slot).await }).expect("recovered");
        assert!(shared.members.finish_recovery(slot) && lost.world.state(slot) == InSync);
        assert!(lost.world.read(neighbour, BLOCK).is_err(), "{level}: what was lost stays lost");
        for at in [neighbour, lost.at] {
            lost.write(at, BLOCK, 7).expect("written");
        }
        lost.all_agrees();
    }
}

/// Seed 6876: the write was refused as one that too many members are missing for.
#[test]
fn the_member_with_the_lost_block_fails_under_a_write_beside_it() {
    for (level, members) in [(Level::Raid4, 4), (Level::Raid5, 4), (Level::Raid6, 5)] {
        for nth in 1..20 {
            let mut lost = Lost::new(level, members, LOG_ROOM);
            lost.resync().expect("resynced");
            let (holder, _) = holders(&lost.world.set.shared.geometry, lost.at)[0];
            let shared = std::sync::Arc::clone(&lost.world.set.shared);
            lost.world.fakes[holder.index()].at_read(nth, move || {
                shared.members.fail(holder, "for the test");
            });
            let neighbour = lost.neighbour();
            lost.write(neighbour, BLOCK, 8).unwrap_or_else(|error| panic!("{level}, read {nth}: {error}"));
            assert!(lost.world.read(neighbour, BLOCK).expect("readable") == [8; BLOCK as usize], "{level}");
            assert!(lost.world.read(lost.at, BLOCK).is_err(), "{level}: it stays lost");
        }
    }
}

/// The device that replaces a member of the row had got its parity before the resync came there.
#[test]
fn a_replacement_learns_that_what_it_got_is_bad() {
    for (level, members) in PARITY.into_iter().chain(COPIES) {
        let lost = Lost::new(level, members, LOG_ROOM);
        let shared = &lost.world.set.shared;
        let (slot, offset) = redundant(&shared.geometry, lost.at)[0];
        let new = Fake::new("new".into(), shared.geometry.member_bytes());
        lost.world.set.devices().attach_replacement(slot, Some(attached(&new)));
        assert!(shared.members.begin_replacement(slot, shared.geometry.member_bytes(), LOG_ROOM));
        lost.resync().expect("resynced");
        assert!(shared.members.hand_over(slot));
        assert!(shared.members.is_all_bad(slot, &(offset..offset + BLOCK)), "{level}");
        assert!(lost.world.read(lost.at, BLOCK).is_err(), "{level}");
    }
}

/// A device that answers every read with an error is no device with a bad place: the parity of the whole array would go.
#[test]
fn a_member_that_can_be_read_nowhere_fails() {
    let lost = Lost::new(Level::Raid5, 4, LOG_ROOM);
    let geometry = lost.world.set.shared.geometry;
    let slot = holders(&geometry, lost.at)[0].0;
    for offset in (0..geometry.member_bytes()).step_by(BLOCK as usize) {
        lost.world.fakes[slot.index()].break_block(MemberOffset::new(offset), false);
    }
    assert!(lost.resync().is_err());
    assert_eq!((lost.world.state(slot), lost.bad_bytes()), (Failed, 0));
}

/// A crash tore a write of one chunk, and parity cannot be made to agree for a block elsewhere in the stripe. The next write by
/// read-modify-write carries the difference into P and Q: they agree on that chunk from then on, and not on what was written.
#[test]
fn p_and_q_are_no_proof_of_what_was_written_in_doubt() {
    let world = World::new(Level::Raid6, 8);
    let mut pattern = world.fill();
    let geometry = world.set.shared.geometry;
    for slot in geometry.slots() {
        world.set.shared.members.begin_with(slot, 0, BadBlocks::default(), 0);
    }
    world.set.shared.consistency.doubt(StripeRange { first: 0, end: 1 });
    let (torn, offset) = (geometry.data_member(Stripe::new(0), 0), geometry.member_offset(Stripe::new(0)));
    world.fakes[torn.index()].flip(offset + 7);
    world.fakes[geometry.data_member(Stripe::new(0), 1).index()].break_block(offset + 2 * BLOCK, false);
    world.write(0, &[0xa5; BLOCK as usize]).expect("it goes ahead");
    pattern[..BLOCK as usize].fill(0xa5);
    assert!(world.set.shared.consistency.is_in_doubt(Stripe::new(0)), "parity cannot be made to agree");
    assert!(world.read(0, BLOCK).expect("its member is there") == pattern[..BLOCK as usize]);
    world.fakes[torn.index()].set_gone();
    assert!(world.read(0, BLOCK).is_err(), "nothing tells what it holds");
    let beside = world.read(BLOCK, BLOCK).expect("P and Q tell the rest");
    assert!(beside == pattern[BLOCK as usize..][..BLOCK as usize]);
}

/// Blocks that can be neither read nor made, on more members than the level survives: a check names each of them, by its member and
/// its place in the array, and what else is wrong in the stripe.
#[test]
fn a_check_names_every_place_that_cannot_be_read() {
    for (level, members) in PARITY {
        let world = World::new(level, members);
        world.fill();
        let geometry = world.set.shared.geometry;
        let lost: Vec<u32> = (0..=geometry.parity_chunks()).collect();
        let slots: Vec<Slot> = lost
            .iter()
            .map(|&index| match geometry.data_chunks() {
                data if index < data => geometry.data_member(Stripe::new(0), index),
                _ => geometry.p_member(Stripe::new(0)).expect("a level with P"),
            })
            .collect();
        for slot in &slots {
            (1..3)
                .for_each(|row| world.fakes[slot.index()].break_block(MemberOffset::new(row * BLOCK), false));
        }
        world.fakes[slots[0].index()].flip(MemberOffset::new(3 * BLOCK + 9));
        let set = Rc::clone(&world.set);
        let checked = world.run(async move { set.check_stripe(Stripe::new(0), ScrubMode::default()).await });
        let checked = checked.expect("members stay");
        let unreadable: Vec<_> =
            checked.found.iter().filter(|found| found.wrong == Wrong::Unreadable).collect();
        let named: Vec<(Slot, u64, u64)> =
            unreadable.iter().map(|found| (found.blocks[0].member, found.row_bytes, found.bytes)).collect();
        let mut expected: Vec<(Slot, u64, u64)> =
            slots.iter().map(|slot| (*slot, BLOCK, 2 * BLOCK)).collect();
        expected.sort_unstable();
        let mut sorted = named.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, expected, "{level}");
        let chunk_bytes = u64::from(geometry.chunk_bytes());
        assert!(
            unreadable.iter().any(|found| found.array_offset_bytes == Some(ArrayOffset::new(BLOCK))),
            "{level}"
        );
        assert!(
            unreadable
                .iter()
                .any(|found| found.array_offset_bytes == Some(ArrayOffset::new(chunk_bytes + BLOCK))),
            "{level}"
        );
        assert!(
            checked.found.iter().any(|found| found.row_bytes == 3 * BLOCK),
            "{level}: the row behind them"
        );
    }
    for (level, members) in COPIES {
        let world = World::new(level, members);
        world.fill();
        let places = holders(&world.set.shared.geometry, 17 * BLOCK);
        places.iter().for_each(|(slot, offset)| world.fakes[slot.index()].break_block(*offset, false));
        let found: Vec<_> = (0..world.set.regions())
            .flat_map(|region| {
                let set = Rc::clone(&world.set);
                let checked = world.run(async move { set.check_region(region, ScrubMode::default()).await });
                checked.expect("members stay").found
            })
            .collect();
        assert_eq!(found.len(), 1, "{level}: {found:?}");
        assert_eq!(
            (found[0].array_offset_bytes, found[0].blocks.len()),
            (Some(ArrayOffset::new(17 * BLOCK)), places.len())
        );
    }
}
