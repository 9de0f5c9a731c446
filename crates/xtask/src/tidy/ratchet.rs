//! The limits, and today's exceptions from them, written down so that they only shrink.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};

use super::finding::Finding;

/// Where the exceptions are listed.
pub const PATH: &str = "crates/xtask/ratchet.toml";

/// What a limit holds for, and how much it lets pass.
pub struct Limit {
    /// The table of its exceptions.
    pub table: &'static str,
    /// The most that passes without an exception.
    pub most: usize,
    /// What is counted, as in "801 lines".
    pub counted: &'static str,
    /// What would help.
    pub help: &'static str,
}

/// Something of which a limit holds.
#[derive(Debug)]
pub struct Measured {
    /// Its name in the table.
    pub name: String,
    /// How much there is today.
    pub value: usize,
    /// The file to point at, relative to the root.
    pub path: String,
    /// From 1; 0 when it is the whole file.
    pub line: usize,
    /// What follows the count in a finding.
    pub detail: String,
}

/// What is allowed beyond the limits, by table and name.
#[derive(Default, Debug, PartialEq, Eq)]
pub struct Ratchet(BTreeMap<String, BTreeMap<String, usize>>);

/// A limit and all that it holds for.
pub type Measure = (Limit, Vec<Measured>);

impl Ratchet {
    /// Reads the list; an absent file is an empty one.
    pub fn read(path: &Path) -> Result<Self> {
        if !path.exists() {
            return Ok(Self::default());
        }
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        Ok(Self(toml::from_str(&text).with_context(|| path.display().to_string())?))
    }

    /// Writes the list.
    pub fn write(&self, path: &Path, measures: &[Measure]) -> Result<()> {
        let mut text = String::from(
            "# What is over the limits of `cargo xtask tidy` today. It only shrinks: `cargo xtask tidy --update-ratchet`.\n",
        );
        for (limit, _) in measures {
            text.push_str(&format!(
                "\n# {}, the limit is {}\n[{}]\n",
                limit.counted, limit.most, limit.table
            ));
            for (name, listed) in self.0.get(limit.table).into_iter().flatten() {
                text.push_str(&format!("\"{name}\" = {listed}\n"));
            }
        }
        std::fs::write(path, text).with_context(|| path.display().to_string())
    }

    /// Lowers each entry to what there is today and drops those no longer needed; with `admit` enters what is new.
    pub fn update(&mut self, measures: &[Measure], admit: bool) {
        self.0.retain(|table, _| measures.iter().any(|(limit, _)| limit.table == table));
        for (limit, measured) in measures {
            let entries = self.0.entry(limit.table.to_owned()).or_default();
            let mut over = most(measured);
            over.retain(|_, value| *value > limit.most);
            entries.retain(|name, _| over.contains_key(name.as_str()));
            for (name, value) in over {
                match entries.get_mut(name) {
                    Some(listed) => *listed = value.min(*listed),
                    None if admit => drop(entries.insert(name.to_owned(), value)),
                    None => {}
                }
            }
        }
    }

    /// Finds what is over its limit or its entry; returns how many entries are larger than needed.
    pub fn check(&self, measures: &[Measure], findings: &mut Vec<Finding>) -> usize {
        let mut slack = 0;
        for (limit, measured) in measures {
            for one in measured {
                let listed = self.listed(limit, one);
                if let Some(what) = over(limit, one, listed) {
                    findings.push(Finding::new(&one.path, one.line, what));
                }
            }
            let needed = most(measured);
            let entries = self.0.get(limit.table).into_iter().flatten();
            slack +=
                entries.filter(|(name, listed)| needed.get(name.as_str()).unwrap_or(&0) < *listed).count();
        }
        slack
    }

    /// What is over a limit and admitted, as a finding says it.
    pub fn admitted(&self, measures: &[Measure]) -> Vec<Finding> {
        let over = |(limit, measured): &Measure| -> Vec<Finding> {
            let admitted = measured.iter().filter(|one| self.listed(limit, one).is_some());
            admitted
                .filter_map(|one| Some(Finding::new(&one.path, one.line, over(limit, one, None)?)))
                .collect()
        };
        measures.iter().flat_map(over).collect()
    }

    fn listed(&self, limit: &Limit, one: &Measured) -> Option<usize> {
        self.0.get(limit.table)?.get(&one.name).copied()
    }
}

/// The most that each name needs: two types of a crate may share one.
fn most(measured: &[Measured]) -> BTreeMap<&str, usize> {
    let mut most = BTreeMap::new();
    for one in measured {
        let value = most.entry(one.name.as_str()).or_insert(0);
        *value = one.value.max(*value);
    }
    most
}

fn over(limit: &Limit, one: &Measured, listed: Option<usize>) -> Option<String> {
    let Limit { most, counted, help, .. } = limit;
    let Measured { name, value, detail, .. } = one;
    let subject = name.split_once("::").map_or(String::new(), |(_, inside)| format!("{inside}: "));
    let allowed = match listed {
        Some(listed) if *value > listed.max(*most) => {
            format!("grown from {listed} in {PATH}, which only shrinks")
        }
        None if value > most => format!("the limit is {most}"),
        _ => return None,
    };
    Some(format!("{subject}{value} {counted}, {allowed}; {help}{detail}"))
}

#[cfg(test)]
mod tests {
    use super::super::tests::expect_one;
    use super::*;

    fn limit(table: &'static str, most: usize) -> Limit {
        Limit { table, most, counted: "lines", help: "split it" }
    }

    fn measured(name: &str, value: usize, line: usize) -> Measured {
        Measured { name: name.to_owned(), value, path: "a.rs".to_owned(), line, detail: String::new() }
    }

    fn sizes(file: usize, function: usize) -> [Measure; 2] {
        [
            (limit("files", 800), vec![measured("a.rs", file, 0)]),
            (limit("functions", 70), vec![measured("a.rs::A::f", function, 7)]),
        ]
    }

    fn ratchet(files: &[(&str, usize)], functions: &[(&str, usize)]) -> Ratchet {
        let table = |entries: &[(&str, usize)]| {
            entries.iter().map(|(name, lines)| ((*name).to_owned(), *lines)).collect()
        };
        Ratchet([("files".to_owned(), table(files)), ("functions".to_owned(), table(functions))].into())
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
        assert_eq!(ratchet, self::ratchet(&[], &[]), "nothing enters unasked");
        ratchet.update(&sizes(900, 80), true);
        let mut findings = Vec::new();
        assert_eq!(ratchet.check(&sizes(890, 80), &mut findings), 1);
        assert_eq!(findings, []);
        ratchet.check(&sizes(901, 80), &mut findings);
        expect_one(&findings, 0, "grown from 900");
        ratchet.update(&sizes(890, 60), false);
        assert_eq!(ratchet, self::ratchet(&[("a.rs", 890)], &[]));
        ratchet.update(&sizes(895, 60), true);
        assert_eq!(ratchet, self::ratchet(&[("a.rs", 890)], &[]), "never up, even when asked to admit");
    }

    #[test]
    fn what_is_admitted_is_said_when_asked_for() {
        let (listed, sizes) = (ratchet(&[("a.rs", 900)], &[]), sizes(890, 60));
        expect_one(&listed.admitted(&sizes), 0, "890 lines, the limit is 800");
        assert_eq!(Ratchet::default().admitted(&sizes), []);
    }

    #[test]
    fn it_reads_what_it_writes() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let mut ratchet = Ratchet::default();
        ratchet.update(&sizes(900, 80), true);
        ratchet.write(path.path(), &sizes(900, 80)).unwrap();
        assert_eq!(Ratchet::read(path.path()).unwrap(), ratchet);
    }
}
