//! The configuration of `serve --all`: which arrays, and how each is served.
//!
//! ```toml
//! [defaults]            # options of `serve`, for every array
//! re-add = true
//!
//! [array.store]         # an array by its name, or by its UUID: [array."…"]
//! ublk = 0
//! ```

use std::path::Path;

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::settings::{Place, Settings, Wrong};
use crate::array_name;
use crate::array_uuid::{self, is_same};
use crate::exit::ExitKind;
use crate::failure::{Failure, Problem};

/// What the file says.
#[derive(Debug, Default)]
pub struct Configuration {
    /// Settings of every array.
    pub defaults: Settings,
    /// Arrays in the order of the file.
    pub arrays: Vec<Listed>,
}

/// An array of the configuration.
#[derive(Debug)]
pub struct Listed {
    /// Its name or UUID.
    pub key: String,
    /// What holds for it alone.
    pub settings: Settings,
}

/// Reads the configuration in a file.
///
/// # Errors
/// [`ExitKind::Usage`] with every line that is wrong; what the system says.
pub fn read(path: &Path) -> Result<Configuration, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| Failure::from_io("read", path, &error))?;
    parse(path, &text)
}

/// What a text says that stands at `path`.
fn parse(path: &Path, text: &str) -> Result<Configuration, Failure> {
    let mut reader = Reader { path, text, configuration: Configuration::default(), problems: Vec::new() };
    let (document, errors) = DeTable::parse_recoverable(text);
    for error in errors {
        let help = "tables are [defaults] and [array.NAME], settings are NAME = VALUE: see docs/boot.md";
        reader.wrong(error.span().map_or(0, |span| span.start), Wrong::new(error.message(), help));
    }
    if reader.problems.is_empty() {
        reader.document(document.get_ref());
    }
    match reader.problems.is_empty() {
        true => Ok(reader.configuration),
        false => Err(Failure::from_problems("the configuration is wrong", reader.problems)
            .help("nothing was changed; put it right and try again")),
    }
}

struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
    configuration: Configuration,
    problems: Vec<Problem>,
}

impl Reader<'_> {
    fn document(&mut self, document: &DeTable<'_>) {
        // First, wherever it stands: it is a part of what every array has.
        if let Some(DeValue::Table(table)) = document.get("defaults").map(Spanned::get_ref) {
            self.configuration.defaults = self.settings(table, Place::Defaults);
        }
        for (name, value) in in_order(document) {
            match (name.get_ref().as_ref(), value.get_ref()) {
                ("defaults", DeValue::Table(_)) => {}
                ("array", DeValue::Table(arrays)) => {
                    for (key, value) in in_order(arrays) {
                        self.array(key, value);
                    }
                }
                (other, _) => {
                    let help =
                        "settings of all arrays stand below [defaults], those of one below [array.NAME]";
                    let what = format!("{other} is no part of a configuration");
                    self.wrong(name.span().start, Wrong::new(what, help));
                }
            }
        }
    }

    fn array(&mut self, key: &Spanned<DeString<'_>>, value: &Spanned<DeValue<'_>>) {
        let DeValue::Table(table) = value.get_ref() else {
            let what = format!("array.{} is no table", key.get_ref());
            return self
                .wrong(key.span().start, Wrong::new(what, "write [array.NAME], and its settings below"));
        };
        let name = key.get_ref().as_ref();
        if array_uuid::parse(name).is_none() && array_name::checked(name).is_err() {
            let what = format!("{name:?} is neither a name nor a UUID of an array");
            return self
                .wrong(key.span().start, Wrong::new(what, "twill list --scan has both of every array"));
        }
        if self.configuration.arrays.iter().any(|other| is_same(&other.key, name)) {
            let help = "leave one of the tables out";
            return self.wrong(key.span().start, Wrong::new(format!("{name} is listed twice"), help));
        }
        let settings = self.settings(table, Place::Array);
        if let Err(wrong) = self.configuration.defaults.overridden_by(&settings).arguments() {
            self.wrong(key.span().start, wrong);
        }
        self.configuration.arrays.push(Listed { key: name.to_owned(), settings });
    }

    fn settings(&mut self, table: &DeTable<'_>, place: Place) -> Settings {
        let mut settings = Settings::default();
        for (name, value) in in_order(table) {
            if let Err(wrong) = settings.add(name.get_ref(), value.get_ref(), place) {
                self.wrong(name.span().start, wrong);
            }
        }
        settings
    }

    fn wrong(&mut self, at: usize, Wrong { what, help }: Wrong) {
        let place = format!("{}:{}", self.path.display(), self.line(at));
        self.problems.push(Problem::new(ExitKind::Usage, Path::new(&place), what).help(help));
    }

    /// The line that has this byte, counted from 1.
    fn line(&self, at: usize) -> usize {
        let before = self.text.as_bytes().iter().take(at);
        before.filter(|byte| **byte == b'\n').count() + 1
    }
}

type Entry<'a, 'i> = (&'a Spanned<DeString<'i>>, &'a Spanned<DeValue<'i>>);

/// The entries of a table as they stand in the file.
fn in_order<'a, 'i>(table: &'a DeTable<'i>) -> Vec<Entry<'a, 'i>> {
    let mut entries: Vec<Entry<'a, 'i>> = table.iter().collect();
    entries.sort_by_key(|(name, _)| name.span().start);
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        let failure = parse(Path::new("twill.toml"), text).expect_err(text);
        assert_eq!(failure.kind, ExitKind::Usage);
        let words = |problem: &Problem| {
            format!("{}: {}; {}", problem.member, problem.what, problem.help.as_deref().unwrap_or_default())
        };
        failure.problems.iter().map(words).collect()
    }

    #[test]
    fn settings_of_an_array_override_the_defaults() {
        let text = "[defaults]\nublk = true\nre-add = true\nwait-members = \"30s\"\n\n[array.store]\nublk = 3\n\n\
                    [array.\"00112233:44556677:8899aabb:ccddeeff\"]\nublk = false\nre-add = false\n\
                    members = [\"/dev/a\", \"/dev/b\"]\ntcp = [\"127.0.0.1:1\", \"127.0.0.1:2\"]\nshards = 2\n";
        let read = parse(Path::new("x"), text).expect("right");
        let of = |index: usize| {
            read.defaults.overridden_by(&read.arrays[index].settings).arguments().expect("right")
        };
        let store = of(0);
        assert_eq!(read.arrays[0].key, "store");
        assert_eq!((store.ublk, store.re_add), (Some(Some(3)), true));
        assert_eq!(store.choice.wait_members, Some(std::time::Duration::from_secs(30)));
        assert_eq!(store.choice.scan, Some(Vec::new()), "all block devices");
        let other = of(1);
        assert_eq!((other.ublk, other.re_add, other.shards), (None, false, Some(2)));
        assert_eq!((other.choice.members.len(), other.tcp.len()), (2, 2));
        assert_eq!(other.choice.scan, None);
    }

    #[test]
    fn the_example_of_the_package_is_right() {
        let text = include_str!("../../../../../../packaging/twill.toml");
        let read = parse(Path::new("twill.toml"), text).expect("right");
        let store = read.defaults.overridden_by(&read.arrays[0].settings).arguments().expect("right");
        assert_eq!((store.ublk, store.spare_group.as_deref()), (Some(Some(0)), Some("rack")));
        // What is commented out is right too.
        let all =
            text.replace("\n#[", "\n[").replace("\n#m", "\nm").replace("\n#u", "\nu").replace("\n#t", "\nt");
        let read = parse(Path::new("twill.toml"), &all).expect("right");
        assert_eq!(read.arrays.len(), 2);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line_and_what_helps() {
        for (text, wanted) in [
            (
                "[defaults]\nread = 1\nre-ad = true\n",
                vec![
                    "twill.toml:2: twill serve has no option read",
                    "twill.toml:3: twill serve has no option re-ad; is re-add meant?",
                ],
            ),
            (
                "[array.store]\nre-add = \"yes\"\n",
                vec!["twill.toml:2: re-add is on or off; write re-add = true"],
            ),
            (
                "[array.store]\nshards = 0\n",
                vec!["twill.toml:2: invalid value '0' for '--shards <N>': 0 is not in 1..=256"],
            ),
            (
                "[defaults]\nublk = 1\n",
                vec![
                    "twill.toml:2: ublk with a number cannot hold for every array; put it into the table of one",
                ],
            ),
            ("[defaults]\nunix = \"/run/a\"\n", vec!["twill.toml:2: unix cannot hold for every array"]),
            ("[array.store]\ndaemon = true\n", vec!["twill.toml:2: daemon is said of the process"]),
            (
                "[array.store]\nkeep-alive-tmo = 3\n",
                vec!["twill.toml:2: keep-alive-tmo is said of the process"],
            ),
            ("[array.store]\nforce = true\n", vec!["twill.toml:2: force gives something up"]),
            (
                "[array.store]\nname = \"x\"\n",
                vec!["twill.toml:2: name: the name of a table says which array is meant"],
            ),
            ("[array.store]\nmembers = [\"m0\"]\n", vec!["twill.toml:2: m0 is no whole path"]),
            ("[array.store]\nmembers = []\n", vec!["twill.toml:2: members is empty"]),
            ("[array.\"a/b\"]\n", vec!["twill.toml:1: \"a/b\" is neither a name nor a UUID"]),
            (
                "[array.\"00112233445566778899aabbccddeeff\"]\n[array.\"00112233:44556677:8899AABB:ccddeeff\"]\n",
                vec!["twill.toml:2: 00112233:44556677:8899AABB:ccddeeff is listed twice"],
            ),
            (
                "ublk = true\n",
                vec![
                    "twill.toml:1: ublk is no part of a configuration; settings of all arrays stand below [defaults]",
                ],
            ),
            ("[array]\nstore = 1\n", vec!["twill.toml:2: array.store is no table"]),
            ("[array.store]\n\nre-add = \n", vec!["twill.toml:3: "]),
            (
                "[array.store]\nno-degraded = true\nrun = true\n",
                vec!["twill.toml:1: the argument '--no-degraded' cannot be used with '--run'"],
            ),
            (
                "[array.store]\nno-degraded = true\n\n[defaults]\nrun = true\n",
                vec!["twill.toml:1: the argument '--no-degraded' cannot be used with '--run'"],
            ),
            (
                "[array.store]\nnvme-nqn = \"nqn.2026-11.example:a\"\n",
                vec!["twill.toml:1: the following required arguments were not provided: --nvme-tcp"],
            ),
        ] {
            let said = problems(text);
            assert_eq!(said.len(), wanted.len(), "{text}: {said:?}");
            for (said, wanted) in said.iter().zip(wanted) {
                assert!(said.starts_with(wanted), "{text}: {said}");
            }
        }
    }
}
