//! `cargo xtask mutants`: one-line bugs, put in on purpose one at a time; says which suite caught which.
//!
//! The bugs and the suites are data: crates/xtask/mutants.toml. The checkout is copied to `target/mutants/tree` and
//! built there, in a target folder of its own, so that nothing of the checkout changes. A suite that stops at its time
//! limit has caught the bug, too: a lost wake-up shows in no other way. A bug that does not build proves nothing and
//! counts as a failure of the list.

mod copy;
mod table;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use table::Found;

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

/// mutants.toml.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    suite: Vec<Suite>,
    mutant: Vec<Mutant>,
}

/// Tests that may catch a mutant; cheap ones stand first in the list.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Suite {
    name: String,
    /// Words of the command that builds it.
    build: String,
    /// Words of the command that runs it; a status other than 0 is a catch.
    run: String,
    limit_s: u64,
}

/// One bug.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mutant {
    name: String,
    file: String,
    /// Stands in the file once.
    find: String,
    replace: String,
    /// Which suites are tried.
    suites: Vec<String>,
}

/// Tries the mutants and prints which suite caught which.
pub fn run(root: &Path, arguments: &Arguments) -> Result<ExitCode> {
    let list = read(root)?;
    let misfits = misfits(root, &list);
    if arguments.check {
        misfits.iter().for_each(|misfit| println!("{misfit}"));
        println!("{} mutants, {} do not fit", list.mutant.len(), misfits.len());
        return Ok(ExitCode::from(u8::from(!misfits.is_empty())));
    }
    let asked = |mutant: &&Mutant| {
        arguments.names.is_empty() || arguments.names.iter().any(|name| mutant.name.contains(name.as_str()))
    };
    let chosen: Vec<&Mutant> = list.mutant.iter().filter(asked).collect();
    if chosen.is_empty() {
        bail!("no mutant has a name with {}", arguments.names.join(" or "));
    }
    let place = target(root).join("mutants");
    let tree = place.join("tree");
    copy::refresh(root, &tree)?;
    let build = place.join("build");
    without_bugs(&list, &chosen, &tree, &build)?;
    let mut all = Vec::new();
    for mutant in chosen {
        let found = try_one(&list, mutant, &tree, &build)?;
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

fn read(root: &Path) -> Result<List> {
    let path = root.join("crates/xtask/mutants.toml");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    toml::from_str(&text).with_context(|| path.display().to_string())
}

/// What is wrong with the list: a place that is not there any more or not the only one, an unknown suite.
fn misfits(root: &Path, list: &List) -> Vec<String> {
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

/// A suite that fails without a bug would catch each of them.
fn without_bugs(list: &List, chosen: &[&Mutant], tree: &Path, build: &Path) -> Result<()> {
    let is_used = |suite: &&Suite| chosen.iter().any(|mutant| mutant.suites.contains(&suite.name));
    for suite in list.suite.iter().filter(is_used) {
        let limit = Duration::from_secs(suite.limit_s);
        for (command, limit) in [(&suite.build, Duration::from_secs(3600)), (&suite.run, limit)] {
            if let Outcome::Failed(why) | Outcome::OutOfTime(why) = limited(command, limit, tree, build)? {
                bail!("the suite {} fails without any bug: {why}", suite.name);
            }
        }
    }
    Ok(())
}

fn try_one(list: &List, mutant: &Mutant, tree: &Path, build: &Path) -> Result<Found> {
    let (name, file) = (mutant.name.clone(), mutant.file.clone());
    let mut found = Found { name, file, caught_by: None, how: String::new(), run_s: 0.0, build_s: 0.0 };
    let path = tree.join(&mutant.file);
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    if text.matches(&mutant.find).count() != 1 {
        found.how = "its place was not found: see --check".to_owned();
        return Ok(found);
    }
    std::fs::write(&path, text.replacen(&mutant.find, &mutant.replace, 1))?;
    let result = hunt(list, mutant, tree, build, &mut found);
    std::fs::write(&path, text)?;
    result.map(|()| found)
}

/// Runs the mutant's suites in the order of the list until one fails.
fn hunt(list: &List, mutant: &Mutant, tree: &Path, build: &Path, found: &mut Found) -> Result<()> {
    for suite in list.suite.iter().filter(|suite| mutant.suites.contains(&suite.name)) {
        let start = Instant::now();
        let built = limited(&suite.build, Duration::from_secs(3600), tree, build)?;
        found.build_s += start.elapsed().as_secs_f64();
        if let Outcome::Failed(why) | Outcome::OutOfTime(why) = built {
            found.how = format!("does not build: {why}");
            return Ok(());
        }
        let start = Instant::now();
        let outcome = limited(&suite.run, Duration::from_secs(suite.limit_s), tree, build)?;
        found.run_s += start.elapsed().as_secs_f64();
        match outcome {
            Outcome::Passed => continue,
            Outcome::Failed(how) => found.how = how,
            Outcome::OutOfTime(_) => found.how = format!("did not end in {} s", suite.limit_s),
        }
        found.caught_by = Some(suite.name.clone());
        return Ok(());
    }
    found.how = format!("NOT CAUGHT by {}", mutant.suites.join(", "));
    Ok(())
}

enum Outcome {
    Passed,
    /// With the line that says most.
    Failed(String),
    OutOfTime(String),
}

/// Runs a command with coreutils' `timeout`, which ends all that the command started.
fn limited(command: &str, limit: Duration, tree: &Path, build: &Path) -> Result<Outcome> {
    let mut run = Command::new("timeout");
    run.args(["--kill-after=5", &limit.as_secs().to_string()]).args(command.split_whitespace());
    run.current_dir(tree).env("CARGO_TARGET_DIR", build).env("RUST_BACKTRACE", "0");
    // Without debug information, which a mutant does not need: most of the time goes into building.
    run.envs([
        ("CARGO_PROFILE_DEV_DEBUG", "0"),
        ("CARGO_PROFILE_TEST_DEBUG", "0"),
        ("CARGO_INCREMENTAL", "1"),
    ]);
    let output = run.stdin(Stdio::null()).output().with_context(|| format!("timeout {command}"))?;
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    Ok(match output.status.code() {
        Some(0) => Outcome::Passed,
        Some(124 | 137) => Outcome::OutOfTime(table::telling(&text)),
        _ => Outcome::Failed(table::telling(&text)),
    })
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
        let list = read(&root).expect("mutants.toml");
        assert_eq!(misfits(&root, &list), Vec::<String>::new());
        assert!(list.mutant.len() >= 25);
    }

    #[test]
    fn a_suite_that_fails_without_a_bug_is_told_of() {
        let text = "[[mutant]]\nname = 'a'\nfile = 'f'\nfind = 'x'\nreplace = 'y'\nsuites = ['s']\n\
                    [[suite]]\nname = 's'\nbuild = 'true'\nrun = 'RUN'\nlimit_s = 9\n";
        for (run, fails) in [("true", false), ("false", true)] {
            let list: List = toml::from_str(&text.replace("RUN", run)).expect("a list");
            let chosen: Vec<&Mutant> = list.mutant.iter().collect();
            let tried = without_bugs(&list, &chosen, &crate::root(), &crate::root());
            assert_eq!(tried.is_err(), fails, "{run}");
        }
    }

    #[test]
    fn a_mutant_without_its_place_is_found() {
        let text = "[[mutant]]\nname = 'a'\nfile = 'Cargo.toml'\nfind = 'no such line'\nreplace = ''\nsuites = ['x']\n\
                    [[suite]]\nname = 'y'\nbuild = ''\nrun = ''\nlimit_s = 1\n";
        let list: List = toml::from_str(text).expect("a list");
        let found = misfits(&crate::root(), &list);
        assert!(found[0].contains("stands 0 times") && found[1].contains("no suite x"), "{found:?}");
    }
}
