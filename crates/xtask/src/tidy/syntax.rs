//! Parsed Rust files, and how the rules walk them.

use syn::punctuated::Punctuated;

use super::finding::Finding;
use super::source::Source;

/// A Rust file and its syntax tree.
pub struct Parsed<'a> {
    /// The file.
    pub source: &'a Source,
    /// Its syntax tree, with line numbers in the spans.
    pub file: syn::File,
}

/// Parses every Rust file; one that does not parse is a finding and no more is said about it.
pub fn parse<'a>(sources: &'a [Source], findings: &mut Vec<Finding>) -> Vec<Parsed<'a>> {
    let mut parsed = Vec::new();
    for source in sources.iter().filter(|source| source.is_rust()) {
        match syn::parse_file(&source.text) {
            Ok(file) => parsed.push(Parsed { source, file }),
            Err(error) => {
                let line = error.span().start().line;
                findings.push(Finding::new(&source.path, line, format!("does not parse: {error}")));
            }
        }
    }
    parsed
}

/// The line an item or expression starts at, from 1.
pub fn line(node: &impl syn::spanned::Spanned) -> usize {
    node.span().start().line
}

/// Whether `#[cfg(test)]`, `#[cfg(all(test, …))]` or `#[test]` (of any harness) stands on it.
pub fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let path = attribute.path();
        path.segments.last().is_some_and(|last| last.ident == "test")
            || path.is_ident("cfg")
                && attribute.parse_args::<syn::Meta>().is_ok_and(|condition| needs_test(&condition))
    })
}

fn needs_test(condition: &syn::Meta) -> bool {
    let all = Punctuated::<syn::Meta, syn::Token![,]>::parse_terminated;
    condition.path().is_ident("test")
        || condition.path().is_ident("all")
            && condition
                .require_list()
                .and_then(|list| list.parse_args_with(all))
                .is_ok_and(|conditions| conditions.iter().any(needs_test))
}

/// One name that a `use` brings in.
pub struct Import {
    /// The path as written.
    pub path: Vec<String>,
    /// The name it has from here on; `None` where `*` brings in all that is there.
    pub name: Option<String>,
    /// The line it stands at, from 1.
    pub line: usize,
}

/// Every name that the tree of a `use` brings in.
pub fn imports(tree: &syn::UseTree) -> Vec<Import> {
    let mut found = Vec::new();
    import(&mut Vec::new(), tree, &mut found);
    found
}

fn import(prefix: &mut Vec<String>, tree: &syn::UseTree, found: &mut Vec<Import>) {
    let mut leaf = |ident: &syn::Ident, name: Option<String>| {
        let mut path = prefix.clone();
        if ident != "self" {
            path.push(ident.to_string());
        }
        let name = name.or_else(|| path.last().cloned());
        found.push(Import { path, name, line: line(ident) });
    };
    match tree {
        syn::UseTree::Path(path) => {
            prefix.push(path.ident.to_string());
            import(prefix, &path.tree, found);
            prefix.pop();
        }
        syn::UseTree::Group(group) => group.items.iter().for_each(|tree| import(prefix, tree, found)),
        syn::UseTree::Name(name) => leaf(&name.ident, None),
        syn::UseTree::Rename(rename) => leaf(&rename.ident, Some(rename.rename.to_string())),
        syn::UseTree::Glob(glob) => found.push(Import { path: prefix.clone(), name: None, line: line(glob) }),
    }
}

/// The paths of two names and more in the body of a macro, which is no syntax tree yet.
pub fn macro_paths(tokens: proc_macro2::TokenStream, found: &mut Vec<Vec<String>>) {
    let mut path: Vec<String> = Vec::new();
    let mut colons = 0;
    for token in tokens {
        match token {
            proc_macro2::TokenTree::Ident(ident) => {
                if colons != 2 {
                    path.clear();
                }
                path.push(ident.to_string());
                colons = 0;
                if path.len() > 1 {
                    found.push(path.clone());
                }
            }
            proc_macro2::TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
            other => {
                path.clear();
                colons = 0;
                if let proc_macro2::TokenTree::Group(group) = other {
                    macro_paths(group.stream(), found);
                }
            }
        }
    }
}

/// The visibility and the name of an item that has both.
pub fn named(item: &syn::Item) -> Option<(&syn::Visibility, &syn::Ident)> {
    Some(match item {
        syn::Item::Const(item) => (&item.vis, &item.ident),
        syn::Item::Enum(item) => (&item.vis, &item.ident),
        syn::Item::Fn(item) => (&item.vis, &item.sig.ident),
        syn::Item::Mod(item) => (&item.vis, &item.ident),
        syn::Item::Static(item) => (&item.vis, &item.ident),
        syn::Item::Struct(item) => (&item.vis, &item.ident),
        syn::Item::Trait(item) => (&item.vis, &item.ident),
        syn::Item::Type(item) => (&item.vis, &item.ident),
        syn::Item::Union(item) => (&item.vis, &item.ident),
        _ => return None,
    })
}

/// The attributes of an item.
pub fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Macro(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Trait(item) => &item.attrs,
        syn::Item::Type(item) => &item.attrs,
        syn::Item::Union(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// The names of a path, as written.
pub fn written(path: &syn::Path) -> Vec<String> {
    path.segments.iter().map(|segment| segment.ident.to_string()).collect()
}

/// Whether the file has the inner attribute `#![name(argument)]`.
pub fn has_inner(file: &syn::File, name: &str, argument: &str) -> bool {
    file.attrs.iter().any(|attribute| {
        attribute.path().is_ident(name)
            && attribute
                .meta
                .require_list()
                .is_ok_and(|list| list.tokens.clone().into_iter().any(|token| token.to_string() == argument))
    })
}

/// The last line of a node, from 1.
pub fn last_line(node: &impl syn::spanned::Spanned) -> usize {
    node.span().end().line
}

/// Whether any token of a macro's body is the keyword `unsafe`; gives the lines.
pub fn unsafe_lines(tokens: proc_macro2::TokenStream, lines: &mut Vec<usize>) {
    for token in tokens {
        match token {
            proc_macro2::TokenTree::Ident(ident) if ident == "unsafe" => {
                lines.push(ident.span().start().line);
            }
            proc_macro2::TokenTree::Group(group) => unsafe_lines(group.stream(), lines),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{expect_one, source};
    use super::*;

    #[test]
    fn what_does_not_parse_is_found_and_the_rest_goes_on() {
        let mut findings = Vec::new();
        let sources = [source("a.rs", "//! a\nfn (\n"), source("b.rs", "//! b\n"), source("c.md", "fn (")];
        assert_eq!(parse(&sources, &mut findings).len(), 1);
        expect_one(&findings, 2, "does not parse");
    }

    #[test]
    fn a_use_brings_in_each_name_of_its_tree() {
        let item: syn::ItemUse = syn::parse_str("use a::{self, b::C as D, c::*};").unwrap();
        let found: Vec<(String, Option<String>)> =
            imports(&item.tree).into_iter().map(|import| (import.path.join("::"), import.name)).collect();
        let named = |path: &str, name: &str| (path.to_owned(), Some(name.to_owned()));
        assert_eq!(found, [named("a", "a"), named("a::b::C", "D"), ("a::c".to_owned(), None)]);
    }

    #[test]
    fn paths_in_the_body_of_a_macro_are_seen() {
        let tokens = "x == super::a::B, f(c::d(y)), (g: h)".parse().unwrap();
        let mut found = Vec::new();
        macro_paths(tokens, &mut found);
        let found: Vec<String> = found.iter().map(|path| path.join("::")).collect();
        assert_eq!(found, ["super::a", "super::a::B", "c::d"]);
    }

    #[test]
    fn tests_are_told_by_their_attribute() {
        let text = "#[cfg(test)] mod a {} #[cfg(unix)] mod b {} #[cfg(all(unix, test))] mod c {} #[cfg(not(test))] mod d {}";
        let file: syn::File = syn::parse_str(text).unwrap();
        let flags: Vec<bool> = file
            .items
            .iter()
            .map(|item| matches!(item, syn::Item::Mod(module) if is_test(&module.attrs)))
            .collect();
        assert_eq!(flags, [true, false, true, false]);
    }
}
