//! Doing what the log asks for.

use std::collections::BTreeSet;

use super::Repair;
use super::newest::Newest;
use crate::buffer::{Gather, Slice};
use crate::device::Device;
use crate::events::Event;
use crate::members::MemberState;
use crate::stripe::StripeSet;
use crate::volume::VolumeError;

/// Makes the logged writes again, on every member that is there. Before anything is served. It may be cut short anywhere,
/// and done again.
///
/// # Errors
/// A member that the array needs took a write not, or could not make it durable.
pub async fn replay<D: Device>(set: &StripeSet<D>, repair: &Repair) -> Result<(), VolumeError> {
    let members = &set.shared.members;
    let newest = Newest::of(&set.shared.geometry, &repair.records);
    // All of it also where a recovery has come to the middle of a piece: what lies before is trusted, and what
    // lies behind is written again by the recovery.
    let there = |slot: u32| matches!(members.state(slot), MemberState::InSync | MemberState::Recovering);
    let mut written = BTreeSet::new();
    for part in newest.writes.iter().chain(&newest.missing).filter(|part| there(part.slot)) {
        let data = part.contents.map(|contents| Gather::from(Slice::from_bytes(contents)));
        set.redo_piece(part.slot, part.offset_bytes, part.bytes, data).await?;
        written.insert(part.slot);
    }
    // Once the data is as it is to be.
    for part in &newest.missing {
        let contents = match part.contents {
            Some(contents) => Slice::from_bytes(contents),
            None => Slice::from_bytes(&vec![0; part.bytes as usize]), // less than a chunk
        };
        set.redo_missing(part.slot, part.offset_bytes, contents).await?;
        let geometry = &set.shared.geometry;
        let stripe = part.offset_bytes / u64::from(geometry.chunk_bytes());
        written.extend(geometry.p_member(stripe).filter(|slot| there(*slot)));
    }
    set.flush_members().await?;
    if !repair.records.is_empty() {
        let mut stripes = repair.stripes(&set.shared.geometry);
        stripes.truncate(100);
        let records = repair.records.len() as u64;
        members.report(Event::RedoLogReplayed { records, stripes, members: written.into_iter().collect() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bad_blocks::BadBlocks;
    use crate::stripe::fake::{CHUNK, World};
    use crate::volume::VolumeError::Unreadable;
    use layout::geometry::Level;
    use layout::redo_log::{Checksum, PieceKind, RedoPiece, RedoRecord};
    use std::rc::Rc;

    const STRIPE: u64 = 2;
    const BLOCK: u64 = 4096;

    /// A record of a whole stripe that was written while its first data chunk was missing.
    fn whole_stripe(world: &World, contents: &[u8]) -> Repair {
        let geometry = world.set.shared.geometry;
        let missing = geometry.data_member(STRIPE, 0);
        let piece = |slot: u32| RedoPiece {
            stripe: STRIPE,
            member: slot as u16,
            offset_bytes: geometry.member_offset(STRIPE),
            bytes: CHUNK.into(),
            kind: if slot == missing { PieceKind::Missing } else { PieceKind::Unlogged },
        };
        let pieces = (0..geometry.members()).map(piece).collect();
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
            (0..4).for_each(|slot| shared.members.begin_with(slot, 0, BadBlocks::default(), log_room));
            shared.members.fail(geometry.data_member(STRIPE, 0), "by hand");
            let at = geometry.stripe_bytes() * STRIPE;
            let new = &mut pattern[at as usize..][..CHUNK as usize];
            new.iter_mut().for_each(|byte| *byte ^= 0x5a);
            let repair = whole_stripe(&world, new);
            let beside = geometry.data_member(STRIPE, 1);
            if let Some(block) = broken {
                let offset = geometry.member_offset(STRIPE) + block * BLOCK;
                world.fakes[beside as usize].break_block(offset, false);
            }
            for _again in 0..2 {
                let (set, repair) = (Rc::clone(&world.set), repair.clone());
                world.run(async move { replay(&set, &repair).await }).expect("what can be told is");
                for block in 0..u64::from(CHUNK) / BLOCK {
                    let from = at + block * BLOCK;
                    let right = &pattern[from as usize..][..BLOCK as usize];
                    match (world.read(from, BLOCK), log_room) {
                        (Ok(read), _) => assert!(broken != Some(block) && read == right, "block {block}"),
                        (Err(Unreadable { .. }), 1..) => assert_eq!(broken, Some(block)),
                        (Err(error), _) => assert!(log_room == 0 && error.to_string().contains("in doubt")),
                    }
                }
                assert_eq!(shared.doubts.contains(STRIPE), log_room == 0);
            }
        }
    }
}
