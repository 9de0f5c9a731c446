//! The counts that the repository holds each row to.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// Where they are, from the root on.
const PATH: &str = "crates/xtask/instructions.toml";

/// How much a count may exceed its entry. Repeated counts differ by less than a tenth of that.
const GROWTH_PERCENT_MAX: f64 = 2.0;

/// The same, where another compiler made the program than the one that the entries are of.
const GROWTH_PERCENT_MAX_OTHER_COMPILER: f64 = 10.0;

/// The list.
#[derive(Default, Debug, PartialEq, Serialize, Deserialize)]
pub struct Listed {
    /// What made the program that was counted, as `rustc --version` says it.
    compiler: String,
    /// Instructions of a request, by the name of its row.
    rows: BTreeMap<String, u64>,
}

/// A count beside its entry.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase", tag = "kind")]
pub enum Verdict {
    /// Within what is allowed.
    Holds { listed: u64, growth_percent: f64 },
    /// More than is allowed.
    Grown { listed: u64, growth_percent: f64 },
    /// So much less that the entry should be lowered.
    Shrunk { listed: u64, growth_percent: f64 },
    /// There is no entry.
    Unlisted,
}

impl Verdict {
    /// Whether the check fails for it.
    pub fn is_failure(self) -> bool {
        matches!(self, Verdict::Grown { .. } | Verdict::Unlisted)
    }

    /// For people: what it is, and what to do.
    pub fn words(self) -> String {
        match self {
            Verdict::Holds { listed, growth_percent } => format!("{growth_percent:+.1} % of {listed}"),
            Verdict::Grown { listed, growth_percent } => format!(
                "{growth_percent:+.1} % of {listed}: GROWN; --keep FOLDER and callgrind_annotate show where, and \
                 --update-ratchet --admit accepts it"
            ),
            Verdict::Shrunk { listed, growth_percent } => format!(
                "{growth_percent:+.1} % of {listed}: lower it with cargo xtask instructions --update-ratchet"
            ),
            Verdict::Unlisted => format!("is not in {PATH}: --update-ratchet --admit enters it"),
        }
    }
}

impl Listed {
    /// Reads the list; an absent file is an empty one.
    pub fn read(root: &Path) -> Result<Listed> {
        let path = root.join(PATH);
        if !path.exists() {
            return Ok(Listed::default());
        }
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        toml::from_str(&text).with_context(|| path.display().to_string())
    }

    /// Writes it.
    pub fn write(&self, root: &Path) -> Result<()> {
        let mut text = format!(
            "# Instructions of one request, all in, as `cargo xtask instructions` counts them: a row may grow by {GROWTH_PERCENT_MAX} %,\n\
             # made by another compiler by {GROWTH_PERCENT_MAX_OTHER_COMPILER} %. It only shrinks: `cargo xtask instructions --update-ratchet`.\n\
             compiler = {:?}\n\n[rows]\n",
            self.compiler
        );
        for (name, count) in &self.rows {
            text.push_str(&format!("{name:?} = {count}\n"));
        }
        let path = root.join(PATH);
        std::fs::write(&path, text).with_context(|| path.display().to_string())
    }

    /// By how much a program of this compiler may exceed its entries.
    pub fn growth_percent_max(&self, compiler: &str) -> f64 {
        if compiler == self.compiler { GROWTH_PERCENT_MAX } else { GROWTH_PERCENT_MAX_OTHER_COMPILER }
    }

    /// Compares a count with its entry.
    pub fn judge(&self, name: &str, count: f64, growth_percent_max: f64) -> Verdict {
        let Some(&listed) = self.rows.get(name) else { return Verdict::Unlisted };
        let growth_percent = 100.0 * (count / listed as f64 - 1.0);
        if growth_percent > growth_percent_max {
            Verdict::Grown { listed, growth_percent }
        } else if growth_percent < -growth_percent_max {
            Verdict::Shrunk { listed, growth_percent }
        } else {
            Verdict::Holds { listed, growth_percent }
        }
    }

    /// Lowers entries to these counts; with `admit` also raises them and enters new ones. Counts of another compiler replace
    /// entries with `admit` only: they do not compare.
    pub fn update<'a>(&mut self, counts: impl Iterator<Item = (&'a str, f64)>, compiler: &str, admit: bool) {
        if admit {
            compiler.clone_into(&mut self.compiler);
        }
        for (name, count) in counts {
            let count = count.round() as u64;
            match self.rows.get_mut(name) {
                Some(listed) if admit || (compiler == self.compiler && count < *listed) => *listed = count,
                Some(_) => {}
                None if admit => drop(self.rows.insert(name.to_owned(), count)),
                None => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list() -> Listed {
        Listed { compiler: "rustc 1.90".into(), rows: [("read".to_owned(), 1000)].into() }
    }

    #[test]
    fn a_row_may_grow_a_little_and_fails_beyond() {
        let list = list();
        let most = list.growth_percent_max("rustc 1.90");
        for (count, is_failure, word) in [
            (1000.0, false, "+0.0 %"),
            (1019.0, false, "+1.9 %"),
            (1021.0, true, "GROWN"),
            (979.0, false, "lower it"),
        ] {
            let verdict = list.judge("read", count, most);
            assert_eq!(verdict.is_failure(), is_failure, "{verdict:?}");
            assert!(verdict.words().contains(word), "{}", verdict.words());
        }
        assert!(list.judge("write", 1.0, most).is_failure(), "a row without an entry is held to nothing");
        let other = list.growth_percent_max("rustc 1.91");
        assert!(!list.judge("read", 1090.0, other).is_failure());
        assert!(list.judge("read", 1110.0, other).is_failure());
    }

    #[test]
    fn entries_go_down_and_up_only_when_asked() {
        let counts = || [("read", 900.0), ("write", 5000.0)].into_iter();
        let mut listed = list();
        listed.update(counts(), "rustc 1.90", false);
        assert_eq!(listed.rows, [("read".to_owned(), 900)].into());
        listed.update([("read", 950.0)].into_iter(), "rustc 1.90", false);
        listed.update([("read", 850.0)].into_iter(), "rustc 1.91", false);
        assert_eq!(listed.rows["read"], 900, "neither up nor to another compiler's unasked");
        listed.update([("read", 950.0), ("write", 5000.0)].into_iter(), "rustc 1.91", true);
        assert_eq!((listed.rows["read"], listed.rows["write"]), (950, 5000));
        let root = tempfile::tempdir().expect("a folder");
        std::fs::create_dir_all(root.path().join("crates/xtask")).expect("made");
        listed.write(root.path()).expect("written");
        assert_eq!(Listed::read(root.path()).expect("read"), listed);
    }
}
