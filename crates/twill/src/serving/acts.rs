//! What an operator has done to a served array and its members: set, fail, remove.

use std::path::Path;

use engine::device::Device as _;
use engine::members::load::UpdatePolicy;
use engine::members::{Failing, MemberState};

use super::managed::{ManagedArray, named, slot_of};
use super::manager::{gone, manager};
use super::speed::NewLimits;
use crate::exit::ExitKind;
use crate::failure::Failure;

/// Changes how writes choose and whether reads avoid slow members; what is None stays.
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
        let message = "no slow member can be avoided: with --consistency-policy none parity may not agree after a crash";
        return Err(Failure::new(ExitKind::Unsupported, message));
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

/// Stops using a member.
///
/// # Errors
/// There is no such member, or the array needs it.
pub fn fail(array: &ManagedArray, member: &str) -> Result<(), Failure> {
    let slot = array.slot(member)?;
    let failing =
        array.shards.run_on(0, move |_| async move { manager().fail(slot, "an operator said so").await });
    match failing.map_err(gone)? {
        Failing::Needed => {
            let message = format!("member {member} cannot fail: the array would be lost without it");
            Err(Failure::new(ExitKind::WouldLoseData, message).help("rebuild onto a spare first"))
        }
        Failing::Failed => {
            array.host.shared.cache.clear();
            let host = array.host.clone();
            let settled = array.shards.run_on(0, move |_| async move { host.shared.members.settled().await });
            let lost = |_| Failure::new(ExitKind::IoError, "the superblocks cannot be written");
            settled.map_err(gone)?.map_err(lost)
        }
    }
}

/// Takes a failed member or a spare out of the array, or with `failed` or `detached` all members that failed. How many
/// there were.
///
/// # Errors
/// There is no such member, or it is in use.
pub fn remove(array: &ManagedArray, member: &str) -> Result<usize, Failure> {
    if remove_spare(array, member)? || remove_replacement(array, member)? {
        return Ok(1);
    }
    let members = &array.host.shared.members;
    let all_failed = ["failed", "faulty", "detached"].contains(&member);
    let is_named = named(member);
    let without_slot = array.known.lock().remove_faulty(|path| all_failed || is_named(path));
    let slots: Vec<u32> = match without_slot {
        _ if all_failed => {
            let all = 0..array.host.shared.geometry.members();
            all.filter(|&slot| members.state(slot) == MemberState::Failed).collect()
        }
        0 => vec![array.slot(member)?],
        _ => Vec::new(),
    };
    for &slot in &slots {
        let removed =
            array.shards.run_on(0, move |_| async move { manager().remove(slot).await }).map_err(gone)?;
        if !removed {
            let message = format!("member {member} is in use");
            return Err(Failure::new(ExitKind::MemberInUse, message).help("fail it first"));
        }
    }
    Ok(without_slot + slots.len())
}

/// Lets go of the spare with this path. False if there is none.
///
/// # Errors
/// It is just about to take a slot.
fn remove_spare(array: &ManagedArray, path: &str) -> Result<bool, Failure> {
    let is_named = named(path);
    let found = array.ask(move |manager| {
        let spares = manager.keeper().spares().borrow();
        let spare = spares.iter().find(|spare| is_named(Path::new(&spare.device.info().name)))?;
        Some((spare.superblock.dev_number(), spare.device.info().name.clone()))
    })?;
    let Some((number, name)) = found else { return Ok(false) };
    if !array.ask(move |manager| manager.remove_spare(number))? {
        let message = format!("{path} is about to take the place of a member");
        return Err(Failure::new(ExitKind::MemberInUse, message));
    }
    array.known.lock().devices.remove(&name);
    Ok(true)
}

/// Lets go of the device with this path that is to replace a member. False if there is none.
///
/// # Errors
/// It has just become the member.
fn remove_replacement(array: &ManagedArray, path: &str) -> Result<bool, Failure> {
    let Some(slot) = slot_of(&array.known.lock().coming, path) else { return Ok(false) };
    if array.ask(move |manager| manager.cancel_replacement(slot))? {
        return Ok(true);
    }
    Err(Failure::new(ExitKind::MemberInUse, format!("{path} has the slot of the member that it replaces")))
}
