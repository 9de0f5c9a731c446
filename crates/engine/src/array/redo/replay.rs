//! Doing what the log asks for.

use std::collections::BTreeSet;

use super::Repair;
use super::newest::{Newest, Partial};
use crate::buffer::{Gather, Slice};
use crate::device::Device;
use crate::error::VolumeError;
use crate::events::Event;
use crate::in_place::InPlace;
use crate::members::MemberState;
use layout::units::{MemberOffset, Slot};

/// Makes the logged writes again, on every member that is there. Before anything is served. It may be cut short anywhere,
/// and done again.
///
/// # Errors
/// A member that the array needs took a write not, or could not make it durable.
pub async fn replay<D: Device>(set: &InPlace<D>, repair: &Repair) -> Result<(), VolumeError> {
    if repair.records.is_empty() {
        return Ok(());
    }
    let members = &set.shared.members;
    let newest = Newest::of(&set.shared.geometry, &repair.records);
    // All of it also where a recovery has come to the middle of a piece: what lies before is trusted, and what
    // lies behind is written again by the recovery.
    let there = |slot: Slot| matches!(members.state(slot), MemberState::InSync | MemberState::Recovering);
    let mut written = BTreeSet::new();
    for part in newest.writes.iter().chain(&newest.missing).filter(|part| there(part.slot)) {
        let data = part.contents.map(|contents| Gather::from(Slice::from_bytes(contents)));
        set.redo_piece(part.slot, part.offset, part.bytes, data).await?;
        written.insert(part.slot);
    }
    // Once the data is as it is to be.
    let told = newest.missing.iter().map(|part| {
        let contents = match part.contents {
            Some(contents) => Slice::from_bytes(contents),
            None => Slice::from_bytes(&vec![0; part.bytes as usize]), // at most a chunk
        };
        (part.slot, part.offset, contents)
    });
    let mut missing: Vec<(Slot, MemberOffset, Slice)> = told.collect();
    for Partial { slot, offset, contents, without } in newest.partial {
        for (offset, contents) in set.missing_of_partial(slot, offset, contents, &without).await? {
            if there(slot) {
                let data = Gather::from(contents.clone());
                set.redo_piece(slot, offset, contents.len() as u64, Some(data)).await?;
                written.insert(slot);
            }
            missing.push((slot, offset, contents));
        }
    }
    for (slot, offset, contents) in missing {
        set.redo_missing(slot, offset, contents).await?;
        let geometry = &set.shared.geometry;
        let stripe = geometry.stripe_at(offset);
        written.extend(geometry.p_member(stripe).filter(|slot| there(*slot)));
    }
    set.flush_members().await?;
    let mut stripes = repair.stripes(&set.shared.geometry);
    stripes.truncate(100);
    let records = repair.records.len() as u64;
    members.report(Event::RedoLogReplayed { records, stripes, members: written.into_iter().collect() });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::redo::read_log;
    use crate::bad_blocks::BadBlocks;
    use crate::error::VolumeError::Unreadable;
    use crate::stripe::fake::{CHUNK, World};
    use crate::stripe::redo::RedoContents;
    use crate::volume::{Space, ZeroFlags};
    use layout::geometry::Level;
    use layout::redo_log::{Checksum, PieceKind, RedoPiece, RedoRecord, WholeRecord};
    use layout::units::Stripe;
    use std::rc::Rc;

    const SECTOR: u64 = 512;
    const STRIPE: Stripe = Stripe::new(2);
    const BLOCK: u64 = 4096;

    /// All records that a crash now would have made again.
    fn logged(world: &World) -> Repair {
        let mut records = std::collections::BTreeMap::new();
        let mut retired_below = 0;
        for slot in Slot::all().take(world.fakes.len()).skip(1) {
            let (member, fake) =
                (world.set.shared.redo.member(slot).expect("a log"), world.fakes[slot.index()].clone());
            let log = read_log(slot, &member, |offset, bytes| Ok(fake.peek(offset, bytes)));
            retired_below =
                log.headers.iter().map(|header| header.retired_below).fold(retired_below, u64::max);
            records.extend(log.records.into_iter().map(|record| (record.record().sequence, record)));
        }
        let records = records.split_off(&retired_below).into_values().collect();
        Repair { records, in_force: true, ..Repair::default() }
    }

    /// Made again over members that have all of it, the log changes nothing: not what a missing chunk holds, not what was
    /// written since an older record without being in the log.
    #[test]
    fn what_was_made_already_may_be_made_again() {
        for (level, members, rounds) in [(Level::Raid5, 4, 60), (Level::Raid4, 3, 20), (Level::Raid6, 5, 20)]
        {
            let world = World::logging(level, members);
            let stripe_bytes = world.set.shared.geometry.stripe_bytes();
            let mut pattern = vec![0; 4 * stripe_bytes as usize];
            let (mut random, mut of_missing) = (u64::from(members), 0);
            let mut below = move |most: u64| {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (random >> 33) % most
            };
            for round in 0..rounds {
                for _ in 0..1 + below(6) {
                    let stripe = below(4) * stripe_bytes;
                    let (at, bytes) = match below(4) {
                        0 | 1 => (stripe, stripe_bytes),
                        2 => (stripe + below(8) * BLOCK, BLOCK * (1 + below(4))),
                        _ => (stripe + below(32) * SECTOR, SECTOR * (1 + below(9))),
                    };
                    let zeroes = below(4) == 0;
                    let new = vec![if zeroes { 0 } else { below(255) as u8 + 1 }; bytes as usize];
                    pattern[at as usize..][..new.len()].copy_from_slice(&new);
                    if zeroes {
                        let set = Rc::clone(&world.set);
                        world
                            .run(async move {
                                set.write_zeroes(at, bytes, ZeroFlags { may_unmap: false, fua: false }).await
                            })
                            .expect("zeroed");
                    } else {
                        world.write(at, &new).expect("written");
                    }
                }
                let repair = logged(&world);
                let missing = |record: &WholeRecord| {
                    record.record().pieces.iter().any(|piece| piece.kind == PieceKind::Missing)
                };
                of_missing += repair.records.iter().filter(|record| missing(record)).count();
                let set = Rc::clone(&world.set);
                world.run(async move { replay(&set, &repair).await }).expect("made again");
                assert_eq!(world.read(0, 4 * stripe_bytes).as_ref(), Ok(&pattern), "{level}, round {round}");
            }
            assert_eq!(of_missing > 10, level != Level::Raid6, "{of_missing}");
        }
    }

    /// Members whose caches lost any of the sectors that were written since the last flush: a read finds one of the versions of each
    /// sector all the same, and the missing chunk as it was where nobody wrote it. Writes of other chunks in the same rows,
    /// of the missing one, of whole stripes and of zeroes follow each other without a flush.
    #[test]
    fn whatever_caches_lost_a_replay_finds_a_version_of_each_sector() {
        for (members, contents) in [(3, RedoContents::Lean), (5, RedoContents::Lean), (4, RedoContents::Full)]
        {
            let new_world = || {
                let world = World::logging(Level::Raid5, members);
                world.set.shared.redo.set_contents(contents);
                world
            };
            let mut world = new_world();
            let stripe_bytes = world.set.shared.geometry.stripe_bytes();
            let mut random = u64::from(members);
            let mut below = move |most: u64| {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (random >> 33) % most
            };
            let mut of_partial = 0;
            let mut now = vec![0; 2 * stripe_bytes as usize];
            let bytes_of_member = 2 * CHUNK as usize;
            let areas_of = |world: &World| -> Vec<Vec<u8>> {
                world.fakes.iter().map(|fake| fake.area()[..bytes_of_member].to_vec()).collect()
            };
            for round in 0..150 {
                let (mut versions, mut media) = (vec![now.clone()], vec![areas_of(&world)]);
                for _ in 0..1 + below(5) {
                    // Few rows, so that writes meet.
                    let (stripe, row) = (below(2) * stripe_bytes, below(4) * SECTOR);
                    let chunk = below(u64::from(members) - 1) * u64::from(CHUNK);
                    let (at, bytes) = match below(8) {
                        0 => (stripe, stripe_bytes),
                        1 => (stripe + chunk, u64::from(CHUNK)),
                        _ => (stripe + chunk + row, SECTOR * (1 + below(4))),
                    };
                    let zeroes = below(10) == 0;
                    let new: Vec<u8> =
                        (0..bytes).map(|_| if zeroes { 0 } else { below(256) as u8 }).collect();
                    now[at as usize..][..new.len()].copy_from_slice(&new);
                    if zeroes {
                        let set = Rc::clone(&world.set);
                        let flags = ZeroFlags { may_unmap: false, fua: false };
                        world.run(async move { set.write_zeroes(at, bytes, flags).await }).expect("zeroed");
                    } else {
                        world.write(at, &new).expect("written");
                    }
                    versions.push(now.clone());
                    media.push(areas_of(&world));
                }
                let repair = logged(&world);
                world = new_world();
                for (slot, fake) in world.fakes.iter().enumerate() {
                    let mut left = vec![0; bytes_of_member];
                    for (sector, bytes) in left.chunks_mut(SECTOR as usize).enumerate() {
                        let version = &media[below(media.len() as u64) as usize][slot];
                        bytes.copy_from_slice(&version[sector * SECTOR as usize..][..bytes.len()]);
                    }
                    fake.put_back(&left);
                }
                let pieces = repair.records.iter().flat_map(|record| &record.record().pieces);
                of_partial += pieces.filter(|piece| piece.kind == PieceKind::Partial).count();
                let set = Rc::clone(&world.set);
                world.run(async move { replay(&set, &repair).await }).expect("made again");
                now = world.read(0, 2 * stripe_bytes).expect("one is missing");
                for (sector, found) in now.chunks(SECTOR as usize).enumerate() {
                    let at = sector * SECTOR as usize;
                    let is_one = versions.iter().any(|version| &version[at..at + found.len()] == found);
                    assert!(
                        is_one,
                        "{members} members, {contents}, round {round}: sector {sector} is none of its versions"
                    );
                }
            }
            assert_eq!(of_partial > 50, contents == RedoContents::Lean, "{of_partial}");
        }
    }

    /// Seed 812602, and its sibling: a write failed half way, or was refused with its record on one member. The stripe was
    /// made to agree without it, or agreed, and parity of a later write built on that. Made again, the failed write was under
    /// that parity, and what a member held that was missing then was made of the two.
    #[test]
    fn a_write_that_failed_is_not_made_again_under_later_parity() {
        for refused in [false, true] {
            let world = World::logging(Level::Raid6, 5);
            let geometry = world.set.shared.geometry;
            let stripe = Stripe::first(5)
                .find(|stripe| geometry.p_member(*stripe) == Some(Slot::new(0)))
                .expect("every member has P");
            let (at, chunk) = (geometry.array_offset(stripe, 0, 0).get(), u64::from(CHUNK));
            let mut pattern = vec![1; geometry.stripe_bytes() as usize];
            world.write(at, &pattern).expect("written");
            let fails = geometry.data_member(stripe, 1);
            let full = |slot: Slot| if refused { slot < Slot::new(4) } else { slot == fails };
            let set_full = |yes| {
                Slot::first(5)
                    .skip(1)
                    .filter(|slot| full(*slot))
                    .for_each(|slot| world.fakes[slot.index()].set_full(yes));
            };
            set_full(true);
            world.write(at + chunk, &[2; BLOCK as usize]).expect_err("there is no room");
            set_full(false);
            pattern[..BLOCK as usize].fill(3);
            world.write(at, &pattern[..BLOCK as usize]).expect("written");
            let (set, repair) = (Rc::clone(&world.set), logged(&world));
            world.run(async move { replay(&set, &repair).await }).expect("made again");
            world.set.shared.members.fail(geometry.data_member(stripe, 2), "by hand");
            let read = world.read(at, geometry.stripe_bytes());
            assert_eq!(read.expect("two are missing")[2 * chunk as usize..], pattern[2 * chunk as usize..]);
        }
    }

    /// A record of a whole stripe that was written while its first data chunk was missing.
    fn whole_stripe(world: &World, contents: &[u8]) -> Repair {
        let geometry = world.set.shared.geometry;
        let missing = geometry.data_member(STRIPE, 0);
        let piece = |slot: Slot| RedoPiece {
            stripe: STRIPE,
            member: slot,
            offset: geometry.member_offset(STRIPE),
            bytes: CHUNK.into(),
            kind: if slot == missing { PieceKind::Missing } else { PieceKind::Unlogged },
        };
        let pieces = geometry.slots().map(piece).collect();
        let payload_checksum = Checksum::of(contents);
        let record = RedoRecord { epoch: 1, sequence: 1, copies: 1, payload_checksum, pieces };
        let records = vec![record.complete(contents.to_vec()).expect("a record")];
        Repair { records, in_force: true, ..Repair::default() }
    }

    /// The members have the other chunks, one of which cannot be read in one block: with the log for bad blocks that block
    /// alone is lost beside it; without room there the stripe is in doubt.
    #[test]
    fn a_missing_chunk_is_told_of_but_for_blocks_that_cannot_be_read_beside_it() {
        for (broken, log_room) in [(None, 512), (Some(3), 512), (Some(3), 0)] {
            let world = World::new(Level::Raid5, 4);
            let mut pattern = world.fill();
            let shared = &world.set.shared;
            let geometry = shared.geometry;
            geometry
                .slots()
                .for_each(|slot| shared.members.begin_with(slot, 0, BadBlocks::default(), log_room));
            shared.members.fail(geometry.data_member(STRIPE, 0), "by hand");
            let at = geometry.array_offset(STRIPE, 0, 0).get();
            let new = &mut pattern[at as usize..][..CHUNK as usize];
            new.iter_mut().for_each(|byte| *byte ^= 0x5a);
            let repair = whole_stripe(&world, new);
            let beside = geometry.data_member(STRIPE, 1);
            if let Some(block) = broken {
                let offset = geometry.member_offset(STRIPE) + block * BLOCK;
                world.fakes[beside.index()].break_block(offset, false);
            }
            for _again in 0..2 {
                let (set, repair) = (Rc::clone(&world.set), repair.clone());
                world.run(async move { replay(&set, &repair).await }).expect("what the log says is replayed");
                for block in 0..u64::from(CHUNK) / BLOCK {
                    let from = at + block * BLOCK;
                    let right = &pattern[from as usize..][..BLOCK as usize];
                    match (world.read(from, BLOCK), log_room) {
                        (Ok(read), _) => assert!(broken != Some(block) && read == right, "block {block}"),
                        (Err(Unreadable { .. }), 1..) => assert_eq!(broken, Some(block)),
                        (Err(error), _) => assert!(log_room == 0 && error.to_string().contains("in doubt")),
                    }
                }
                assert_eq!(shared.consistency.is_in_doubt(STRIPE), log_room == 0);
            }
        }
    }
}
