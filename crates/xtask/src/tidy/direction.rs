//! Direction inside crates: which folders of the engine import which, what the pure crates leave to their callers, and
//! names.

use syn::visit::{self, Visit};

use super::finding::Finding;
use super::manifest::DRAWERS;
use super::source::Source;
use super::syntax::{Import, Parsed, attributes, imports, is_test, line, named, written};

/// Engines beside each other: each folder, and the folders of the same crate that it never names.
const APART: &[(&str, &[&str])] =
    &[("crates/engine/src/stripe", &["log", "array"]), ("crates/engine/src/log", &["stripe", "array"])];

/// Crates without syscalls, threads, clock or randomness of their own: the simulator hands these in.
const PURE: &[&str] = &["byte_struct", "engine", "layout", "nvme_tcp"];
const IMPURE: &[&str] = &[
    "std::env",
    "std::fs",
    "std::net",
    "std::process",
    "std::thread",
    "std::time::Instant",
    "std::time::SystemTime",
    "libc",
    "rand",
    "rustix",
];

/// Crates whose public names keep to the vocabulary of the design.
const WORDED: &[&str] = &["byte_struct", "engine", "host", "layout", "nvme_tcp", "parity"];
/// Left in peace: the words there are md's.
const MD_WORDS: &str = "crates/layout/src/md_superblock";

/// Checks imports and names of every Rust file.
pub fn check(parsed: &[Parsed<'_>], findings: &mut Vec<Finding>) {
    for Parsed { source, file } in parsed {
        let mut walk = Walk { source, module: module_of(source), in_test: false, findings: &mut *findings };
        walk.visit_file(file);
        drawer_file(source, findings);
    }
}

fn drawer_file(source: &Source, findings: &mut Vec<Finding>) {
    for word in source.path.trim_end_matches(".rs").split('/').skip(1) {
        if DRAWERS.contains(&word) {
            let what = format!("a module named {word} says nothing; name it after what it does");
            findings.push(Finding::new(&source.path, 0, what));
        }
    }
}

/// The path of a file's module below `crate`.
fn module_of(source: &Source) -> Vec<String> {
    let Some((_, below)) = source.place() else { return Vec::new() };
    let Some(below) = below.strip_prefix("src/") else { return Vec::new() };
    let mut parts: Vec<String> = below.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if parts.last().is_some_and(|last| matches!(last.as_str(), "lib" | "main" | "mod")) {
        parts.pop();
    }
    parts
}

struct Walk<'a> {
    source: &'a Source,
    module: Vec<String>,
    in_test: bool,
    findings: &'a mut Vec<Finding>,
}

impl Walk<'_> {
    /// Judges one path as written, like `super::log::Map`.
    fn path(&mut self, written: &[String], line: usize) {
        let full = self.resolve(written);
        for (folder, others) in APART {
            let inside =
                self.source.path.strip_prefix(folder).is_some_and(|rest| rest.starts_with(['/', '.']));
            if inside
                && full.first().is_some_and(|first| first == "crate")
                && let Some(other) =
                    others.iter().find(|other| full.get(1).is_some_and(|name| name == *other))
            {
                let what = format!(
                    "{} imports crate::{other}; these stand beside each other, share through a trait or file above both",
                    folder.trim_start_matches("crates/")
                );
                self.findings.push(Finding::new(&self.source.path, line, what));
            }
        }
        let pure =
            self.source.place().is_some_and(|(name, rest)| PURE.contains(&name) && rest.starts_with("src/"));
        if pure && !self.in_test {
            let text = full.join("::");
            if let Some(impure) = IMPURE.iter().find(|impure| {
                text.strip_prefix(**impure).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
            }) {
                let what = format!(
                    "uses {impure}; this crate has no syscalls, threads, clock or randomness of its own, take it from the caller"
                );
                self.findings.push(Finding::new(&self.source.path, line, what));
            }
        }
    }

    /// Makes `self` and `super` paths start with `crate`.
    fn resolve(&self, written: &[String]) -> Vec<String> {
        let mut full = vec!["crate".to_owned()];
        full.extend(self.module.iter().cloned());
        let mut rest = written;
        match written.first().map(String::as_str) {
            Some("super" | "self") => {
                while let Some(first) = rest.first() {
                    match first.as_str() {
                        "super" => drop(full.pop()),
                        "self" => {}
                        _ => break,
                    }
                    rest = &rest[1..];
                }
                full.extend(rest.iter().cloned());
                full
            }
            _ => written.to_vec(),
        }
    }

    /// `disk` for a member and `strip` for a chunk are not this project's words.
    fn public_name(&mut self, visibility: &syn::Visibility, ident: &syn::Ident) {
        let worded = self.source.place().is_some_and(|(name, _)| WORDED.contains(&name));
        if !worded
            || matches!(visibility, syn::Visibility::Inherited)
            || self.source.path.starts_with(MD_WORDS)
        {
            return;
        }
        let words = words(&ident.to_string());
        for (i, word) in words.iter().enumerate() {
            let on_disk = i > 0 && words[i - 1] == "on";
            let better = match word.as_str() {
                "disk" | "disks" if !on_disk => "member",
                "strip" | "strips" => "chunk",
                _ => continue,
            };
            let what =
                format!("public name {ident} says {word}; the word here is {better} (see ARCHITECTURE.md)");
            self.findings.push(Finding::new(&self.source.path, line(ident), what));
        }
    }
}

/// The words of a snake_case or CamelCase name, in lower case.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut before = '_';
    for letter in name.chars() {
        if letter == '_' || letter.is_uppercase() && !before.is_uppercase() {
            words.push(String::new());
        }
        if letter != '_' {
            words.last_mut().expect("never empty").extend(letter.to_lowercase());
        }
        before = letter;
    }
    words.retain(|word| !word.is_empty());
    words
}

impl<'ast> Visit<'ast> for Walk<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if let Some((visibility, ident)) = named(item) {
            self.public_name(visibility, ident);
        }
        let outer = self.in_test;
        self.in_test |= is_test(attributes(item));
        visit::visit_item(self, item);
        self.in_test = outer;
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if DRAWERS.contains(&item.ident.to_string().as_str()) {
            let what = format!("a module named {} says nothing; name it after what it does", item.ident);
            self.findings.push(Finding::new(&self.source.path, line(&item.ident), what));
        }
        self.module.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        for Import { path, line, .. } in imports(&item.tree) {
            self.path(&path, line);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.public_name(&item.vis, &item.sig.ident);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.path(&written(path), line(path));
        visit::visit_path(self, path);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{expect_one, found_in_parsed};
    use super::*;

    #[test]
    fn one_engine_importing_the_other_is_found_however_it_is_written() {
        let path = "crates/engine/src/stripe/write.rs";
        expect_one(&found_in_parsed(check, path, "use crate::log::Map;"), 1, "imports crate::log");
        expect_one(
            &found_in_parsed(check, path, "use crate::{device, log::{self}};"),
            1,
            "imports crate::log",
        );
        expect_one(
            &found_in_parsed(check, path, "\nuse super::super::array::Member;"),
            2,
            "imports crate::array",
        );
        expect_one(&found_in_parsed(check, path, "fn f() { crate::log::go() }"), 1, "imports crate::log");
        expect_one(
            &found_in_parsed(check, "crates/engine/src/log.rs", "use crate::stripe;"),
            1,
            "imports crate::stripe",
        );
    }

    #[test]
    fn neighbours_and_namesakes_pass() {
        let path = "crates/engine/src/stripe/write.rs";
        assert_eq!(
            found_in_parsed(check, path, "use super::log_entry; use crate::device::array; use super::plan;"),
            []
        );
        assert_eq!(
            found_in_parsed(check, "crates/engine/src/volume.rs", "use crate::{log, stripe, array};"),
            []
        );
    }

    #[test]
    fn clock_threads_and_files_in_a_pure_crate_are_found() {
        let path = "crates/engine/src/volume.rs";
        expect_one(
            &found_in_parsed(check, path, "use std::time::{Duration, Instant};"),
            1,
            "std::time::Instant",
        );
        expect_one(&found_in_parsed(check, path, "fn f() { std::thread::spawn(g); }"), 1, "std::thread");
        assert_eq!(found_in_parsed(check, path, "#[cfg(test)] mod tests { use std::thread; }"), []);
        assert_eq!(found_in_parsed(check, "crates/host/src/shard.rs", "use std::thread;"), []);
    }

    #[test]
    fn drawers_are_found_as_files_and_modules() {
        expect_one(&found_in_parsed(check, "crates/engine/src/utils.rs", ""), 0, "named utils");
        expect_one(&found_in_parsed(check, "crates/engine/src/lib.rs", "mod misc {}"), 1, "named misc");
    }

    #[test]
    fn other_words_for_member_and_chunk_are_found_in_public_names() {
        let path = "crates/engine/src/device.rs";
        expect_one(&found_in_parsed(check, path, "pub struct DiskList;"), 1, "the word here is member");
        expect_one(
            &found_in_parsed(check, path, "impl A { pub fn strip_bytes(&self) {} }"),
            1,
            "the word here is chunk",
        );
        assert_eq!(
            found_in_parsed(check, path, "fn disk() {} pub fn on_disk_size() {} pub fn stripe() {}"),
            []
        );
        assert_eq!(found_in_parsed(check, "crates/sim/src/disk.rs", "pub struct Disk;"), []);
    }
}
