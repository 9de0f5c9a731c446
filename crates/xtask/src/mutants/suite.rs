//! Suites of tests that are run with a mutant.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

use super::bundle::PLANTED;
use super::list::{Mutant, Suite};
use super::table::{self, Found};
use super::tree::Tree;

/// Building everything from nothing on a small machine.
const BUILD: Duration = Duration::from_secs(3600);

/// How a command ended.
pub enum Outcome {
    Passed,
    /// With the line that says most.
    Failed(String),
    OutOfTime(String),
}

impl Suite {
    /// Runs it with a mutant of those that are built in.
    pub fn run(&self, planted: Option<usize>, tree: &Tree) -> Result<Outcome> {
        let mut run = command(&self.run, Duration::from_secs(self.limit_s), tree);
        if let Some(number) = planted {
            run.env(PLANTED, number.to_string());
        }
        let (code, text) = ended(&mut run, &self.run)?;
        Ok(outcome(code, &text))
    }

    /// Builds it; the errors of the compiler, if it says some, one a line.
    pub fn build(&self, tree: &Tree) -> Result<Result<(), String>> {
        // Behind `--`, cargo would take it for a word of the program.
        let words = format!("{} --message-format short", self.build);
        let words = if self.build.starts_with("cargo ") { &words } else { &self.build };
        let (code, text) = ended(&mut command(words, BUILD, tree), words)?;
        Ok(if code == Some(0) { Ok(()) } else { Err(text) })
    }
}

/// Runs the mutant's suites in the order of the list until one fails. `planted`: by this number it is built in.
pub fn hunt(suites: &[&Suite], mutant: &Mutant, planted: Option<usize>, tree: &Tree) -> Result<Found> {
    let (name, file) = (mutant.name.clone(), mutant.file.clone());
    let mut found = Found { name, file, caught_by: None, how: String::new(), run_s: 0.0, build_s: 0.0 };
    for suite in suites.iter().filter(|suite| mutant.suites.contains(&suite.name)) {
        let start = Instant::now();
        if planted.is_none()
            && let Err(why) = suite.build(tree)?
        {
            found.how = format!("does not build: {}", table::telling(&why));
            return Ok(found);
        }
        found.build_s += start.elapsed().as_secs_f64();
        let start = Instant::now();
        let outcome = suite.run(planted, tree)?;
        found.run_s += start.elapsed().as_secs_f64();
        match outcome {
            Outcome::Passed => continue,
            Outcome::Failed(how) => found.how = how,
            Outcome::OutOfTime(_) => found.how = format!("did not end in {} s", suite.limit_s),
        }
        found.caught_by = Some(suite.name.clone());
        return Ok(found);
    }
    found.how = format!("NOT CAUGHT by {}", mutant.suites.join(", "));
    Ok(found)
}

/// With coreutils' `timeout`, which ends all that the command started.
fn command(words: &str, limit: Duration, tree: &Tree) -> Command {
    let mut run = Command::new("timeout");
    run.args(["--kill-after=5", &limit.as_secs().to_string()]).args(words.split_whitespace());
    run.current_dir(&tree.source).env("CARGO_TARGET_DIR", &tree.build).env("RUST_BACKTRACE", "0");
    // Without debug information, which a mutant does not need.
    run.envs([
        ("CARGO_PROFILE_DEV_DEBUG", "0"),
        ("CARGO_PROFILE_TEST_DEBUG", "0"),
        ("CARGO_INCREMENTAL", "1"),
    ]);
    run
}

/// Its status and what it said. It is ended at the first test that fails, which is all that is asked of it.
fn ended(command: &mut Command, words: &str) -> Result<(Option<i32>, String)> {
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn().with_context(|| format!("timeout {words}"))?;
    let mut stderr = process.stderr.take().expect("a pipe");
    let errors = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        stderr.read_to_end(&mut bytes).map(|_| bytes)
    });
    let mut text = String::new();
    for line in BufReader::new(process.stdout.take().expect("a pipe")).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        text += &line;
        text += "\n";
        if table::failed_test(&line).is_some() {
            // `timeout` passes it on to all that it started.
            let _ended_already = kill_process(Pid::from_child(&process), Signal::TERM);
        }
    }
    let code = process.wait()?.code();
    let bytes = errors.join().expect("no panic")?;
    Ok((code, text + &String::from_utf8_lossy(&bytes)))
}

fn outcome(code: Option<i32>, text: &str) -> Outcome {
    if text.lines().any(|line| table::failed_test(line).is_some()) {
        return Outcome::Failed(table::telling(text));
    }
    match code {
        Some(0) => Outcome::Passed,
        Some(124 | 137) => Outcome::OutOfTime(table::telling(text)),
        _ => Outcome::Failed(table::telling(text)),
    }
}
