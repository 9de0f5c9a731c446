//! Arguments about the process that serves all arrays of a machine, and about what it is asked for.

use std::path::PathBuf;

use clap::Args;

/// Arguments of `serve` about many arrays in one process.
#[derive(Clone, Debug, Args)]
pub struct AllArguments {
    /// Serve all arrays of this machine in one process, whose threads they share: those that the configuration lists, or without
    /// one those that block devices make and no other program has. Options given here hold for each of them.
    #[arg(long, conflicts_with_all = ["members", "uuid", "name"])]
    pub all: bool,
    /// With --all: which arrays, and how [default: /etc/twill/twill.toml, if it is there].
    #[arg(long, value_name = "FILE", requires = "all")]
    pub config: Option<PathBuf>,
    /// Serve the array in the process of `twill serve --all`, which runs already; return when it is served.
    #[arg(
        long,
        conflicts_with_all = ["all", "daemon", "pid_file", "log", "poll", "take_over", "unfenced", "hostnqn", "dhchap_secret",
            "tls_secret",
            "hdr_digest", "data_digest", "member_time_limit", "keep_alive_tmo"]
    )]
    pub join: bool,
}

/// Arguments of `start`.
#[derive(Debug, Args)]
#[command(after_help = "Example: an array that was stopped, and whatever else is not served yet
  twill stop store
  twill start store
  twill start --all

How an array is served stands in /etc/twill/twill.toml, which is read anew each time: see docs/boot.md. An array with
options of its own, or made of files: twill serve --join.")]
pub struct StartArguments {
    /// The control socket of `twill serve --all`.
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// The array's name, its UUID or one of its members.
    #[arg(required_unless_present = "all")]
    pub array: Option<String>,
    /// Every array of the configuration, or of this machine where there is none, that is not served.
    #[arg(long, conflicts_with = "array")]
    pub all: bool,
}
