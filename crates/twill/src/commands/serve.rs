//! `serve`: one array, or all of this machine, until they are stopped.

mod all;
mod announcement;
mod background;
mod control;
mod cost;
mod ending;
mod metrics;
mod one;
mod options;
mod page;
mod picked;
mod remotes;
mod signals;
mod spares;
pub mod start;
mod until_end;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;

use engine::array::assemble::Filter;

use super::output::Output;
use super::status;
use crate::arguments::ServeArguments;
use crate::exit::ExitKind;
use crate::failure::Failure;
use crate::own_files::PidFile;
use crate::probe::candidates::read_named;
use crate::probe::chosen::Chosen;
use crate::remote;
use crate::service_manager;
use crate::serving::Process;
use announcement::{Announced, Announcement};
pub use control::Controlled;
use ending::Ending;
use one::{ToServe, start_when_free};
use options::{quiet_options, remote_arguments};
use picked::Picked;
use signals::Watch;
use until_end::until_end;

/// Serves an array until it is stopped, or with --all those of this machine.
///
/// # Errors
/// Why it could not be started or not be stopped in order.
pub fn run(arguments: &ServeArguments, output: Output) -> Result<(), Failure> {
    if arguments.of_all.join {
        return start::join(output);
    }
    if arguments.daemon && !arguments.in_background {
        return background::launch(output);
    }
    if arguments.of_all.all {
        return all::run(arguments, output);
    }
    remote::set(&remote_arguments(arguments))?;
    let to_serve = ToServe::choose(arguments)?;
    let (sender, endings) = mpsc::channel();
    let watch = Watch::start(&sender, output, arguments.in_background)?;
    let server = to_serve.bind()?;
    let pid_file = arguments.pid_file.as_deref();
    let pid_file = pid_file.map(|path| PidFile::at(path, to_serve.paths())).transpose()?;
    let process = Process::of_one_array(arguments.poll);
    let warnings = to_serve.warnings.clone();
    let hear = Box::new(move |ending| sender.send(ending).is_ok());
    let controlled = to_serve.start(&process, server.path(), hear)?;
    if let Some(Err(failure)) = pid_file.as_ref().map(PidFile::write) {
        controlled.stop(false, true)?;
        return Err(failure);
    }
    let announcement = Announcement::new(controlled.status()?, server.path(), warnings);
    if let Err(error) = server.start(Arc::clone(&controlled) as _) {
        controlled.stop(false, true)?;
        return Err(Failure::from_io("answer at", server.path(), &error));
    }
    tracing::info!(array = announcement.name, "serving");
    if arguments.in_background {
        background::announce(&Announced::One(announcement.clone()))?;
    } else if let Err(failure) = output.print(&announcement, announcement::words) {
        tracing::warn!("{failure}"); // it serves all the same
    }
    watch.begin_to_obey();
    service_manager::ready(&announcement::summary(&announcement));
    let outcome = until_end(&endings, &|| {
        let controlled = Arc::clone(&controlled);
        thread::spawn(move || controlled.stop_and_tell());
    });
    if let (Err(failure), true) = (&outcome, arguments.in_background) {
        tracing::error!("{failure}");
    }
    drop(server);
    drop(pid_file);
    outcome
}

/// Serves an array without exports until its resync is done: for `create --wait`.
///
/// # Errors
/// The resync was interrupted or cannot go on; it continues when the array is served.
pub fn resync_and_stop(members: &[PathBuf], set_uuid: [u8; 16], output: Output) -> Result<(), Failure> {
    let (sender, endings) = mpsc::channel();
    let watch = Watch::start(&sender, output, false)?;
    let filter = Filter { set_uuid: Some(set_uuid), ..Filter::default() };
    let choose = || Chosen::decide(read_named(members)?, &filter).map(Picked::InPlace);
    let process = Process::of_one_array(false);
    let (_, serving) = start_when_free(choose()?, &quiet_options(), &process, choose)?;
    watch.begin_to_obey();
    let interrupted = || endings.try_iter().any(|ending| matches!(ending, Ending::Signal { .. }));
    let mut bars = status::Bars::new(output);
    let is_shown = !output.json; // the answer is the one document
    let outcome = loop {
        let now = serving.status();
        if is_shown && let Err(failure) = bars.show(&now) {
            break Err(failure);
        }
        if interrupted() {
            let failure =
                Failure::new(ExitKind::Interrupted, "the array is made; its resync was interrupted");
            break Err(failure.help("the resync goes on when the array is served"));
        }
        let Some(rebuild) = &now.rebuild else { break Ok(()) };
        if now.failed || rebuild.pending {
            let failure = Failure::new(ExitKind::IoError, "the array is made; its resync cannot go on");
            break Err(failure.help("serve the array, then see twill status and twill events"));
        }
        thread::sleep(status::INTERVAL);
    };
    bars.finish();
    serving.stop()?;
    outcome
}
