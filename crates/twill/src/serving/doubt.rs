//! Stripes in doubt of a served array: which they are, and an operator's word that ends it.

use engine::array::doubt::NotAccepted;
use engine::members::MemberState;
use layout::redo_log::StripeRange;
use layout::units::Slot;

use super::managed::ManagedArray;
use super::manager::gone;
use crate::bytes;
use crate::counted::counted;
use crate::exit::ExitKind;
use crate::failure::Failure;
use crate::status::DoubtRange;

/// Most ranges that a status lists.
const RANGES_MAX: usize = 100;

/// How many stripes are in doubt: none while no member is missing.
pub(super) fn stripes(array: &ManagedArray) -> u64 {
    let shared = &array.host.shared;
    match shared.members.all_in_sync() {
        true => 0,
        false => shared.consistency.stripes_in_doubt(shared.geometry.stripes()),
    }
}

/// Where they are.
pub(super) fn ranges(array: &ManagedArray) -> Vec<DoubtRange> {
    let shared = &array.host.shared;
    if shared.members.all_in_sync() {
        return Vec::new();
    }
    let stripes = shared.geometry.stripes();
    let ranges = shared.consistency.doubt_ranges(RANGES_MAX);
    let inside = ranges.iter().filter(|range| range.first < stripes);
    inside.map(|range| DoubtRange { first: range.first, last: range.end.min(stripes) - 1 }).collect()
}

/// What it costs to go on without a member that is in sync: stripes whose parity a resync has yet to make, or that are in
/// doubt already, do not tell what it holds.
pub(super) fn cost_without(array: &ManagedArray, slot: Slot) -> Option<String> {
    let shared = &array.host.shared;
    let geometry = &shared.geometry;
    if geometry.parity_chunks() == 0 || shared.members.state(slot) != MemberState::InSync {
        return None;
    }
    let stripes = shared.consistency.stripes_in_doubt(geometry.stripes());
    let until = match shared.absences.has_room() {
        true => "until it is back",
        false => "any more: there is no room for a record of what it holds",
    };
    (stripes > 0).then(|| {
        format!(
            "the parity of {} is not made yet, so up to {} that it holds there could not be read {until}",
            counted(stripes, "stripe"),
            bytes::human(stripes.saturating_mul(u64::from(geometry.chunk_bytes()))),
        )
    })
}

/// What parity makes of missing chunks counts as right in these stripes. Returns how many of them were in doubt.
///
/// # Errors
/// No member is missing, or the superblocks cannot be written.
pub fn accept(array: &ManagedArray, ranges: &[DoubtRange]) -> Result<u64, Failure> {
    if array.read_only {
        let failure = Failure::new(ExitKind::Permission, "the array is read-only: no doubt is ended");
        return Err(failure.help("serve it without --read-only"));
    }
    let stripes = array.host.shared.geometry.stripes();
    if let Some(beyond) = ranges.iter().find(|range| range.last >= stripes && range.last != u64::MAX) {
        let message = format!("stripe {} is beyond the last one, {}", beyond.last, stripes - 1);
        return Err(
            Failure::new(ExitKind::Usage, message).help("twill status --json lists the stripes in doubt")
        );
    }
    let (mut accepted, manager) = (0, array.manager);
    for range in ranges {
        let range = StripeRange { first: range.first, end: range.last.saturating_add(1) };
        let ended = array.shards.run_on(0, move |_| async move { manager.here().accept_doubt(range).await });
        accepted += ended.map_err(gone)?.map_err(|reason| match reason {
            NotAccepted::Whole => {
                let failure = Failure::new(ExitKind::MemberInUse, reason.to_string());
                failure.help("nothing is to be done; twill status says how the array is")
            }
            NotAccepted::Lost => {
                let failure = Failure::new(ExitKind::IoError, reason.to_string());
                failure.help("twill events says at which members; the stripes stay in doubt")
            }
        })?;
    }
    if accepted > 0 {
        array.host.shared.cache.clear();
    }
    Ok(accepted)
}
