//! The copy of the checkout that mutants are put into.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::bundle::{self, Bundled, Numbered, PLANTED_MODULE};
use super::copy;
use super::list::{Mutant, Suite};

/// A copy of the checkout, and the folder that it is built in.
pub struct Tree {
    pub source: PathBuf,
    pub build: PathBuf,
    /// What is in the checkout of the files that were changed.
    originals: BTreeMap<String, String>,
}

impl Tree {
    /// Copies the checkout `root` below `place`.
    pub fn new(root: &Path, place: &Path) -> Result<Self> {
        let tree = Self::at(place);
        copy::refresh(root, &tree.source)?;
        Ok(tree)
    }

    pub fn at(place: &Path) -> Self {
        Self { source: place.join("tree"), build: place.join("build"), originals: BTreeMap::new() }
    }

    /// Puts all mutants in at once, builds the suites, and says which mutants must be built by themselves.
    pub fn plant_all(&mut self, chosen: &[Numbered], suites: &[&Suite]) -> Result<BTreeSet<usize>> {
        let mut apart = BTreeSet::new();
        loop {
            let files = self.plant(chosen, &mut apart)?;
            let mut wrong = BTreeSet::new();
            for suite in suites {
                let Err(errors) = suite.build(self)? else { continue };
                let of_suite = mutants_of_errors(&errors, &files);
                if of_suite.is_empty() {
                    bail!("the suite {} does not build without any bug:\n{errors}", suite.name);
                }
                wrong.extend(of_suite);
                // The same errors would come again with the next suite.
                break;
            }
            if wrong.is_empty() {
                return Ok(apart);
            }
            apart.extend(wrong);
        }
    }

    /// Writes the files with all mutants but those that are apart.
    fn plant(
        &mut self,
        chosen: &[Numbered],
        apart: &mut BTreeSet<usize>,
    ) -> Result<BTreeMap<String, Bundled>> {
        let mut of_files: BTreeMap<&str, Vec<Numbered>> = BTreeMap::new();
        for (number, mutant) in chosen {
            let of_file = of_files.entry(&mutant.file).or_default();
            if !apart.contains(number) {
                of_file.push((*number, mutant));
            }
        }
        let mut files = BTreeMap::new();
        for (file, mutants) in of_files {
            let bundled = bundle::bundle(&self.original(file)?, &mutants).with_context(|| file.to_owned())?;
            apart.extend(&bundled.apart);
            self.write(file, &bundled.text)?;
            files.insert(file.to_owned(), bundled);
        }
        for root in files.keys().filter_map(|file| crate_root(file)).collect::<BTreeSet<_>>() {
            let planted =
                files.get(&root).map_or_else(|| self.original(&root), |file| Ok(file.text.clone()))?;
            self.write(&root, &(planted + PLANTED_MODULE))?;
        }
        Ok(files)
    }

    /// Does something while this mutant alone is in its file.
    pub fn built_with<T>(&mut self, mutant: &Mutant, act: impl FnOnce(&Self) -> Result<T>) -> Result<T> {
        let planted = fs::read_to_string(self.source.join(&mutant.file))?;
        let original = self.original(&mutant.file)?;
        let module =
            if crate_root(&mutant.file).as_ref() == Some(&mutant.file) { PLANTED_MODULE } else { "" };
        self.write(&mutant.file, &(original.replacen(&mutant.find, &mutant.replace, 1) + module))?;
        let result = act(self);
        self.write(&mutant.file, &planted)?;
        result
    }

    fn original(&mut self, file: &str) -> Result<String> {
        if let Some(text) = self.originals.get(file) {
            return Ok(text.clone());
        }
        let path = self.source.join(file);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        self.originals.insert(file.to_owned(), text.clone());
        Ok(text)
    }

    /// A file that is equal keeps its time, so that cargo does not build it again.
    fn write(&self, file: &str, text: &str) -> Result<()> {
        let path = self.source.join(file);
        if fs::read_to_string(&path).is_ok_and(|old| old == text) {
            return Ok(());
        }
        fs::write(&path, text).with_context(|| path.display().to_string())
    }
}

/// `lib.rs` of the crate of a file.
fn crate_root(file: &str) -> Option<String> {
    file.split_once("/src/").map(|(folder, _)| format!("{folder}/src/lib.rs"))
}

/// The mutants that the compiler complains of: `FILE:LINE:COLUMN: error…`, one a line.
fn mutants_of_errors(errors: &str, files: &BTreeMap<String, Bundled>) -> Vec<usize> {
    let mut mutants = Vec::new();
    for error in errors.lines().filter(|line| line.contains(": error")) {
        let mut parts = error.split(':');
        let (file, line) = (parts.next().unwrap_or(""), parts.next().and_then(|line| line.parse().ok()));
        if let (Some(bundled), Some(line)) = (files.get(file), line) {
            mutants.extend(bundled.mutants_at(line));
        }
    }
    mutants
}
