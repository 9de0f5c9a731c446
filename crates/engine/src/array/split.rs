//! Members that went on apart: each side calls the other failed, and both were written since. Only the operator knows which
//! side's contents are wanted, so the array is not started with members of both (invariant 8). md and mdadm start the side that
//! is named first or counts more events, and say nothing of the other
//! (docs/decisions/2026-11-22-sides-apart.md, docs/decisions/2026-11-25-generations.md).
//!
//! Where superblocks have no generations beside them, members that fail one after the other while others come back leave
//! superblocks much like these: the first to fail calls the last to come back failed, too. What tells such an array from one
//! that was split: a member that the first one calls active was there when the other came back, so it has gone on since, or it
//! is not among the candidates. Only a side that is whole and stopped as one counts.

use layout::md_superblock::{DeviceRole, Superblock};
use layout::units::Slot;

use super::generations::{MemberMetadata, Standing, standing};
use crate::limits::EVENTS_BEHIND_MAX;

/// Which of the candidates went on apart from `newest`, by index. Generations tell it where both have them.
pub(super) fn other_side(
    newest: MemberMetadata<'_>,
    candidates: &[(usize, MemberMetadata<'_>)],
) -> Option<Vec<usize>> {
    let all: Vec<MemberMetadata<'_>> = candidates.iter().map(|(_, metadata)| *metadata).collect();
    let stands = |own: &MemberMetadata<'_>, wanted: Standing| {
        whole_member(own.superblock).is_some() && standing(*own, newest, &all) == wanted
    };
    let apart = candidates.iter().filter(|(_, own)| stands(own, Standing::Apart));
    let apart: Vec<usize> = apart.map(|(index, _)| *index).collect();
    if !apart.is_empty() {
        return Some(apart);
    }
    let unknown = candidates.iter().filter(|(_, own)| stands(own, Standing::Unknown));
    let superblocks: Vec<(usize, &Superblock)> =
        unknown.map(|(index, own)| (*index, own.superblock)).collect();
    let newest = reference(newest.superblock, &superblocks)?;
    let suspects = superblocks.iter().filter(|(_, own)| ran_without(own, newest, &superblocks));
    suspects.filter_map(|(_, own)| side_of(own, newest, &superblocks)).next()
}

/// A whole member that stands for the newest: others may not know of one that has just come and is being rebuilt.
fn reference<'a>(newest: &'a Superblock, candidates: &[(usize, &'a Superblock)]) -> Option<&'a Superblock> {
    if whole_member(newest).is_some() {
        return Some(newest);
    }
    let beside = candidates.iter().map(|(_, own)| *own).filter(|own| !leaves_out(newest, own));
    beside.max_by_key(|own| own.events())
}

/// Whether a member says that `other` failed.
pub(super) fn accuses(own: &Superblock, other: &Superblock) -> bool {
    whole_member(own).is_some() && own.role_of(other.dev_number()) == Some(DeviceRole::Faulty)
}

/// Whether a superblock was written without `other` in use: its number is called failed, or is one that no device has, as md
/// calls a device that was not there.
pub(super) fn leaves_out(own: &Superblock, other: &Superblock) -> bool {
    !matches!(own.role_of(other.dev_number()), Some(DeviceRole::Active(_)))
}

/// The slot of which a member says that it holds all.
pub(super) fn whole_member(own: &Superblock) -> Option<Slot> {
    match own.role() {
        DeviceRole::Active(slot) if own.recovery_offset().is_none() && !own.is_replacement() => Some(slot),
        _ => None,
    }
}

/// Whether a superblock was written without `newest`: it says so, or what it calls by that number is another device.
fn ran_without(own: &Superblock, newest: &Superblock, candidates: &[(usize, &Superblock)]) -> bool {
    let number = newest.dev_number();
    let is_it = |other: &Superblock| {
        let are_known =
            own.role_of(number) == Some(other.role()) && other.role_of(own.dev_number()) == Some(own.role());
        are_known && other.device_uuid() != newest.device_uuid() && stopped_as_one(own, other)
    };
    let mut with_number = candidates.iter().filter(|(_, other)| other.dev_number() == number);
    leaves_out(own, newest) || with_number.any(|(_, other)| is_it(other))
}

/// All that `own` calls active, if they are there and stopped when it did. The newest may call a number active that was a
/// member's of this side before, and is another device's now: that they ran without the newest is what counts.
fn side_of(own: &Superblock, newest: &Superblock, candidates: &[(usize, &Superblock)]) -> Option<Vec<usize>> {
    let roles = u32::try_from(own.roles().len()).ok()?;
    let active = (0..roles).filter(|&number| matches!(own.role_of(number), Some(DeviceRole::Active(_))));
    active
        .map(|number| {
            let is_beside =
                |other: &Superblock| stopped_as_one(own, other) && ran_without(other, newest, candidates);
            let mut with_number = candidates.iter().filter(|(_, other)| other.dev_number() == number);
            with_number.find(|(_, other)| is_beside(other)).map(|(index, _)| *index)
        })
        .collect()
}

fn stopped_as_one(own: &Superblock, other: &Superblock) -> bool {
    other.events().abs_diff(own.events()) <= EVENTS_BEHIND_MAX
}
