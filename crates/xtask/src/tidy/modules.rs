//! The modules of a crate: which file holds each, and which file defines what a path names.
//!
//! Names are followed through `use` and `pub use` to the module that defines them, so that importing through a
//! re-export counts for the file behind it. Test code is left out. What a macro defines, and what a method call
//! reaches, is not seen.

use std::collections::{BTreeMap, BTreeSet};

use syn::visit::{self, Visit};

use super::syntax::{Import, Parsed, attributes, imports, is_test, named};

/// The path of a module below the root of its crate.
pub type ModulePath = Vec<String>;

/// How many re-exports a name may pass through. More is a re-export of itself.
const HOPS_MAX: usize = 16;

/// The modules of one crate's library, or of its program where it has no library.
pub struct Modules<'a> {
    /// The folder of the crate, in `crates/`.
    pub crate_name: &'a str,
    modules: BTreeMap<ModulePath, Module<'a>>,
}

/// A module: a file, or a `mod name { … }` inside one.
pub struct Module<'a> {
    /// The file that it stands in, relative to the root of the checkout.
    pub file: &'a str,
    /// All but test code and modules.
    pub items: Vec<&'a syn::Item>,
    defined: BTreeSet<String>,
    imported: BTreeMap<String, Vec<String>>,
    globs: Vec<Vec<String>>,
}

/// What a path names.
#[derive(Debug, PartialEq, Eq)]
pub enum Target {
    /// A module as a whole.
    Module(ModulePath),
    /// An item, and the module that defines it.
    Item(ModulePath, String),
}

/// The modules of every crate of the checkout.
pub fn of_crates<'a>(parsed: &'a [Parsed<'a>]) -> Vec<Modules<'a>> {
    let files: BTreeMap<&str, &syn::File> =
        parsed.iter().map(|parsed| (parsed.source.path.as_str(), &parsed.file)).collect();
    let mut crates: BTreeMap<&str, Modules<'a>> = BTreeMap::new();
    for root in ["src/lib.rs", "src/main.rs"] {
        for Parsed { source, file } in parsed {
            let Some((crate_name, below)) = source.place() else { continue };
            if below == root && !crates.contains_key(crate_name) {
                let mut modules = Modules { crate_name, modules: BTreeMap::new() };
                modules.add(&source.path, ModulePath::new(), &file.items, &files);
                crates.insert(crate_name, modules);
            }
        }
    }
    crates.into_values().collect()
}

impl<'a> Modules<'a> {
    /// Enters a module and those declared in it.
    fn add(
        &mut self,
        file: &'a str,
        path: ModulePath,
        items: &'a [syn::Item],
        files: &BTreeMap<&'a str, &'a syn::File>,
    ) {
        let mut module = Module::new(file);
        for item in items.iter().filter(|item| !is_test(attributes(item))) {
            let syn::Item::Mod(child) = item else {
                module.enter(item);
                continue;
            };
            let mut child_path = path.clone();
            child_path.push(child.ident.to_string());
            if let Some((_, items)) = &child.content {
                self.add(file, child_path, items, files);
            } else if let Some((file, parsed)) =
                child_files(file, &child.ident).iter().find_map(|file| files.get_key_value(file.as_str()))
            {
                self.add(file, child_path, &parsed.items, files);
            }
        }
        self.modules.insert(path, module);
    }

    /// Every module and its path.
    pub fn iter(&self) -> impl Iterator<Item = (&ModulePath, &Module<'a>)> {
        self.modules.iter()
    }

    /// The file that holds a module.
    pub fn file(&self, module: &ModulePath) -> &'a str {
        self.modules[module].file
    }

    /// What `written`, a path as it stands in `module`, names inside this crate; `None` for what other crates define.
    pub fn target(&self, module: &ModulePath, written: &[String]) -> Option<Target> {
        self.follow(module, written, HOPS_MAX)
    }

    fn follow(&self, module: &ModulePath, written: &[String], hops: usize) -> Option<Target> {
        let mut at = module.clone();
        let mut rest = written;
        while let Some((first, behind)) = rest.split_first() {
            match first.as_str() {
                "crate" => at.clear(),
                "self" => {}
                "super" => drop(at.pop()?),
                _ => break,
            }
            rest = behind;
        }
        let inside = rest.len() < written.len();
        loop {
            let Some((first, behind)) = rest.split_first() else { return Some(Target::Module(at)) };
            let here = self.modules.get(&at)?;
            let mut below = at.clone();
            below.push(first.clone());
            let is_module = self.modules.contains_key(&below);
            let is_name = here.defined.contains(first) || here.imported.contains_key(first);
            // A function may have the name of its module; only a module has something behind it.
            if is_module && !(is_name && behind.is_empty()) {
                at = below;
                rest = behind;
                continue;
            }
            if here.defined.contains(first) {
                return Some(Target::Item(at, first.clone()));
            }
            if let Some(import) = here.imported.get(first) {
                return self.follow(&at, &joined(import, behind), hops.checked_sub(1)?);
            }
            let by_glob = |glob: &Vec<String>| self.follow_glob(&at, glob, rest, hops.checked_sub(1)?);
            return here.globs.iter().find_map(by_glob).or_else(|| {
                // Of a module of this crate, but no item that is seen here: a macro made it.
                (inside || at != *module).then(|| Target::Item(at.clone(), first.clone()))
            });
        }
    }

    /// Looks for `rest` in the module that `glob` names.
    fn follow_glob(&self, at: &ModulePath, glob: &[String], rest: &[String], hops: usize) -> Option<Target> {
        let Target::Module(module) = self.follow(at, glob, hops)? else { return None };
        let first = rest.first()?;
        let there = self.modules.get(&module)?;
        let mut below = module.clone();
        below.push(first.clone());
        let is_there = there.defined.contains(first)
            || there.imported.contains_key(first)
            || self.modules.contains_key(&below);
        is_there.then(|| self.follow(&module, rest, hops)).flatten()
    }
}

impl<'a> Module<'a> {
    fn new(file: &'a str) -> Self {
        Self {
            file,
            items: Vec::new(),
            defined: BTreeSet::new(),
            imported: BTreeMap::new(),
            globs: Vec::new(),
        }
    }

    fn enter(&mut self, item: &'a syn::Item) {
        let name = match item {
            syn::Item::Macro(item) => item.ident.as_ref(),
            _ => named(item).map(|(_, name)| name),
        };
        self.defined.extend(name.map(ToString::to_string));
        Uses(self).visit_item(item);
        self.items.push(item);
    }
}

/// Collects every `use`, also those inside functions.
struct Uses<'m, 'a>(&'m mut Module<'a>);

impl<'ast> Visit<'ast> for Uses<'_, '_> {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        for Import { path, name, .. } in imports(&item.tree) {
            match name {
                Some(name) => drop(self.0.imported.entry(name).or_insert(path)),
                None => self.0.globs.push(path),
            }
        }
        visit::visit_item_use(self, item);
    }
}

/// Where `mod child;` in `file` may have its file.
fn child_files(file: &str, child: &syn::Ident) -> [String; 2] {
    let (folder, name) = file.rsplit_once('/').unwrap_or(("", file));
    let folder = match name {
        "lib.rs" | "main.rs" | "mod.rs" => folder.to_owned(),
        _ => format!("{folder}/{}", name.trim_end_matches(".rs")),
    };
    [format!("{folder}/{child}.rs"), format!("{folder}/{child}/mod.rs")]
}

fn joined(path: &[String], rest: &[String]) -> Vec<String> {
    path.iter().chain(rest).cloned().collect()
}
