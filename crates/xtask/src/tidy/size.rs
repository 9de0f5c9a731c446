//! How many lines files and functions have.

use std::collections::BTreeMap;

use syn::visit::{self, Visit};

use super::ratchet::Measured;
use super::source::Source;
use super::syntax::{Parsed, last_line, line};

/// Lines of each Rust file and shell script.
pub fn files(sources: &[Source]) -> Vec<Measured> {
    let counted = sources.iter().filter(|source| source.is_rust() || super::text::is_bash(source));
    counted
        .map(|source| measured(source.path.clone(), source.text.lines().count(), &source.path, 0))
        .collect()
}

/// Lines of each function from `fn` to its last brace, by the name `path::Type::function`.
pub fn functions(parsed: &[Parsed<'_>]) -> Vec<Measured> {
    let mut sizes = Vec::new();
    for Parsed { source, file } in parsed {
        let mut walk = Walk { names: vec![source.path.clone()], sizes: BTreeMap::new() };
        walk.visit_file(file);
        let found = walk.sizes.into_iter();
        sizes.extend(found.map(|(name, (lines, start))| measured(name, lines, &source.path, start)));
    }
    sizes
}

fn measured(name: String, value: usize, path: &str, line: usize) -> Measured {
    Measured { name, value, path: path.to_owned(), line, detail: String::new() }
}

struct Walk {
    names: Vec<String>,
    /// The lines of a function, and where it starts.
    sizes: BTreeMap<String, (usize, usize)>,
}

impl Walk {
    fn function(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let start = line(&signature.fn_token);
        let lines = last_line(block) + 1 - start;
        let name = format!("{}::{}", self.names.join("::"), signature.ident);
        // Of two with one name (by cfg, or in two impls) the longer counts.
        let entry = self.sizes.entry(name).or_insert((lines, start));
        if entry.0 < lines {
            *entry = (lines, start);
        }
    }

    fn within(&mut self, name: String, visit: impl FnOnce(&mut Self)) {
        self.names.push(name);
        visit(self);
        self.names.pop();
    }
}

impl<'ast> Visit<'ast> for Walk {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.within(item.ident.to_string(), |walk| visit::visit_item_mod(walk, item));
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let name = match &*item.self_ty {
            syn::Type::Path(path) => path.path.segments.last().map(|last| last.ident.to_string()),
            _ => None,
        };
        self.within(name.unwrap_or_else(|| "impl".to_owned()), |walk| visit::visit_item_impl(walk, item));
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.within(item.ident.to_string(), |walk| visit::visit_item_trait(walk, item));
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig, &item.block);
        self.within(item.sig.ident.to_string(), |walk| visit::visit_item_fn(walk, item));
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.sig, &item.block);
        self.within(item.sig.ident.to_string(), |walk| visit::visit_impl_item_fn(walk, item));
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.function(&item.sig, block);
        }
        visit::visit_trait_item_fn(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::super::syntax::parse;
    use super::super::tests::source;
    use super::*;

    #[test]
    fn functions_are_measured_from_fn_to_brace_under_their_full_name() {
        let text = "//! a\n/// Doc.\n#[inline]\nfn f() {\n    g();\n}\nimpl A<B> {\n    fn h(\n        x: u8,\n    ) {}\n}\n";
        let sources = [source("a.rs", text)];
        let values = |sizes: Vec<Measured>| -> Vec<(String, usize, usize)> {
            sizes.into_iter().map(|size| (size.name, size.value, size.line)).collect()
        };
        assert_eq!(values(files(&sources)), [("a.rs".to_owned(), 11, 0)]);
        let functions = values(functions(&parse(&sources, &mut Vec::new())));
        assert_eq!(functions, [("a.rs::A::h".to_owned(), 3, 8), ("a.rs::f".to_owned(), 3, 4)]);
    }
}
