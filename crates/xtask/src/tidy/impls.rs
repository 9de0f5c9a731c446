//! How many files hold the `impl` blocks of a type, and how long a block is.

use std::collections::{BTreeMap, BTreeSet};

use super::modules::{Modules, Target};
use super::ratchet::Measured;
use super::syntax::{last_line, line, written};

/// By type: the number of files with `impl` blocks of it; and the lines of its longest block in a file.
pub fn measure(crates: &[Modules<'_>]) -> (Vec<Measured>, Vec<Measured>) {
    let mut files: BTreeMap<String, BTreeSet<(&str, usize)>> = BTreeMap::new();
    let mut longest: BTreeMap<String, (usize, &str, usize)> = BTreeMap::new();
    for modules in crates {
        for (path, module) in modules.iter() {
            for item in &module.items {
                let syn::Item::Impl(block) = item else { continue };
                let syn::Type::Path(of) = &*block.self_ty else { continue };
                let Some(Target::Item(home, name)) = modules.target(path, &written(&of.path)) else {
                    continue;
                };
                let start = line(&block.impl_token);
                let name = format!("{}::{name}", modules.file(&home));
                let lines = last_line(block) + 1 - start;
                let entry = longest.entry(name.clone()).or_default();
                *entry = (*entry).max((lines, module.file, start));
                files.entry(name).or_default().insert((module.file, start));
            }
        }
    }
    (files.into_iter().map(spread).collect(), longest.into_iter().map(long).collect())
}

fn spread((name, blocks): (String, BTreeSet<(&str, usize)>)) -> Measured {
    let mut files: Vec<&str> = blocks.iter().map(|(file, _)| *file).collect();
    files.dedup();
    let (path, _) = name.rsplit_once("::").unwrap_or((&name, ""));
    let line = blocks.iter().find(|(file, _)| *file == path).map_or(0, |(_, line)| *line);
    Measured {
        value: files.len(),
        path: path.to_owned(),
        line,
        detail: format!(" ({})", files.join(", ")),
        name,
    }
}

fn long((name, (lines, file, line)): (String, (usize, &str, usize))) -> Measured {
    Measured { value: lines, path: file.to_owned(), line, detail: String::new(), name }
}

#[cfg(test)]
mod tests {
    use super::super::modules::of_crates;
    use super::super::syntax::parse;
    use super::super::tests::source;
    use super::*;

    #[test]
    fn the_files_and_the_lines_of_a_type_s_blocks_are_counted() {
        let sources = [
            source(
                "crates/a/src/lib.rs",
                "mod b; mod c; pub struct A;\nimpl A {}\nimpl Other for A {\n\n}\n",
            ),
            source("crates/a/src/b.rs", "use crate::A; use super::c::A as C;\nimpl A {}\nimpl C {}\n"),
            source(
                "crates/a/src/c.rs",
                "pub struct A;\nimpl From<super::A> for A {}\nimpl Vec<A> {}\n#[cfg(test)]\nimpl super::A {}",
            ),
        ];
        let (files, lines) = measure(&of_crates(&parse(&sources, &mut Vec::new())));
        let values = |measured: Vec<Measured>| -> Vec<(String, usize, usize)> {
            measured.into_iter().map(|one| (one.name, one.value, one.line)).collect()
        };
        let (one, other) = ("crates/a/src/c.rs::A".to_owned(), "crates/a/src/lib.rs::A".to_owned());
        assert_eq!(files[1].detail, " (crates/a/src/b.rs, crates/a/src/lib.rs)");
        assert_eq!(values(files), [(one.clone(), 2, 2), (other.clone(), 2, 2)]);
        assert_eq!(values(lines), [(one, 1, 2), (other, 3, 3)]);
    }
}
