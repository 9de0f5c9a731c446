//! Figures of a long run, kept as JSON: written once, and read again instead of running again.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::section;

/// Where a long run keeps its figures, and where its table goes.
#[derive(clap::Args)]
pub struct Kept {
    /// Write all figures here, as JSON, from the first on
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Run nothing; take the figures that --json wrote, of several files all
    #[arg(long, value_name = "FILE", num_args = 1..)]
    from: Vec<PathBuf>,
    /// Put the table into the page in docs/
    #[arg(long)]
    publish: bool,
}

impl Kept {
    /// The figures of `--from`, joined; those of a run without.
    pub fn or_measure<F: DeserializeOwned>(
        &self,
        join: impl Fn(F, F) -> Result<F>,
        measure: impl FnOnce() -> Result<F>,
    ) -> Result<F> {
        read_all(&self.from, join)?.map_or_else(measure, Ok)
    }

    /// A whole benchmark whose figures are a list of points: measures or reads them, keeps them and shows their table.
    pub fn points<P: Serialize + DeserializeOwned>(
        &self,
        measure: impl FnOnce() -> Result<Vec<P>>,
        table: impl Fn(&[P]) -> String,
        page: &Path,
        section: &str,
    ) -> Result<ExitCode> {
        let join = |mut before: Vec<P>, more: Vec<P>| {
            before.extend(more);
            Ok(before)
        };
        let points = self.or_measure(join, measure)?;
        self.keep(&points)?;
        self.show(&table(&points), page, section)?;
        Ok(if points.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    /// Writes down what a run has found so far: if it breaks off, that is not lost.
    pub fn keep(&self, figures: &impl Serialize) -> Result<()> {
        self.json.as_ref().map_or(Ok(()), |path| write(path, figures))
    }

    /// Prints the table, and puts it into `section` of the page if that was asked for.
    pub fn show(&self, table: &str, page: &Path, section: &str) -> Result<()> {
        println!("{table}");
        if self.publish { section::replace(page, section, table) } else { Ok(()) }
    }
}

/// The figures that [`write()`] left in a file.
pub fn read<F: DeserializeOwned>(path: &Path) -> Result<F> {
    let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
    serde_json::from_slice(&bytes).with_context(|| path.display().to_string())
}

/// The figures of all these files as one; None without files.
fn read_all<F: DeserializeOwned>(
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

/// The median of ratios, with the least and the greatest.
pub fn with_range(ratios: Vec<f64>) -> String {
    let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    let most = ratios.iter().copied().fold(0.0, f64::max);
    match ratios.is_empty() {
        true => "-".to_owned(),
        false => format!("{:.2} ({least:.2} to {most:.2})", median(ratios.into_iter())),
    }
}

/// The one in the middle; of an even number the upper one. Without any it is no number.
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut all: Vec<f64> = values.collect();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
}
