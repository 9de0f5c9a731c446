//! `cargo xtask mutants`: one-line bugs, put in on purpose one at a time; says which suite caught which.
//!
//! The bugs and the suites are data: crates/xtask/mutants.toml. The checkout is copied to `target/mutants/tree` and
//! built there, in a target folder of its own, so that nothing of the checkout changes. All bugs that can be are built at
//! once ([`bundle`]) and chosen by the environment; the others one by one. A suite that stops at its time limit has caught
//! the bug, too: a lost wake-up shows in no other way. A bug that does not build proves nothing and counts as a failure of
//! the list.

mod bundle;
mod copy;
mod list;
mod suite;
mod table;
mod tree;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use bundle::Numbered;
use list::{Mutant, Suite};
use suite::Outcome;
use tree::Tree;

/// What `cargo xtask mutants` was asked to do.
#[derive(clap::Args)]
pub struct Arguments {
    /// Only mutants whose name contains one of these
    names: Vec<String>,
    /// Only say whether every mutant still fits the code
    #[arg(long)]
    check: bool,
    /// Print one JSON object instead of lines and a table
    #[arg(long)]
    json: bool,
    /// Write the table as Markdown here, too
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

/// Tries the mutants and prints which suite caught which.
pub fn run(root: &Path, arguments: &Arguments) -> Result<ExitCode> {
    let list = list::read(root)?;
    let misfits = list::misfits(root, &list);
    if arguments.check {
        misfits.iter().for_each(|misfit| println!("{misfit}"));
        println!("{} mutants, {} do not fit", list.mutant.len(), misfits.len());
        return Ok(ExitCode::from(u8::from(!misfits.is_empty())));
    }
    let asked = |mutant: &Mutant| {
        arguments.names.is_empty() || arguments.names.iter().any(|name| mutant.name.contains(name.as_str()))
    };
    let chosen: Vec<Numbered> = list.mutant.iter().enumerate().filter(|(_, mutant)| asked(mutant)).collect();
    if chosen.is_empty() {
        bail!("no mutant has a name with {}", arguments.names.join(" or "));
    }
    let mut tree = Tree::new(root, &target(root).join("mutants"))?;
    let used = |suite: &&Suite| chosen.iter().any(|(_, mutant)| mutant.suites.contains(&suite.name));
    let suites: Vec<&Suite> = list.suite.iter().filter(used).collect();
    let apart = tree.plant_all(&chosen, &suites)?;
    without_bugs(&suites, &tree)?;
    let mut all = Vec::new();
    for (number, mutant) in chosen {
        let found = if apart.contains(&number) {
            tree.built_with(mutant, |tree| suite::hunt(&suites, mutant, None, tree))?
        } else {
            suite::hunt(&suites, mutant, Some(number), &tree)?
        };
        if !arguments.json {
            println!("{}", table::line(&found));
        }
        all.push(found);
    }
    table::print(&all, arguments.json)?;
    if let Some(report) = &arguments.report {
        std::fs::write(report, table::markdown(&all))
            .with_context(|| format!("--report {}", report.display()))?;
    }
    Ok(ExitCode::from(u8::from(all.iter().any(|found| found.caught_by.is_none()))))
}

/// A suite that fails without a bug would catch each of them.
fn without_bugs(suites: &[&Suite], tree: &Tree) -> Result<()> {
    for suite in suites {
        if let Outcome::Failed(why) | Outcome::OutOfTime(why) = suite.run(None, tree)? {
            bail!("the suite {} fails without any bug: {why}", suite.name);
        }
    }
    Ok(())
}

fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same as `cargo xtask mutants --check`.
    #[test]
    fn every_mutant_still_fits_the_code() {
        let root = crate::root();
        let list = list::read(&root).expect("mutants.toml");
        assert_eq!(list::misfits(&root, &list), Vec::<String>::new());
        assert!(list.mutant.len() >= 25);
    }

    #[test]
    fn a_suite_that_fails_without_a_bug_is_told_of() {
        for (run, fails) in [("true", false), ("false", true)] {
            let [name, build, run] = ["s", "true", run].map(str::to_owned);
            let suite = Suite { name, build, run, limit_s: 9 };
            let folder = tempfile::tempdir().expect("a folder");
            let tree = Tree::at(folder.path());
            std::fs::create_dir(&tree.source).expect("a folder");
            let tried = without_bugs(&[&suite], &tree);
            assert_eq!(tried.is_err(), fails, "{}", suite.run);
        }
    }
}
