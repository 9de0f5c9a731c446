//! What commands print: one JSON document, or words.

use std::io::{self, Write as _};
use std::process::ExitCode;

use serde::Serialize;

use crate::exit::ExitKind;
use crate::failure::Failure;
use crate::plain::plain_lines;

/// What a command answers about each of its members.
#[derive(Debug, Serialize)]
pub struct OfMembers<T> {
    /// In the order in which they were named.
    pub members: Vec<T>,
}

/// How a command answers.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    /// One JSON document instead of words.
    pub json: bool,
}

impl Output {
    /// Prints `value` as JSON, or what `words` makes of it, without what a terminal would obey.
    ///
    /// # Errors
    /// As [`Output::line`].
    pub fn print<T: Serialize>(self, value: &T, words: impl FnOnce(&T) -> String) -> Result<(), Failure> {
        if self.json {
            let text = serde_json::to_string_pretty(value).expect("answers are plain data");
            self.line(&text)
        } else {
            self.line(&plain_lines(words(value).trim_end_matches('\n')))
        }
    }

    /// Prints a line. A reader that has gone away, as `head` does, is no error.
    ///
    /// # Errors
    /// [`ExitKind::IoError`]: a reader would take half an answer for the whole.
    pub fn line(self, text: &str) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        match writeln!(out, "{text}").and_then(|()| out.flush()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                let message = format!("the answer could not be written to standard output: {error}");
                Err(Failure::new(ExitKind::IoError, message).help("the command itself has done its work"))
            }
            _ => Ok(()),
        }
    }
}

/// Prints why a command was not done, and ends with its code.
pub fn report(failure: &Failure, output: Output) -> ExitCode {
    if output.json && !failure.answered {
        let text = serde_json::to_string_pretty(&failure.to_json()).expect("a failure is plain data");
        if let Err(unwritten) = output.line(&text) {
            let _gone = writeln!(io::stderr(), "twill: {unwritten}");
        }
    }
    if !failure.said {
        // If standard error is gone, the exit code still says it.
        let _gone = writeln!(io::stderr(), "twill: {failure}");
    }
    failure.kind.into()
}
