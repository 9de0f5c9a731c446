//! `serve`'s options as the command line has them: which there are, which were given, and what some of them mean together.

use std::collections::BTreeMap;
use std::ffi::OsString;

use clap::parser::ValueSource;
use clap::{ArgAction, Args as _, CommandFactory as _};

use crate::arguments::{Arguments, Command, ServeArguments, with_negative_numbers};
use crate::remote_arguments::RemoteArguments;

/// What an option of `serve` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionKind {
    /// Nothing: it is there or not.
    Flag,
    /// A value, or with `bare` none, or with `many` several.
    Value {
        /// It may stand without a value.
        bare: bool,
        /// It may be repeated.
        many: bool,
    },
}

/// What the option of `serve` with this long name takes. None: there is no such option.
pub fn option_of_serve(name: &str) -> Option<OptionKind> {
    let command = Arguments::command();
    let serve = command.find_subcommand("serve")?;
    let arg = serve.get_arguments().find(|arg| arg.get_long() == Some(name))?;
    Some(kind(arg))
}

/// Whether an option says how members on other machines are reached: it holds for a process.
pub fn is_of_remote_members(name: &str) -> bool {
    let command = RemoteArguments::augment_args(clap::Command::new("serve"));
    command.get_arguments().any(|arg| arg.get_long() == Some(name))
}

fn kind(arg: &clap::Arg) -> OptionKind {
    if !arg.get_action().takes_values() {
        return OptionKind::Flag;
    }
    let bare = arg.get_num_args().is_some_and(|range| range.min_values() == 0);
    OptionKind::Value { bare, many: matches!(arg.get_action(), ArgAction::Append) }
}

/// The options that a command line of `serve` gives, by their long names, each with the words that give it.
///
/// # Errors
/// What is wrong with the command line.
pub fn given_to_serve(words: Vec<OsString>) -> Result<BTreeMap<String, Vec<String>>, clap::Error> {
    let mut command = with_negative_numbers(Arguments::command());
    let matches = command.try_get_matches_from_mut(words)?;
    let serve = command.find_subcommand("serve").expect("a command");
    let Some(given) = matches.subcommand_matches("serve") else { return Ok(BTreeMap::new()) };
    let is_given = |id: &str| given.value_source(id) == Some(ValueSource::CommandLine);
    let mut options = BTreeMap::new();
    for arg in serve.get_arguments().filter(|arg| is_given(arg.get_id().as_str())) {
        let Some(name) = arg.get_long() else { continue };
        let values = given.get_raw(arg.get_id().as_str()).into_iter().flatten();
        let value = |value: &std::ffi::OsStr| format!("--{name}={}", value.to_string_lossy());
        let mut words: Vec<String> = match kind(arg) {
            OptionKind::Flag => Vec::new(),
            OptionKind::Value { .. } => values.map(value).collect(),
        };
        if words.is_empty() {
            words.push(format!("--{name}"));
        }
        options.insert(name.to_owned(), words);
    }
    Ok(options)
}

/// `serve` with these options and nothing else.
///
/// # Errors
/// What is wrong with them.
pub fn serve_with(words: impl IntoIterator<Item = OsString>) -> Result<ServeArguments, clap::Error> {
    let serve = serve_of(["serve".into()].into_iter().chain(words))?;
    Ok(serve.expect("the first word is serve"))
}

/// The `serve` of a command line, without the program's name. None: it is another command.
///
/// # Errors
/// What is wrong with it.
pub fn serve_of(words: impl IntoIterator<Item = OsString>) -> Result<Option<ServeArguments>, clap::Error> {
    match Arguments::read_from(["twill".into()].into_iter().chain(words))?.command {
        Command::Serve(arguments) => Ok(Some(*arguments)),
        _ => Ok(None),
    }
}
