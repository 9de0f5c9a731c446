//! Checks the rules of ARCHITECTURE.md that no compiler checks, on the text of the checkout.
//!
//! A rule is a pure function from files to findings; this module reads the files, runs the rules and prints. A finding
//! says where, what, and what would help: `file:line: what; help`.

mod circles;
mod direction;
mod finding;
mod impls;
mod links;
mod manifest;
mod modules;
mod ratchet;
mod safety;
mod size;
mod source;
mod syntax;
mod text;

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

use finding::Finding;
use ratchet::{Limit, Measure, Ratchet};
use source::Source;

/// What `cargo xtask tidy` takes.
#[derive(clap::Args)]
pub struct Arguments {
    /// Write down today's smaller sizes in crates/xtask/ratchet.toml; it never grows
    #[arg(long)]
    update_ratchet: bool,
    /// With --update-ratchet: also enter what is over a limit and not yet listed. Say why in the commit
    #[arg(long, requires = "update_ratchet")]
    admit: bool,
    /// Also say what is over a limit and admitted by crates/xtask/ratchet.toml
    #[arg(long)]
    admitted: bool,
}

/// Runs every rule on the checkout at `root`.
pub fn run(root: &Path, arguments: &Arguments) -> Result<ExitCode> {
    let sources = sources(root)?;
    let mut findings = Vec::new();
    let parsed = syntax::parse(&sources, &mut findings);
    manifest::check(&sources, &mut findings);
    direction::check(&parsed, &mut findings);
    safety::check(&parsed, &mut findings);
    text::check(&sources, &mut findings);
    links::check(&sources, &|path| root.join(path).exists(), &mut findings);
    shell_syntax(root, &sources, &mut findings)?;

    let measures = measures(&sources, &parsed);
    let ratchet_path = root.join(ratchet::PATH);
    let mut ratchet = Ratchet::read(&ratchet_path)?;
    if arguments.update_ratchet {
        ratchet.update(&measures, arguments.admit);
        ratchet.write(&ratchet_path, &measures)?;
    }
    let slack = ratchet.check(&measures, &mut findings);

    findings.sort();
    findings.dedup();
    for finding in &findings {
        println!("{finding}");
    }
    if arguments.admitted {
        ratchet.admitted(&measures).iter().for_each(|finding| println!("admitted: {finding}"));
    }
    if slack > 0 {
        println!("note: {slack} entries of {} can shrink: cargo xtask tidy --update-ratchet", ratchet::PATH);
    }
    println!("tidy: {} files, {} findings", sources.len(), findings.len());
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Every limit of which the ratchet admits exceptions, and what it holds for.
fn measures(sources: &[Source], parsed: &[syntax::Parsed<'_>]) -> Vec<Measure> {
    let crates = modules::of_crates(parsed);
    let (impl_files, impl_lines) = impls::measure(&crates);
    let (circles, largest_circle) = circles::measure(&crates);
    let limit = |table, most, counted, help| Limit { table, most, counted, help };
    let split_file = "split it where a second subject begins";
    let split_function = "split it where a second step begins";
    let extract = "a part of its fields with the functions that use them is a type of its own";
    let split_block = "extract a type of its own, or make functions of what needs no private field";
    let open =
        "move what both need into a file below both, or hand it in from above; each circle is said once:";
    let largest = "the finding on circles names its shortest way around; open it there";
    vec![
        (limit("files", 1000, "lines", split_file), size::files(sources)),
        (limit("functions", 80, "lines", split_function), size::functions(parsed)),
        (limit("impl_files", 3, "files hold its impl blocks", extract), impl_files),
        (limit("impl_lines", 400, "lines in an impl block", split_block), impl_lines),
        (limit("circles", 0, "files need each other in circles", open), circles),
        (limit("largest_circle", 0, "files in one circle", largest), largest_circle),
    ]
}

/// The fuzzers' inputs are not text, although some of them look like it.
const CORPORA: &str = "fuzz/corpus/";

/// The text files that git knows or would add.
fn sources(root: &Path) -> Result<Vec<Source>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .context("cannot start git")?;
    if !output.status.success() {
        bail!("git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let mut sources = Vec::new();
    for path in String::from_utf8(output.stdout)?.split_terminator('\0') {
        let full = root.join(path);
        let Ok(metadata) = full.symlink_metadata() else { continue }; // deleted, not yet committed
        if !metadata.is_file() || path.starts_with(CORPORA) {
            continue;
        }
        if let Ok(text) = String::from_utf8(std::fs::read(&full)?) {
            use std::os::unix::fs::PermissionsExt as _;
            let executable = metadata.permissions().mode() & 0o111 != 0;
            sources.push(Source { path: path.to_owned(), text, executable });
        }
    }
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    sources.dedup_by(|a, b| a.path == b.path);
    Ok(sources)
}

/// Every shell script parses.
fn shell_syntax(root: &Path, sources: &[Source], findings: &mut Vec<Finding>) -> Result<()> {
    for source in sources.iter().filter(|source| text::is_bash(source)) {
        let output = Command::new("bash")
            .arg("-n")
            .arg(root.join(&source.path))
            .output()
            .context("cannot start bash")?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let first = said.lines().next().unwrap_or_default();
            findings.push(Finding::new(&source.path, 0, format!("bash -n refuses it: {first}")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A source for the rules' tests.
    pub fn source(path: &str, text: &str) -> Source {
        Source { path: path.to_owned(), text: text.to_owned(), executable: false }
    }

    /// What a rule of text finds in one file.
    pub fn found_in(check: impl Fn(&[Source], &mut Vec<Finding>), path: &str, text: &str) -> Vec<Finding> {
        let mut findings = Vec::new();
        check(&[source(path, text)], &mut findings);
        findings
    }

    /// What a rule of syntax finds in one file.
    pub fn found_in_parsed(
        check: impl Fn(&[syntax::Parsed<'_>], &mut Vec<Finding>),
        path: &str,
        text: &str,
    ) -> Vec<Finding> {
        found_in(|sources, findings| check(&syntax::parse(sources, &mut Vec::new()), findings), path, text)
    }

    /// Panics unless exactly one finding is there, at this line, and says this.
    pub fn expect_one(findings: &[Finding], line: usize, says: &str) {
        assert!(
            matches!(findings, [one] if one.line == line && one.what.contains(says)),
            "wanted one at line {line} with {says:?}, got {findings:#?}"
        );
    }

    #[test]
    fn a_script_that_does_not_parse_is_found() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("bad.sh"), "if true; then\n").unwrap();
        let mut findings = Vec::new();
        shell_syntax(folder.path(), &[source("bad.sh", "if true; then\n")], &mut findings).unwrap();
        expect_one(&findings, 0, "bash -n");
    }
}
