//! Members that went on apart: each side calls the other failed, and both were written since. Nobody can tell which side's
//! contents are wanted, so the array is not started with members of both (invariant 8). md and mdadm start the side that
//! is named first or counts more events, and say nothing of the other
//! (docs/decisions/2026-11-22-sides-apart.md).
//!
//! Members that fail one after the other while others come back leave superblocks much like these: the first to fail calls
//! the last to come back failed, too. What tells such an array from one that was split: a member that the first one calls
//! active was there when the other came back, so it has gone on since, or it is not among the candidates. Only a side that is
//! whole and stopped as one counts.

use layout::md_superblock::{DeviceRole, Superblock};

use crate::limits::EVENTS_BEHIND_MAX;

/// Which of the candidates went on apart from `newest`, by index.
pub(super) fn other_side(newest: &Superblock, candidates: &[(usize, &Superblock)]) -> Option<Vec<usize>> {
    let suspects = candidates.iter().filter(|(_, own)| accuses(own, newest) && is_out(newest, own));
    suspects.filter_map(|(_, own)| side_of(own, newest, candidates)).next()
}

/// Whether a member says that `other` failed.
pub(super) fn accuses(own: &Superblock, other: &Superblock) -> bool {
    whole_member(own).is_some() && own.role_of(other.dev_number()) == Some(DeviceRole::Faulty)
}

/// The slot of which a member says that it holds all.
pub(super) fn whole_member(own: &Superblock) -> Option<u32> {
    match own.role() {
        DeviceRole::Active(slot) if own.recovery_offset().is_none() && !own.is_replacement() => {
            Some(slot.into())
        }
        _ => None,
    }
}

fn is_out(newest: &Superblock, own: &Superblock) -> bool {
    !matches!(newest.role_of(own.dev_number()), Some(DeviceRole::Active(_)))
}

/// All that `own` calls active, if they are there and stopped when it did.
fn side_of(own: &Superblock, newest: &Superblock, candidates: &[(usize, &Superblock)]) -> Option<Vec<usize>> {
    let roles = u32::try_from(own.roles().len()).ok()?;
    let active = (0..roles).filter(|&number| matches!(own.role_of(number), Some(DeviceRole::Active(_))));
    active
        .map(|number| {
            let stopped_as_one = |other: &Superblock| {
                other.events().abs_diff(own.events()) <= EVENTS_BEHIND_MAX && is_out(newest, other)
            };
            let found = candidates.iter().find(|(_, other)| other.dev_number() == number);
            found.filter(|(_, other)| stopped_as_one(other)).map(|(index, _)| *index)
        })
        .collect()
}
