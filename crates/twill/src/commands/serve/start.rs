//! `start`, and `serve --join`: the process that serves all arrays is asked to serve further ones.

use std::ffi::OsString;
use std::path::Path;

use serde_json::Value;

use super::all::{Start, path};
use super::announcement::{Started, started_words};
use crate::arguments::all::StartArguments;
use crate::commands::output::Output;
use crate::control::Client;
use crate::exit::ExitKind;
use crate::failure::Failure;
use crate::remote;

/// Has it serve an array, or every one that it does not serve yet.
///
/// # Errors
/// There is no such process, or why an array is not served.
pub fn run(arguments: &StartArguments, output: Output) -> Result<(), Failure> {
    let word = arguments.array.as_deref().map(|word| {
        let is_path = word.contains('/') || std::fs::exists(word).unwrap_or(false);
        if is_path { remote::absolute(word.as_ref()).display().to_string() } else { word.to_owned() }
    });
    let at = arguments.control.clone().map_or_else(path, Ok)?;
    ask(&at, &Start { array: word, ..Start::default() }, output)
}

/// Has it serve what this command line would serve.
///
/// # Errors
/// As [`run`].
pub fn join(output: Output) -> Result<(), Failure> {
    let words = std::env::args_os().skip(1).map(OsString::into_string);
    let words: Result<Vec<String>, _> = words.collect();
    let words = words.map_err(|word| {
        let message = format!("{}: only words in UTF-8 reach the other process", word.display());
        Failure::new(ExitKind::Usage, message)
    })?;
    let folder = std::env::current_dir().map_err(|error| {
        Failure::new(ExitKind::IoError, format!("cannot tell the current folder: {error}"))
    })?;
    ask(&path()?, &Start { words: Some(words), folder, ..Start::default() }, output)
}

fn ask(at: &Path, start: &Start, output: Output) -> Result<(), Failure> {
    let mut client = Client::connect(at).map_err(|failure| match failure.kind {
        ExitKind::NotFound => {
            Failure::new(ExitKind::NotFound, "no process serves all arrays: twill serve --all is not running")
                .help("begin it with: systemctl start twill; or serve the array by itself: twill serve")
        }
        _ => failure,
    })?;
    let params: Value = serde_json::to_value(start).expect("plain data");
    let started: Started = client.ask("start", params)?;
    output.print(&started, started_words)?;
    if started.not_served.is_empty() {
        return Ok(());
    }
    Err(Failure::from_problems("not every array is served", started.not_served).answered())
}
