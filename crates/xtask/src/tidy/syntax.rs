//! Parsed Rust files, and how the rules walk them.

use super::{Finding, Source};

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

/// Whether `#[cfg(test)]` or `#[test]` (of any harness) stands on it.
pub fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let path = attribute.path();
        path.segments.last().is_some_and(|last| last.ident == "test")
            || path.is_ident("cfg")
                && attribute.meta.require_list().is_ok_and(|list| {
                    list.tokens.clone().into_iter().any(|token| token.to_string() == "test")
                })
    })
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
    fn tests_are_told_by_their_attribute() {
        let file: syn::File = syn::parse_str("#[cfg(test)] mod a {} #[cfg(unix)] mod b {}").unwrap();
        let flags: Vec<bool> = file
            .items
            .iter()
            .map(|item| matches!(item, syn::Item::Mod(module) if is_test(&module.attrs)))
            .collect();
        assert_eq!(flags, [true, false]);
    }
}
