//! Rules on plain text: headers, white space, machine paths, scripts that can be run.

use super::finding::Finding;
use super::source::Source;

/// Paths that exist on one machine only. Written in two parts, so that this file passes its own rule.
const MACHINE_PATHS: &[&str] = &[concat!("/wo", "rk/"), concat!("/ro", "ot/")];

/// Checks each text file.
pub fn check(sources: &[Source], findings: &mut Vec<Finding>) {
    for source in sources {
        if source.is_rust() {
            header(source, findings);
        }
        if is_script(source) {
            executable(source, findings);
        }
        lines(source, findings);
    }
}

/// Whether it is a script for bash: by its first line, or by its name.
pub fn is_bash(source: &Source) -> bool {
    let first = source.text.lines().next().unwrap_or_default();
    source.path.ends_with(".sh") || first.starts_with("#!") && first.contains("bash")
}

fn is_script(source: &Source) -> bool {
    source.text.starts_with("#!/")
}

fn header(source: &Source, findings: &mut Vec<Finding>) {
    if !source.text.starts_with("//!") {
        let what = "starts without a `//!` header; say what the file is for and what holds in it";
        findings.push(Finding::new(&source.path, 1, what));
    }
}

fn executable(source: &Source, findings: &mut Vec<Finding>) {
    if !source.executable {
        let what = "has a #! line and cannot be run; chmod +x it, or drop the line if others read it in";
        findings.push(Finding::new(&source.path, 1, what));
    }
}

fn lines(source: &Source, findings: &mut Vec<Finding>) {
    for (line, text) in (1..).zip(source.text.lines()) {
        if text.ends_with([' ', '\t']) {
            findings.push(Finding::new(&source.path, line, "white space at the end of the line; remove it"));
        }
        for path in MACHINE_PATHS {
            if text.match_indices(path).any(|(at, _)| stands_alone(&text[..at])) {
                let what = format!("{path} is a path of one machine; work it out from where the file lies");
                findings.push(Finding::new(&source.path, line, what));
            }
        }
    }
    if !source.text.is_empty() && !source.text.ends_with('\n') {
        let last = source.text.lines().count();
        findings.push(Finding::new(&source.path, last, "no line end at the end of the file; add one"));
    }
}

/// Whether an absolute path can begin after this text: not inside a longer path or a URL.
fn stands_alone(before: &str) -> bool {
    !before.ends_with(|last: char| last.is_alphanumeric() || "._-/}$*~".contains(last))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{expect_one, found_in, source};
    use super::*;

    #[test]
    fn a_missing_header_is_found() {
        expect_one(&found_in(check, "a.rs", "use std::fmt;\n"), 1, "header");
        assert_eq!(found_in(check, "a.rs", "//! What it is for.\n"), []);
    }

    #[test]
    fn white_space_at_the_end_is_found() {
        expect_one(&found_in(check, "a.md", "one\ntwo \n"), 2, "white space");
        expect_one(&found_in(check, "a.md", "one\ntwo"), 2, "no line end");
    }

    #[test]
    fn machine_paths_are_found_and_longer_paths_are_not() {
        let path = MACHINE_PATHS[0];
        expect_one(&found_in(check, "a.md", &format!("see {path}main\n")), 1, "one machine");
        assert_eq!(
            found_in(check, "a.md", &format!("https://example.org{path}x ..{path}x ${{x}}{path}\n")),
            []
        );
    }

    #[test]
    fn a_script_that_cannot_be_run_is_found() {
        expect_one(&found_in(check, "run", "#!/bin/bash\n"), 1, "chmod +x");
        assert!(is_bash(&source("lib.sh", "true\n")) && is_bash(&source("run", "#!/usr/bin/env bash\n")));
        assert!(!is_bash(&source("boot", "#!/bin/busybox sh\n")));
    }
}
