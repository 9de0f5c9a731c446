//! A switch of the command line.

use clap::ValueEnum;

/// Whether something is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// It is.
    On,
    /// It is not.
    Off,
}
