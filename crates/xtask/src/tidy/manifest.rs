//! Which crate may depend on which, and what every manifest repeats.
//!
//! Direction: parity and byte_struct stand alone, layout and nvme_tcp only on the latter; the engine knows arithmetic and places; the host runs an engine;
//! the simulator runs the engine without the host, so that no clock or thread of the host gets into a seeded run.

use std::collections::{BTreeMap, BTreeSet};

use toml::{Table, Value};

use super::finding::Finding;
use super::source::Source;

/// What a crate may depend on among its neighbours, directly.
enum May {
    Only(&'static [&'static str]),
    Anything,
    /// Anything from which these cannot be reached.
    Never(&'static [&'static str]),
}

const DIRECTION: &[(&str, May)] = &[
    ("parity", May::Only(&[])),
    ("byte_struct", May::Only(&[])),
    ("layout", May::Only(&["byte_struct"])),
    ("nvme_tcp", May::Only(&["byte_struct"])),
    ("engine", May::Only(&["layout", "parity"])),
    ("host", May::Only(&["engine", "layout", "nvme_tcp"])),
    ("sim", May::Never(&["host", "twill"])),
    ("ssdsim", May::Never(&["host", "twill"])),
    ("bench", May::Never(&["twill"])),
    ("twill", May::Anything),
    ("charts", May::Only(&[])),
    ("xtask", May::Only(&[])),
];

/// Names that say nothing about what is inside.
pub const DRAWERS: &[&str] = &["common", "helpers", "misc", "types", "util", "utils"];

/// Checks every `crates/*/Cargo.toml`, and that a crate's own `clippy.toml` repeats the root's settings.
pub fn check(sources: &[Source], findings: &mut Vec<Finding>) {
    let manifests: Vec<(&Source, &str)> = sources
        .iter()
        .filter_map(|source| {
            let (name, rest) = source.place()?;
            (rest == "Cargo.toml").then_some((source, name))
        })
        .collect();
    let crates: BTreeSet<&str> = manifests.iter().map(|(_, name)| *name).collect();
    let mut edges: BTreeMap<&str, Vec<(String, usize)>> = BTreeMap::new();
    for (source, name) in &manifests {
        match source.text.parse::<Table>() {
            Ok(table) => {
                edges.insert(name, neighbours(&table, &source.text, &crates));
                if table.get("lints").and_then(|lints| lints.get("workspace")) != Some(&Value::Boolean(true))
                {
                    let what =
                        "[lints] workspace = true is missing; the workspace's lints hold in every crate";
                    findings.push(Finding::new(&source.path, 0, what));
                }
            }
            Err(error) => findings.push(Finding::new(&source.path, 0, format!("does not parse: {error}"))),
        }
    }
    for (source, name) in &manifests {
        direction(source, name, &edges, findings);
    }
    clippy_settings(sources, findings);
}

fn direction(
    source: &Source,
    name: &str,
    edges: &BTreeMap<&str, Vec<(String, usize)>>,
    findings: &mut Vec<Finding>,
) {
    if DRAWERS.contains(&name) {
        let what = format!("a crate named {name} says nothing; name it after what it does");
        findings.push(Finding::new(&source.path, 0, what));
        return;
    }
    let Some((_, may)) = DIRECTION.iter().find(|(known, _)| *known == name) else {
        let what = format!(
            "crate {name} has no rule; say what it may depend on in crates/xtask/src/tidy/manifest.rs and ARCHITECTURE.md"
        );
        findings.push(Finding::new(&source.path, 0, what));
        return;
    };
    for (to, line) in edges.get(name).map(Vec::as_slice).unwrap_or_default() {
        let what = match may {
            May::Only([]) => Some(format!("{name} depends on no crate of the project, but here on {to}")),
            May::Only(allowed) if !allowed.contains(&to.as_str()) => {
                Some(format!("{name} may depend on {} only, but here on {to}", allowed.join(", ")))
            }
            May::Never(banned) => banned
                .iter()
                .find(|banned| reaches(to, banned, edges))
                .map(|banned| format!("{name} must never reach {banned}, but does by {to}")),
            May::Only(_) | May::Anything => None,
        };
        if let Some(what) = what {
            let help = "move what is needed to the lower crate, or hand it in from above";
            findings.push(Finding::new(&source.path, *line, format!("{what}; {help}")));
        }
    }
}

/// The crates of this project that a manifest names in any table of dependencies, with the line.
fn neighbours(manifest: &Table, text: &str, crates: &BTreeSet<&str>) -> Vec<(String, usize)> {
    let mut tables: Vec<&Table> = vec![manifest];
    if let Some(targets) = manifest.get("target").and_then(Value::as_table) {
        tables.extend(targets.values().filter_map(Value::as_table));
    }
    let kinds = ["dependencies", "dev-dependencies", "build-dependencies"];
    let mut found = Vec::new();
    for dependencies in
        tables.iter().flat_map(|table| kinds.iter().filter_map(|kind| table.get(*kind)?.as_table()))
    {
        for (key, value) in dependencies {
            let package = value.get("package").and_then(Value::as_str).unwrap_or(key);
            if crates.contains(package) {
                let starts = |line: &str| line.trim_start().starts_with(key.as_str());
                let line = text.lines().position(starts).map_or(0, |at| at + 1);
                found.push((package.to_owned(), line));
            }
        }
    }
    found
}

fn reaches(from: &str, to: &str, edges: &BTreeMap<&str, Vec<(String, usize)>>) -> bool {
    let mut seen = BTreeSet::new();
    let mut open = vec![from.to_owned()];
    while let Some(name) = open.pop() {
        if name == to {
            return true;
        }
        if seen.insert(name.clone()) {
            open.extend(edges.get(name.as_str()).into_iter().flatten().map(|(next, _)| next.clone()));
        }
    }
    false
}

/// A crate's `clippy.toml` replaces the root's, so it repeats each of its settings.
fn clippy_settings(sources: &[Source], findings: &mut Vec<Finding>) {
    let read = |source: &Source| source.text.parse::<Table>().unwrap_or_default();
    let Some(root) = sources.iter().find(|source| source.path == "clippy.toml").map(read) else { return };
    for source in sources.iter().filter(|source| source.path.ends_with("/clippy.toml")) {
        let own = read(source);
        for (key, value) in &root {
            if !own.contains_key(key) {
                let what = format!("{key} is missing; this file replaces the root's, repeat {key} = {value}");
                findings.push(Finding::new(&source.path, 0, what));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{expect_one, source};
    use super::*;

    const LINTS: &str = "[lints]\nworkspace = true\n";

    fn found(manifests: &[(&str, &str)]) -> Vec<Finding> {
        let sources: Vec<Source> = manifests
            .iter()
            .map(|(name, text)| source(&format!("crates/{name}/Cargo.toml"), &format!("{LINTS}{text}")))
            .collect();
        let mut findings = Vec::new();
        check(&sources, &mut findings);
        findings
    }

    #[test]
    fn the_design_passes() {
        let engine = "[dependencies]\nlayout.workspace = true\nparity.workspace = true\n";
        let host = "[dependencies]\nengine.workspace = true\n";
        assert_eq!(found(&[("engine", engine), ("host", host), ("layout", ""), ("parity", "")]), []);
    }

    #[test]
    fn a_lone_crate_with_a_neighbour_is_found() {
        let findings = found(&[("parity", "[dependencies]\nlayout.workspace = true\n"), ("layout", "")]);
        expect_one(&findings, 4, "parity depends on no crate");
    }

    #[test]
    fn a_renamed_neighbour_for_one_target_is_found() {
        let text = "[target.'cfg(unix)'.dev-dependencies]\nh = { package = \"host\" }\n";
        expect_one(&found(&[("engine", text), ("host", "")]), 4, "layout, parity only, but here on host");
    }

    #[test]
    fn the_simulator_reaching_the_host_by_another_crate_is_found() {
        let (sim, bench) =
            ("[dependencies]\nbench.workspace = true\n", "[dependencies]\nhost.workspace = true\n");
        expect_one(&found(&[("sim", sim), ("bench", bench), ("host", "")]), 4, "must never reach host");
    }

    #[test]
    fn a_crate_that_nobody_placed_is_found() {
        expect_one(&found(&[("magic", "")]), 0, "has no rule");
        expect_one(&found(&[("utils", "")]), 0, "says nothing");
    }

    #[test]
    fn missing_lints_and_settings_are_found() {
        let mut findings = Vec::new();
        check(&[source("crates/parity/Cargo.toml", "[dependencies]\n")], &mut findings);
        expect_one(&findings, 0, "[lints]");
        findings.clear();
        let files = [source("clippy.toml", "a = 1\n"), source("crates/parity/clippy.toml", "b = 1\n")];
        check(&files, &mut findings);
        expect_one(&findings, 0, "repeat a = 1");
    }
}
