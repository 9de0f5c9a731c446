//! `twill ssdsim`: the simulator of the adaptive-parity paper's SSD, as its crate has it.

use serde_json::json;
use ssdsim::Error;
use ssdsim::cli::{Command, execute, make_report};

use super::output::Output;
use crate::arguments::SsdsimArguments;
use crate::exit::ExitKind;
use crate::failure::Failure;

/// Does what one of its commands says.
///
/// # Errors
/// What is wrong with a trace, a device or a file.
pub fn run(arguments: &SsdsimArguments, output: Output) -> Result<(), Failure> {
    match &arguments.command {
        Command::Run(run) => {
            let run = ssdsim::cli::RunArgs { json: output.json, ..run.clone() };
            execute(&Command::Run(run)).map_err(|error| failure(&error))
        }
        Command::Report(report) => {
            let page = make_report(report).map_err(|error| failure(&error))?;
            output.print(&json!({ "page": page }), |_| format!("wrote {}", page.display()))
        }
        _ if output.json => Err(Failure::new(ExitKind::Usage, "only run and report answer in JSON")),
        other => execute(other).map_err(|error| failure(&error)),
    }
}

fn failure(error: &Error) -> Failure {
    let kind = match error {
        Error::Device(_) => ExitKind::BadGeometry,
        Error::Trace { .. } | Error::Argument(_) => ExitKind::Usage,
        Error::Io { source, .. } => source.kind().into(),
        Error::Figure(_) => ExitKind::Internal,
    };
    Failure::new(kind, error.to_string())
}
