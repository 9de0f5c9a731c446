//! A file that the rules look at.

/// A text file of the checkout.
pub struct Source {
    /// Relative to the root, with `/`.
    pub path: String,
    /// The whole file.
    pub text: String,
    /// Whether its mode lets it be run.
    pub executable: bool,
}

impl Source {
    /// The folder in `crates/` that the file lies in, and its path below that.
    pub fn place(&self) -> Option<(&str, &str)> {
        self.path.strip_prefix("crates/")?.split_once('/')
    }

    /// Whether it is a Rust file.
    pub fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }
}
