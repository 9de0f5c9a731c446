//! What a rule finds: where, what, and what would help.

use std::fmt;

/// One breach of a rule.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// Relative to the root.
    pub path: String,
    /// From 1; 0 when it is the whole file.
    pub line: usize,
    /// What is wrong, why that is a rule, and what would help.
    pub what: String,
}

impl Finding {
    /// A breach of a rule at this place.
    pub fn new(path: &str, line: usize, what: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, what: what.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}: {}", self.path, self.line.max(1), self.what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_reads_like_a_compiler_message() {
        assert_eq!(Finding::new("a.rs", 3, "what; help").to_string(), "a.rs:3: what; help");
    }
}
