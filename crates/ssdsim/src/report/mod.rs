//! The paper's evaluation made again: runs, figures, and the paper's claims beside what came out.
//!
//! [`make`] is the whole of it: `collect` runs, `figures` draws, `claims` compares, `html` writes the index. All but
//! `timing.html` is a function of the [`Plan`], so two runs write the same bytes.

mod claims;
mod collect;
mod decision;
mod figures;
mod html;

use std::path::{Path, PathBuf};

pub use collect::{Data, Plan, VariantRow};

use crate::Error;

/// Runs `plan` and writes figures, `index.html`, `outcomes.json` and `timing.html` to `out`, telling `progress` what
/// is being done.
///
/// # Errors
/// A trace that cannot be read, a device that is impossible, or a file that cannot be written.
pub fn make(plan: &Plan, out: &Path, progress: &mut dyn FnMut(&str)) -> Result<(), Error> {
    std::fs::create_dir_all(out).map_err(|source| Error::Io { path: out.to_path_buf(), source })?;
    let data = collect::collect(plan, progress)?;
    progress("drawing");
    let figures = figures::draw_all(&data, out)?;
    let claims = claims::compare(&data);
    let json = serde_json::to_string_pretty(&data.main).expect("outcomes have no odd keys");
    write(out.join("outcomes.json"), &json)?;
    write(out.join("index.html"), &html::index(plan, &data, &figures, &claims))?;
    write(out.join("timing.html"), &html::timing(&data))
}

fn write(path: PathBuf, text: &str) -> Result<(), Error> {
    std::fs::write(&path, text).map_err(|source| Error::Io { path, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole report on a device and traces of toy size, twice: complete, and the same both times.
    #[test]
    fn a_small_report_is_complete_and_repeatable() {
        let plan = Plan {
            requests: 400,
            traces: PathBuf::from("no such folder"),
            variants: true,
            blocks: 48,
            seed: 1,
            seeds: 2,
        };
        let dir = tempfile::tempdir().expect("a temporary directory");
        let folders = [dir.path().join("a"), dir.path().join("b")];
        for folder in &folders {
            make(&plan, folder, &mut |_| {}).expect("the report is made");
        }
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&folders[0]).expect("the folder is there") {
            let name = entry.expect("an entry").file_name().to_string_lossy().to_string();
            let read = |folder: &PathBuf| std::fs::read(folder.join(&name)).expect("both have the file");
            assert!(name == "timing.html" || read(&folders[0]) == read(&folders[1]), "{name} differs");
            names.push(name);
        }
        for figure in
            ["fig02", "fig03", "fig06", "fig07", "fig08", "fig09", "fig10", "fig11", "fig12", "fig13"]
        {
            assert!(names.iter().any(|name| name.starts_with(figure)), "{figure} is missing");
        }
    }
}
