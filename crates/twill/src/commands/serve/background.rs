//! `--daemon`: the same program again, in the background. The first process waits until the second serves or says why
//! it does not, and ends with the same exit code.

use std::fs::OpenOptions;
use std::io::Read as _;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::announcement::{Announced, announced_words};
use crate::commands::output::Output;
use crate::exit::ExitKind;
use crate::failure::Failure;
use crate::logging;

/// Starts the second process with the same arguments and waits for its announcement.
///
/// # Errors
/// What the second process reports.
pub fn launch(output: Output) -> Result<(), Failure> {
    let failed = |error: std::io::Error| {
        Failure::new(ExitKind::IoError, format!("cannot start the background process: {error}"))
    };
    let program = std::env::current_exe().map_err(failed)?;
    let arguments = std::env::args_os()
        .skip(1)
        .map(|argument| if argument == "--daemon" { "--in-background".into() } else { argument });
    let mut process = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let mut said = String::new();
    if let Some(mut pipe) = process.stdout.take() {
        pipe.read_to_string(&mut said).map_err(failed)?;
    }
    match serde_json::from_str::<Value>(&said) {
        Ok(value) if value.get("error").is_some() => {
            let _status = process.wait().map_err(failed)?;
            let failure: Failure = serde_json::from_value(value["error"].clone()).map_err(|error| {
                Failure::new(ExitKind::Internal, format!("the background process said {said:?}: {error}"))
            })?;
            // It has printed this on standard error, which both share.
            Err(failure.said())
        }
        Ok(value) => {
            let announced: Announced = serde_json::from_value(value).map_err(|error| {
                Failure::new(ExitKind::Internal, format!("the background process said {said:?}: {error}"))
            })?;
            output.print(&announced, announced_words)
        }
        Err(_) => {
            let status = process.wait().map_err(failed)?;
            let message = format!("the background process ended before it served: {status}");
            Err(Failure::new(ExitKind::Internal, message).help("run it without --daemon to see why"))
        }
    }
}

/// Prints the announcement for the first process, then detaches from the terminal. The log goes on elsewhere.
///
/// # Errors
/// What the system says.
pub fn announce(announced: &Announced) -> Result<(), Failure> {
    let failed = |error: std::io::Error| {
        Failure::new(ExitKind::IoError, format!("cannot go to the background: {error}"))
    };
    // Only now: until here Ctrl-C must reach both processes.
    rustix::process::setsid().map_err(|errno| failed(errno.into()))?;
    Output { json: true }.print(announced, announced_words)?;
    let nowhere = OpenOptions::new().read(true).write(true).open("/dev/null").map_err(failed)?;
    rustix::stdio::dup2_stdout(&nowhere).map_err(|errno| failed(errno.into()))?;
    logging::leave_terminal();
    rustix::stdio::dup2_stderr(&nowhere).map_err(|errno| failed(errno.into()))?;
    Ok(())
}
