//! Liveness: all drives are back, so all data at rest is readable, or a refusal names the next step.
//!
//! What an operator does then is what the program says: a side of an array that was split is left out, each device that was
//! left out is re-added, or added where that is refused. After that every member is in sync and every cell holds what it may.

use std::rc::Rc;

use engine::array::assemble::Refusal;
use engine::array::doubt::accept_doubt;
use engine::members::MemberState;
use layout::md_superblock::DeviceRole;
use layout::redo_log::StripeRange;

use super::act::Devices;
use super::check::{check_cells, check_rest};
use super::run::{Pace, Run, Started, Wrong, failure, superblock};
use super::site::{Site, beside, cells_in};
use crate::disk::Disk;

/// How a history ends once all drives are back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Back {
    /// All members are in sync and all data at rest is readable, or of an array that was split, all that this side has.
    Whole,
    /// Stripes stay in doubt though all drives are back: an operator has to accept that.
    InDoubt,
}

/// All drives are back at an array that is not running.
pub(super) fn from_off(site: &Site) -> Result<(Back, bool), Wrong> {
    let (mut with, mut is_split) = (site.all(), false);
    loop {
        match Run::start(site.twin(), with, false, Pace::AtRest)? {
            Started::Runs(run) => return Ok((from_running(run)?, is_split)),
            Started::Refused(refusal) => {
                let Refusal::Split { others, .. } = &refusal else {
                    return Err(format!("all drives are back, and the array is refused: {refusal}"));
                };
                is_split = true;
                let rest = without(site, with, others);
                if rest == with {
                    return Err(format!("a split that names no device: {refusal}"));
                }
                with = rest;
            }
        }
    }
}

fn without(site: &Site, with: Devices, names: &[String]) -> Devices {
    let disks = site.machine.all_disks.borrow();
    let named = disks.iter().filter(|disk| names.contains(&format!("device {}", disk.number)));
    named.fold(with, |with, disk| Devices(with.0 & !(1 << disk.number)))
}

/// All drives are back at a running array.
pub(super) fn from_running(mut run: Run) -> Result<Back, Wrong> {
    run.rest()?;
    let is_split = ran_apart(&run);
    bring_back(&mut run)?;
    if !run.array.shared.members.all_in_sync() && run.array.has_doubts() {
        exchange(&mut run)?;
    }
    let back = match run.array.shared.members.all_in_sync() {
        true => Back::Whole,
        false if run.array.has_doubts() => {
            check_cells(&run, false)?;
            accept(&mut run)?;
            if is_split { Back::Whole } else { Back::InDoubt }
        }
        false => {
            let states = run.array.shared.members.states();
            return Err(format!("all drives are back, nothing is in doubt, and members are {states:?}"));
        }
    };
    check_rest(&run)?;
    check_cells(&run, true)?;
    Ok(back)
}

/// Whether a device that is not in use ran on another side. It is not taken back with what it holds, which that side may have
/// written over: this side's doubt of it stays until an operator accepts that.
fn ran_apart(run: &Run) -> bool {
    let lineage = &run.site.lineage;
    let heads = outside(run).into_iter().filter_map(|disk| lineage.head(disk.number));
    heads.into_iter().any(|head| !lineage.leads_to(head, run.head))
}

/// Every device that is not in use is re-added; where that is refused it is added while a slot is free.
fn bring_back(run: &mut Run) -> Result<(), Wrong> {
    let outside = outside(run);
    for disk in &outside {
        if has_free_slot(run) && !run.re_add(disk.number)? {
            continue;
        }
        run.rest()?;
    }
    for disk in &outside {
        if has_free_slot(run) && !run.is_used(disk.number) && run.add(disk)? {
            run.rest()?;
        }
    }
    Ok(())
}

fn outside(run: &Run) -> Vec<Rc<Disk>> {
    let disks = run.site.machine.all_disks.borrow();
    disks.iter().filter(|disk| !run.is_used(disk.number)).cloned().collect()
}

fn has_free_slot(run: &Run) -> bool {
    let mut slots = run.site.machine.geometry().slots();
    slots.any(|slot| matches!(run.state(slot), MemberState::Missing | MemberState::Failed))
}

/// A device that cannot be rebuilt because of doubt gives its slot to the one that was there before.
fn exchange(run: &mut Run) -> Result<(), Wrong> {
    for slot in run.site.machine.geometry().slots() {
        if run.state(slot) != MemberState::Recovering {
            continue;
        }
        let had_slot = |disk: &Rc<Disk>| {
            let own = superblock(&run.site.machine, disk);
            own.is_some_and(|own| own.role() == DeviceRole::Active(slot))
        };
        let Some(before) = outside(run).into_iter().find(had_slot) else { continue };
        if run.fail(slot)? && run.re_add(before.number)? {
            run.rest()?;
        }
    }
    bring_back(run)
}

/// The operator accepts what is in doubt, and that ends it. What these stripes hold is not known from here on.
fn accept(run: &mut Run) -> Result<(), Wrong> {
    let geometry = *run.site.machine.geometry();
    let doubts = run.array.shared.consistency.doubt_ranges(usize::MAX);
    let cells = beside(&geometry, cells_in(&geometry, &doubts));
    let own = Rc::clone(&run.array);
    let all = StripeRange { first: 0, end: geometry.stripes() };
    let accepted =
        run.until("accepting doubt", async move { accept_doubt(&own.shards[0].set, all).await })?;
    if let Err(error) = accepted {
        return Err(format!("doubt is not accepted: {error}"));
    }
    run.head = run.site.lineage.accepted(run.head, cells);
    run.rest()?;
    if run.array.shared.members.all_in_sync() {
        return Ok(());
    }
    let states = run.array.shared.members.states();
    let what = format!("doubt is accepted, and members are {states:?}");
    Err(format!("{what}: {}", failure(&run.site)))
}
