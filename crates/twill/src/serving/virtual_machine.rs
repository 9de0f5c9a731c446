//! The array as a block device of a virtual machine.

use engine::volume::{Engine, Volume as _};
use host::balance::BalancedVolume;
use host::export::vhost_user::{Identity, Server};
use host::shard::{Handle, ShardContext};
use host::volumes::Volumes;
use uuid::Uuid;

use super::manager::gone;
use super::options::ServeOptions;
use crate::failure::Failure;

/// Serves the array at the socket that was asked for.
///
/// # Errors
/// The socket cannot be had.
pub(super) fn start<E: Engine>(
    shards: &Handle,
    volumes: &Volumes<E>,
    options: &ServeOptions,
    set_uuid: &[u8; 16],
) -> Result<Option<Server>, Failure> {
    let Some(path) = &options.vhost_user else { return Ok(None) };
    let on_shard = volumes.clone();
    let info = shards.run_on(0, move |_| async move { on_shard.here().info() }).map_err(gone)?;
    let digits = Uuid::from_bytes(*set_uuid).simple().to_string();
    let serial = std::array::from_fn(|at| digits.as_bytes()[at]);
    let (volumes, balance) = (volumes.clone(), options.balance);
    let open = move |context: &ShardContext| BalancedVolume::open(&volumes, context, balance);
    let started = Server::start(path, options.unix_access, shards, Identity { info, serial }, open);
    started.map(Some).map_err(|error| Failure::cannot_listen(path.display(), &error))
}
