//! What members that are away hold, as far as superblocks come into it: how the device in each slot stands, and where the record
//! lies. The sets and their order of changes are [`crate::stripe::absences`]'s.

use std::ops::Range;

use layout::absences::AbsencesArea;
use layout::geometry::Geometry;
use layout::md_superblock::Superblock;
use layout::redo_log::{BitmapExtent, PieceKind, StripeRange};
use layout::units::{Sectors, Slot};

use super::redo::Repair;
use super::superblocks::Superblocks;
use crate::device::Device;
use crate::in_place::InPlace;
use crate::members::{MemberState, Members};
use crate::stripe::Shared;
use crate::stripe::absences::{AbsencePlace, Absences, Standing};

/// What members hold that the next superblocks will not name is on record when it returns (invariant 11). A member that fails
/// meanwhile is followed, too.
pub(super) async fn put_on_record<D: Device>(set: &InPlace<D>, superblocks: &Superblocks<D>) {
    let shared = &set.shared;
    if !shared.absences.is_kept() {
        return;
    }
    loop {
        let by_slot = superblocks.all();
        let standing = |slot: Slot| standing_of(&shared.members, slot, by_slot[slot.index()].as_ref());
        let standings: Vec<Standing> = shared.geometry.slots().map(standing).collect();
        let new_id = || superblocks.new_id();
        shared.absences.follow(&standings, || sectors_in_doubt(shared), || sectors_on_record(shared), new_id);
        if shared.absences.is_persisted() {
            return;
        }
        let state_changes = shared.members.state_changes();
        let _void_or_not = set.write_absences().await;
        if shared.absences.is_persisted() && shared.members.state_changes() == state_changes {
            return;
        }
    }
}

/// Where the member with this superblock keeps the record. `bitmap` is how long the array's is.
pub(super) fn absence_place(superblock: &Superblock, bitmap: BitmapExtent) -> Option<AbsencePlace> {
    let bitmap = match superblock.bitmap_start() {
        None => BitmapExtent::Absent,
        Some(_) => bitmap,
    };
    let area = AbsencesArea::of(superblock, bitmap)?;
    Some(AbsencePlace { area, set_uuid: superblock.set_uuid(), device_uuid: superblock.device_uuid() })
}

/// How the device in a slot stands; `superblock` is its own.
pub(super) fn standing_of(members: &Members, slot: Slot, superblock: Option<&Superblock>) -> Standing {
    let Some(superblock) = superblock else { return Standing::Away };
    match members.state(slot) {
        MemberState::InSync => Standing::InSync(superblock.device_uuid()),
        MemberState::Recovering => {
            let durable = superblock.recovery_offset().map_or(0, Sectors::bytes);
            Standing::Recovering(superblock.device_uuid(), durable)
        }
        MemberState::Failed | MemberState::Missing => Standing::Away,
    }
}

/// The sectors of each member that were in doubt before this run wrote there.
pub(super) fn sectors_in_doubt(shared: &Shared) -> Vec<Range<u64>> {
    sectors_of(shared, shared.consistency.doubts_from_before())
}

/// The sectors of each member that a start after a crash would find in doubt.
fn sectors_on_record(shared: &Shared) -> Vec<Range<u64>> {
    sectors_of(shared, shared.consistency.doubts_on_record(usize::MAX))
}

fn sectors_of(shared: &Shared, stripes: Vec<StripeRange>) -> Vec<Range<u64>> {
    let (geometry, sector) = (&shared.geometry, 512);
    let chunk_sectors = u64::from(geometry.chunk_bytes()) / sector;
    let inside = stripes.into_iter().map(|range| range.first..range.end.min(geometry.stripes()));
    let sectors = inside.map(|range| range.start * chunk_sectors..range.end * chunk_sectors);
    sectors.filter(|range| !range.is_empty()).collect()
}

/// A replay has made writes again that a member which is away missed: parity tells them.
pub(super) fn note_replayed(absences: &Absences, repair: &Repair, geometry: &Geometry, members: &Members) {
    let pieces = repair.records.iter().flat_map(|record| &record.record().pieces);
    for piece in pieces {
        let slot = piece.member;
        if !geometry.has(slot) || members.state(slot) == MemberState::InSync {
            continue;
        }
        let bytes = piece.offset..piece.offset + piece.bytes;
        match piece.kind {
            // A write of a place that its member missed is made of all data.
            PieceKind::Missing | PieceKind::Unlogged | PieceKind::Zeroes => {
                absences.written_without(slot, &bytes);
            }
            // The member left since, and may have taken the write. It was not acknowledged, or the record knows of it.
            PieceKind::Data => {}
            // It was not written.
            PieceKind::Partial => {}
        }
    }
}
