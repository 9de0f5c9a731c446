//! What is printed of mutants.

use anyhow::Result;
use serde::Serialize;

/// What became of a mutant.
#[derive(Serialize)]
pub struct Found {
    pub name: String,
    pub file: String,
    /// The suite that caught it; none if it lives.
    pub caught_by: Option<String>,
    /// What the suite said, or why the mutant could not be tried.
    pub how: String,
    /// Seconds of the suites, without building.
    pub run_s: f64,
    pub build_s: f64,
}

/// One line while they are tried.
pub fn line(found: &Found) -> String {
    let by = found.caught_by.as_deref().unwrap_or("-");
    format!("{:<44} {by:<8} {:>6.1} s  {}", found.name, found.run_s, found.how)
}

/// The counts, or everything as JSON.
pub fn print(all: &[Found], json: bool) -> Result<()> {
    if json {
        println!("{}", serde_json::to_string_pretty(all)?);
        return Ok(());
    }
    let caught = all.iter().filter(|found| found.caught_by.is_some()).count();
    println!("\n{} mutants, {caught} caught, {} not", all.len(), all.len() - caught);
    Ok(())
}

/// The table of docs/mutants.md.
pub fn markdown(all: &[Found]) -> String {
    let mut text = "| bug | in | caught by | after | which says |\n|---|---|---|---|---|\n".to_owned();
    for found in all {
        let file = found.file.trim_start_matches("crates/").replace("src/", "");
        let by = found.caught_by.as_deref().unwrap_or("**nobody**");
        let how = found.how.replace('|', "\\|");
        text += &format!("| {} | {file} | {by} | {:.1} s | {how} |\n", found.name, found.run_s);
    }
    text
}

/// The test that failed by this line, which comes at once: with `--quiet`, and without.
pub fn failed_test(line: &str) -> Option<&str> {
    let line = line.trim();
    line.strip_suffix(" --- FAILED").or_else(|| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"))
}

/// The line of a failed run that tells most: what a test said, or the first error.
pub fn telling(text: &str) -> String {
    let lines = || text.lines().map(str::trim).filter(|line| !line.is_empty());
    let tests: Vec<&str> = lines().filter_map(|line| line.strip_prefix("---- ")).collect();
    if let Some(first) = tests.first() {
        let name = first.trim_end_matches(" stdout ----");
        let more = if tests.len() > 1 { format!(" and {} more", tests.len() - 1) } else { String::new() };
        return format!("{name}{more}");
    }
    if let Some(test) = lines().find_map(failed_test) {
        return test.to_owned();
    }
    let error =
        lines().find(|line| line.starts_with("error") || line.contains("FAILED") || line.contains("seed"));
    error.or_else(|| lines().next_back()).unwrap_or("nothing was said").chars().take(160).collect()
}

#[cfg(test)]
mod tests {
    use super::{failed_test, telling};

    #[test]
    fn the_first_test_that_failed_is_named() {
        let text = "running 3 tests\n..F\n---- a::b stdout ----\nthread\n---- a::c stdout ----\n";
        assert_eq!(telling(text), "a::b and 1 more");
        assert_eq!(telling("fine\nerror[E0308]: mismatched\n"), "error[E0308]: mismatched");
    }

    #[test]
    fn a_test_that_fails_is_seen_at_once() {
        assert_eq!(failed_test("a::b --- FAILED"), Some("a::b"));
        assert_eq!(failed_test("test a::b ... FAILED"), Some("a::b"));
        assert_eq!(failed_test("test result: FAILED. 1 passed; 1 failed"), None);
        assert_eq!(telling(".. 2/3\na::b --- FAILED\n"), "a::b");
    }
}
