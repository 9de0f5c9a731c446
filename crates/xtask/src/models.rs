//! Runs the models of what cores share: tests named `model::…`, built with the feature `model`.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

/// Crates with models.
const CRATES: &[&str] = &["twill-engine"];

/// What `cargo xtask models` was asked to do.
#[derive(clap::Args)]
pub struct Arguments {
    /// Only models whose path contains this, like `model::one_owner`
    #[arg(default_value = "model::")]
    name: String,
    /// Schedules that shuttle tries of each model; without it 2,000, which is a second or so each
    #[arg(long, value_name = "N")]
    schedules: Option<u64>,
}

/// Runs them; the counts are in cargo's `test result` lines.
pub fn run(root: &Path, arguments: &Arguments) -> Result<ExitCode> {
    for name in CRATES {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.current_dir(root).args(["test", "--quiet", "--lib", "--features", "model", "--package", name]);
        cargo.args(["--", &arguments.name]);
        if let Some(schedules) = arguments.schedules {
            cargo.env("TWILL_MODEL_SCHEDULES", schedules.to_string());
        }
        let status = cargo.status().context("cargo test")?;
        if !status.success() {
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}
