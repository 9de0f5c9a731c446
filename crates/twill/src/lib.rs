//! The program `twill`: reads the command line, does what it says, ends with the exit code of `exit.rs`.
//!
//! Commands that look at members do so themselves; commands on a served array ask its server over the control socket.
#![forbid(unsafe_code)]

mod arguments;
mod array_name;
mod array_uuid;
mod bytes;
mod commands;
mod control;
mod counted;
mod duration;
mod exit;
mod failure;
mod logging;
mod overview;
mod own_files;
mod phrasebook;
mod plain;
mod probe;
mod quoted;
mod remote;
mod remote_arguments;
mod service_manager;
mod serving;
mod status;
mod switch;
mod words;

use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use arguments::{Arguments, Command};
use clap::CommandFactory as _;
use commands::output::{Output, report};
use commands::{
    assemble, correct_size, create, discover, doubt, events, examine, fabric, grow, list, members, monitor,
    pages, rename, scrub, serve, status as show, target, top, zero_superblock, zones,
};
#[cfg(feature = "laboratory")]
use commands::{bench, ssdsim};
use exit::ExitKind;
use failure::Failure;
use phrasebook::Phrase;
use plain::plain;

/// The program.
pub fn main() -> ExitCode {
    let words: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    if let Some(phrase) = phrasebook::answer(&words, |path| Path::new(path).exists()) {
        return in_mdadm_words(&phrase, words.iter().any(|word| word == "--json"));
    }
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
        Command::Start(arguments) => serve::start::run(arguments, output),
        Command::Stop(arguments) => members::stop(arguments, output),
        Command::Status(arguments) => show::run(arguments, output),
        Command::Top(arguments) => top::run(arguments, output),
        Command::Detail(arguments) => show::detail(arguments, output),
        Command::Examine(arguments) => examine::run(arguments, output),
        Command::List(arguments) => list::run(arguments, output),
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
        Command::Fabric(command) => fabric::run(command, output),
        Command::Monitor(arguments) => monitor::run(arguments, output),
        Command::Rename(arguments) => rename::run(arguments, output),
        Command::Grow(arguments) => grow::run(arguments, output),
        Command::ZeroSuperblock(arguments) => zero_superblock::run(arguments, output),
        Command::CorrectSize(arguments) => correct_size::run(arguments, output),
        Command::Set(arguments) => members::set(arguments, output),
        #[cfg(feature = "laboratory")]
        Command::Bench(arguments) => bench::run(arguments, output),
        Command::Completions(arguments) => pages::completions(arguments, Arguments::command(), output),
        Command::ManPages(arguments) => pages::man_pages(arguments, Arguments::command()),
        #[cfg(feature = "laboratory")]
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

/// Answers a line of mdadm's by the line to type here.
fn in_mdadm_words(phrase: &Phrase, json: bool) -> ExitCode {
    let how = if phrase.lines.is_empty() { "Twill has no such thing" } else { "here you type" };
    let failure = Failure::new(ExitKind::Usage, format!("{} is mdadm's; {how}", phrase.said));
    let help: Vec<_> = phrase.lines.iter().chain(&phrase.notes).map(|line| plain(line)).collect();
    let _gone = writeln!(io::stderr(), "twill: {failure}\n  {}", help.join("\n  "));
    let help = help.join("\n");
    report(&failure.help(help).said(), Output { json })
}

/// clap's words: what is wrong, in as many lines as it takes, and how the command is used.
fn wrong_usage(text: &str) -> Failure {
    let text = text.trim().trim_start_matches("error: ");
    let (message, help) = text.split_once("\n\nUsage:").unwrap_or((text, ""));
    let failure = Failure::new(ExitKind::Usage, message).said();
    if help.is_empty() { failure } else { failure.help(format!("Usage:{help}")) }
}
