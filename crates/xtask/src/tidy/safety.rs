//! Where `unsafe` may stand, and that each one says why it is sound.

use syn::visit::{self, Visit};

use super::finding::Finding;
use super::source::Source;
use super::syntax::{Parsed, has_inner, line, unsafe_lines};

/// Crates that forbid `unsafe` at every root.
const FORBID: &[&str] =
    &["bench", "byte_struct", "charts", "engine", "layout", "nvme_tcp", "sim", "ssdsim", "twill", "xtask"];

/// Where `unsafe` may stand: the SIMD kernels; and in the host what the kernel reads and writes, the memory of memory devices, and
/// the callbacks of OpenSSL.
const ALLOWED: &[&str] = &[
    "crates/parity/",
    "crates/host/src/ring/",
    "crates/host/src/device/ioctl.rs",
    "crates/host/src/export/ublk/kernel.rs",
    "crates/host/src/tls/openssl_keys.rs",
];

/// Checks the roots' attributes, the places, and the comments.
pub fn check(parsed: &[Parsed<'_>], findings: &mut Vec<Finding>) {
    for Parsed { source, file } in parsed {
        if let Some((name, below)) = source.place()
            && FORBID.contains(&name)
            && is_root(below)
            && !has_inner(file, "forbid", "unsafe_code")
        {
            let what = format!("#![forbid(unsafe_code)] is missing; {name} has no unsafe code");
            findings.push(Finding::new(&source.path, 0, what));
        }
        let mut walk = Walk {
            lines: source.text.lines().collect(),
            starts: Vec::new(),
            contract: false,
            found: Vec::new(),
        };
        walk.visit_file(file);
        judge(source, walk.found, findings);
    }
}

fn is_root(below: &str) -> bool {
    matches!(below, "src/lib.rs" | "src/main.rs") || below.starts_with("src/bin/") && below.ends_with(".rs")
}

fn judge(source: &Source, found: Vec<(usize, bool)>, findings: &mut Vec<Finding>) {
    let allowed = ALLOWED.iter().any(|place| source.path.starts_with(place));
    for (line, explained) in found {
        if !allowed {
            let what = "unsafe outside the listed files; use a safe interface of parity or host, or list the file in \
                        crates/xtask/src/tidy/safety.rs and say why in the commit";
            findings.push(Finding::new(&source.path, line, what));
        }
        if !explained {
            let what = "unsafe without a reason; write `// SAFETY:` above it (`# Safety` in a function's documentation) \
                        and name the invariant it rests on";
            findings.push(Finding::new(&source.path, line, what));
        }
    }
}

struct Walk<'a> {
    lines: Vec<&'a str>,
    /// Lines at which the enclosing statements, arms and items start, innermost last.
    starts: Vec<usize>,
    /// Whether the trait or impl around a function states the contract for all its functions.
    contract: bool,
    /// Line of each `unsafe`, and whether a reason was given.
    found: Vec<(usize, bool)>,
}

impl Walk<'_> {
    fn note(&mut self, line: usize) {
        let start = self.starts.last().copied().unwrap_or(line);
        let explained = self.explained_above(line) || self.explained_above(start);
        self.found.push((line, explained));
    }

    /// Whether the comments and attributes right above a line, or the line itself, give the reason.
    fn explained_above(&self, line: usize) -> bool {
        let reasons = ["SAFETY:", "# Safety", "unsafe because"];
        let reason = |text: &str| reasons.iter().any(|words| text.contains(words));
        let above = self.lines[..line.saturating_sub(1)].iter().rev().map(|text| text.trim_start());
        self.lines.get(line - 1).is_some_and(|text| reason(text))
            || above.take_while(|text| text.starts_with("//") || text.starts_with("#[")).any(reason)
    }

    fn within(&mut self, start: usize, visit: impl FnOnce(&mut Self)) {
        self.starts.push(start);
        visit(self);
        self.starts.pop();
    }

    fn function(&mut self, signature: &syn::Signature) {
        if let Some(token) = &signature.unsafety {
            self.note(line(token));
            if let Some(last) = self.found.last_mut() {
                last.1 |= self.contract;
            }
        }
    }
}

impl<'ast> Visit<'ast> for Walk<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        self.within(line(item), |walk| visit::visit_item(walk, item));
    }

    fn visit_impl_item(&mut self, item: &'ast syn::ImplItem) {
        self.within(line(item), |walk| visit::visit_impl_item(walk, item));
    }

    fn visit_trait_item(&mut self, item: &'ast syn::TraitItem) {
        self.within(line(item), |walk| visit::visit_trait_item(walk, item));
    }

    fn visit_stmt(&mut self, statement: &'ast syn::Stmt) {
        self.within(line(statement), |walk| visit::visit_stmt(walk, statement));
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        self.within(line(arm), |walk| visit::visit_arm(walk, arm));
    }

    fn visit_expr_unsafe(&mut self, block: &'ast syn::ExprUnsafe) {
        self.note(line(&block.unsafe_token));
        visit::visit_expr_unsafe(self, block);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if let Some(token) = &item.unsafety {
            self.note(line(token));
        }
        // What a trait's function asks of its caller is written at the trait.
        let outer = self.contract;
        self.contract = item.trait_.is_some() || self.explained_above(line(&item.impl_token));
        visit::visit_item_impl(self, item);
        self.contract = outer;
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        if let Some(token) = &item.unsafety {
            self.note(line(token));
        }
        let outer = self.contract;
        self.contract = self.explained_above(line(&item.trait_token));
        visit::visit_item_trait(self, item);
        self.contract = outer;
    }

    fn visit_item_foreign_mod(&mut self, item: &'ast syn::ItemForeignMod) {
        self.note(line(&item.abi));
        visit::visit_item_foreign_mod(self, item);
    }

    fn visit_signature(&mut self, signature: &'ast syn::Signature) {
        self.function(signature);
        visit::visit_signature(self, signature);
    }

    fn visit_macro(&mut self, mac: &'ast syn::Macro) {
        let mut lines = Vec::new();
        unsafe_lines(mac.tokens.clone(), &mut lines);
        for line in lines {
            let explained = self.explained_above(line);
            self.found.push((line, explained));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{expect_one, found_in_parsed};
    use super::*;

    #[test]
    fn a_root_without_forbid_is_found() {
        expect_one(&found_in_parsed(check, "crates/engine/src/lib.rs", "//! e\n"), 0, "forbid(unsafe_code)");
        assert_eq!(
            found_in_parsed(check, "crates/engine/src/lib.rs", "//! e\n#![forbid(unsafe_code)]\n"),
            []
        );
        assert_eq!(found_in_parsed(check, "crates/parity/src/lib.rs", "//! p\n"), []);
    }

    #[test]
    fn unsafe_in_another_file_is_found() {
        let text = "fn f() {\n    // SAFETY: none needed.\n    unsafe { g() }\n}\n";
        expect_one(&found_in_parsed(check, "crates/host/src/shard.rs", text), 3, "outside the listed files");
        assert_eq!(found_in_parsed(check, "crates/host/src/ring/op.rs", text), []);
    }

    #[test]
    fn unsafe_without_a_reason_is_found_in_each_form() {
        let path = "crates/parity/src/avx2.rs";
        for text in [
            "\nfn f() { unsafe { g() } }",
            "\nunsafe impl Send for A {}",
            "\nunsafe fn f() {}",
            "\nunsafe extern \"C\" { fn f(); }",
            "macro_rules! m { () => {\nunsafe { g() } } }",
            "// SAFETY: of f, not of g.\nunsafe fn g() {}\n//\n"
                .trim_start_matches("// SAFETY: of f, not of g."),
        ] {
            expect_one(&found_in_parsed(check, path, text), 2, "without a reason");
        }
    }

    #[test]
    fn a_reason_above_the_statement_or_in_the_documentation_is_enough() {
        let path = "crates/parity/src/avx2.rs";
        for text in [
            "fn f() {\n    // SAFETY: x is aligned.\n    let y =\n        unsafe { g() };\n}\n",
            "/// Does.\n///\n/// # Safety\n/// x is aligned.\n#[inline]\npub unsafe fn f() {}\n",
            "// SAFETY: no shared state.\nunsafe impl Send for A {}\n",
            "/// Does.\n///\n/// # Safety\n/// x is aligned.\ntrait T {\n    unsafe fn f();\n}\n",
            "/// Methods are unsafe because x is aligned.\ntrait T {\n    unsafe fn f();\n}\n",
            "impl T for A {\n    unsafe fn f() {}\n}\n",
            "fn f() { match x {\n    // SAFETY: x is aligned.\n    1 => unsafe { g() },\n    _ => {} } }\n",
        ] {
            assert_eq!(found_in_parsed(check, path, text), [], "{text}");
        }
    }
}
