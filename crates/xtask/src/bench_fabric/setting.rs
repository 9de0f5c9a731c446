//! What the benchmarks of the fabric have in common.

use std::path::PathBuf;

use crate::figures::Kept;

/// Links, and how long and how often is measured over them.
#[derive(clap::Args)]
pub struct Setting {
    /// Rate of each link, each way, in Mbit/s; 0 is no limit
    #[arg(long, default_value_t = 200)]
    pub rate: u32,
    /// Seconds of each run
    #[arg(long, default_value_t = 5)]
    pub seconds: u32,
    /// Rounds, in turns within each row; medians count
    #[arg(long, default_value_t = 3)]
    pub rounds: u32,
    /// The program under test; without it target/release/twill, built first
    #[arg(long)]
    pub twill: Option<PathBuf>,
    /// Figures of earlier runs.
    #[command(flatten)]
    pub kept: Kept,
}
