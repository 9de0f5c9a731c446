//! Options of `serve` as settings: from the command line of `serve --all` for every array, and from the configuration.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use toml::de::DeValue;

use super::command_line::{OptionKind, is_of_remote_members, option_of_serve, serve_with};
use crate::arguments::{ServeArguments, member_path};
use crate::remote;

/// Options of the process that serves, which its arrays share.
const OF_PROCESS: [&str; 8] = ["all", "config", "join", "daemon", "in-background", "pid-file", "log", "poll"];
/// What only one array can have.
const OF_ONE_ARRAY: [&str; 10] = [
    "members",
    "unix",
    "tcp",
    "vhost-user",
    "nvme-tcp",
    "nvme-nqn",
    "metrics",
    "metrics-token",
    "export-name",
    "control",
];
/// What is decided for one start, and would be forgotten in a file: it gives something up.
const DECIDED_ONCE: [&str; 2] = ["force", "reservations-new"];

/// What is wrong with a setting, and what helps.
#[derive(Debug, PartialEq, Eq)]
pub struct Wrong {
    /// What is wrong.
    pub what: String,
    /// What helps.
    pub help: String,
}

impl Wrong {
    /// This, with what helps.
    pub fn new(what: impl Into<String>, help: impl Into<String>) -> Self {
        Wrong { what: what.into(), help: help.into() }
    }
}

/// Where a setting stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On the command line of `serve --all`, for each of its arrays.
    CommandLine,
    /// In the configuration, for all arrays.
    Defaults,
    /// In the configuration, for one.
    Array,
}

/// Settings of an array: options by name, each with the words of a command line that give it. Without words it is turned off.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    options: BTreeMap<String, Vec<String>>,
    members: Vec<PathBuf>,
}

impl Settings {
    /// Those of the command line of `serve --all`, without what is said of the process.
    ///
    /// # Errors
    /// An option that only one array can have.
    pub fn of_command_line(given: BTreeMap<String, Vec<String>>) -> Result<Self, Wrong> {
        let mut settings = Settings::default();
        for (name, words) in given {
            if OF_PROCESS.contains(&name.as_str()) || is_of_remote_members(&name) {
                continue;
            }
            if ["shards", "control"].contains(&name.as_str()) {
                continue; // of the process here
            }
            check_place(&name, Place::CommandLine, &words)?;
            settings.options.insert(name, words);
        }
        Ok(settings)
    }

    /// Takes one in from the configuration.
    ///
    /// # Errors
    /// There is no such option, or it does not take this value, or not here.
    pub fn add(&mut self, name: &str, value: &DeValue<'_>, place: Place) -> Result<(), Wrong> {
        if name == "members" && place == Place::Array {
            self.members = members(value)?;
            return Ok(());
        }
        check_place(name, place, &[])?;
        let Some(kind) = option_of_serve(name) else { return Err(unknown(name)) };
        let words = words(name, value, kind)?;
        check_place(name, place, &words)?;
        if let Err(error) = serve_with(words.iter().map(OsString::from))
            // Whether options go together is seen when all are there.
            && !matches!(error.kind(), ErrorKind::MissingRequiredArgument | ErrorKind::ArgumentConflict)
        {
            return Err(Wrong::new(said(&error), "twill serve --help says what the option takes"));
        }
        self.options.insert(name.to_owned(), words);
        Ok(())
    }

    /// These, with those of an array in the place of them.
    #[must_use]
    pub fn overridden_by(&self, other: &Settings) -> Settings {
        let mut all = self.clone();
        all.options.extend(other.options.clone());
        all.members.clone_from(&other.members);
        all
    }

    /// The arguments of a `serve` with these options. Without members they are looked for on all block devices.
    ///
    /// # Errors
    /// Options that do not go together.
    pub fn arguments(&self) -> Result<ServeArguments, Wrong> {
        let words = self.options.values().flatten().map(OsString::from);
        let mut arguments = serve_with(words).map_err(|error| {
            Wrong::new(said(&error), "leave out one of them; twill serve --help lists all")
        })?;
        if self.members.is_empty() {
            arguments.choice.scan.get_or_insert_default();
        } else {
            arguments.choice.members.clone_from(&self.members);
            arguments.choice.scan = None;
        }
        for place in arguments.choice.scan.iter_mut().flatten() {
            *place = remote::absolute(place);
        }
        Ok(arguments)
    }
}

/// Refuses what has no meaning where it stands.
fn check_place(name: &str, place: Place, words: &[String]) -> Result<(), Wrong> {
    let in_file = place != Place::CommandLine;
    if in_file && (OF_PROCESS.contains(&name) || is_of_remote_members(name)) {
        let what = format!("{name} is said of the process, which all arrays share");
        return Err(Wrong::new(what, format!("give it on the command line: twill serve --all --{name}")));
    }
    if in_file && ["uuid", "name"].contains(&name) {
        let help = "name the table by it: [array.store], or [array.\"UUID\"]";
        return Err(Wrong::new(format!("{name}: the name of a table says which array is meant"), help));
    }
    if DECIDED_ONCE.contains(&name) {
        let what = format!("{name} gives something up, which is decided for one start and not for every one");
        return Err(Wrong::new(what, format!("for one start: twill serve --join --{name} …")));
    }
    let has_number = name == "ublk" && words.iter().any(|word| word.contains('='));
    let is_of_one = OF_ONE_ARRAY.contains(&name) || in_file && name == "shards" || has_number;
    if place != Place::Array && is_of_one {
        let what =
            format!("{name}{} cannot hold for every array", if has_number { " with a number" } else { "" });
        return Err(Wrong::new(what, "put it into the table of one: [array.NAME]"));
    }
    Ok(())
}

fn unknown(name: &str) -> Wrong {
    let guess = serve_with([format!("--{name}").into()]).err().and_then(|error| {
        match error.get(ContextKind::SuggestedArg)? {
            ContextValue::String(option) => Some(option.trim_start_matches('-').to_owned()),
            _ => None,
        }
    });
    let help = match guess.filter(|guess| !DECIDED_ONCE.contains(&guess.as_str())) {
        Some(guess) => format!("is {guess} meant?"),
        None => "twill serve --help lists the options; here they stand without dashes".to_owned(),
    };
    Wrong::new(format!("twill serve has no option {name}"), help)
}

/// What clap says, without how the command is used.
fn said(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let text = text.trim().trim_start_matches("error: ");
    let text = text.split("\n\n").next().unwrap_or_default();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The words that give an option this value.
fn words(name: &str, value: &DeValue<'_>, kind: OptionKind) -> Result<Vec<String>, Wrong> {
    let bare = || vec![format!("--{name}")];
    let OptionKind::Value { bare: may_be_bare, many } = kind else {
        return match value {
            DeValue::Boolean(true) => Ok(bare()),
            DeValue::Boolean(false) => Ok(Vec::new()),
            _ => Err(Wrong::new(
                format!("{name} is on or off"),
                format!("write {name} = true, or {name} = false"),
            )),
        };
    };
    match value {
        DeValue::Boolean(true) if may_be_bare => Ok(bare()),
        DeValue::Boolean(false) if may_be_bare => Ok(Vec::new()),
        DeValue::Boolean(is_on) => Ok(vec![format!("--{name}={}", if *is_on { "on" } else { "off" })]),
        DeValue::Array(values) if many => {
            values.iter().map(|value| Ok(format!("--{name}={}", text(name, value.get_ref())?))).collect()
        }
        value => Ok(vec![format!("--{name}={}", text(name, value)?)]),
    }
}

fn text(name: &str, value: &DeValue<'_>) -> Result<String, Wrong> {
    match value {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Integer(number) => Ok(number.to_string()),
        DeValue::Float(number) => Ok(number.to_string()),
        DeValue::Array(_) => {
            Err(Wrong::new(format!("{name} takes one value"), format!("write {name} = \"…\"")))
        }
        _ => Err(Wrong::new(format!("{name} takes no such value"), format!("write {name} = \"…\""))),
    }
}

fn members(value: &DeValue<'_>) -> Result<Vec<PathBuf>, Wrong> {
    let wrong = |what: &str| Wrong::new(what, "write members = [\"/dev/nvme0n1\", \"/dev/nvme1n1\"]");
    let DeValue::Array(values) = value else { return Err(wrong("members is a list of paths")) };
    let member = |value: &DeValue<'_>| {
        let DeValue::String(text) = value else { return Err(wrong("members is a list of paths")) };
        let path = member_path(text).map_err(|error| wrong(&error))?;
        let is_whole = path.is_absolute() || remote::address(&path).is_some();
        if is_whole {
            Ok(path)
        } else {
            Err(wrong(&format!("{text} is no whole path: it depends on the folder")))
        }
    };
    let members: Vec<PathBuf> =
        values.iter().map(|value| member(value.get_ref())).collect::<Result<_, _>>()?;
    if members.is_empty() { Err(wrong("members is empty")) } else { Ok(members) }
}
