//! What an array that runs holds, against what it may hold.

use engine::members::MemberState;
use layout::units::Slot;

use super::run::{Run, Wrong, failure, traced};
use super::site::{CHUNK, cells};
use crate::check;

/// Every cell holds what it may. With `all` none is unreadable, else those in doubt may be.
pub(super) fn check_cells(run: &Run, all: bool) -> Result<(), Wrong> {
    for cell in 0..4 {
        let allowed = run.site.lineage.may_hold(run.head, cell);
        let found = run.read(cell)?;
        let is_right = match (&found, &allowed) {
            (None, _) => !all && run.is_doubtful(cell),
            (Some(_), None) => true,
            (Some(found), Some(allowed)) => found.is_some_and(|found| allowed.contains(&found)),
        };
        if !is_right {
            let states = run.array.shared.members.states();
            let found = match found {
                None => "cannot be read".to_string(),
                Some(None) => "reads as garbage".to_string(),
                Some(Some(content)) => format!("reads as {content}"),
            };
            let what = format!("invariant 6: cell {cell} {found}; it may be {allowed:?}; members {states:?}");
            return Err(traced(&run.site, &what));
        }
    }
    Ok(())
}

/// What has to hold when nothing is left to do: members in sync hold the same, parity agrees, superblocks say so.
pub(super) fn check_rest(run: &Run) -> Result<(), Wrong> {
    let is_accepted = (0..4).any(|cell| run.site.lineage.may_hold(run.head, cell).is_none());
    if !is_accepted || run.array.shared.members.all_in_sync() {
        check::quiet(&run.array); // what an operator accepted agrees once a resync has all members
    }
    check::at_rest(&run.array);
    check_copies(run).map_err(|what| traced(&run.site, &what))?;
    match run.site.machine.world.failure() {
        Some(_) => Err(failure(&run.site)),
        None => Ok(()),
    }
}

/// Copies of a cell on members in sync are the same.
fn check_copies(run: &Run) -> Result<(), Wrong> {
    let machine = &run.site.machine;
    for (cell, offset) in cells(machine.geometry()).into_iter().enumerate() {
        let mut seen: Option<(Slot, Vec<u8>)> = None;
        for (slot, at) in machine.places(offset) {
            if run.state(slot) != MemberState::InSync {
                continue;
            }
            let Some(disk) = machine.disks.borrow()[slot.index()].clone() else { continue };
            let mut held = vec![0; CHUNK as usize];
            disk.peek(at, &mut held);
            match &seen {
                Some((other, bytes)) if *bytes != held => {
                    return Err(format!("copies of cell {cell} in slots {other} and {slot} differ"));
                }
                _ => seen = Some((slot, held)),
            }
        }
    }
    Ok(())
}
