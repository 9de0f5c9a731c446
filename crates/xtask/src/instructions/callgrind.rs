//! Reads what callgrind writes: the instructions of each source file.
//!
//! A function's lines carry the file that they come from, also where the compiler has inlined them. Lines of the standard library
//! and of other crates that were inlined count for the file of the function that holds them: an `Option` that `write.rs` opens is
//! an instruction of `write.rs`.
//!
//! The format (callgrind's manual, "Callgrind Format Specification"): `fl=` names the file of the functions that follow, `fn=` a
//! function, `fi=` and `fe=` the file of the lines that follow. Names are given once, with a number, and later by the number
//! alone. A line of two numbers is a position and its instructions; after `calls=` it has those of the called function, which
//! count there.

use std::collections::{BTreeMap, HashMap};

use anyhow::{Context, Result, ensure};

/// Instructions by source file.
pub fn by_file(text: &str) -> Result<BTreeMap<String, u64>> {
    let (mut names, mut counts) = (HashMap::<&str, &str>::new(), BTreeMap::<String, u64>::new());
    let (mut file, mut home) = ("???", "???");
    let (mut is_call, mut total) = (false, None);
    for line in text.lines() {
        if let Some((key, value)) = line.split_once('=') {
            match key {
                "fl" | "fi" | "fe" => file = named(&mut names, value)?,
                "cfi" | "cfl" => drop(named(&mut names, value)?),
                "fn" => home = file,
                "calls" => is_call = true,
                _ => {}
            }
        } else if let Some(of_all) = line.strip_prefix("summary: ") {
            total = Some(of_all.trim().parse::<u64>().context("the summary")?);
        } else if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) {
            let count = line.split(' ').nth(1).unwrap_or("0");
            let count: u64 = count.parse().with_context(|| format!("{line:?}: not a count"))?;
            if !std::mem::take(&mut is_call) {
                let owner = if is_foreign(file) { home } else { file };
                *counts.entry(owner.to_owned()).or_default() += count;
            }
        }
    }
    let total = total.context("no summary: the run has not ended as it should")?;
    let sum: u64 = counts.values().sum();
    // Instructions before the first function are in no file.
    ensure!(sum.abs_diff(total) <= total / 100, "{sum} instructions in files, {total} in the summary");
    Ok(counts)
}

/// The name in `(NUMBER) NAME`, or the one that the number was given before.
fn named<'a>(names: &mut HashMap<&'a str, &'a str>, value: &'a str) -> Result<&'a str> {
    let Some((number, name)) = value.split_once(' ') else {
        return names.get(value).copied().with_context(|| format!("{value} has no name"));
    };
    names.insert(number, name);
    Ok(name)
}

/// Whether a file belongs to another project.
fn is_foreign(path: &str) -> bool {
    path.contains("/rustc/") || path.contains("/registry/src/") || path == "???"
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "\
# callgrind format
version: 1
events: Ir
summary: 1066

fl=(1) crates/engine/src/stripe/write.rs
fn=(1) write
10 7
+2 3
fi=(2) /rustc/0/library/core/src/option.rs
700 40
fe=(1)
12 5
cfi=(3) crates/parity/src/lib.rs
cfn=(2) update
calls=2 30
13 1000
* 1

fl=(3)
fn=(2)
30 900
fi=(1)
-20 10
fi=(2)
700 100
";

    #[test]
    fn inlined_lines_count_where_they_belong() {
        let counts = by_file(FILE).expect("a file of callgrind");
        let expected = [("crates/engine/src/stripe/write.rs", 66), ("crates/parity/src/lib.rs", 1000)];
        assert_eq!(counts, expected.map(|(path, count)| (path.to_owned(), count)).into());
    }

    #[test]
    fn a_file_that_was_cut_short_is_refused() {
        for (text, what) in [
            (FILE.replace("summary: 1066\n", ""), "no summary"),
            (FILE.replace("summary: 1066", "summary: 9999"), "1066 instructions in files"),
            (FILE.replace("fl=(3)\n", "fl=(9)\n"), "(9) has no name"),
            (FILE.replace("30 900", "30 many"), "not a count"),
        ] {
            let error = format!("{:#}", by_file(&text).expect_err(what));
            assert!(error.contains(what), "{error}");
        }
    }
}
