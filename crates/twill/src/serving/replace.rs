//! `replace`: another device gets what a member holds, then its slot.

use std::path::Path;

use engine::array::replace::NotReplaced;
use engine::device::Device as _;

use super::Serving;
use super::acts::slot_of;
use super::manager::{gone, manager};
use crate::exit::ExitKind;
use crate::failure::Failure;

impl Serving {
    /// Begins to replace a member by the device `with`, which is added for that if it is no spare yet, or by a spare.
    ///
    /// # Errors
    /// There is no such member or spare, the member is not in sync, or what speaks against the device.
    pub fn replace(&self, member: &str, with: Option<&Path>, force: bool) -> Result<(), Failure> {
        let slot = self.slot(member)?;
        let refused = |refused: NotReplaced| refusal(member, &refused);
        // Asked before anything is written on a device.
        self.manager.ask(&self.shards, move |manager| manager.may_replace(slot))?.map_err(refused)?;
        let number = match with {
            None => self.spare_number(None)?.ok_or_else(|| {
                Failure::new(ExitKind::NotFound, "the array has no spare")
                    .help("name a device: --with DEVICE")
            })?,
            Some(path) => match self.spare_number(Some(path))? {
                Some(number) => number,
                None => {
                    self.add(path, force)?;
                    self.spare_number(Some(path))?.ok_or_else(|| refused(NotReplaced::NoSpare))?
                }
            },
        };
        let begun = self
            .shards
            .run_on(0, move |_| async move { manager().replace(slot, number).await })
            .map_err(gone)?;
        begun.map_err(refused)?;
        tracing::info!(member, slot, "is being replaced");
        Ok(())
    }

    /// Device number of the spare with this path, or of the one whose turn it is.
    fn spare_number(&self, path: Option<&Path>) -> Result<Option<u32>, Failure> {
        let path = path.map(|path| path.display().to_string());
        self.manager.ask(&self.shards, move |manager| {
            let spares = manager.keeper().spares().borrow();
            let is =
                |name: &str| path.as_ref().is_none_or(|path| slot_of(&[Some(name.into())], path).is_some());
            let spare = spares.iter().rfind(|spare| is(&spare.device.info().name))?;
            Some(spare.superblock.dev_number())
        })
    }

    /// Lets go of the device with this path that is to replace a member. False if there is none.
    ///
    /// # Errors
    /// It has just become the member.
    pub(super) fn remove_replacement(&self, path: &str) -> Result<bool, Failure> {
        let Some(slot) = slot_of(&self.known.lock().coming, path) else { return Ok(false) };
        if self.manager.ask(&self.shards, move |manager| manager.cancel_replacement(slot))? {
            return Ok(true);
        }
        Err(Failure::new(
            ExitKind::MemberInUse,
            format!("{path} has the slot of the member that it replaces"),
        ))
    }
}

fn refusal(member: &str, refused: &NotReplaced) -> Failure {
    let kind = match refused {
        NotReplaced::NoRedundancy => ExitKind::Unsupported,
        NotReplaced::ReadOnly | NotReplaced::NotInSync(_) | NotReplaced::Changing(_) => ExitKind::MemberInUse,
        NotReplaced::Already(_) => ExitKind::AlreadyExists,
        NotReplaced::NoSpare => ExitKind::NotFound,
    };
    let failure = Failure::new(kind, format!("member {member} cannot be replaced: {refused}"));
    match refused {
        NotReplaced::NoSpare => failure.help("it has just taken another slot: see `twill status`"),
        _ => failure,
    }
}
