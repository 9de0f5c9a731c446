//! Many mutants in one build: a changed function has its body once for each of its mutants, and the environment says
//! which one runs.
//!
//! `fn f() -> T { body }` becomes `fn f() -> T { if crate::planted::is(3) { body of mutant 3 } else { body } }`. Nine
//! tenths of the time went into building when each mutant was built by itself. That is left for what cannot stand in such
//! a branch: a constant or a type, a `const fn`, and a function that returns `impl Trait`, whose bodies would be two types.

use std::ops::Range;

use anyhow::{Context, Result};
use syn::spanned::Spanned;
use syn::visit::Visit;

use super::list::Mutant;

/// The environment variable that names the mutant that runs, by its number.
pub const PLANTED: &str = "TWILL_MUTANT";

/// What is appended to `lib.rs` of each crate with mutants.
pub const PLANTED_MODULE: &str = r#"
#[allow(missing_docs)]
pub mod planted {
    /// Whether this mutant runs.
    pub fn is(mutant: u32) -> bool {
        static RUNS: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
        let named = || std::env::var("TWILL_MUTANT").ok().and_then(|number| number.parse().ok());
        *RUNS.get_or_init(|| named().unwrap_or(u32::MAX)) == mutant
    }
}
"#;

/// A mutant and its number, which is its place in the list.
pub type Numbered<'a> = (usize, &'a Mutant);

/// A file with mutants.
#[derive(Debug, Default)]
pub struct Bundled {
    pub text: String,
    /// The lines, from 1, of each mutant's body.
    bodies: Vec<(Range<usize>, usize)>,
    /// The lines of each changed function, and its mutants.
    functions: Vec<(Range<usize>, Vec<usize>)>,
    /// Mutants that must be built by themselves.
    pub apart: Vec<usize>,
}

impl Bundled {
    /// The mutants because of which this line does not compile: that of the body it is in, else all of the function.
    pub fn mutants_at(&self, line: usize) -> Vec<usize> {
        let body = self.bodies.iter().find(|(lines, _)| lines.contains(&line));
        let function = || self.functions.iter().find(|(lines, _)| lines.contains(&line));
        match body {
            Some((_, mutant)) => vec![*mutant],
            None => function().map(|(_, mutants)| mutants.clone()).unwrap_or_default(),
        }
    }
}

/// Puts all mutants of a file into it.
pub fn bundle(text: &str, mutants: &[Numbered]) -> Result<Bundled> {
    let mut functions = Functions::default();
    functions.visit_file(&syn::parse_file(text).context("it is not Rust")?);
    let mut changed: Vec<(Function, Vec<Numbered>)> = Vec::new();
    let mut bundled = Bundled::default();
    for (number, mutant) in mutants {
        let place = text.find(&mutant.find).map(|start| start..start + mutant.find.len());
        match place.and_then(|place| functions.around(&place)) {
            None => bundled.apart.push(*number),
            Some(function) => match changed.iter_mut().find(|(known, _)| known.block == function.block) {
                Some((_, of_it)) => of_it.push((*number, mutant)),
                None => changed.push((function.clone(), vec![(*number, mutant)])),
            },
        }
    }
    changed.sort_by_key(|(function, _)| function.block.start);
    let mut copied = 0;
    for (function, of_it) in changed {
        bundled.text += &text[copied..function.block.start];
        copied = function.block.end;
        put(&mut bundled, &text[function.block], &of_it);
    }
    bundled.text += &text[copied..];
    Ok(bundled)
}

/// Appends a function's body, and before it those of its mutants.
fn put(bundled: &mut Bundled, body: &str, mutants: &[Numbered]) {
    let start = line_of(&bundled.text);
    bundled.text += "{ ";
    for (number, mutant) in mutants {
        let first = line_of(&bundled.text);
        let changed = body.replacen(&mutant.find, &mutant.replace, 1);
        bundled.text += &format!("if crate::planted::is({number}) {changed}\nelse ");
        bundled.bodies.push((first..line_of(&bundled.text), *number));
    }
    bundled.text += body;
    bundled.text += " }";
    let numbers = mutants.iter().map(|(number, _)| *number).collect();
    bundled.functions.push((start..line_of(&bundled.text) + 1, numbers));
}

fn line_of(text: &str) -> usize {
    text.matches('\n').count() + 1
}

/// A function whose body may stand in a branch.
#[derive(Clone, Debug)]
struct Function {
    /// From its opening brace behind its closing one, in bytes.
    block: Range<usize>,
}

/// The outermost functions of a file.
#[derive(Default)]
struct Functions {
    all: Vec<Function>,
}

impl Functions {
    fn around(&self, place: &Range<usize>) -> Option<&Function> {
        // Behind the brace: what replaces the place cannot change where the body begins.
        self.all.iter().find(|function| function.block.start < place.start && place.end < function.block.end)
    }

    fn note(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let mut opaque = Opaque::default();
        opaque.visit_return_type(&signature.output);
        if signature.constness.is_none() && !opaque.found {
            self.all.push(Function { block: block.span().byte_range() });
        }
    }
}

/// A body is not entered: a function in a function belongs to the outer one.
impl Visit<'_> for Functions {
    fn visit_item_fn(&mut self, function: &syn::ItemFn) {
        self.note(&function.sig, &function.block);
    }

    fn visit_impl_item_fn(&mut self, function: &syn::ImplItemFn) {
        self.note(&function.sig, &function.block);
    }

    fn visit_trait_item_fn(&mut self, function: &syn::TraitItemFn) {
        if let Some(block) = &function.default {
            self.note(&function.sig, block);
        }
    }
}

#[derive(Default)]
struct Opaque {
    found: bool,
}

impl Visit<'_> for Opaque {
    fn visit_type_impl_trait(&mut self, _: &syn::TypeImplTrait) {
        self.found = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mutant(find: &str, replace: &str) -> Mutant {
        let [name, file] = ["a".to_owned(), "f".to_owned()];
        Mutant { name, file, find: find.to_owned(), replace: replace.to_owned(), suites: Vec::new() }
    }

    const TEXT: &str = "const A: u32 = 1;\n\
                        fn é() -> u32 {\n    2\n}\n\
                        struct S;\n\
                        impl S {\n    fn f(&self) -> u32 {\n        fn inner() -> u32 { 3 }\n        inner() + 4\n    }\n\
                            const fn g() -> u32 { 5 }\n    fn h() -> impl Iterator<Item = u32> { [6].into_iter() }\n}\n";

    #[test]
    fn each_body_stands_once_for_each_mutant_and_once_as_it_is() {
        let planted = [mutant("    2", "    20"), mutant("{ 3 }", "{ 30 }"), mutant("+ 4", "+ 40")];
        let numbered: Vec<Numbered> = planted.iter().enumerate().collect();
        let bundled = bundle(TEXT, &numbered).expect("Rust");
        assert!(bundled.apart.is_empty());
        let text = &bundled.text;
        assert!(
            text.contains("fn é() -> u32 { if crate::planted::is(0) {\n    20\n}\nelse {\n    2\n} }\n"),
            "{text}"
        );
        for (of_it, count) in [("{ 30 }", 1), ("{ 3 }", 2), ("inner() + 40", 1), ("inner() + 4\n", 2)] {
            assert_eq!(text.matches(of_it).count(), count, "{of_it} in {text}");
        }
        syn::parse_file(text).expect("still Rust");
    }

    #[test]
    fn what_cannot_stand_in_a_branch_is_built_by_itself() {
        let planted = [
            mutant("= 1", "= 10"),
            mutant("5", "50"),
            mutant("[6]", "[60]"),
            mutant("u32 {\n    2", "u32 {"),
        ];
        let numbered: Vec<Numbered> = planted.iter().enumerate().collect();
        let bundled = bundle(TEXT, &numbered).expect("Rust");
        assert_eq!((bundled.apart, bundled.text.as_str()), (vec![0, 1, 2, 3], TEXT));
    }

    #[test]
    fn a_line_that_does_not_compile_tells_which_mutant_it_is() {
        let planted = [mutant("inner() + 4", "inner() + four"), mutant("{ 3 }", "{ three }")];
        let numbered: Vec<Numbered> = planted.iter().enumerate().collect();
        let bundled = bundle(TEXT, &numbered).expect("Rust");
        let line = |what: &str| line_of(&bundled.text[..bundled.text.find(what).expect("it is there")]);
        assert_eq!(bundled.mutants_at(line("four")), [0]);
        assert_eq!(bundled.mutants_at(line("three")), [1]);
        let as_it_was = bundled.text.rfind("inner() + 4").expect("it is there");
        assert_eq!(bundled.mutants_at(line_of(&bundled.text[..as_it_was])), [0, 1]);
        assert_eq!(bundled.mutants_at(1), [0_usize; 0]);
    }
}
