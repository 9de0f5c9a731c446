//! The array as a block device of a virtual machine.

use host::export::array::ClientVolumes;
use host::export::vhost_user::{Identity, Server};
use uuid::Uuid;

use super::manager::gone;
use super::options::ServeOptions;
use crate::failure::Failure;

/// Serves the array at the socket that was asked for.
///
/// # Errors
/// The socket cannot be had.
pub(super) fn start(
    volumes: &ClientVolumes,
    options: &ServeOptions,
    set_uuid: &[u8; 16],
) -> Result<Option<Server>, Failure> {
    let Some(path) = &options.vhost_user else { return Ok(None) };
    let info = volumes.info().map_err(gone)?;
    let digits = Uuid::from_bytes(*set_uuid).simple().to_string();
    let serial = std::array::from_fn(|at| digits.as_bytes()[at]);
    let started = volumes.to_virtual_machine(path, options.unix_access, Identity { info, serial });
    started.map(Some).map_err(|error| Failure::cannot_listen(path.display(), &error))
}
