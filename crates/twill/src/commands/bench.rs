//! `twill bench`: what an array does on this machine, beside the floor that its plan allows.

pub mod arguments;
mod meaning;

pub use arguments::{BenchArguments, BenchCommand};

use bench::setting::Setting;

use super::output::Output;
use crate::exit::ExitKind;
use crate::failure::Failure;
use crate::remote;

/// Runs it and prints what came out.
///
/// # Errors
/// What is wrong with the setting, a member or a trace; a request that failed; contents that are wrong.
pub fn run(arguments: &BenchArguments, output: Output) -> Result<(), Failure> {
    match &arguments.command {
        None => {
            meaning::check(&arguments.run)?;
            remote::set(&arguments.run.remote)?;
            let setting = Setting { remote: Some(remote::options().clone()), ..arguments.run.setting() };
            let figures = bench::run::run(&setting).map_err(|error| failure(&error))?;
            output.print(&figures, bench::figures::Figures::words)?;
        }
        Some(BenchCommand::Report(report)) => {
            let plan = bench::report::Plan {
                set: report.set,
                only: report.only.clone(),
                measured: report.measured.clone(),
                traces: report.traces.clone(),
                output: report.output.clone(),
                runtime: report.runtime,
                member_bytes: report.member_size,
            };
            let page =
                bench::report::write(&plan, &|line| eprintln!("{line}")).map_err(|error| failure(&error))?;
            let answer = serde_json::json!({ "page": page });
            output.print(&answer, |_| page.display().to_string())?;
        }
        Some(BenchCommand::Table(table)) => {
            if let Some(path) = &table.markdown {
                bench::table::check_page(path).map_err(|error| failure(&error))?;
            }
            let measured = bench::table::measure(&table.plan(), &|line| eprintln!("{line}"));
            let measured = measured.map_err(|error| failure(&error))?;
            let printed = output.print(&measured, bench::table::Table::words);
            if let Some(path) = &table.markdown {
                bench::table::write_into(path, &measured).map_err(|error| failure(&error))?;
            }
            printed?;
        }
        Some(BenchCommand::Nbd(nbd)) => {
            let measured = bench::beside::nbd::measure(&nbd.plan(), &|line| eprintln!("{line}"));
            output.print(&measured.map_err(|error| failure(&error))?, bench::beside::Beside::words)?;
        }
        Some(BenchCommand::Files(files)) => {
            let measured = bench::beside::files::measure(&files.plan(), &|line| eprintln!("{line}"));
            output.print(&measured.map_err(|error| failure(&error))?, bench::beside::Beside::words)?;
        }
        Some(BenchCommand::Rebuild(rebuild)) => {
            let measured = bench::rebuild::measure(&rebuild.plan(), &|line| eprintln!("{line}"));
            output.print(&measured.map_err(|error| failure(&error))?, bench::rebuild::Rebuild::words)?;
        }
        Some(BenchCommand::Starts(zoned)) => {
            let measured = bench::zoned::starts::measure(&zoned.plan(), &|line| eprintln!("{line}"));
            output.print(&measured.map_err(|error| failure(&error))?, bench::zoned::starts::Starts::words)?;
        }
        Some(BenchCommand::Aged(aged)) => {
            let measured =
                bench::zoned::aged::measure(&aged.plan(), aged.varied(), &|line| eprintln!("{line}"));
            output.print(&measured.map_err(|error| failure(&error))?, bench::zoned::aged::Aged::words)?;
        }
        Some(BenchCommand::Zoned(zoned)) => {
            let measured = bench::zoned::measure(&zoned.plan(), &|line| eprintln!("{line}"));
            output.print(&measured.map_err(|error| failure(&error))?, bench::zoned::ZonedFigures::words)?;
        }
        Some(BenchCommand::Memory(memory)) => {
            let measured = bench::footprint::measure(&memory.plan(), &|line| eprintln!("{line}"));
            output.print(&measured.map_err(|error| failure(&error))?, bench::footprint::Footprint::words)?;
        }
    }
    Ok(())
}

fn failure(error: &bench::Error) -> Failure {
    use bench::Error;
    use host::device::OpenErrorKind;
    let kind = match error {
        Error::Setting(_) | Error::Trace { .. } => ExitKind::Usage,
        Error::Occupied { .. } | Error::NotLookedAt { .. } => ExitKind::NeedsForce,
        Error::Member(open) => match open.kind {
            OpenErrorKind::NotFound => ExitKind::NotFound,
            OpenErrorKind::Permission => ExitKind::Permission,
            OpenErrorKind::InUse => ExitKind::MemberInUse,
            OpenErrorKind::TooSmall => ExitKind::BadGeometry,
            _ => ExitKind::IoError,
        },
        Error::Io { source, .. } => source.kind().into(),
        Error::Program { .. } => ExitKind::NotFound,
        Error::Request(_) | Error::Shards(_) | Error::Peer { .. } => ExitKind::IoError,
        Error::Contents(_) | Error::Figure(_) => ExitKind::Internal,
    };
    Failure::new(kind, error.to_string())
}
