//! No circle among the files of a crate: of two files, at most one may need the other.
//!
//! A file needs another when its code names what the other defines, in a `use` or in place. Declaring a module and
//! handing a name on (`pub use`) is no need.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use syn::visit::{self, Visit};

use super::modules::{ModulePath, Modules, Target};
use super::ratchet::Measured;
use super::syntax::{attributes, imports, is_test, macro_paths, written};

/// By the file that needs: the files it needs, and by which names.
type Needs<'a> = BTreeMap<&'a str, BTreeMap<&'a str, BTreeSet<String>>>;

/// By crate: the number of files that stand on circles, and of those on the largest one.
pub fn measure(crates: &[Modules<'_>]) -> (Vec<Measured>, Vec<Measured>) {
    let (mut files, mut largest) = (Vec::new(), Vec::new());
    for modules in crates {
        let needs = needs(modules);
        let circles = circles(&needs);
        let Some(most) = circles.iter().map(Vec::len).max() else { continue };
        let measured = |value, detail| Measured {
            name: modules.crate_name.to_owned(),
            value,
            path: modules.file(&ModulePath::new()).to_owned(),
            line: 0,
            detail,
        };
        files.push(measured(circles.iter().map(Vec::len).sum(), described(&circles, &needs)));
        largest.push(measured(most, String::new()));
    }
    (files, largest)
}

/// For each circle how many files, the shortest way around with the names that tie it, and its other files.
fn described(circles: &[Vec<&str>], needs: &Needs<'_>) -> String {
    let below = |file: &str| file.split_once("/src/").map_or(file, |(_, below)| below).to_owned();
    let mut text = String::new();
    for circle in circles {
        let around = shortest(circle, needs);
        text.push_str(&format!(
            "\n  circle of {} files, the shortest way around: {}",
            circle.len(),
            below(around[0])
        ));
        for (from, to) in around.iter().zip(around.iter().cycle().skip(1)) {
            let names: Vec<&str> = needs[from][to].iter().map(String::as_str).collect();
            text.push_str(&format!(" -({})-> {}", names.join(", "), below(to)));
        }
        let others: Vec<String> =
            circle.iter().filter(|file| !around.contains(file)).map(|file| below(file)).collect();
        if !others.is_empty() {
            text.push_str(&format!("; also on it: {}", others.join(", ")));
        }
    }
    text
}

/// Which file needs which.
fn needs<'a>(modules: &Modules<'a>) -> Needs<'a> {
    let mut needs = Needs::new();
    for (path, module) in modules.iter() {
        let mut walk = Walk { modules, path: path.clone(), needs: BTreeSet::new() };
        for item in &module.items {
            walk.visit_item(item);
        }
        for (to, name) in walk.needs {
            let file = modules.file(&to);
            if file != module.file {
                needs.entry(module.file).or_default().entry(file).or_default().insert(name);
            }
        }
    }
    needs
}

struct Walk<'m, 'a> {
    modules: &'m Modules<'a>,
    path: ModulePath,
    /// The modules that define what is named, and the names.
    needs: BTreeSet<(ModulePath, String)>,
}

impl Walk<'_, '_> {
    fn name(&mut self, written: &[String]) {
        if let Some(Target::Item(module, name)) = self.modules.target(&self.path, written) {
            self.needs.insert((module, name));
        }
    }

    /// What a macro or an attribute is given.
    fn tokens(&mut self, tokens: &proc_macro2::TokenStream) {
        let mut paths = Vec::new();
        macro_paths(tokens.clone(), &mut paths);
        for path in paths {
            self.name(&path);
        }
    }
}

impl<'ast> Visit<'ast> for Walk<'_, '_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if !is_test(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_test(&item.attrs) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !matches!(item.vis, syn::Visibility::Inherited) {
            return;
        }
        for import in imports(&item.tree) {
            match (import.name, self.modules.target(&self.path, &import.path)) {
                (None, Some(Target::Module(module))) => drop(self.needs.insert((module, "*".to_owned()))),
                _ => self.name(&import.path),
            }
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.name(&written(path));
        visit::visit_path(self, path);
    }

    fn visit_meta_list(&mut self, list: &'ast syn::MetaList) {
        self.tokens(&list.tokens);
        visit::visit_meta_list(self, list);
    }

    fn visit_macro(&mut self, mac: &'ast syn::Macro) {
        self.tokens(&mac.tokens);
        visit::visit_macro(self, mac);
    }
}

/// The largest sets of files of which each needs every other, directly or by others; the largest first.
fn circles<'a>(needs: &Needs<'a>) -> Vec<Vec<&'a str>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        needs.keys().map(|&from| (from, reached(from, needs))).collect();
    let mutual = |a: &str, b: &str| {
        let reaches = |from: &str, to: &str| reached.get(from).is_some_and(|reached| reached.contains(to));
        reaches(a, b) && reaches(b, a)
    };
    let mut circles: Vec<Vec<&str>> = Vec::new();
    for &file in needs.keys().filter(|file| mutual(file, file)) {
        match circles.iter_mut().find(|circle| mutual(circle[0], file)) {
            Some(circle) => circle.push(file),
            None => circles.push(vec![file]),
        }
    }
    circles.sort_by_key(|circle| (std::cmp::Reverse(circle.len()), circle[0]));
    circles
}

fn reached<'a>(from: &str, needs: &Needs<'a>) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from];
    while let Some(file) = open.pop() {
        for &next in needs.get(file).into_iter().flat_map(BTreeMap::keys) {
            if reached.insert(next) {
                open.push(next);
            }
        }
    }
    reached
}

/// The fewest files of `circle` that lead from one back to itself.
fn shortest<'a>(circle: &[&'a str], needs: &Needs<'a>) -> Vec<&'a str> {
    circle
        .iter()
        .filter_map(|start| way_back(start, needs))
        .min_by_key(Vec::len)
        .expect("each file of a circle leads back to itself")
}

fn way_back<'a>(start: &'a str, needs: &Needs<'a>) -> Option<Vec<&'a str>> {
    let mut came_from: BTreeMap<&str, &str> = BTreeMap::new();
    let mut open = VecDeque::from([start]);
    while let Some(file) = open.pop_front() {
        for &next in needs.get(file).into_iter().flat_map(BTreeMap::keys) {
            if next == start {
                let mut way = vec![file];
                while way[way.len() - 1] != start {
                    way.push(came_from[way[way.len() - 1]]);
                }
                way.reverse();
                return Some(way);
            }
            came_from.entry(next).or_insert_with(|| {
                open.push_back(next);
                file
            });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::modules::of_crates;
    use super::super::syntax::parse;
    use super::super::tests::source;
    use super::*;

    /// What is said about the circles of crate `a` with these files below `src/`.
    fn said(files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<_> =
            files.iter().map(|(path, text)| source(&format!("crates/a/src/{path}"), text)).collect();
        let (files, _) = measure(&of_crates(&parse(&sources, &mut Vec::new())));
        let detail = files.into_iter().map(|measured| measured.detail).collect::<String>();
        detail.lines().skip(1).map(|line| line.trim().to_owned()).collect()
    }

    #[test]
    fn a_circle_is_found_however_the_names_are_reached() {
        let root = ("lib.rs", "mod b; mod c;");
        for (b, c) in [
            ("use crate::c::C; struct B;", "use super::b::B; struct C;"),
            ("use crate::c; struct B; fn f() { c::g() }", "use crate::b; fn g(_: b::B) {}"),
            ("struct B; fn f(_: crate::c::C) {}", "struct C; fn g() { x!(super::b::B) }"),
            ("#[error(\"{}\", super::c::C)] struct B;", "struct C(super::b::B);"),
            ("use super::c::*; struct B;", "struct C; impl C { fn f() { super::b::B; } }"),
            ("struct B; fn f() { use crate::c::C; }", "struct C; fn f() -> Option<crate::b::B> { None }"),
        ] {
            let said = said(&[root, ("b.rs", b), ("c.rs", c)]);
            let [one] = &said[..] else { panic!("{b} {c}: {said:?}") };
            assert!(one.starts_with("circle of 2 files, the shortest way around: b.rs -("), "{one}");
        }
    }

    #[test]
    fn one_way_declarations_and_tests_make_no_circle() {
        for files in [
            &[("lib.rs", "mod b; mod c;"), ("b.rs", "use crate::c::C; struct B;"), ("c.rs", "struct C;")][..],
            &[("lib.rs", "mod b; pub use b::B; pub struct A;"), ("b.rs", "use super::A; pub struct B;")],
            &[
                ("lib.rs", "mod b; #[cfg(test)] mod t; struct A; #[cfg(test)] mod u { use crate::b::B; }"),
                ("b.rs", "use crate::A; struct B; #[test] fn f() { crate::c::C; }"),
                ("t.rs", "use crate::b::B;"),
            ],
            &[("lib.rs", "mod b; fn f() { b() }"), ("b.rs", "use crate::f; fn b() {}")],
        ] {
            assert_eq!(said(files), [""; 0], "{files:?}");
        }
    }

    #[test]
    fn a_re_export_counts_for_the_file_behind_it() {
        let files = [
            ("lib.rs", "mod b;"),
            ("b/mod.rs", "mod c; mod d; pub use c::C; pub use self::d::*;"),
            ("b/c.rs", "use super::D; pub struct C;"),
            ("b/d.rs", "pub struct D(crate::b::C);"),
        ];
        assert_eq!(
            said(&files),
            ["circle of 2 files, the shortest way around: b/c.rs -(D)-> b/d.rs -(C)-> b/c.rs"]
        );
    }

    #[test]
    fn using_what_one_hands_on_is_a_need() {
        let files =
            [("lib.rs", "mod b; pub use b::B; struct A(B);"), ("b.rs", "use super::A; pub struct B;")];
        assert_eq!(
            said(&files),
            ["circle of 2 files, the shortest way around: b.rs -(A)-> lib.rs -(B)-> b.rs"]
        );
    }

    #[test]
    fn of_a_large_circle_the_shortest_way_around_is_said() {
        let files = [
            ("lib.rs", "mod b; mod c; mod d; mod e; mod f; mod g;"),
            ("b.rs", "use crate::c::C; struct B;"),
            ("c.rs", "use crate::d::D; struct C;"),
            ("d.rs", "use crate::b::B; use crate::e::{E1, E2}; struct D;"),
            ("e.rs", "use crate::d::D; struct E1; struct E2;"),
            ("f.rs", "use crate::g::G; use crate::b::B; struct F;"),
            ("g.rs", "use crate::f::F; struct G;"),
        ];
        assert_eq!(
            said(&files),
            [
                "circle of 4 files, the shortest way around: d.rs -(E1, E2)-> e.rs -(D)-> d.rs; also on it: b.rs, c.rs",
                "circle of 2 files, the shortest way around: f.rs -(G)-> g.rs -(F)-> f.rs"
            ]
        );
    }
}
