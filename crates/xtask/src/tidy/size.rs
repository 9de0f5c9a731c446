//! How many lines files and functions have.

use std::collections::BTreeMap;

use syn::visit::{self, Visit};

use super::Source;
use super::syntax::{Parsed, last_line, line};

/// Files above this are to be split where a second subject begins.
pub const FILE_LINES_MAX: usize = 800;
/// Functions above this are to be split where a second step begins.
pub const FUNCTION_LINES_MAX: usize = 70;

/// Lines by name: a path for a file, `path::Type::function` for a function; with the line a function starts at.
#[derive(Default)]
pub struct Sizes {
    /// Lines of each Rust file and shell script.
    pub files: BTreeMap<String, usize>,
    /// Lines of each function from `fn` to its last brace, and where it starts.
    pub functions: BTreeMap<String, (usize, usize)>,
}

/// Measures every Rust file, shell script and function.
pub fn measure(sources: &[Source], parsed: &[Parsed<'_>]) -> Sizes {
    let mut sizes = Sizes::default();
    for source in sources.iter().filter(|source| source.is_rust() || super::text::is_bash(source)) {
        sizes.files.insert(source.path.clone(), source.text.lines().count());
    }
    for Parsed { source, file } in parsed {
        let mut walk = Walk { names: vec![source.path.clone()], sizes: &mut sizes };
        walk.visit_file(file);
    }
    sizes
}

struct Walk<'a> {
    names: Vec<String>,
    sizes: &'a mut Sizes,
}

impl Walk<'_> {
    fn function(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let start = line(&signature.fn_token);
        let lines = last_line(block) + 1 - start;
        let name = format!("{}::{}", self.names.join("::"), signature.ident);
        // Of two with one name (by cfg, or in two impls) the longer counts.
        let entry = self.sizes.functions.entry(name).or_insert((lines, start));
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

impl<'ast> Visit<'ast> for Walk<'_> {
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
        let sizes = measure(&sources, &parse(&sources, &mut Vec::new()));
        assert_eq!(sizes.files["a.rs"], 11);
        assert_eq!(sizes.functions["a.rs::f"], (3, 4));
        assert_eq!(sizes.functions["a.rs::A::h"], (3, 8));
    }
}
