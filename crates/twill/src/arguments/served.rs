//! Which served array a command is for, beside members that it names.

use std::path::PathBuf;

use clap::Args;

use crate::control::Which;

/// Which served array, for commands whose arguments without an option are members.
#[derive(Clone, Debug, Args)]
pub struct ServedByOption {
    /// Its control socket.
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Its name, UUID, block device or a member; not needed when just one is served.
    #[arg(long, value_name = "NAME")]
    pub array: Option<String>,
}

impl ServedByOption {
    /// For [`crate::control::connect`].
    pub fn which(&self) -> Which<'_> {
        Which { control: self.control.as_deref(), array: self.array.as_deref(), by_option: true }
    }
}
