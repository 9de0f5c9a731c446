//! twill
fn main() {}
