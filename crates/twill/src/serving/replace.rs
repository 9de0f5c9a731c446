//! `replace`: another device gets what a member holds, then its slot.

use std::path::Path;

use engine::array::replace::NotReplaced;
use engine::device::Device as _;

use super::add::add;
use super::managed::{ManagedArray, slot_of};
use super::manager::gone;
use crate::exit::ExitKind;
use crate::failure::Failure;

/// Begins to replace a member: by the device `with`, which becomes a spare first if it is none, or by any spare.
///
/// # Errors
/// There is no such member or spare, the member is not in sync, or the device is refused.
pub fn replace(array: &ManagedArray, member: &str, with: Option<&Path>, force: bool) -> Result<(), Failure> {
    let slot = array.slot(member)?;
    let words = array.words(member, slot);
    let refused = |refused: NotReplaced| refusal(&words, &refused);
    // Asked before `add` writes to the device.
    array.ask(move |manager| manager.replacements().may_replace(slot))?.map_err(refused)?;
    let number = match with {
        None => spare_number(array, None)?.ok_or_else(|| {
            Failure::new(ExitKind::NotFound, "the array has no spare").help("name a device: --with DEVICE")
        })?,
        Some(path) => match spare_number(array, Some(path))? {
            Some(number) => number,
            None => {
                add(array, path, force)?;
                spare_number(array, Some(path))?.ok_or_else(|| refused(NotReplaced::NoSpare))?
            }
        },
    };
    let manager = array.manager;
    let begun = array
        .shards
        .run_on(0, move |_| async move { manager.here().replacements().replace(slot, number).await })
        .map_err(gone)?;
    begun.map_err(refused)?;
    tracing::info!(member, slot = slot.get(), "is being replaced");
    Ok(())
}

/// Device number of the spare with this path, or of the next spare.
fn spare_number(array: &ManagedArray, path: Option<&Path>) -> Result<Option<u32>, Failure> {
    let path = path.map(|path| path.display().to_string());
    array.ask(move |manager| {
        let spares = manager.writer().superblocks().spares().borrow();
        let is = |name: &str| path.as_ref().is_none_or(|path| slot_of(&[Some(name.into())], path).is_some());
        let spare = spares.iter().rfind(|spare| is(&spare.device.info().name))?;
        Some(spare.superblock.dev_number())
    })
}

fn refusal(member: &str, refused: &NotReplaced) -> Failure {
    let kind = match refused {
        NotReplaced::NoRedundancy => ExitKind::Unsupported,
        NotReplaced::ReadOnly | NotReplaced::NotInSync(_) | NotReplaced::Changing(_) => ExitKind::MemberInUse,
        NotReplaced::Already(_) => ExitKind::AlreadyExists,
        NotReplaced::NoSpare => ExitKind::NotFound,
    };
    let failure = Failure::new(kind, format!("member {member} is not replaced: {refused}"));
    failure.help(match refused {
        NotReplaced::NoSpare => "it has just taken another slot: see `twill status`",
        NotReplaced::NoRedundancy => {
            "copy the data to another array; or stop this one and copy the member to a device of the same size (dd)"
        }
        NotReplaced::ReadOnly => "stop the array and serve it without --read-only",
        NotReplaced::NotInSync(_) => "let it be rebuilt, or remove it (twill remove failed) and twill add DEVICE",
        NotReplaced::Already(_) => "twill status shows how far it is; twill remove with the new device calls it off",
        NotReplaced::Changing(_) => "try again in a moment",
    })
}
