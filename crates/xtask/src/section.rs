//! Parts of documents that commands write: what stands between `<!-- NAME begin -->` and `<!-- NAME end -->`.

use std::path::Path;

use anyhow::{Context, Result};

/// Replaces the part `name` of a document, or adds it at the end.
pub fn replace(path: &Path, name: &str, contents: &str) -> Result<()> {
    let old = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    std::fs::write(path, replaced(&old, name, contents)).with_context(|| path.display().to_string())
}

fn replaced(old: &str, name: &str, contents: &str) -> String {
    let (begin, end) = (format!("<!-- {name} begin -->\n"), format!("<!-- {name} end -->\n"));
    let part = format!("{begin}{contents}{end}");
    match (old.split_once(&begin), old.split_once(&end)) {
        (Some((before, _)), Some((_, after))) => format!("{before}{part}{after}"),
        _ => format!("{}\n\n{part}", old.trim_end()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_added_and_then_replaced_and_the_rest_stays() {
        let once = replaced("# a\n", "x", "1\n");
        assert_eq!(once, "# a\n\n<!-- x begin -->\n1\n<!-- x end -->\n");
        let more = format!("{once}\nb\n");
        assert_eq!(replaced(&more, "x", "2\n"), "# a\n\n<!-- x begin -->\n2\n<!-- x end -->\n\nb\n");
    }
}
