//! Unix sockets that clients connect to, as arguments of `serve`.

use std::path::PathBuf;

use clap::Args;
use host::socket::SocketAccess;

/// At which Unix sockets an array is served, and who may connect to them.
#[derive(Args, Clone, Debug, Default)]
pub struct UnixArguments {
    /// Serve NBD at this unix socket; may be repeated [default: NAME.nbd beside the control socket].
    #[arg(long = "unix", value_name = "PATH")]
    pub nbd: Vec<PathBuf>,
    /// Permissions of Unix sockets that clients connect to, in octal [default: 600].
    #[arg(long, value_name = "MODE", value_parser = unix_mode)]
    pub unix_mode: Option<u32>,
    /// Group of those sockets, by name or number: with --unix-mode 660 its users may connect, as qemu's.
    #[arg(long, value_name = "GROUP", value_parser = unix_group)]
    pub unix_group: Option<u32>,
    /// Serve the array to a virtual machine at this Unix socket, as a virtio block device (vhost-user-blk), and not over NBD unless
    /// --unix or --tcp say so too. The machine's memory must be shared.
    #[arg(long, value_name = "PATH")]
    pub vhost_user: Option<PathBuf>,
}

impl UnixArguments {
    /// Who may connect.
    #[must_use]
    pub fn access(&self) -> SocketAccess {
        SocketAccess { mode: self.unix_mode.unwrap_or(SocketAccess::OWNER.mode), group: self.unix_group }
    }
}

fn unix_mode(words: &str) -> Result<u32, &'static str> {
    let mode = u32::from_str_radix(words, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or("it is three octal digits, as chmod takes them: 600, or 660 for a group")
}

/// The number of a group that is given by name or number.
fn unix_group(words: &str) -> Result<u32, String> {
    if let Ok(number) = words.parse() {
        return Ok(number);
    }
    match nix::unistd::Group::from_name(words) {
        Ok(Some(group)) => Ok(group.gid.as_raw()),
        Ok(None) => Err("there is no such group on this machine; getent group lists all".to_owned()),
        Err(error) => Err(format!("groups cannot be looked up: {error}")),
    }
}
