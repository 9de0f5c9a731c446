//! How many files hold the `impl` blocks of a type, and how long a block is.

use std::collections::{BTreeMap, BTreeSet};

use super::modules::{ModulePath, Modules, Target};
use super::ratchet::Measured;
use super::syntax::{last_line, line, written};

/// The `impl` blocks of a type: the file, the line and the number of lines of each.
type Blocks<'a> = Vec<(&'a str, usize, usize)>;

/// By type, named after its crate: the number of files with `impl` blocks of it, and the lines of its longest block.
pub fn measure(crates: &[Modules<'_>]) -> (Vec<Measured>, Vec<Measured>) {
    let (mut files, mut lines) = (Vec::new(), Vec::new());
    for modules in crates {
        for ((home, name), blocks) in blocks(modules) {
            let name = format!("{}::{name}", modules.crate_name);
            files.push(spread(name.clone(), modules.file(&home), &blocks));
            lines.push(longest(name, &blocks));
        }
    }
    (files, lines)
}

/// The blocks of each type, by the module that defines it and its name.
fn blocks<'a>(modules: &Modules<'a>) -> BTreeMap<(ModulePath, String), Blocks<'a>> {
    let mut found: BTreeMap<(ModulePath, String), Blocks<'a>> = BTreeMap::new();
    for (path, module) in modules.iter() {
        for item in &module.items {
            let syn::Item::Impl(block) = item else { continue };
            let syn::Type::Path(of) = &*block.self_ty else { continue };
            if let Some(Target::Item(home, name)) = modules.target(path, &written(&of.path)) {
                let start = line(&block.impl_token);
                let lines = last_line(block) + 1 - start;
                found.entry((home, name)).or_default().push((module.file, start, lines));
            }
        }
    }
    found
}

fn spread(name: String, home: &str, blocks: &Blocks<'_>) -> Measured {
    let files: BTreeSet<&str> = blocks.iter().map(|(file, ..)| *file).collect();
    let line = blocks.iter().find(|(file, ..)| *file == home).map_or(0, |(_, line, _)| *line);
    let named: Vec<&str> = files.iter().copied().collect();
    let detail = format!(" ({})", named.join(", "));
    Measured { name, value: files.len(), path: home.to_owned(), line, detail }
}

fn longest(name: String, blocks: &Blocks<'_>) -> Measured {
    let (file, line, lines) =
        blocks.iter().max_by_key(|(.., lines)| *lines).expect("each type here has a block");
    Measured { name, value: *lines, path: (*file).to_owned(), line: *line, detail: String::new() }
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
        let named = |value, line| ("a::A".to_owned(), value, line);
        assert_eq!(files[0].detail, " (crates/a/src/b.rs, crates/a/src/lib.rs)");
        assert_eq!(values(files), [named(2, 2), named(2, 2)]);
        assert_eq!(values(lines), [named(3, 3), named(1, 2)]);
    }
}
