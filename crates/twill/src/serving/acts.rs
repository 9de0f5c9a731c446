//! What an operator does to a served array and its members: set, fail, remove.

use std::path::{Path, PathBuf};

use engine::device::Device as _;
use engine::members::load::UpdatePolicy;
use engine::members::{Failing, MemberState};

use super::doubt;
use super::managed::{ManagedArray, named, slot_of};
use super::manager::gone;
use super::speed::NewLimits;
use crate::exit::ExitKind;
use crate::failure::Failure;
use layout::units::Slot;

/// Changes how writes choose and whether reads avoid slow members; None leaves a setting as it is.
///
/// # Errors
/// Reads cannot avoid slow members here.
pub fn set(
    array: &ManagedArray,
    policy: Option<UpdatePolicy>,
    avoid_slow: Option<bool>,
    limits: &NewLimits,
) -> Result<(), Failure> {
    if avoid_slow == Some(true) && !array.host.shared.intent.is_used() {
        let (why, help) = match array.host.shared.geometry.parity_chunks() {
            0 => (
                format!("what a slow member holds is made from parity, which a {} has not", array.level()),
                "leave --avoid-slow out",
            ),
            _ => (
                "under --consistency-policy none parity may be wrong after a crash".to_owned(),
                "stop the array and serve it without --consistency-policy none",
            ),
        };
        let message = format!("--avoid-slow on: reads cannot avoid slow members: {why}");
        return Err(Failure::new(ExitKind::Unsupported, message).help(help));
    }
    let loads = &array.host.shared.loads;
    if let Some(policy) = policy {
        loads.set_policy(policy);
    }
    if let Some(avoid) = avoid_slow {
        loads.set_avoid_slow(avoid);
    }
    let limits = array.known.lock().speed.set(limits, &array.host.shared);
    tracing::info!(policy = %loads.policy(), avoid_slow = loads.avoid_slow(), ?limits, "set");
    Ok(())
}

/// Stops using a member. Without `force` not while stripes would be in doubt without it.
///
/// # Errors
/// There is no such member, or the array needs it, or what it costs.
pub fn fail(array: &ManagedArray, member: &str, force: bool) -> Result<(), Failure> {
    let slot = array.slot(member)?;
    let needed = || {
        let member = array.words(member, slot);
        let message = format!("member {member} cannot fail: the array would be lost without it");
        Err(Failure::new(ExitKind::WouldLoseData, message).help(array.needed_help()))
    };
    // Asked here first: the engine takes an error of the member for the reason, and the array would be said to be failing.
    if is_needed(array, slot) {
        return needed();
    }
    if let Some(cost) = doubt::cost_without(array, slot).filter(|_| !force) {
        let message = format!("member {} is not failed: {cost}", array.words(member, slot));
        let help = "let the resync end first: twill status --wait; --force fails the member now";
        return Err(Failure::new(ExitKind::WouldDoubt, message).help(help));
    }
    let manager = array.manager;
    let failing = array.shards.run_on(0, move |_| async move {
        manager.here().membership().fail(slot, "an operator said so").await
    });
    match failing.map_err(gone)? {
        Failing::Needed => needed(),
        Failing::Failed => {
            array.host.shared.cache.clear();
            let host = array.host.clone();
            let settled = array.shards.run_on(0, move |_| async move { host.shared.members.settled().await });
            let lost = |_| {
                let failure = Failure::new(ExitKind::IoError, "the superblocks cannot be written");
                failure.help("twill events says at which members; nothing is acknowledged any more")
            };
            settled.map_err(gone)?.map_err(lost)
        }
    }
}

/// Takes a failed member or a spare out of the array, or with `failed` or `detached` all members that failed. Returns the
/// paths of the removed devices.
///
/// # Errors
/// There is no such member, or it is in use.
pub fn remove(array: &ManagedArray, member: &str) -> Result<Vec<PathBuf>, Failure> {
    if let Some(spare) = remove_spare(array, member)? {
        return Ok(vec![spare]);
    }
    if let Some(replacement) = remove_replacement(array, member)? {
        return Ok(vec![replacement]);
    }
    let (members, manager) = (&array.host.shared.members, array.manager);
    let all_failed = ["failed", "faulty", "detached"].contains(&member);
    let is_named = named(member);
    let mut removed = remove_faulty(array, |path| all_failed || is_named(path));
    let slots: Vec<Slot> = if all_failed {
        let all = array.host.shared.geometry.slots();
        all.filter(|&slot| members.state(slot) == MemberState::Failed).collect()
    } else if removed.is_empty() {
        vec![array.slot(member)?]
    } else {
        Vec::new()
    };
    for slot in slots {
        let path = array.known.lock().paths[slot.index()].clone();
        let is_removed = array
            .shards
            .run_on(0, move |_| async move { manager.here().membership().remove(slot).await })
            .map_err(gone)?;
        if !is_removed {
            let message = format!("member {} is in use", array.words(member, slot));
            let failure = Failure::new(ExitKind::MemberInUse, message);
            return Err(match is_needed(array, slot) {
                true => failure.help(format!("the array would be lost without it; {}", array.needed_help())),
                false => failure.help("fail it first: twill fail"),
            });
        }
        removed.extend(path);
    }
    Ok(removed)
}

/// Whether the array would be lost without a member.
fn is_needed(array: &ManagedArray, slot: Slot) -> bool {
    let members = &array.host.shared.members;
    let is_out = |other| other == slot || members.state(other) != MemberState::InSync;
    members.state(slot) == MemberState::InSync && !array.host.shared.geometry.survives(is_out)
}

/// Removes failed members without a slot: those that `is_meant` names.
fn remove_faulty(array: &ManagedArray, is_meant: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
    let mut known = array.known.lock();
    let meant: Vec<PathBuf> = known.faulty.iter().filter(|path| is_meant(path)).cloned().collect();
    known.remove_faulty(|path| meant.iter().any(|meant| meant == path));
    meant
}

/// Removes the spare with this path, if there is one.
///
/// # Errors
/// It is just about to take a slot.
fn remove_spare(array: &ManagedArray, path: &str) -> Result<Option<PathBuf>, Failure> {
    let is_named = named(path);
    let found = array.ask(move |manager| {
        let spares = manager.writer().superblocks().spares().borrow();
        let spare = spares.iter().find(|spare| is_named(Path::new(&spare.device.info().name)))?;
        Some((spare.superblock.dev_number(), spare.device.info().name.clone()))
    })?;
    let Some((number, name)) = found else { return Ok(None) };
    if !array.ask(move |manager| manager.membership().remove_spare(number))? {
        let message = format!("spare {path} is about to take the slot of a missing member");
        return Err(Failure::new(ExitKind::MemberInUse, message)
            .help("it is a member now: twill fail, then twill remove"));
    }
    array.known.lock().devices.remove(&name);
    Ok(Some(PathBuf::from(name)))
}

/// Calls off the replacement by the device with this path, if there is one.
///
/// # Errors
/// It has just become the member.
fn remove_replacement(array: &ManagedArray, path: &str) -> Result<Option<PathBuf>, Failure> {
    let (slot, device) = {
        let known = array.known.lock();
        let Some(slot) = slot_of(&known.coming, path) else { return Ok(None) };
        (slot, known.coming[slot.index()].clone())
    };
    if array.ask(move |manager| manager.replacements().cancel_replacement(slot))? {
        return Ok(device);
    }
    let message = format!("{path} has already replaced the member in slot {slot}");
    Err(Failure::new(ExitKind::MemberInUse, message)
        .help("it is a member now: twill fail, then twill remove"))
}
