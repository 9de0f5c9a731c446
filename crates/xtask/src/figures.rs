//! Figures of a long run, kept as JSON: written once, and read again instead of running again.

use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The figures that [`write()`] left in a file.
pub fn read<F: DeserializeOwned>(path: &Path) -> Result<F> {
    let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
    serde_json::from_slice(&bytes).with_context(|| path.display().to_string())
}

/// The figures of all these files as one; None without files.
pub fn read_all<F: DeserializeOwned>(
    paths: &[impl AsRef<Path>],
    join: impl Fn(F, F) -> Result<F>,
) -> Result<Option<F>> {
    let mut all = None;
    for path in paths {
        let one = read(path.as_ref())?;
        all = Some(match all {
            None => one,
            Some(before) => join(before, one).with_context(|| path.as_ref().display().to_string())?,
        });
    }
    Ok(all)
}

/// Writes figures to a file, in lines that people can compare.
pub fn write(path: &Path, figures: &impl Serialize) -> Result<()> {
    std::fs::write(path, serde_json::to_string_pretty(figures)? + "\n")
        .with_context(|| path.display().to_string())
}
