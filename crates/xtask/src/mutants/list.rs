//! The list of mutants and suites: crates/xtask/mutants.toml.

use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

/// mutants.toml.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct List {
    pub suite: Vec<Suite>,
    pub mutant: Vec<Mutant>,
}

/// One bug.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mutant {
    pub name: String,
    pub file: String,
    /// Stands in the file once.
    pub find: String,
    pub replace: String,
    /// Which suites are tried.
    pub suites: Vec<String>,
}

/// Tests that may catch a mutant; cheap ones stand first in the list.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Suite {
    pub name: String,
    /// Words of the command that builds it.
    pub build: String,
    /// Words of the command that runs it; a status other than 0 is a catch.
    pub run: String,
    pub limit_s: u64,
}

/// Reads it.
pub fn read(root: &Path) -> Result<List> {
    let path = root.join("crates/xtask/mutants.toml");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    toml::from_str(&text).with_context(|| path.display().to_string())
}

/// What is wrong with the list: a place that is not there any more or not the only one, an unknown suite.
pub fn misfits(root: &Path, list: &List) -> Vec<String> {
    let mut misfits = Vec::new();
    for mutant in &list.mutant {
        let mut say = |what: String| misfits.push(format!("mutants.toml, {}: {what}", mutant.name));
        match std::fs::read_to_string(root.join(&mutant.file)) {
            Err(error) => say(format!("{}: {error}", mutant.file)),
            Ok(text) => match text.matches(&mutant.find).count() {
                1 => {}
                found => say(format!(
                    "its `find` stands {found} times in {}, not once: the code has changed, change the mutant with it",
                    mutant.file
                )),
            },
        }
        let unknown = |name: &&String| !list.suite.iter().any(|suite| suite.name == **name);
        if let Some(name) = mutant.suites.iter().find(unknown) {
            say(format!("there is no suite {name}"));
        }
        if mutant.find == mutant.replace || mutant.suites.is_empty() {
            say("it changes nothing, or nothing may catch it".to_owned());
        }
    }
    misfits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mutant_without_its_place_is_found() {
        let text = "[[mutant]]\nname = 'a'\nfile = 'Cargo.toml'\nfind = 'no such line'\nreplace = ''\nsuites = ['x']\n\
                    [[suite]]\nname = 'y'\nbuild = ''\nrun = ''\nlimit_s = 1\n";
        let list: List = toml::from_str(text).expect("a list");
        let found = misfits(&crate::root(), &list);
        assert!(found[0].contains("stands 0 times") && found[1].contains("no suite x"), "{found:?}");
    }
}
