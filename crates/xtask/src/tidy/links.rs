//! Links in the project's pages lead to files that exist.

use super::finding::Finding;
use super::source::Source;

/// Checks relative links of every Markdown page; `exists` tells whether a path relative to the root is there.
pub fn check(sources: &[Source], exists: &dyn Fn(&str) -> bool, findings: &mut Vec<Finding>) {
    for source in sources.iter().filter(|source| source.path.ends_with(".md")) {
        let folder = source.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let mut fenced = false;
        for (line, text) in (1..).zip(source.text.lines()) {
            fenced ^= text.trim_start().starts_with("```");
            if fenced || text.starts_with("    ") {
                continue;
            }
            for target in targets(text) {
                let path = target.split_once('#').map_or(target, |(path, _)| path);
                let Some(path) = normal(folder, path) else {
                    let what = format!("link to {target} leaves the project; name the thing instead");
                    findings.push(Finding::new(&source.path, line, what));
                    continue;
                };
                if !exists(&path) {
                    let what =
                        format!("link to {target}, which is not there; correct the path or drop the link");
                    findings.push(Finding::new(&source.path, line, what));
                }
            }
        }
    }
}

/// The relative targets of `[text](target)` in a line.
fn targets(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices("](").filter_map(|(at, _)| {
        let rest = &text[at + 2..];
        let target = rest[..rest.find(')')?].split_whitespace().next().unwrap_or_default();
        (!target.contains("://") && !target.starts_with('#') && !target.starts_with("mailto:"))
            .then_some(target)
    })
}

/// `path` seen from `folder`, without `.` and `..`; `None` if it leaves the root.
fn normal(folder: &str, path: &str) -> Option<String> {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if part == ".." {
            parts.pop()?;
        } else {
            parts.push(part);
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{expect_one, found_in};
    use super::*;

    fn found(path: &str, text: &str) -> Vec<Finding> {
        let there = |path: &str| matches!(path, "" | "README.md" | "docs/a.md");
        found_in(|sources, findings| check(sources, &there, findings), path, text)
    }

    #[test]
    fn a_link_to_nothing_is_found() {
        expect_one(&found("README.md", "a\n[x](docs/b.md)\n"), 2, "docs/b.md, which is not there");
        expect_one(&found("docs/a.md", "[x](../../etc/passwd)\n"), 1, "leaves the project");
    }

    #[test]
    fn good_links_anchors_urls_and_code_pass() {
        let text = "[a](a.md#top) [b](../README.md) [c](https://example.org/x) [d](#here)\n```\n[x](y)\n```\n    [x](y)\n";
        assert_eq!(found("docs/a.md", text), []);
    }
}
