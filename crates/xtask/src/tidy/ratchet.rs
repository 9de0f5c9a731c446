//! Today's exceptions from the size limits, written down so that they only shrink.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::Finding;
use super::size::{FILE_LINES_MAX, FUNCTION_LINES_MAX, Sizes};

/// Where the exceptions are listed.
pub const PATH: &str = "crates/xtask/ratchet.toml";

/// Lines allowed to files and functions that are over the limit.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ratchet {
    #[serde(default)]
    files: BTreeMap<String, usize>,
    #[serde(default)]
    functions: BTreeMap<String, usize>,
}

impl Ratchet {
    /// Reads the list; an absent file is an empty one.
    pub fn read(path: &Path) -> Result<Self> {
        if !path.exists() {
            return Ok(Self::default());
        }
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        toml::from_str(&text).with_context(|| path.display().to_string())
    }

    /// Writes the list.
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut text = format!(
            "# What is over the size limits of `cargo xtask tidy` today ({FILE_LINES_MAX} lines a file, \
             {FUNCTION_LINES_MAX} a function), in lines.\n# It only shrinks: `cargo xtask tidy --update-ratchet`.\n"
        );
        for (table, entries) in [("files", &self.files), ("functions", &self.functions)] {
            text.push_str(&format!("\n[{table}]\n"));
            for (name, lines) in entries {
                text.push_str(&format!("\"{name}\" = {lines}\n"));
            }
        }
        std::fs::write(path, text).with_context(|| path.display().to_string())
    }

    /// Lowers each entry to today's size and drops those no longer needed; with `admit` enters what is new.
    pub fn update(&mut self, sizes: &Sizes, admit: bool) {
        lower(&mut self.files, &sizes.files, FILE_LINES_MAX, admit);
        let functions = sizes.functions.iter().map(|(name, (lines, _))| (name.clone(), *lines)).collect();
        lower(&mut self.functions, &functions, FUNCTION_LINES_MAX, admit);
    }

    /// Finds what is over its limit or its entry; returns how many entries are larger than needed.
    pub fn check(&self, sizes: &Sizes, findings: &mut Vec<Finding>) -> usize {
        for (name, &lines) in &sizes.files {
            if let Some(what) = over(lines, FILE_LINES_MAX, self.files.get(name)) {
                findings.push(Finding::new(
                    name,
                    0,
                    format!("{what}; split it where a second subject begins"),
                ));
            }
        }
        for (name, &(lines, start)) in &sizes.functions {
            if let Some(what) = over(lines, FUNCTION_LINES_MAX, self.functions.get(name)) {
                let (path, function) = name.split_once("::").unwrap_or((name, ""));
                let what = format!("{function}: {what}; split it where a second step begins");
                findings.push(Finding::new(path, start, what));
            }
        }
        let files = self.files.iter().filter(|(name, listed)| sizes.files.get(*name).unwrap_or(&0) < *listed);
        let functions = self
            .functions
            .iter()
            .filter(|(name, listed)| sizes.functions.get(*name).map_or(0, |(lines, _)| *lines) < **listed);
        files.count() + functions.count()
    }
}

fn over(lines: usize, limit: usize, listed: Option<&usize>) -> Option<String> {
    match listed {
        Some(&listed) if lines > listed.max(limit) => {
            Some(format!("{lines} lines, grown from {listed} in {PATH}, which only shrinks"))
        }
        None if lines > limit => Some(format!("{lines} lines, the limit is {limit}")),
        _ => None,
    }
}

fn lower(entries: &mut BTreeMap<String, usize>, today: &BTreeMap<String, usize>, limit: usize, admit: bool) {
    entries.retain(|name, _| today.get(name).is_some_and(|&lines| lines > limit));
    for (name, &lines) in today.iter().filter(|(_, lines)| **lines > limit) {
        match entries.get_mut(name) {
            Some(listed) => *listed = lines.min(*listed),
            None if admit => drop(entries.insert(name.clone(), lines)),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::expect_one;
    use super::*;

    fn sizes(file: usize, function: usize) -> Sizes {
        Sizes {
            files: [("a.rs".to_owned(), file)].into(),
            functions: [("a.rs::A::f".to_owned(), (function, 7))].into(),
        }
    }

    #[test]
    fn what_is_over_a_limit_and_not_listed_is_found() {
        let mut findings = Vec::new();
        Ratchet::default().check(&sizes(801, 70), &mut findings);
        expect_one(&findings, 0, "801 lines, the limit is 800");
        findings.clear();
        Ratchet::default().check(&sizes(800, 71), &mut findings);
        expect_one(&findings, 7, "A::f: 71 lines");
    }

    #[test]
    fn the_ratchet_lets_shrink_and_not_grow() {
        let mut ratchet = Ratchet::default();
        ratchet.update(&sizes(900, 80), false);
        assert!(ratchet.files.is_empty(), "nothing enters unasked");
        ratchet.update(&sizes(900, 80), true);
        let mut findings = Vec::new();
        assert_eq!(ratchet.check(&sizes(890, 80), &mut findings), 1);
        assert_eq!(findings, []);
        ratchet.check(&sizes(901, 80), &mut findings);
        expect_one(&findings, 0, "grown from 900");
        ratchet.update(&sizes(890, 60), false);
        assert_eq!((ratchet.files["a.rs"], ratchet.functions.len()), (890, 0));
        ratchet.update(&sizes(895, 60), true);
        assert_eq!(ratchet.files["a.rs"], 890, "never up, even when asked to admit");
    }

    #[test]
    fn it_reads_what_it_writes() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let mut ratchet = Ratchet::default();
        ratchet.update(&sizes(900, 80), true);
        ratchet.write(path.path()).unwrap();
        let again = Ratchet::read(path.path()).unwrap();
        assert_eq!((again.files, again.functions), (ratchet.files, ratchet.functions));
    }
}
