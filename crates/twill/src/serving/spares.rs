//! Letting go of spares.

use std::path::Path;

use engine::device::Device as _;

use super::Serving;
use super::acts::named;
use crate::exit::ExitKind;
use crate::failure::Failure;

impl Serving {
    /// Lets go of the spare with this path. False if there is none.
    ///
    /// # Errors
    /// It is just about to take a slot.
    pub(super) fn remove_spare(&self, path: &str) -> Result<bool, Failure> {
        let is_named = named(path);
        let found = self.manager.ask(&self.shards, move |manager| {
            let spares = manager.keeper().spares().borrow();
            let spare = spares.iter().find(|spare| is_named(Path::new(&spare.device.info().name)))?;
            Some((spare.superblock.dev_number(), spare.device.info().name.clone()))
        })?;
        let Some((number, name)) = found else { return Ok(false) };
        if !self.manager.ask(&self.shards, move |manager| manager.remove_spare(number))? {
            let message = format!("{path} is about to take the place of a member");
            return Err(Failure::new(ExitKind::MemberInUse, message));
        }
        self.known.lock().devices.remove(&name);
        Ok(true)
    }
}
