//! The program `twill`: reads the command line, does what it says, ends with the exit code of `exit.rs`.
//!
//! Commands that look at members do so themselves; commands on a served array ask its server over the control socket.
#![forbid(unsafe_code)]

mod arguments;
mod bytes;
mod commands;
mod control;
mod counted;
mod exit;
mod failure;
mod logging;
mod own_files;
mod plain;
mod probe;
mod remote;
mod serving;
mod status;
mod words;

use std::io;
use std::path::Path;
use std::process::ExitCode;

use arguments::{Arguments, Command};
use commands::output::{Output, report};
use commands::{
    assemble, bench, create, discover, doubt, events, examine, members, scrub, serve, ssdsim, status as show,
    target, zones,
};
use exit::ExitKind;
use failure::Failure;

/// The program.
pub fn main() -> ExitCode {
    let arguments = match Arguments::read() {
        Ok(arguments) => arguments,
        Err(error) => return not_understood(&error),
    };
    let in_background = matches!(&arguments.command, Command::Serve(serve) if serve.in_background);
    let output = Output { json: arguments.json || in_background };
    match logging::begin(&arguments).and_then(|()| run(&arguments.command, output)) {
        Ok(()) => ExitKind::Ok.into(),
        Err(failure) => report(&failure, output),
    }
}

/// What the control socket of a stopped array answers to a line: everything about a call but its effect. For fuzzing.
#[doc(hidden)]
pub fn answer_stopped(line: &[u8]) -> Option<Vec<u8>> {
    control::answer_line(line, &serve::Controlled::stopped())
}

fn run(command: &Command, output: Output) -> Result<(), Failure> {
    match command {
        Command::Create(arguments) => create::run(arguments, output),
        Command::Assemble(arguments) => assemble::run(arguments, output),
        Command::Serve(arguments) => serve::run(arguments, output),
        Command::Target(arguments) => target::run(arguments, output),
        Command::Discover(arguments) => discover::run(arguments, output),
        Command::Stop(arguments) => members::stop(arguments, output),
        Command::Status(arguments) => show::run(arguments, output),
        Command::Detail(arguments) => show::detail(arguments, output),
        Command::Examine(arguments) => examine::run(arguments, output),
        Command::Zones(arguments) => zones::run(arguments, output),
        Command::Fail(arguments) => members::fail(arguments, output),
        Command::AcceptDoubt(arguments) => doubt::accept(arguments, output),
        Command::Remove(arguments) => members::remove(arguments, output),
        Command::Add(arguments) => members::add(arguments, output),
        Command::ReAdd(arguments) => members::re_add(arguments, output),
        Command::Replace(arguments) => members::replace(arguments, output),
        Command::Check(arguments) => scrub::check(arguments, output),
        Command::Repair(arguments) => scrub::repair(arguments, output),
        Command::Scrub(arguments) => scrub::control(arguments, output),
        Command::Events(arguments) => events::run(arguments, output),
        Command::Set(arguments) => members::set(arguments, output),
        Command::Bench(arguments) => bench::run(arguments, output),
        Command::Ssdsim(arguments) => ssdsim::run(arguments, output),
    }
}

/// Prints the help that was asked for, or what is wrong with the command line: with --json as an object too.
fn not_understood(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        return match error.print() {
            Err(unwritten) if unwritten.kind() != io::ErrorKind::BrokenPipe => {
                report(&Failure::from_io("write", Path::new("the help"), &unwritten), Output { json: false })
            }
            _ => ExitKind::Ok.into(),
        };
    }
    if std::env::args_os().any(|argument| argument == "--json") {
        let text = error.render().to_string();
        report(&wrong_usage(&text), Output { json: true });
    }
    let _gone = error.print();
    ExitKind::Usage.into()
}

/// clap's words: what is wrong, in as many lines as it takes, and how the command is used.
fn wrong_usage(text: &str) -> Failure {
    let text = text.trim().trim_start_matches("error: ");
    let (message, help) = text.split_once("\n\nUsage:").unwrap_or((text, ""));
    let failure = Failure::new(ExitKind::Usage, message).said();
    if help.is_empty() { failure } else { failure.help(format!("Usage:{help}")) }
}
